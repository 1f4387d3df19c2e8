//! Target on the command line, which overrides the workload's: address, sign-in, and any setting by
//! its name. Published workloads contain other people's addresses.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::plan::{Access, Plan, Settings};

/// A store and its sign-in from the command line. Not `Debug`: it contains secrets.
#[derive(Clone, Default)]
pub struct Target {
    /// Address and kind of the store:
    ///
    /// | URL | store |
    /// | --- | --- |
    /// | `http://host:8080` | Swift, TempAuth at `/auth/v1.0`; S3 when the workload is for S3 |
    /// | `http://host:8080/auth/v1.0` | Swift, TempAuth there |
    /// | `http://host:5000/v3`, `…/v2.0` | Swift, Keystone there |
    /// | `http://host:8080/v1/AUTH_a` | Swift, that account; with a token, or TempAuth of that host |
    /// | `s3+http://host:9000` | S3 |
    /// | `rados:POOL`, `rados://MONITOR/POOL` | Ceph RADOS |
    /// | `file:/a/folder`, `/a/folder` | a file system |
    /// | `noop:` | nothing at all |
    pub url: Option<String>,
    /// User: `account:user`; `project:user` of Keystone; the access key of S3.
    pub user: Option<String>,
    pub key: Option<String>,
    /// A token, instead of signing in.
    pub token: Option<String>,
    /// Settings by the names that [`Access`] documents, including `type`.
    pub auth: Vec<(String, String)>,
    pub storage: Vec<(String, String)>,
}

/// Reasons why a target is invalid.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum TargetError {
    #[error(
        "target '{url}': no kind of store is told from it; give http://…, s3+http://…, \
         rados:POOL, file:/a/folder or noop:"
    )]
    Unknown { url: String },
    #[error("target '{url}': {what}")]
    Incomplete { url: String, what: &'static str },
}

/// Settings that depend on the address, and are dropped with it.
const OF_AN_ADDRESS: &[&str] = &[
    "auth_url",
    "storage_url",
    "token",
    "endpoint",
    "proxies",
    "proxyhost",
    "proxyport",
    "host",
    "port",
    "nsroot",
    "path",
];

impl Target {
    /// Replaces the store in `plan`.
    ///
    /// # Errors
    /// `Unknown` for a URL that names no kind of store; `Incomplete` for `file:` without a folder.
    pub fn apply(&self, plan: &mut Plan) -> Result<(), TargetError> {
        if let Some(url) = &self.url {
            let access = self.at(url, &plan.access)?;
            for work in plan.stages.iter_mut().flat_map(|stage| &mut stage.works) {
                work.access = work.access.take().and_then(|own| elsewhere(own, &access));
            }
            plan.access = access;
        }
        self.sign_in(&mut plan.access);
        for work in plan.stages.iter_mut().flat_map(|stage| &mut stage.works) {
            if let Some(own) = &mut work.access {
                self.sign_in(own);
            }
        }
        for (settings, said) in [
            (&mut plan.access.auth, &self.auth),
            (&mut plan.access.storage, &self.storage),
        ] {
            for (key, value) in said {
                if key == "type" {
                    settings.kind.clone_from(value);
                } else {
                    settings.config.insert(key.clone(), value.clone());
                }
            }
        }
        Ok(())
    }

    fn at(&self, url: &str, old: &Access) -> Result<Access, TargetError> {
        let settings = |kind: &str, pairs: &[(&str, &str)]| Settings {
            kind: kind.to_owned(),
            config: pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
        };
        let none = || settings("none", &[]);
        let incomplete = |what| TargetError::Incomplete {
            url: url.to_owned(),
            what,
        };
        let (auth, storage) = if matches!(url, "noop" | "noop:" | "noop://") {
            (none(), settings("noop", &[]))
        } else if let Some(path) = folder(url) {
            if path.is_empty() {
                return Err(incomplete("no folder; give file:/a/folder"));
            }
            (none(), settings("file", &[("path", path)]))
        } else if let Some(rest) = url
            .strip_prefix("rados:")
            .or_else(|| url.strip_prefix("librados:"))
        {
            let (monitor, pool) = match rest.strip_prefix("//") {
                Some(rest) => rest.split_once('/').unwrap_or((rest, "")),
                None => ("", rest),
            };
            let pairs = [("endpoint", monitor), ("pool", pool)];
            let said: Vec<_> = pairs
                .into_iter()
                .filter(|(_, value)| !value.is_empty())
                .collect();
            (none(), settings("librados", &said))
        } else if let Some(endpoint) = url.strip_prefix("s3+") {
            (none(), settings("s3", &[("endpoint", endpoint)]))
        } else {
            let plain = url.strip_prefix("swift+").unwrap_or(url);
            let web = plain.starts_with("http://") || plain.starts_with("https://");
            match old.storage.kind.as_str() {
                _ if !web => {
                    return Err(TargetError::Unknown {
                        url: url.to_owned(),
                    });
                }
                "s3" if plain == url => (none(), settings("s3", &[("endpoint", plain)])),
                _ => self.swift(plain),
            }
        };
        Ok(Access {
            auth: with_rest(auth, &old.auth),
            storage: with_rest(storage, &old.storage),
        })
    }

