//! The container server: container databases over HTTP, with the backend protocol of OpenStack
//! Swift's proxies, object servers and updaters.
//!
//! `PUT`, `POST`, `DELETE`, `HEAD`, `GET` of `/<device>/<partition>/<account>/<container>`; `PUT`
//! and `DELETE` of `…/<object>` come from object servers, `UPDATE` has many rows at once, and
//! `REPLICATE` comes from replicators. GET of a sharded container lists shard ranges on request
//! (`shards.rs`); the sharder itself is a daemon. `changes.rs` answers `?changes=`.

mod changes;
mod delete;
mod get;
mod post;
mod put;
mod shards;
mod sync_to;
#[cfg(test)]
mod tests;
mod updates;

use std::sync::Arc;
use std::time::Duration;

use cairn_http::{Request, Response, Service, ServiceFuture};
use cairn_index::{ContainerBroker, ContainerDb, ContainerInfo, DbKind, IndexPool, NewDb, Reserve};
use cairn_peer::Backends;
use cairn_types::metadata::is_sys_or_user_meta;
use cairn_types::{Constraints, HashPath, PolicySet, ServerKind, Timestamp};
use http::request::Parts;
use http::{HeaderMap, Method};

use crate::index_server::replicate::Replicated;
use crate::index_server::status::Refused;
use crate::index_server::{
    self, Answer, RequestPath, drive_check, is_auto_created, is_yes, set, text,
};

pub use cairn_formats::sync_realms::Realms as SyncRealms;

/// Options of `container-server.conf` that concern the server itself.
#[derive(Clone, Debug)]
pub struct ContainerServerConfig {
    pub hash_path: HashPath,
    pub policies: Arc<PolicySet>,
    pub constraints: Constraints,
    pub mount_check: bool,
    /// Space that must stay free on a device; nothing is added below it.
    pub fallocate_reserve: Option<Reserve>,
    /// Timeout of a request to an account server.
    pub node_timeout: Duration,
    pub conn_timeout: Duration,
    /// Hosts allowed in `X-Container-Sync-To`.
    pub allowed_sync_hosts: Vec<String>,
    pub sync_realms: SyncRealms,
    /// Also stores `X-Versions-Location`, for versioning without the middleware.
    pub allow_versions: bool,
}

impl ContainerServerConfig {
    /// Swift's defaults.
    pub fn new(hash_path: HashPath, policies: Arc<PolicySet>) -> Self {
        ContainerServerConfig {
            hash_path,
            policies,
            constraints: Constraints::default(),
            mount_check: true,
            fallocate_reserve: Some(Reserve::Percent(1.0)),
            node_timeout: Duration::from_secs(3),
            conn_timeout: Duration::from_millis(500),
            allowed_sync_hosts: vec!["127.0.0.1".into()],
            sync_realms: SyncRealms::default(),
            allow_versions: false,
        }
    }
}

pub struct ContainerServer {
    config: ContainerServerConfig,
    pool: Arc<IndexPool>,
    backends: Arc<Backends>,
    feeds: changes::Feeds,
}

/// A request with its parsed path.
struct ContainerRequest {
    target: RequestPath,
    parts: Parts,
}

impl ContainerRequest {
    fn headers(&self) -> &HeaderMap {
        &self.parts.headers
    }

    fn container(&self) -> &str {
        self.target.container.as_deref().unwrap_or_default()
    }
}

impl ContainerServer {
    pub fn new(
        config: ContainerServerConfig,
        pool: Arc<IndexPool>,
        backends: Arc<Backends>,
    ) -> Arc<Self> {
        Arc::new(ContainerServer {
            feeds: changes::Feeds::new(),
            config,
            pool,
            backends,
        })
    }

    async fn answer(&self, request: Request) -> Answer {
        let (parts, body) = request.into_parts();
        let objects_too = matches!(parts.method, Method::PUT | Method::DELETE);
        let most = match parts.method.as_str() {
            "HEAD" | "GET" => 5,
            _ if objects_too => 5,
            _ => 4,
        };
        let method = parts.method.clone();
        if method == Method::OPTIONS {
            return Ok(options());
        }
        if method.as_str() == "REPLICATE" {
            let replicated = Replicated {
                pool: &self.pool,
                kind: DbKind::Container,
                mount_check: self.config.mount_check,
                reserve: self.config.fallocate_reserve,
            };
            return replicated.answer(parts.uri.path(), body).await;
        }
        if !METHODS.contains(&method.as_str()) {
            return Err(Refused::MethodNotAllowed);
        }
        let target = RequestPath::of(parts.uri.path(), (4, most))?;
        target.check_reserved(&self.config.constraints.auto_create_account_prefix)?;
        let asked = ContainerRequest { target, parts };
        let is_object = asked.target.object.is_some();
        match method.as_str() {
            "PUT" if is_object => self.put_object(asked).await,
            "PUT" => self.put(asked, body).await,
            "DELETE" if is_object => self.delete_object(asked).await,
            "DELETE" => self.delete(asked).await,
            "POST" => self.post(asked).await,
            "HEAD" => self.head(asked).await,
            "GET" => self.get(asked).await,
            "UPDATE" => self.update(asked, body).await,
            _ => Err(Refused::MethodNotAllowed),
        }
    }

