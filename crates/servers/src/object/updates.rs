//! Updates of other servers after a change: the object's row in its container, and its entry in the
//! expirer's queue. They are sent at once, awaited briefly, and stored as async pendings for the
//! updater if they fail. A change whose update could be neither sent nor stored is not
//! acknowledged.

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, LazyLock};

use cairn_disk::async_pending::{AsyncUpdate, remove_async_update, write_async_update};
use cairn_disk::container_row::overrides;
use cairn_disk::{Device, DiskError, Metadata, ObjectKey};
use cairn_http::params::{is_true, quote_path, split_path, unquote};
use cairn_http::respond::header;
use cairn_http::{Body, Request, Response};
use cairn_types::metadata::title_case;
use cairn_types::plant::Plant;
use cairn_types::{ObjectHash, PolicyIndex, Timestamp};
use futures_util::FutureExt;
use futures_util::future::join_all;
use http::header::{HeaderName, HeaderValue, LOCATION};
use http::request::Parts;
use http::{HeaderMap, StatusCode};

use super::Inner;
use super::headers::normalize_delete_at;
use super::put::is_replication;
use super::target::Target;

/// Headers that most updates have, or fewer.
const HEADERS_USUAL: usize = 12;
/// Number of containers of the expirer's queue per period.
const EXPIRER_CONTAINERS: u128 = 100;
const EXPIRER_TYPE: &str = "text/plain";
const MD5_OF_NOTHING: &str = "d41d8cd98f00b204e9800998ecf8427e";
/// Maximum response read to reuse the connection.
const RESPONSE_MAX_BYTES: u64 = 64 << 10;

/// `User-Agent` of updates.
static AGENT: LazyLock<String> = LazyLock::new(|| format!("object-server {}", std::process::id()));

/// Headers of an update, values as sent. One that no header can have is left out.
#[derive(Clone, Debug)]
pub(super) struct UpdateHeaders(HeaderMap);

impl UpdateHeaders {
    pub(super) fn new() -> Self {
        let mut headers = UpdateHeaders(HeaderMap::with_capacity(HEADERS_USUAL));
        headers.set("user-agent", &*AGENT);
        headers
    }

    /// `name` is lower case.
    pub(super) fn set(&mut self, name: &'static str, value: impl AsRef<[u8]>) {
        self.set_any(HeaderName::from_static(name), value.as_ref());
    }

    fn set_any(&mut self, name: HeaderName, value: &[u8]) {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            self.0.insert(name, value);
        }
    }

    fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(HeaderValue::as_bytes)
    }

    /// Applies overrides of the row by middleware and erasure coding. System metadata takes
    /// precedence.
    pub(super) fn apply_overrides<'a>(&mut self, items: impl Iterator<Item = (&'a str, &'a [u8])>) {
        for (name, value) in overrides(items) {
            if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
                self.set_any(name, value);
            }
        }
    }

    /// As they are stored: in Swift's capitalisation.
    fn stored(&self) -> Vec<(String, Vec<u8>)> {
        let pairs = self.0.iter();
        let pairs =
            pairs.map(|(name, value)| (title_case(name.as_str()), value.as_bytes().to_vec()));
        pairs.collect()
    }
}

/// The object whose change is told of.
#[derive(Clone)]
struct Origin {
    device: Arc<Device>,
    key: ObjectKey,
}

impl Origin {
    fn of(target: &Target) -> Origin {
        Origin {
            device: target.device.clone(),
            key: target.key.clone(),
        }
    }
}

/// A server that receives an update.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Destination {
    host: String,
    partition: String,
    device: String,
}

/// Update of one row.
#[derive(Clone)]
struct Update {
    op: &'static str,
    account: String,
    container: String,
    object: String,
    headers: UpdateHeaders,
    /// The shard to update instead.
    container_path: Option<String>,
    db_state: Option<String>,
}