    fn swift(&self, url: &str) -> (Settings, Settings) {
        let trimmed = url.trim_end_matches('/');
        let after = trimmed.find("://").map_or(0, |at| at + 3);
        let slash = trimmed[after..]
            .find('/')
            .map_or(trimmed.len(), |at| at + after);
        let (origin, path) = trimmed.split_at(slash);
        let mut storage = Settings {
            kind: "swift".to_owned(),
            ..Settings::default()
        };
        let (kind, auth_url) = if path.ends_with("/v3") || path.ends_with("/v2.0") {
            ("keystone", trimmed.to_owned())
        } else if path.is_empty() {
            ("swauth", format!("{origin}/auth/v1.0"))
        } else if path.starts_with("/v1/") {
            storage
                .config
                .insert("storage_url".to_owned(), trimmed.to_owned());
            ("swauth", format!("{origin}/auth/v1.0"))
        } else {
            ("swauth", trimmed.to_owned())
        };
        let auth = Settings {
            kind: kind.to_owned(),
            config: BTreeMap::from([("auth_url".to_owned(), auth_url)]),
        };
        (auth, storage)
    }

    /// Sets user, key and token, under the names of the given kind.
    fn sign_in(&self, access: &mut Access) {
        let Access { auth, storage } = access;
        if let Some(token) = &self.token {
            *auth = Settings {
                kind: "none".to_owned(),
                ..Settings::default()
            };
            storage.config.insert("token".to_owned(), token.clone());
        }
        let keys = matches!(storage.kind.as_str(), "s3" | "librados" | "rados");
        if keys {
            set(&mut storage.config, "accesskey", self.user.as_ref());
            set(&mut storage.config, "secretkey", self.key.as_ref());
            return;
        }
        if auth.kind.is_empty() && storage.kind == "swift" {
            "swauth".clone_into(&mut auth.kind);
        }
        match (
            auth.kind.as_str(),
            self.user.as_ref().and_then(|user| user.split_once(':')),
        ) {
            ("keystone", Some((project, user))) => {
                set(&mut auth.config, "tenant_name", Some(&project.to_owned()));
                set(&mut auth.config, "username", Some(&user.to_owned()));
            }
            ("none", _) => return,
            _ => set(&mut auth.config, "username", self.user.as_ref()),
        }
        set(&mut auth.config, "password", self.key.as_ref());
    }
}

fn set(config: &mut BTreeMap<String, String>, key: &str, value: Option<&String>) {
    if let Some(value) = value {
        config.insert(key.to_owned(), value.clone());
    }
}

fn folder(url: &str) -> Option<&str> {
    let prefixed = ["file://", "file:", "dir:"]
        .iter()
        .find_map(|prefix| url.strip_prefix(prefix));
    prefixed.or_else(|| url.starts_with(['/', '.']).then_some(url))
}

/// Keeps the old settings that remain valid at a new address: names and passwords, the policy.
fn with_rest(mut new: Settings, old: &Settings) -> Settings {
    let same = kind_of(&new.kind) == kind_of(&old.kind);
    // Users of TempAuth and Keystone have similar settings; others have not.
    let both_sign_in = ["swauth", "keystone"].contains(&kind_of(&new.kind))
        && ["swauth", "keystone"].contains(&kind_of(&old.kind));
    if same || both_sign_in {
        for (key, value) in &old.config {
            if !OF_AN_ADDRESS.contains(&key.as_str()) && !new.config.contains_key(key) {
                new.config.insert(key.clone(), value.clone());
            }
        }
    }
    new
}

fn kind_of(kind: &str) -> &str {
    match kind {
        "tempauth" => "swauth",
        "rados" => "librados",
        "dir" => "file",
        other => other,
    }
}

/// A work's own store if the plan's store is replaced by one of the same kind: keeps its policy,
/// layout and the like, but takes the new address and sign-in.
fn elsewhere(own: Access, new: &Access) -> Option<Access> {
    if kind_of(&own.storage.kind) != kind_of(&new.storage.kind) {
        return None;
    }
    let mut storage = new.storage.clone();
    let kept = own.storage.config.into_iter();
    storage
        .config
        .extend(kept.filter(|(key, _)| !OF_AN_ADDRESS.contains(&key.as_str())));
    (storage != new.storage).then(|| Access {
        auth: Settings::default(),
        storage,
    })
}
