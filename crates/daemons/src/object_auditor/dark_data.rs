//! Dark data: objects that no container lists, for instance of a server that was away for longer
//! than the reclaim age. A watcher of the auditor, like Swift's `swift#dark_data`: for each valid
//! object it queries all servers of the container, and if none of them lists it, takes the
//! configured `action`. If one of them fails to respond, nothing is done.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cairn_formats::ini::{ConfError, Section};
use cairn_http::params::{quote, split_path};
use cairn_http::{Body, Request, respond};
use cairn_peer::backend_uri;
use cairn_peer::{Backends, Node, Rings};
use cairn_types::{HashPath, Timestamp};
use futures_util::future::join_all;
use http::HeaderValue;
use http::header::USER_AGENT;
use serde_json::Value;
use tracing::{debug, warn};

use crate::calls;

/// Timeout of a container server's response head, and again of its body.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum listing of one object or one range, in bytes.
const LISTING_MAX_BYTES: u64 = 1 << 20;
/// Maximum containers queried about one object: a root and nested shards.
const CONTAINERS_MAX: usize = 32;

/// Action on dark data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DarkDataAction {
    Log,
    Delete,
    Quarantine,
}

/// `[object-auditor:watcher:NAME]`; names, units and defaults are Swift's.
#[derive(Clone, Debug, PartialEq)]
pub struct DarkDataConfig {
    pub action: DarkDataAction,
    /// Age below which objects are skipped: their rows may still be in flight.
    pub grace_age: Duration,
}

impl DarkDataConfig {
    /// Whether a name in `watchers` is this watcher's.
    pub fn is_its_name(name: &str) -> bool {
        let name = name.strip_prefix("egg:").unwrap_or(name);
        matches!(name, "dark_data" | "swift#dark_data")
    }

    /// Reads the watcher's section; an unknown action is taken for `log`.
    ///
    /// # Errors
    /// `Value` if `grace_age` is no duration.
    pub fn read(section: &Section) -> Result<Self, ConfError> {
        let action = match section.get("action").map(str::trim) {
            None | Some("log") => DarkDataAction::Log,
            Some("delete") => DarkDataAction::Delete,
            Some("quarantine") => DarkDataAction::Quarantine,
            Some(other) => {
                warn!(action = other, "unknown action for dark data: log is taken");
                DarkDataAction::Log
            }
        };
        let grace_age = section.seconds_or("grace_age", 604_800.0)?;
        Ok(DarkDataConfig { action, grace_age })
    }
}

/// The watcher.
pub struct DarkData {
    pub config: DarkDataConfig,
    pub hash_path: HashPath,
    pub rings: Arc<Rings>,
    pub backends: Arc<Backends>,
}

/// Result of looking up an object in its container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Listed,
    Dark,
    /// A server did not respond.
    Unknown,
}

/// One server's response.
enum ServerAnswer {
    Listed,
    Nothing,
    /// The shard that would list the object.
    Shard(String, String),
}

impl DarkData {
    pub(super) fn is_in_grace(&self, written: Timestamp, now: Timestamp) -> bool {
        written.as_f64() + self.config.grace_age.as_secs_f64() >= now.as_f64()
    }

    /// Looks up an object; `name` is `/account/container/object`.
    pub(super) async fn look_for(&self, name: &str) -> Found {
        let Some([Some(account), Some(container), Some(object)]) = split_path(name, 3, 3, true)
            .and_then(|parts| <[Option<&str>; 3]>::try_from(&*parts).ok())
        else {
            return Found::Unknown;
        };
        let mut to_ask = vec![(account.to_owned(), container.to_owned())];
        let (mut asked, mut count) = (BTreeSet::new(), 0);
        let mut is_known = true;
        while let Some(place) = to_ask.pop() {
            count += 1;
            if count > CONTAINERS_MAX {
                return Found::Unknown;
            }
            // Shards may lead back to the root, whose own rows count then.
            let records = if asked.contains(&place) {
                "object"
            } else {
                "auto"
            };
            let mut shards = BTreeSet::new();
            for told in self.ask(&place.0, &place.1, object, records).await {
                match told {
                    Some(ServerAnswer::Listed) => return Found::Listed,
                    Some(ServerAnswer::Shard(account, container)) => {
                        _ = shards.insert((account, container))
                    }
                    Some(ServerAnswer::Nothing) => {}
                    None => is_known = false,
                }
            }
            asked.insert(place);
            to_ask.extend(shards);
        }
        if is_known {
            Found::Dark
        } else {
            Found::Unknown
        }
    }