    /// Handle of the database for reads and deletions.
    fn db(&self, target: &RequestPath) -> ContainerDb {
        let container = target.container.as_deref().unwrap_or_default();
        self.pool
            .container(
                &self.config.hash_path,
                &target.device,
                &target.partition,
                &target.account,
                container,
            )
            .checked(drive_check(self.config.mount_check, None))
    }

    /// Handle of the database for additions, which need free space.
    fn db_to_fill(&self, target: &RequestPath) -> ContainerDb {
        let reserve = self.config.fallocate_reserve;
        self.db(target)
            .checked(drive_check(self.config.mount_check, reserve))
    }

    /// The database to create for a row, if its container is auto-created.
    fn new_db_for_row(
        &self,
        asked: &ContainerRequest,
        time: Timestamp,
        policy: i64,
    ) -> Option<NewDb> {
        let account = &asked.target.account;
        let makes = match text(asked.headers(), "x-backend-auto-create") {
            Some(word) if !word.is_empty() => cairn_http::params::is_true(word),
            _ => is_auto_created(account, &self.config.constraints) && !self.is_shard(account),
        };
        makes.then(|| NewDb::Container {
            account: account.clone(),
            container: asked.container().to_owned(),
            put_timestamp: time.normal(),
            storage_policy_index: policy,
        })
    }

    /// Whether the account has shards, which the sharder creates, never a row.
    fn is_shard(&self, account: &str) -> bool {
        let prefix = &self.config.constraints.auto_create_account_prefix;
        account
            .strip_prefix(prefix)
            .is_some_and(|rest| rest.starts_with("shards_"))
    }

    fn saved_headers(&self) -> &'static [&'static str] {
        const SAVED: [&str; 5] = [
            "x-container-read",
            "x-container-write",
            "x-container-sync-key",
            "x-container-sync-to",
            "x-versions-location",
        ];
        if self.config.allow_versions {
            &SAVED
        } else {
            &SAVED[..4]
        }
    }

    fn is_shown(&self, name: &str) -> bool {
        self.saved_headers().contains(&name) || is_sys_or_user_meta(ServerKind::Container, name)
    }

    /// Metadata in the request, in stored form.
    fn new_metadata(&self, asked: &ContainerRequest) -> Result<Vec<(String, String)>, Refused> {
        index_server::metadata_of(asked.headers(), ServerKind::Container, self.saved_headers())
    }
}

/// Updates the link by which container sync finds a synced container. If it fails now, the
/// replicator retries.
fn update_sync_store(broker: &ContainerBroker<'_>) {
    if let Err(error) = broker.update_sync_store() {
        let hash = broker.key().hash.hex();
        tracing::error!(hash, %error, "a container is not linked for container sync");
    }
}

/// Stores metadata; a new sync target resets container sync to the beginning.
fn save_metadata(
    broker: &ContainerBroker<'_>,
    metadata: &[(String, String)],
    internal: &str,
) -> cairn_index::Result<()> {
    const SYNC_TO: &str = "X-Container-Sync-To";
    if metadata.is_empty() {
        return Ok(());
    }
    if let Some((_, sync_to)) = metadata.iter().find(|(name, _)| name == SYNC_TO) {
        let before = broker.metadata()?;
        if before.get(SYNC_TO).map(|(value, _)| value) != Some(sync_to) {
            broker.set_x_container_sync_points(Some(-1), Some(-1))?;
        }
    }
    let updates = metadata
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str(), internal));
    broker.update_metadata(updates, true)?;
    update_sync_store(broker);
    Ok(())
}

/// A container's properties as headers; for a deleted one only those for other servers.
fn info_headers(info: &ContainerInfo, is_deleted: bool) -> HeaderMap {
    let time = cairn_index::broker::timestamp;
    let mut headers = HeaderMap::new();
    set(
        &mut headers,
        "X-Backend-Timestamp",
        time(&info.created_at).internal(),
    );
    set(
        &mut headers,
        "X-Backend-PUT-Timestamp",
        time(&info.put_timestamp).internal(),
    );
    set(
        &mut headers,
        "X-Backend-DELETE-Timestamp",
        time(&info.delete_timestamp).internal(),
    );
    set(
        &mut headers,
        "X-Backend-Status-Changed-At",
        time(&info.status_changed_at).internal(),
    );
    set(
        &mut headers,
        "X-Backend-Storage-Policy-Index",
        info.storage_policy_index,
    );
    if !is_deleted {
        set(&mut headers, "X-Container-Object-Count", info.object_count);
        set(&mut headers, "X-Container-Bytes-Used", info.bytes_used);
        set(&mut headers, "X-Timestamp", time(&info.created_at).normal());
        set(
            &mut headers,
            "X-PUT-Timestamp",
            time(&info.put_timestamp).normal(),
        );
        set(&mut headers, "X-Backend-Sharding-State", info.db_state);
    }
    headers
}

const METHODS: [&str; 6] = ["PUT", "POST", "DELETE", "HEAD", "GET", "UPDATE"];

fn options() -> Response {
    index_server::options(
        "DELETE, GET, HEAD, OPTIONS, POST, PUT, REPLICATE, UPDATE",
        concat!("container-server/", env!("CARGO_PKG_VERSION")),
    )
}

impl Service for ContainerServer {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        Box::pin(async move {
            let is_head = request.method() == Method::HEAD;
            index_server::response(self.answer(request).await, is_head)
        })
    }
}

/// Whether the request must not change the put time.
fn keeps_timestamp(headers: &HeaderMap) -> bool {
    is_yes(headers, "x-backend-no-timestamp-update")
}