impl Inner {
    /// Sends the update to the container servers named in the request.
    ///
    /// # Errors
    /// An update was neither accepted nor stored.
    pub(super) async fn update_container(
        self: &Arc<Self>,
        op: &'static str,
        parts: &Parts,
        target: &Target,
        mut headers: UpdateHeaders,
    ) -> Result<(), DiskError> {
        let Some(destinations) = container_destinations(&parts.headers) else {
            return Ok(());
        };
        if destinations.is_empty() {
            return Ok(());
        }
        headers.set("x-trans-id", trans_id(&parts.headers));
        headers.set("referer", referer(parts));
        headers.set(
            "x-backend-storage-policy-index",
            target.key.policy.0.to_string(),
        );
        let update = Arc::new(Update {
            op,
            account: target.account.clone(),
            container: target.container.clone(),
            object: target.object.clone(),
            headers,
            container_path: container_path(&parts.headers),
            db_state: header(&parts.headers, "x-container-root-db-state").map(str::to_owned),
        });
        let origin = Origin::of(target);
        let sends = destinations.into_iter().map(|destination| {
            let (inner, origin, update) = (self.clone(), origin.clone(), update.clone());
            let send = async move { inner.send_update(&origin, &update, Some(destination)).await };
            AssertUnwindSafe(Box::pin(send)).catch_unwind()
        });
        let mut all = join_all(sends.collect::<Vec<_>>());
        let timeout = self.config.container_update_timeout;
        if let Ok(outcomes) = tokio::time::timeout(timeout, &mut all).await {
            for outcome in outcomes {
                match outcome {
                    Ok(sent) => drop(sent?),
                    // It panicked.
                    Err(_) => self.store_update(&origin, &update).await?,
                }
            }
            return Ok(());
        }
        // The sends continue after the response: if this server ends before them, the updater must
        // take over.
        self.store_update(&origin, &update).await?;
        let inner = self.clone();
        tokio::spawn(Box::pin(async move {
            let outcomes = all.await;
            if outcomes.iter().all(|sent| matches!(sent, Ok(Ok(true)))) {
                inner.remove_update(&origin, &update).await;
            }
        }));
        Ok(())
    }

    /// Removes the entry for `delete_at` from the expirer's queue: the object expires at another
    /// time, or never.
    pub(super) async fn dequeue_expiry(
        self: &Arc<Self>,
        parts: &Parts,
        target: &Target,
        timestamp: Timestamp,
        delete_at: u64,
    ) {
        let cleans = header(&parts.headers, "x-backend-clean-expiring-object-queue");
        if is_replication(&parts.headers) || !cleans.is_none_or(is_true) {
            return;
        }
        let container = self.expirer_container(delete_at, target.key.hash);
        let headers = expirer_headers(parts, timestamp);
        let update = self.expirer_update("DELETE", target, delete_at, container, headers);
        // Left to the updater, without waiting. A stale entry makes the expirer request a deletion,
        // which is refused as the expiry time differs.
        let _ = self.send_update(&Origin::of(target), &update, None).await;
    }

    /// Adds an entry for `delete_at` to the expirer's queue; `metadata` is that of the content.
    ///
    /// # Errors
    /// The entry was neither accepted nor stored, so the object would never expire.
    pub(super) async fn enqueue_expiry(
        self: &Arc<Self>,
        parts: &Parts,
        target: &Target,
        timestamp: Timestamp,
        metadata: &Metadata,
        delete_at: u64,
    ) -> Result<(), DiskError> {
        if is_replication(&parts.headers) {
            return Ok(());
        }
        // The proxy names hosts in requests to some of the object servers only.
        let Some(hosts) = header(&parts.headers, "x-delete-at-host") else {
            return Ok(());
        };
        let named = header(&parts.headers, "x-delete-at-container");
        let named = named.and_then(|t| t.trim().parse().ok());
        let container = match named {
            Some(seconds) => format!("{:010}", normalize_delete_at(seconds)),
            None => self.expirer_container(delete_at, target.key.hash),
        };
        let mut headers = expirer_headers(parts, timestamp);
        headers.set("x-size", "0");
        let bytes = metadata.get_str("Content-Length").unwrap_or("0");
        let content_type = format!("{EXPIRER_TYPE};swift_expirer_bytes={bytes}");
        headers.set("x-content-type", content_type);
        headers.set("x-etag", MD5_OF_NOTHING);
        let time = metadata.get("X-Timestamp").unwrap_or_default();
        headers.set("x-content-type-timestamp", time);
        let update = self.expirer_update("PUT", target, delete_at, container, headers);

        let devices = header(&parts.headers, "x-delete-at-device").unwrap_or("");
        let partition = header(&parts.headers, "x-delete-at-partition").unwrap_or("");
        let mut destinations: Vec<Option<Destination>> = hosts
            .split(',')
            .zip(devices.split(','))
            .map(|(host, device)| Destination {
                host: host.trim().to_owned(),
                partition: partition.to_owned(),
                device: device.trim().to_owned(),
            })
            .filter(Destination::is_complete)
            .map(Some)
            .collect();
        if destinations.is_empty() {
            destinations.push(None);
        }
        let origin = Origin::of(target);
        let sends = destinations
            .into_iter()
            .map(|destination| self.send_update(&origin, &update, destination));
        for sent in join_all(sends).await {
            sent?;
        }
        Ok(())
    }