    /// Queries all servers; `None` for one without a response.
    async fn ask(
        &self,
        account: &str,
        container: &str,
        object: &str,
        records: &'static str,
    ) -> Vec<Option<ServerAnswer>> {
        let ring = self.rings.container();
        let partition = ring.partition(&self.hash_path, account, Some(container), None);
        let path = format!("/{account}/{container}");
        let name = quote(object);
        // `prefix` selects rows, `includes` ranges; the server decides which it lists.
        let query = format!("format=json&limit=1&prefix={name}&includes={name}&states=listing");
        let nodes = ring.primaries(partition);
        if nodes.is_empty() {
            return vec![None];
        }
        let asking = nodes.iter().map(|node| {
            let mut request = Request::new(Body::empty());
            *request.uri_mut() = backend_uri(node, partition, &path, Some(&query));
            let headers = request.headers_mut();
            headers.insert(USER_AGENT, calls::user_agent("object-auditor"));
            headers.insert("x-backend-record-type", HeaderValue::from_static(records));
            self.ask_one(node, request, object)
        });
        join_all(asking).await
    }

    async fn ask_one(&self, node: &Node, request: Request, object: &str) -> Option<ServerAnswer> {
        let answer = self
            .backends
            .call(node.address, request, REQUEST_TIMEOUT)
            .await;
        let answer = answer
            .inspect_err(|error| debug!(node = node.name(), %error, "a container server is silent"))
            .ok()?;
        let (head, body) = answer.into_parts();
        let body = tokio::time::timeout(REQUEST_TIMEOUT, body.collect(LISTING_MAX_BYTES)).await;
        let body = body.ok()?.ok()?;
        if !head.status.is_success() {
            return None;
        }
        let is_shard = respond::header(&head.headers, "x-backend-record-type") == Some("shard");
        told(&body, is_shard, object)
    }
}

