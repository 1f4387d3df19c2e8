//! Target of a request: the object and its device.

use std::sync::Arc;

use cairn_disk::{Device, Disk, DiskError, Engine, ObjectKey, OpenObject, OpenOptions};
use cairn_http::params::{split_path, unquote};
use cairn_http::respond::header;
use cairn_types::{PolicyIndex, Timestamp};
use http::request::Parts;

use super::Inner;
use super::status::Refusal;

/// First character of reserved names, which belong to middleware.
pub(super) const RESERVED: char = '\0';
/// The account in which the reconciler queues objects of the wrong policy.
const MISPLACED_OBJECTS_ACCOUNT: &str = ".misplaced_objects";

/// The object of a request.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) device: Arc<Device>,
    /// The engine of the object's policy.
    pub(super) engine: Arc<dyn Engine>,
    pub(super) key: ObjectKey,
    pub(super) account: String,
    pub(super) container: String,
    pub(super) object: String,
}

impl Inner {
    pub(super) fn target(&self, parts: &Parts) -> Result<Target, Refusal> {
        let policy = self.policy(parts)?;
        let path = unquote(parts.uri.path())
            .map_err(|_| Refusal::PreconditionFailed("Invalid UTF8 or contains NULL"))?;
        let invalid = || Refusal::BadRequest(format!("Invalid path: {}", parts.uri.path()));
        let segments = split_path(&path, 5, 5, true).ok_or_else(invalid)?;
        let [
            Some(device),
            Some(partition),
            Some(account),
            Some(container),
            Some(object),
        ] = segments[..]
        else {
            return Err(invalid());
        };
        let partition = parse_partition(partition)?;
        self.check_names(account, container, object)?;
        let hash = self
            .config
            .hash_path
            .hash(account, Some(container), Some(object));
        Ok(Target {
            engine: self.engine(policy)?,
            key: ObjectKey {
                policy,
                partition,
                hash,
                name: ["/", account, "/", container, "/", object].concat().into(),
            },
            account: account.to_owned(),
            container: container.to_owned(),
            object: object.to_owned(),
            device: match parts.headers.contains_key("x-backend-replication") {
                true => self.background_device(device)?,
                false => self.device(device)?,
            },
        })
    }

    /// `X-Backend-Storage-Policy-Index`; policy 0 without it.
    pub(super) fn policy(&self, parts: &Parts) -> Result<PolicyIndex, Refusal> {
        let text = header(&parts.headers, "x-backend-storage-policy-index").unwrap_or("0");
        let index = text.trim().parse().ok().map(PolicyIndex);
        let policy = index.and_then(|index| self.config.policies.by_index(index));
        match policy {
            Some(policy) => Ok(policy.index),
            None => Err(Refusal::Unavailable(format!("No policy with index {text}"))),
        }
    }

    /// Outside internal accounts, checks that names are either all reserved or none.
    pub(super) fn check_names(
        &self,
        account: &str,
        container: &str,
        object: &str,
    ) -> Result<(), Refusal> {
        let check = |name: &str, what: &str| {
            if name.contains(RESERVED) && !name.starts_with(RESERVED) {
                return Err(format!("Invalid reserved-namespace {what}"));
            }
            Ok(())
        };
        let is_internal = account.starts_with(&self.config.constraints.auto_create_account_prefix)
            || account == MISPLACED_OBJECTS_ACCOUNT;
        check(account, "account")
            .and_then(|()| check(container, "container"))
            .and_then(|()| {
                if is_internal {
                    return Ok(());
                }
                check(object, "object")?;
                match (
                    container.starts_with(RESERVED),
                    object.starts_with(RESERVED),
                ) {
                    (true, false) => Err(
                        "Invalid user-namespace object in reserved-namespace container".to_owned(),
                    ),
                    (false, true) => Err(
                        "Invalid reserved-namespace object in user-namespace container".to_owned(),
                    ),
                    _ => Ok(()),
                }
            })
            .map_err(Refusal::BadRequest)
    }
}

impl Target {
    /// Opens the object: on the calling thread if memory has all that this takes, since to hand it to a
    /// thread of the device and back costs more than to find out that there is no object; else there.
    pub(super) async fn open(&self, options: OpenOptions) -> Result<OpenObject, DiskError> {
        let Target { engine, key, .. } = self;
        let cached = |disk: &Disk| engine.open_cached(disk, key, &options);
        let cached = match engine.has_index() {
            true => self.device.read_indexed(cached),
            false => self.device.read_cached(&key.hash, cached),
        };
        if let Some(open) = cached {
            return open;
        }
        let (engine, key) = (engine.clone(), key.clone());
        let open = self
            .device
            .read(move |disk| engine.open(disk, &key, &options));
        open.await
    }
}

pub(super) fn parse_partition(text: &str) -> Result<u32, Refusal> {
    let is_number = text.bytes().all(|b| b.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_number);
    number.ok_or_else(|| Refusal::BadRequest(format!("Invalid partition: {text}")))
}

/// The timestamp, mandatory for writes.
pub(super) fn required_timestamp(parts: &Parts) -> Result<Timestamp, Refusal> {
    let text = parts
        .headers
        .get("x-timestamp")
        .ok_or_else(|| Refusal::BadRequest("Missing X-Timestamp header".into()))?;
    let text = text.to_str().ok();
    text.and_then(|t| Timestamp::parse(t).ok())
        .ok_or_else(|| Refusal::BadRequest("Invalid X-Timestamp header".into()))
}

/// The timestamp, optional for reads; by default the current time.
pub(super) fn timestamp_or_now(parts: &Parts, inner: &Inner) -> Result<Timestamp, Refusal> {
    match parts.headers.get("x-timestamp") {
        None => Ok(inner.config.clock.now()),
        Some(_) => required_timestamp(parts),
    }
}