    fn expirer_update(
        &self,
        op: &'static str,
        target: &Target,
        delete_at: u64,
        container: String,
        headers: UpdateHeaders,
    ) -> Update {
        let prefix = &self.config.constraints.auto_create_account_prefix;
        let account = format!("{prefix}{}", self.config.expiring_objects_account_name);
        Update {
            op,
            account,
            container,
            object: format!("{delete_at:010}-{}", &target.key.name[1..]),
            headers,
            container_path: None,
            db_state: None,
        }
    }

    /// The queue's container for an expiry time: the period's start, minus a number that spreads
    /// objects over a hundred containers.
    fn expirer_container(&self, delete_at: u64, hash: ObjectHash) -> String {
        let divisor = self.config.expiring_objects_container_divisor.max(1);
        let shard = (u128::from_be_bytes(hash.0) % EXPIRER_CONTAINERS) as u64;
        let seconds = (delete_at / divisor * divisor).saturating_sub(shard);
        format!("{:010}", seconds.min(9_999_999_999))
    }

    /// Sends an update, and stores it on the object's device on failure. True if it was accepted.
    ///
    /// # Errors
    /// It could not be stored either.
    async fn send_update(
        &self,
        origin: &Origin,
        update: &Update,
        destination: Option<Destination>,
    ) -> Result<bool, DiskError> {
        if let Some(destination) = destination.filter(Destination::is_complete) {
            match self.try_send(update, &destination).await {
                Sent::Done => return Ok(true),
                Sent::Redirected(path) => {
                    let mut update = update.clone();
                    update.container_path = Some(path);
                    self.store_update(origin, &update).await?;
                    return Ok(false);
                }
                Sent::Failed(reason) => {
                    let (host, device) = (&destination.host, &destination.device);
                    tracing::info!(host, device, reason, "container update kept for later");
                }
            }
        }
        self.store_update(origin, update).await?;
        Ok(false)
    }

    async fn try_send(&self, update: &Update, destination: &Destination) -> Sent {
        let Some(address) = resolve(&destination.host).await else {
            return Sent::Failed("the host's address does not resolve".into());
        };
        if self.backends.is_hung(address) {
            return Sent::Failed("the server hangs".into());
        }
        let row = match &update.container_path {
            Some(path) => format!("{path}/{}", update.object),
            None => format!("{}/{}/{}", update.account, update.container, update.object),
        };
        let path = format!("/{}/{}/{row}", destination.device, destination.partition);
        let request = http::Request::builder()
            .method(update.op)
            .uri(quote_path(&path))
            .body(Body::empty());
        let mut request: Request = match request {
            Ok(request) => request,
            Err(error) => return Sent::Failed(error.to_string()),
        };
        *request.headers_mut() = update.headers.0.clone();
        let answer = self
            .backends
            .call(address, request, self.config.node_timeout)
            .await;
        let response = match answer {
            Ok(response) => response,
            Err(error) => return Sent::Failed(error.to_string()),
        };
        let sent = match response.status() {
            status if status.is_success() => Sent::Done,
            StatusCode::MOVED_PERMANENTLY => match redirect(&response) {
                Some(path) => Sent::Redirected(path),
                None => Sent::Failed("a redirect to nowhere".into()),
            },
            status => Sent::Failed(status.to_string()),
        };
        let drain = response.into_body().drain(RESPONSE_MAX_BYTES);
        let _ = tokio::time::timeout(self.config.node_timeout, drain).await;
        sent
    }

    /// Name of a stored update: the hash of its object, and its timestamp.
    fn pending_key(&self, update: &Update) -> (ObjectHash, Timestamp) {
        let hash = self.config.hash_path.hash(
            &update.account,
            Some(&update.container),
            Some(&update.object),
        );
        let time = |name| {
            let text = update.headers.get(name)?;
            Timestamp::parse(std::str::from_utf8(text).ok()?).ok()
        };
        let timestamp = time("x-meta-timestamp").or_else(|| time("x-timestamp"));
        (hash, timestamp.unwrap_or_else(|| self.config.clock.now()))
    }

    /// Removes a stored update that has been delivered since.
    async fn remove_update(&self, origin: &Origin, update: &Update) {
        let (hash, timestamp) = self.pending_key(update);
        let policy = origin.key.policy;
        let removed = origin
            .device
            .write(move |disk| remove_async_update(disk, policy, hash, timestamp));
        if let Err(error) = removed.await {
            // The updater delivers it again, which is harmless.
            let (device, object) = (origin.device.name(), &*origin.key.name);
            tracing::info!(device, object, %error, "a delivered container update stays");
        }
    }

