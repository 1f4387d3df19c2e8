//! TLS for calls between a cluster's servers, configured once for all servers and daemons of a
//! process, which share their connections.
//!
//! Options (default): `backend_ca_file` (none: no TLS; authorities that must have signed servers'
//! certificates), `backend_cert_file` and `backend_key_file` (none: client certificate for servers
//! with `require_client_cert`), `backend_tls_name` (none: name that a server's certificate must
//! have; by default its address in the ring).

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use cairn_formats::ini::Section;
use cairn_http::tls::{ClientTls, Trust};

use crate::conf::ServerConf;

/// Options of one conf.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Choice {
    ca: PathBuf,
    own: Option<(PathBuf, PathBuf)>,
    name: Option<String>,
}

/// TLS settings of a process's confs, which must agree.
pub(crate) fn of_all<'a>(confs: impl Iterator<Item = &'a ServerConf>) -> Result<Option<ClientTls>> {
    let mut first: Option<(Option<Choice>, &Path)> = None;
    for conf in confs {
        let choice = read(&conf.app)?;
        match &first {
            None => first = Some((choice, &conf.path)),
            Some((known, _)) if *known == choice => {}
            Some((_, path)) => bail!(
                "{} and {} do not call other servers by the same TLS: give both the same \
                 backend_ca_file, backend_cert_file, backend_key_file and backend_tls_name, or serve \
                 them in processes of their own",
                path.display(),
                conf.path.display()
            ),
        }
    }
    first.and_then(|(choice, _)| choice).map(load).transpose()
}

/// TLS settings of a daemon's conf.
pub(crate) fn of(section: &Section) -> Result<Option<ClientTls>> {
    read(section)?.map(load).transpose()
}

fn load(choice: Choice) -> Result<ClientTls> {
    let own = choice.own.as_ref();
    let own = own.map(|(cert, key)| (cert.as_path(), key.as_path()));
    let tls = ClientTls::new(&Trust::File(choice.ca), own)?;
    match &choice.name {
        Some(name) => Ok(tls.with_name(name)?),
        None => Ok(tls),
    }
}

fn read(section: &Section) -> Result<Option<Choice>> {
    let option = |name: &str| section.get(name).filter(|value| !value.is_empty());
    let own = match (option("backend_cert_file"), option("backend_key_file")) {
        (Some(cert), Some(key)) => Some((cert.into(), key.into())),
        (None, None) => None,
        _ => {
            let remedy = "backend_cert_file and backend_key_file go together";
            return Err(section.bad("backend_key_file", remedy).into());
        }
    };
    let name = option("backend_tls_name").map(str::to_owned);
    let Some(ca) = option("backend_ca_file") else {
        if own.is_some() || name.is_some() {
            let remedy = "give the authorities of the servers' certificates";
            return Err(section.bad("backend_ca_file", remedy).into());
        }
        return Ok(None);
    };
    Ok(Some(Choice {
        ca: ca.into(),
        own,
        name,
    }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn options_go_together() {
        let read = |options: &[(&str, &str)]| read(&Section::from_pairs("app", options));
        assert_eq!(read(&[]).unwrap(), None);
        let all = [
            ("backend_ca_file", "/ca"),
            ("backend_cert_file", "/cert"),
            ("backend_key_file", "/key"),
        ];
        let choice = read(&all).unwrap().unwrap();
        assert_eq!(choice.own, Some(("/cert".into(), "/key".into())));
        for wrong in [&all[..2], &all[1..], &[("backend_tls_name", "x")]] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}
