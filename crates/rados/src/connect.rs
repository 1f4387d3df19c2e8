//! Why a cluster cannot be reached, told apart: librados answers most of it with ENOENT.

use std::path::Path;

use thiserror::Error;

use crate::{Cluster, ENOENT};

const EPERM: i32 = 1;
const EACCES: i32 = 13;
const EINVAL: i32 = 22;
const ETIMEDOUT: i32 = 110;

/// The parts that a connection lacks.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConnectError {
    #[error("cannot read the conf file {path}: {}", std::io::Error::from_raw_os_error(*errno))]
    Conf { path: String, errno: i32 },
    #[error("no monitor is named, neither as an option nor as mon_host of {conf}")]
    NoMonitor { conf: String },
    #[error("the monitors {monitors:?} are no addresses that can be found")]
    Address { monitors: String },
    #[error("no monitor answered at {monitors}")]
    Silent { monitors: String },
    #[error("there is no key for client.{user}: no keyring at {looked}")]
    Keyring { user: String, looked: String },
    #[error("there is no key for client.{user} in {keyring}")]
    NotInKeyring { user: String, keyring: String },
    #[error("the monitors refused client.{user}: there is no such user, or it has another key")]
    Refused { user: String },
}

/// Why connecting failed with `errno`; `None` where nothing is known but that.
pub(crate) fn cause(
    cluster: &Cluster,
    user: Option<&str>,
    conf: Option<&str>,
    errno: i32,
) -> Option<ConnectError> {
    let option = |name: &str| cluster.option(name).unwrap_or_default();
    let user = user.unwrap_or("admin").to_owned();
    let monitors = option("mon_host");
    match errno {
        ENOENT if monitors.is_empty() => Some(ConnectError::NoMonitor {
            conf: conf.unwrap_or("/etc/ceph/ceph.conf").to_owned(),
        }),
        ENOENT => {
            if !option("key").is_empty() || !option("keyfile").is_empty() {
                return None;
            }
            let looked = option("keyring");
            Some(keyring(user, looked))
        }
        EPERM | EACCES => Some(ConnectError::Refused { user }),
        EINVAL => Some(ConnectError::Address { monitors }),
        ETIMEDOUT => Some(ConnectError::Silent { monitors }),
        _ => None,
    }
}

/// `looked`: paths, separated by commas.
fn keyring(user: String, looked: String) -> ConnectError {
    let paths = looked.split([',', ';']).map(str::trim);
    match paths.clone().find(|path| Path::new(path).is_file()) {
        Some(keyring) => ConnectError::NotInKeyring {
            user,
            keyring: keyring.to_owned(),
        },
        None => ConnectError::Keyring { user, looked },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keyrings_are_looked_for_in_turn() {
        let here = file!().to_owned();
        let missing = keyring("a".into(), "/no/1, /no/2".into());
        assert_eq!(
            missing.to_string(),
            "there is no key for client.a: no keyring at /no/1, /no/2"
        );
        // Tests run in the crate's folder, `file!` counts from the workspace's.
        let there = Path::new("../..").join(here).display().to_string();
        let found = keyring("a".into(), format!("/no/1,{there}"));
        assert_eq!(
            found,
            ConnectError::NotInKeyring {
                user: "a".into(),
                keyring: there
            }
        );
    }
}