    /// Stores an update on the object's device, for the updater. It may use the reserve there.
    async fn store_update(&self, origin: &Origin, update: &Update) -> Result<(), DiskError> {
        let policy: PolicyIndex = origin.key.policy;
        let (hash, timestamp) = self.pending_key(update);
        let pending = AsyncUpdate {
            op: update.op.to_owned(),
            account: update.account.clone(),
            container: update.container.clone(),
            object: update.object.clone(),
            headers: update.headers.stored(),
            db_state: update.db_state.clone(),
            container_path: update.container_path.clone(),
            successes: Vec::new(),
        };
        if Plant::NoAsyncPending.is_on() {
            return Ok(());
        }
        let written = origin
            .device
            .write(move |disk| write_async_update(disk, policy, hash, timestamp, &pending));
        written.await.inspect_err(|error| {
            let (device, object) = (origin.device.name(), &*origin.key.name);
            tracing::error!(device, object, %error, "a container update could not be kept");
        })
    }
}

/// Result of sending an update.
enum Sent {
    Done,
    /// To this `account/container`.
    Redirected(String),
    Failed(String),
}

impl Destination {
    fn is_complete(&self) -> bool {
        !self.host.is_empty() && !self.partition.is_empty() && !self.device.is_empty()
    }
}

/// Resolves an address or a host name.
async fn resolve(host: &str) -> Option<SocketAddr> {
    match host.parse() {
        Ok(address) => Some(address),
        Err(_) => tokio::net::lookup_host(host).await.ok()?.next(),
    }
}

/// The servers named in `X-Container-*`; `None` if these are inconsistent.
fn container_destinations(headers: &HeaderMap) -> Option<Vec<Destination>> {
    let list = |name| {
        header(headers, name)
            .unwrap_or("")
            .split(',')
            .map(str::trim)
    };
    let hosts: Vec<&str> = list("x-container-host").collect();
    let devices: Vec<&str> = list("x-container-device").collect();
    if hosts.len() != devices.len() {
        tracing::error!(
            ?hosts,
            ?devices,
            "container update failed: different numbers of hosts and devices in request"
        );
        return None;
    }
    let partition = header(headers, "x-container-partition").unwrap_or("");
    if partition.is_empty() {
        return Some(Vec::new());
    }
    let pairs = hosts.into_iter().zip(devices);
    let destinations = pairs.map(|(host, device)| Destination {
        host: host.to_owned(),
        partition: partition.to_owned(),
        device: device.to_owned(),
    });
    Some(destinations.collect())
}

/// The object's shard container, as found by the proxy.
fn container_path(headers: &HeaderMap) -> Option<String> {
    let path = match header(headers, "x-backend-quoted-container-path") {
        Some(quoted) if !quoted.is_empty() => unquote(quoted).ok()?,
        _ => header(headers, "x-backend-container-path")?.to_owned(),
    };
    if path.is_empty() {
        return None;
    }
    let is_valid = split_path(&format!("/{path}"), 2, 2, false).is_some();
    if !is_valid {
        tracing::error!(path, "X-Backend-Container-Path is not 'account/container'");
    }
    is_valid.then_some(path)
}

/// The shard to which a container server redirects an update.
fn redirect(response: &Response) -> Option<String> {
    let headers = response.headers();
    let location = header(headers, LOCATION.as_str())?;
    let uri: http::Uri = location.parse().ok()?;
    let is_quoted = header(headers, "x-backend-location-is-quoted").is_some_and(is_true);
    let path = if is_quoted {
        unquote(uri.path()).ok()?
    } else {
        uri.path().to_owned()
    };
    Timestamp::parse(header(headers, "x-backend-redirect-timestamp")?).ok()?;
    let segments = split_path(&path, 2, 3, true)?;
    match segments[..] {
        [Some(account), Some(container), _] => Some(format!("{account}/{container}")),
        _ => None,
    }
}

fn expirer_headers(parts: &Parts, timestamp: Timestamp) -> UpdateHeaders {
    let mut headers = UpdateHeaders::new();
    // The queue is in policy 0, whatever the object's policy.
    headers.set("x-backend-storage-policy-index", "0");
    headers.set("x-timestamp", timestamp.internal());
    headers.set("x-trans-id", trans_id(&parts.headers));
    headers.set("referer", referer(parts));
    headers
}

fn trans_id(headers: &HeaderMap) -> &str {
    header(headers, "x-trans-id").unwrap_or("-")
}

/// The request that caused an update.
fn referer(parts: &Parts) -> String {
    let host = header(&parts.headers, "host").unwrap_or("localhost");
    format!("{} http://{host}{}", parts.method, parts.uri.path())
}
