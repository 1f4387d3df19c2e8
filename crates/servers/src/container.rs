//! The container server: container databases over HTTP, as proxies, object servers and updaters
//! of OpenStack Swift ask for them.
//!
//! `PUT`, `POST`, `DELETE`, `HEAD`, `GET` of `/<device>/<partition>/<account>/<container>`;
//! `PUT` and `DELETE` of `…/<object>` are told by object servers, `UPDATE` by others with many
//! rows at once, `REPLICATE` by replicators. Of a sharded container GET lists shard ranges to
//! those who ask for them (`shards.rs`); the sharder itself is a daemon.

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
use crate::index_server::{self, Answer, Place, drive_check, is_auto_created, is_yes, set, text};

pub use cairn_formats::sync_realms::Realms as SyncRealms;

/// `container-server.conf`, as far as the server itself goes.
#[derive(Clone, Debug)]
pub struct ContainerServerConfig {
    pub hash_path: HashPath,
    pub policies: Arc<PolicySet>,
    pub constraints: Constraints,
    pub mount_check: bool,
    /// Space that must stay free on a device for anything to be added to it.
    pub fallocate_reserve: Option<Reserve>,
    /// How long an account server may take to answer.
    pub node_timeout: Duration,
    pub conn_timeout: Duration,
    /// Hosts that `X-Container-Sync-To` may name.
    pub allowed_sync_hosts: Vec<String>,
    pub sync_realms: SyncRealms,
    /// Save `X-Versions-Location` too: the versioning of before the middleware.
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
}

/// A request on its way through a verb.
struct Asked {
    place: Place,
    parts: Parts,
}

impl Asked {
    fn headers(&self) -> &HeaderMap {
        &self.parts.headers
    }

    fn container(&self) -> &str {
        self.place.container.as_deref().unwrap_or_default()
    }
}

impl ContainerServer {
    pub fn new(
        config: ContainerServerConfig,
        pool: Arc<IndexPool>,
        backends: Arc<Backends>,
    ) -> Arc<Self> {
        Arc::new(ContainerServer {
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
        let place = Place::of(parts.uri.path(), (4, most))?;
        place.check_reserved(&self.config.constraints.auto_create_account_prefix)?;
        let asked = Asked { place, parts };
        let is_object = asked.place.object.is_some();
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

    /// The database to read or delete in.
    fn db(&self, place: &Place) -> ContainerDb {
        let container = place.container.as_deref().unwrap_or_default();
        self.pool
            .container(
                &self.config.hash_path,
                &place.device,
                &place.partition,
                &place.account,
                container,
            )
            .checked(drive_check(self.config.mount_check, None))
    }

    /// The database to add to: that needs free space.
    fn db_to_fill(&self, place: &Place) -> ContainerDb {
        let reserve = self.config.fallocate_reserve;
        self.db(place)
            .checked(drive_check(self.config.mount_check, reserve))
    }

    /// What a row makes, if its container is one that comes with its first row.
    fn new_db_for_row(&self, asked: &Asked, time: Timestamp, policy: i64) -> Option<NewDb> {
        let account = &asked.place.account;
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

    /// Shards are made by the sharder, never by a row.
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

    /// Metadata that the request sets, ready to be saved.
    fn new_metadata(&self, asked: &Asked) -> Result<Vec<(String, String)>, Refused> {
        index_server::metadata_of(asked.headers(), ServerKind::Container, self.saved_headers())
    }
}

/// Container sync finds the containers it is for by links beside the databases. A link that cannot
/// be made now is made by the replicator.
fn update_sync_store(broker: &ContainerBroker<'_>) {
    if let Err(error) = broker.update_sync_store() {
        let hash = broker.key().hash.hex();
        tracing::error!(hash, %error, "a container is not linked for container sync");
    }
}

/// Saves metadata; where to sync to having changed, container sync starts from the beginning.
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

/// Facts about a container as headers; of a deleted one only what other servers need.
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

/// Wants the database left as it is found in time: no new put time.
fn keeps_timestamp(headers: &HeaderMap) -> bool {
    is_yes(headers, "x-backend-no-timestamp-update")
}