/// Parses a response; `None` if it is not a listing.
fn told(body: &[u8], is_shard: bool, object: &str) -> Option<ServerAnswer> {
    let rows: Vec<Value> = match body {
        [] => Vec::new(),
        body => serde_json::from_slice(body).ok()?,
    };
    let Some(first) = rows.first() else {
        return Some(ServerAnswer::Nothing);
    };
    let name = first.get("name").and_then(Value::as_str);
    if is_shard {
        let (account, container) = name?.split_once('/')?;
        return Some(ServerAnswer::Shard(
            account.to_owned(),
            container.to_owned(),
        ));
    }
    match name == Some(object) {
        true => Some(ServerAnswer::Listed),
        false => Some(ServerAnswer::Nothing),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Mutex;

    use cairn_http::handler_fn;
    use cairn_types::PolicySet;
    use http::StatusCode;

    use super::*;
    use crate::testing::write_rings;

    #[test]
    fn options() {
        let read = |pairs: &[(&str, &str)]| {
            DarkDataConfig::read(&Section::from_pairs("object-auditor:watcher:x", pairs))
        };
        let config = read(&[]).unwrap();
        assert_eq!(config.action, DarkDataAction::Log);
        assert_eq!(config.grace_age, Duration::from_secs(7 * 86_400));
        let config = read(&[("action", "quarantine"), ("grace_age", "0")]).unwrap();
        assert_eq!(config.action, DarkDataAction::Quarantine);
        assert_eq!(config.grace_age, Duration::ZERO);
        assert_eq!(
            read(&[("action", "burn")]).unwrap().action,
            DarkDataAction::Log
        );
        assert!(read(&[("grace_age", "long")]).is_err());
        assert!(DarkDataConfig::is_its_name("egg:swift#dark_data"));
        assert!(!DarkDataConfig::is_its_name("mine#dark_data"));
    }

    /// A watcher over three fake servers that respond by container.
    fn watcher(answers: [&'static [(&'static str, &'static str, &'static str)]; 3]) -> DarkData {
        let folder = tempfile::tempdir().unwrap();
        write_rings(folder.path());
        let backends = Backends::new(Duration::from_secs(1));
        for (at, answers) in answers.into_iter().enumerate() {
            let address = ([127, 0, 0, 1], 6201 + at as u16).into();
            let seen = Mutex::new(BTreeSet::new());
            let handler = handler_fn(move |request: Request| {
                let path = request.uri().path().to_owned();
                let is_auto = request.headers()["x-backend-record-type"] == "auto";
                assert!(is_auto || seen.lock().unwrap().contains(&path));
                seen.lock().unwrap().insert(path.clone());
                let (_, container) = path.rsplit_once('/').unwrap();
                let answer = answers
                    .iter()
                    .find(|(name, ..)| *name == container)
                    .copied();
                async move {
                    let Some((_, records, body)) = answer else {
                        return respond::empty(StatusCode::SERVICE_UNAVAILABLE);
                    };
                    let mut response = respond::text(StatusCode::OK, body);
                    let kind = if is_auto { records } else { "object" };
                    respond::set(response.headers_mut(), "x-backend-record-type", kind);
                    response
                }
            });
            backends.register_local(address, handler);
        }
        DarkData {
            config: DarkDataConfig {
                action: DarkDataAction::Log,
                grace_age: Duration::from_secs(10),
            },
            hash_path: HashPath::new("", "x"),
            rings: Rings::open(folder.path(), &PolicySet::single()).unwrap(),
            backends,
        }
    }

    #[tokio::test]
    async fn dark_is_what_all_servers_deny() {
        const NONE: (&str, &str, &str) = ("c", "object", "[]");
        const LONGER: (&str, &str, &str) = ("c", "object", r#"[{"name": "o/p and more"}]"#);
        const ITSELF: (&str, &str, &str) = ("c", "object", r#"[{"name": "o/p"}]"#);
        const BAD: (&str, &str, &str) = ("c", "object", "[");
        const IN_SHARD: (&str, &str, &str) = (
            "c",
            "shard",
            r#"[{"name": ".shards_a/s", "lower": "", "upper": ""}]"#,
        );
        const SHARD_NONE: (&str, &str, &str) = ("s", "object", "[]");
        const SHARD_ITSELF: (&str, &str, &str) = ("s", "object", r#"[{"name": "o/p"}]"#);
        const BACK: (&str, &str, &str) = ("s", "shard", r#"[{"name": "a/c"}]"#);
        for (answers, found) in [
            ([&[NONE][..], &[LONGER], &[NONE]], Found::Dark),
            ([&[NONE], &[NONE], &[ITSELF]], Found::Listed),
            ([&[], &[NONE], &[ITSELF]], Found::Listed),
            ([&[], &[NONE], &[NONE]], Found::Unknown),
            ([&[BAD], &[NONE], &[NONE]], Found::Unknown),
            (
                [
                    &[IN_SHARD, SHARD_NONE],
                    &[NONE, SHARD_NONE],
                    &[NONE, SHARD_NONE],
                ],
                Found::Dark,
            ),
            (
                [
                    &[IN_SHARD, SHARD_NONE],
                    &[NONE, SHARD_ITSELF],
                    &[NONE, SHARD_NONE],
                ],
                Found::Listed,
            ),
            (
                [&[IN_SHARD, SHARD_NONE], &[NONE], &[NONE, SHARD_NONE]],
                Found::Unknown,
            ),
        ] {
            assert_eq!(
                watcher(answers).look_for("/a/c/o/p").await,
                found,
                "{answers:?}"
            );
        }
        let lost = [&[IN_SHARD, BACK][..], &[IN_SHARD, BACK], &[IN_SHARD, BACK]];
        assert_eq!(watcher(lost).look_for("/a/c/o/p").await, Found::Dark);
    }

    #[tokio::test]
    async fn the_young_are_left_alone() {
        let watcher = watcher([&[], &[], &[]]);
        let at = Timestamp::from_secs;
        assert!(watcher.is_in_grace(at(100), at(110)));
        assert!(!watcher.is_in_grace(at(100), at(111)));
    }
}
