//! TLS of `cairn up`: the store's own certificate, generated on first use and kept, or a given one.
//! Both are configured in the proxy's conf in the ordinary way.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use cairn_formats::ini::Section;
use cairn_http::tls::fingerprint;
use rcgen::{CertificateParams, DnType, KeyPair, date_time_ymd};

use crate::conf::ServerConf;
use crate::role::Role;
use crate::store_tls::StoreTls;
use crate::up::layout::{Layout, write_file};
use crate::up::{Store, UpOptions, edit};

/// TLS option for clients' connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsChoice {
    Off,
    /// With the store's own certificate.
    Own,
    /// With this certificate and key.
    Given(PathBuf, PathBuf),
}

/// Validity of a generated certificate, in years.
const VALID_YEARS: i32 = 10;

/// Writes the chosen option into the proxy's conf; returns the resulting TLS.
pub(crate) fn settle(store: &Store, options: &UpOptions) -> Result<Option<StoreTls>> {
    let layout = &store.layout;
    let path = layout.conf(Role::Proxy.server_name());
    if let Some(choice) = &options.tls {
        let pair = match choice {
            TlsChoice::Off => None,
            TlsChoice::Own => Some(own(layout, store.bind.ip(), &options.console_hosts)?),
            TlsChoice::Given(cert, key) => Some((absolute(cert)?, absolute(key)?)),
        };
        let before =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let is_tls = |option: &str| matches!(option, "cert_file" | "key_file");
        let mut text = edit::remove_options(&before, "DEFAULT", is_tls);
        if let Some((cert, key)) = &pair {
            for (option, file) in [("cert_file", cert), ("key_file", key)] {
                text = edit::set_option(&text, "DEFAULT", option, &in_conf(file)?);
            }
        }
        if text != before {
            write_file(&path, text.as_bytes())?;
        }
    }
    shown(layout, &ServerConf::load(&path)?.app)
}

fn shown(layout: &Layout, section: &Section) -> Result<Option<StoreTls>> {
    let file = |option: &str| section.list_or(option, "").into_iter().next();
    let (Some(cert), Some(key)) = (file("cert_file"), file("key_file")) else {
        return Ok(None);
    };
    let cert = PathBuf::from(cert);
    Ok(Some(StoreTls {
        fingerprint: fingerprint(&cert)?,
        is_own: cert == own_files(layout).0,
        key: key.into(),
        cert,
    }))
}

fn absolute(path: &Path) -> Result<PathBuf> {
    fs::canonicalize(path).with_context(|| format!("--tls-cert, --tls-key: {}", path.display()))
}

/// A path for the conf, which must not contain a comma.
fn in_conf(path: &Path) -> Result<String> {
    match path
        .to_str()
        .filter(|text| !text.contains([',', '\n', '%']))
    {
        Some(text) => Ok(text.to_owned()),
        None => bail!(
            "{}: this path cannot be written into a conf file; choose one without commas",
            path.display()
        ),
    }
}

fn own_files(layout: &Layout) -> (PathBuf, PathBuf) {
    (
        layout.etc.join("tls-cert.pem"),
        layout.etc.join("tls-key.pem"),
    )
}

/// The store's own certificate, generated if missing.
fn own(layout: &Layout, bind: IpAddr, names: &[String]) -> Result<(PathBuf, PathBuf)> {
    let (cert, key) = own_files(layout);
    if cert.exists() && key.exists() {
        return Ok((cert, key));
    }
    let made = KeyPair::generate().context("cannot make a key")?;
    let certificate = params(bind, names)?
        .self_signed(&made)
        .context("cannot make a certificate")?;
    // The key first: a certificate alone would be taken for a complete pair.
    write_file(&key, made.serialize_pem().as_bytes())?;
    write_file(&cert, certificate.pem().as_bytes())?;
    Ok((cert, key))
}

fn params(bind: IpAddr, names: &[String]) -> Result<CertificateParams> {
    let mut all = vec!["localhost".to_owned()];
    for ip in [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into(), bind] {
        if !IpAddr::is_unspecified(&ip) {
            all.push(ip.to_string());
        }
    }
    all.extend(host_name());
    all.extend(names.iter().cloned());
    all.dedup();
    let mut params = CertificateParams::new(all).context("a host's name")?;
    params
        .distinguished_name
        .push(DnType::CommonName, "cairn up");
    let year = this_year();
    params.not_before = date_time_ymd(year - 1, 1, 1);
    params.not_after = date_time_ymd(year + VALID_YEARS, 1, 1);
    Ok(params)
}

fn host_name() -> Option<String> {
    let name = rustix::system::uname().nodename().to_str().ok()?.to_owned();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    (!name.is_empty() && name.chars().all(is_name)).then_some(name)
}

fn this_year() -> i32 {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH);
    let years = seconds.map_or(0, |since| since.as_secs() / 31_556_952);
    1970 + i32::try_from(years).unwrap_or(0)
}
