//! Parser of `container-sync-realms.conf`: clusters whose containers may be synced with each other.
//! Each section is a realm, with `key` (and `key2` while keys are rotated) and `cluster_NAME =
//! URL`. Also here: resolving an `X-Container-Sync-To`, and the signature of a request between
//! clusters.

use std::collections::BTreeMap;

use cairn_types::hex;

use crate::hmac;
use crate::ini::{Conf, ConfError};

/// All realms, by upper-case name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Realms(BTreeMap<String, Realm>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Realm {
    pub key: Option<String>,
    /// A second valid key, during rotation.
    pub key2: Option<String>,
    /// Endpoints of clusters, by upper-case name.
    pub clusters: BTreeMap<String, String>,
}

/// The target of a container sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// URL of the container, without a trailing slash.
    pub url: String,
    /// Upper-case name and key of the realm; `None` for a plain URL.
    pub realm: Option<(String, String)>,
}

impl Realms {
    /// Parses the file's text; `file` is its name for errors.
    ///
    /// # Errors
    /// `Syntax` as from [`Conf::parse`].
    pub fn parse(file: &str, text: &str) -> Result<Realms, ConfError> {
        let conf = Conf::parse(file, text)?;
        let mut realms = BTreeMap::new();
        for name in conf.section_names() {
            let section = conf.section(name)?;
            let mut realm = Realm::default();
            for (option, value) in section.iter() {
                let option = option.to_ascii_lowercase();
                match option.as_str() {
                    "key" => realm.key = Some(value.to_owned()),
                    "key2" => realm.key2 = Some(value.to_owned()),
                    _ => {
                        if let Some(cluster) = option.strip_prefix("cluster_") {
                            let cluster = cluster.to_uppercase();
                            realm.clusters.insert(cluster, value.to_owned());
                        }
                    }
                }
            }
            realms.insert(name.to_uppercase(), realm);
        }
        Ok(Realms(realms))
    }

    pub fn get(&self, name: &str) -> Option<&Realm> {
        self.0.get(&name.to_uppercase())
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Realm)> {
        self.0.iter().map(|(name, realm)| (name.as_str(), realm))
    }

    /// Resolves an `X-Container-Sync-To`: `//realm/cluster/account/container`, or a URL on one of
    /// `hosts`. `None` if it is empty.
    ///
    /// # Errors
    /// A description for the client that set it.
    pub fn destination(
        &self,
        value: &str,
        hosts: &[String],
    ) -> Result<Option<Destination>, String> {
        let trimmed = value.trim_end_matches('/');
        if trimmed.is_empty() {
            return Ok(None);
        }
        if let Some(path) = trimmed.strip_prefix("//") {
            return self.in_realm(path, value).map(Some);
        }
        check_url(trimmed, hosts)?;
        Ok(Some(Destination {
            url: trimmed.to_owned(),
            realm: None,
        }))
    }

    fn in_realm(&self, path: &str, value: &str) -> Result<Destination, String> {
        let parts: Vec<&str> = path.split('/').collect();
        let [name, cluster, account, container] = parts[..] else {
            return Err(format!("Invalid X-Container-Sync-To format '{value}'"));
        };
        let realm = self.get(name);
        let key = realm.and_then(|realm| realm.key.as_ref());
        let (Some(realm), Some(key)) = (realm, key) else {
            return Err(format!("No realm key for '{name}'"));
        };
        let Some(endpoint) = realm.clusters.get(&cluster.to_uppercase()) else {
            return Err(format!("No cluster endpoint for '{name}' '{cluster}'"));
        };
        let endpoint = endpoint.trim_end_matches('/');
        Ok(Destination {
            url: format!("{endpoint}/{account}/{container}"),
            realm: Some((name.to_uppercase(), key.clone())),
        })
    }
}

fn check_url(url: &str, hosts: &[String]) -> Result<(), String> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    if !matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https") {
        return Err(format!(
            "Invalid scheme '{scheme}' in X-Container-Sync-To, must be \"//\", \"http\", or \"https\"."
        ));
    }
    let Some((authority, path)) = rest.split_once('/') else {
        return Err("Path required in X-Container-Sync-To".into());
    };
    if rest.contains(['?', '#', ';']) {
        return Err("Params, queries, and fragments not allowed in X-Container-Sync-To".into());
    }
    let host = host_of(authority).ok_or_else(|| {
        format!("Invalid host '{authority}' in X-Container-Sync-To, expected HOST or HOST:PORT")
    })?;
    if !hosts.contains(&host) {
        return Err(format!("Invalid host '{host}' in X-Container-Sync-To"));
    }
    if !names_container(path) {
        return Err(format!(
            "Invalid path '/{path}' in X-Container-Sync-To, must end in /v1/account/container"
        ));
    }
    Ok(())
}

/// The host of `HOST`, `HOST:PORT` or `[ADDRESS]:PORT` in lower case. Anything else is refused:
/// with a user part, or a character that URL parsers treat differently, the checked host could
/// differ from the one that is connected to.
fn host_of(authority: &str) -> Option<String> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(v6) => {
            let (host, port) = v6.split_once(']')?;
            let is_address = |c: char| c.is_ascii_hexdigit() || c == ':' || c == '.';
            host.chars().all(is_address).then_some((host, port))?
        }
        None => {
            let at = authority.find(':').unwrap_or(authority.len());
            let (host, port) = authority.split_at(at);
            let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
            host.chars().all(is_name).then_some((host, port))?
        }
    };
    let is_port = port.is_empty()
        || port
            .strip_prefix(':')
            .is_some_and(|port| port.chars().all(|c| c.is_ascii_digit()));
    (is_port && !host.is_empty()).then(|| host.to_lowercase())
}

/// Is this the path of a container under the public API? Storage servers may listen on an allowed
/// host too, and accept unauthenticated requests; their paths begin differently.
fn names_container(path: &str) -> bool {
    let mut parts = path.rsplit('/');
    let names = [parts.next(), parts.next()];
    let is_filled = |part: &Option<&str>| part.is_some_and(|part| !part.is_empty());
    names.iter().all(is_filled) && matches!(parts.next(), Some("v1" | "v1.0"))
}

/// The fields that a signature covers.
#[derive(Clone, Copy, Debug)]
pub struct Signed<'a> {
    pub method: &'a str,
    /// The encoded path, from `/v1` on.
    pub path: &'a str,
    /// The `X-Timestamp`, or `0` without one.
    pub timestamp: &'a str,
    pub nonce: &'a str,
    /// The container's `X-Container-Sync-Key`.
    pub user_key: &'a str,
}

impl Signed<'_> {
    /// HMAC-SHA1 in hex, the third field of `X-Container-Sync-Auth`.
    pub fn signature(&self, realm_key: &str) -> String {
        let message = format!(
            "{}\n{}\n{}\n{}\n{}",
            self.method, self.path, self.timestamp, self.nonce, self.user_key
        );
        hex::encode(hmac::sha1(realm_key.as_bytes(), message.as_bytes()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn realms() -> Realms {
        let text = "[DEFAULT]\nmtime_check_interval = 60\n[us]\nkey = k\nkey2 = l\n\
                    cluster_dfw = http://one/v1/\n[no]\ncluster_two = http://x\n";
        Realms::parse("container-sync-realms.conf", text).unwrap()
    }

    #[test]
    fn what_may_be_synced_to() {
        let hosts = ["127.0.0.1".to_owned()];
        let to = |value: &str| realms().destination(value, &hosts);
        assert_eq!(to(""), Ok(None));
        assert_eq!(
            to("http://127.0.0.1:8080/v1/a/c/").unwrap().unwrap().url,
            "http://127.0.0.1:8080/v1/a/c"
        );
        let there = Destination {
            url: "http://one/v1/a/c".into(),
            realm: Some(("US".into(), "k".into())),
        };
        assert_eq!(to("//us/dfw/a/c"), Ok(Some(there)));
        for value in [
            "//us/dfw/a",
            "//uk/dfw/a/c",
            "//us/lon/a/c",
            "//no/two/a/c",
            "ftp://127.0.0.1/v1/a/c",
            "http://127.0.0.1",
            "http://127.0.0.1/v1/a/c?x",
            "http://10.0.0.1/v1/a/c",
            // The real host differs from the one that seems to be named.
            "http://10.0.0.1?@127.0.0.1/v1/a/c",
            "http://10.0.0.1#@127.0.0.1/v1/a/c",
            "http://10.0.0.1;@127.0.0.1/v1/a/c",
            "http://10.0.0.1\\@127.0.0.1/v1/a/c",
            "http://10.0.0.1%2F@127.0.0.1/v1/a/c",
            "http://127.0.0.1:80@10.0.0.1/v1/a/c",
            "http://127.0.0.1:80:81/v1/a/c",
            "http://127.0.0.1:x/v1/a/c",
            "http://[127.0.0.1/v1/a/c",
            "http://:80/v1/a/c",
            // Not a container of the public API.
            "http://127.0.0.1:6200/sdb1/123/a/c",
            "http://127.0.0.1/v1/a",
            "http://127.0.0.1/v1//c",
            "http://127.0.0.1/a/c",
        ] {
            assert!(to(value).is_err(), "{value}");
        }
        for value in [
            "http://127.0.0.1/v1/a/c",
            "https://127.0.0.1:443/swift/v1/a/c",
            "http://127.0.0.1:8080/v1.0/AUTH_a%20b/c",
        ] {
            assert!(to(value).is_ok(), "{value}");
        }
        let v6 = ["::1".to_owned()];
        let six = realms().destination("http://[::1]:8080/v1/a/c", &v6);
        assert!(six.is_ok());
    }

    #[test]
    fn signatures_are_swifts() {
        // Upstream's own sample: test_container_sync_realms.py, test_get_sig.
        let signed = Signed {
            method: "GET",
            path: "/some/path",
            timestamp: "1387212345.67890",
            nonce: "my_nonce",
            user_key: "user_key",
        };
        assert_eq!(
            signed.signature("realm_key"),
            "5a6eb486eb7b44ae1b1f014187a94529c3f9c8f9"
        );
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_file_is_read_or_refused(text in "(\\[[a-zA-Z]{0,5}\\]\n|(key2?|cluster_[a-z]{0,4}) ?= ?[a-z:/.]{0,12}\n){0,6}|.{0,60}") {
            let _ = Realms::parse("realms", &text);
        }
    }
}
