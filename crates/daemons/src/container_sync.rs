//! Container sync: sends changes of a container to another cluster, as directed by its
//! `X-Container-Sync-To`.
//!
//! Two sync points are kept in each container's database. Rows after the first are new: each of the
//! container's servers sends its share, by the hash of the name, and advances the first point. Rows
//! between the points should have been sent once by some server: every server checks all of them,
//! usually with one request each, and advances the second point over those that are present.

mod config;
mod peer;
mod row;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cairn_client::Transport;
use cairn_formats::sync_realms::Realms;
use cairn_http::Followed;
use cairn_index::{
    ContainerBroker, ContainerInfo, DbKey, DbKind, DriveCheck, IndexDb, IndexError, IndexPool,
    Metadata, ObjectRecord, sync_store,
};
use cairn_peer::Rings;
use cairn_types::{HashPath, ObjectHash};
use parking_lot::{Mutex, MutexGuard};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use crate::daemon::{Daemon, DaemonKind, PassFilter, PassFuture, Schedule};
use crate::internal_client::InternalClient;
use crate::local::{blocking, folders};
pub use config::ContainerSyncConfig;
use peer::Peer;
use row::{Done, Pair, RowError};

/// Rows per page, after which the points are advanced.
const PAGE_ROWS: usize = 100;
/// Interval of checks of the realms' file.
const REALMS_CHECK_INTERVAL: Duration = Duration::from_secs(300);
/// Metadata of a versioned container, which is not synced: its links have no meaning in another
/// cluster.
const VERSIONS: &str = "X-Container-Sysmeta-Versions-Container";

/// Results of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncStats {
    /// Containers.
    pub syncs: u64,
    pub skips: u64,
    /// Containers, or rows of them.
    pub failures: u64,
    /// Objects.
    pub puts: u64,
    pub deletes: u64,
}

/// Dependencies of container sync.
pub struct SyncParts {
    /// Client of a pipeline that returns objects as stored.
    pub client: InternalClient,
    pub hash_path: HashPath,
    pub rings: Arc<Rings>,
    pub pool: Arc<IndexPool>,
}

/// The daemon of one folder of devices.
pub struct ContainerSync {
    config: ContainerSyncConfig,
    parts: SyncParts,
    realms: Arc<Followed<Realms>>,
    /// To other clusters.
    transport: Transport,
    stats: Mutex<SyncStats>,
}

impl ContainerSync {
    pub fn new(config: ContainerSyncConfig, parts: SyncParts) -> Arc<Self> {
        let parse = |file: &str, text: &str| Realms::parse(file, text).map_err(|e| e.to_string());
        Arc::new(ContainerSync {
            realms: Followed::new(config.realms_file.clone(), REALMS_CHECK_INTERVAL, parse),
            transport: peer::transport(config.conn_timeout, config.tls.clone()),
            config,
            parts,
            stats: Mutex::default(),
        })
    }

    /// Runs one pass over all synced containers. Dropped half-way it leaves rows that the next pass
    /// checks again.
    pub async fn pass(self: &Arc<Self>) -> SyncStats {
        *self.lock() = SyncStats::default();
        let root = self.parts.pool.devices().to_owned();
        match blocking(move || linked(root)).await {
            Ok(keys) => {
                for key in keys {
                    self.sync_container(key).await;
                }
            }
            Err(error) => error!(%error, "synced containers cannot be listed"),
        }
        let stats = *self.lock();
        info!(?stats, "container sync pass completed");
        stats
    }

    fn lock(&self) -> MutexGuard<'_, SyncStats> {
        self.stats.lock()
    }

    async fn sync_container(self: &Arc<Self>, key: DbKey) {
        let (device, hash) = (key.device.to_string(), key.hash.hex());
        let db = self.parts.pool.db_by_key(key).checked(DriveCheck {
            mount_check: self.config.mount_check,
            reserve: None,
        });
        match self.sync_db(&db).await {
            Ok(true) => self.lock().syncs += 1,
            Ok(false) => {}
            // The link outlived the database.
            Err(SyncError::Index(IndexError::NotFound { .. })) => self.unlink(db.key()).await,
            Err(error) => {
                self.lock().failures += 1;
                error!(device, hash, %error, "a container is not synced");
            }
        }
    }

    async fn unlink(&self, key: &DbKey) {
        let mut link = self.parts.pool.devices().join(&*key.device);
        link.push(sync_store::SYNC_STORE);
        link.push(&*key.partition);
        link.push(key.hash.suffix());
        link.push(key.hash.hex());
        link.push(format!("{}.db", key.hash.hex()));
        if let Err(error) = blocking(move || sync_store::remove(&link)).await {
            debug!(%error, "a link to a container that is gone stays");
        }
    }

    /// Syncs a container; false if it is not for this server, or not synced.
    async fn sync_db(self: &Arc<Self>, db: &IndexDb) -> Result<bool, SyncError> {
        let (info, metadata) = db
            .read(|broker| {
                let broker = ContainerBroker::of(broker);
                Ok((broker.info()?, broker.metadata()?))
            })
            .await?;
        let Some((ordinal, nodes)) = self.place(&info) else {
            return Ok(false);
        };
        if info.is_deleted() {
            return Ok(false);
        }
        let Some(pair) = self.pair(&info, &metadata).await? else {
            self.lock().skips += 1;
            return Ok(false);
        };
        let run = Run {
            sync: self.clone(),
            db,
            pair: Arc::new(pair),
            until: Instant::now() + self.config.container_time,
        };
        let (first, second) = (info.x_container_sync_point1, info.x_container_sync_point2);
        run.check_old(second, first).await?;
        run.send_new(first, |name| {
            let hash = &self.parts.hash_path;
            let hash = hash.hash(&info.account, Some(&info.container), Some(name));
            let number = u32::from_be_bytes([hash.0[0], hash.0[1], hash.0[2], hash.0[3]]);
            number as usize % nodes == ordinal
        })
        .await?;
        Ok(true)
    }

    /// Index of this server among the container's primaries, and their number.
    fn place(&self, info: &ContainerInfo) -> Option<(usize, usize)> {
        let ring = self.parts.rings.container();
        let hash_path = &self.parts.hash_path;
        let partition = ring.partition(hash_path, &info.account, Some(&info.container), None);
        let nodes = ring.primaries(partition);
        let own = nodes
            .iter()
            .position(|node| self.config.own.serves(&ring, &node.device))?;
        Some((own, nodes.len()))
    }

    /// The container and its target; none if it is not synced.
    async fn pair(
        &self,
        info: &ContainerInfo,
        metadata: &Metadata,
    ) -> Result<Option<Pair>, SyncError> {
        let (account, container) = (&info.account, &info.container);
        if metadata.get(VERSIONS).is_some_and(|(v, _)| !v.is_empty()) {
            warn!(
                account,
                container, "a container that keeps versions is not synced"
            );
            return Ok(None);
        }
        let Some((to, key)) = ContainerBroker::sync_target(metadata) else {
            return Ok(None);
        };
        let realms = self.realms.get().await;
        let hosts = &self.config.allowed_sync_hosts;
        let destination = realms.destination(to, hosts).map_err(SyncError::Refused)?;
        let Some(destination) = destination else {
            return Ok(None);
        };
        let peer = Peer::find(&self.transport, destination, key).await?;
        Ok(Some(Pair {
            client: self.parts.client.clone(),
            account: account.clone(),
            container: container.clone(),
            policy: info.storage_policy_index,
            peer,
        }))
    }
}

impl Daemon for ContainerSync {
    fn kind(&self) -> DaemonKind {
        DaemonKind::ContainerSync
    }

    fn schedule(&self) -> Schedule {
        Schedule::from_start(self.config.interval).with_random_first()
    }

    fn once(self: Arc<Self>, _: PassFilter) -> PassFuture {
        Box::pin(async move { _ = self.pass().await })
    }
}

#[derive(Debug, thiserror::Error)]
enum SyncError {
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Peer(#[from] peer::PeerError),
}

/// Sync of one container within its time limit.
struct Run<'a> {
    sync: Arc<ContainerSync>,
    db: &'a IndexDb,
    pair: Arc<Pair>,
    until: Instant,
}

impl Run<'_> {
    fn has_time(&self) -> bool {
        Instant::now() < self.until
    }

    async fn rows(&self, point: i64) -> Result<Vec<ObjectRecord>, IndexError> {
        self.db
            .read(move |broker| ContainerBroker::of(broker).items_since(point, PAGE_ROWS))
            .await
    }

    async fn move_points(&self, first: Option<i64>, second: Option<i64>) -> Result<(), IndexError> {
        self.db
            .write(None, move |broker| {
                ContainerBroker::of(broker).set_x_container_sync_points(first, second)
            })
            .await
    }

    /// Checks all rows up to the first point; the second one stays before the first row that fails.
    async fn check_old(&self, second: i64, first: i64) -> Result<(), IndexError> {
        let (mut at, mut failed_after) = (second, None);
        while at < first && self.has_time() {
            let mut rows = self.rows(at).await?;
            rows.retain(|row| row.rowid <= first);
            let Some(last) = rows.last().map(|row| row.rowid) else {
                break;
            };
            if let Some(failed) = self.send(rows).await {
                failed_after.get_or_insert(failed - 1);
            }
            at = last;
            self.move_points(None, Some(failed_after.unwrap_or(at)))
                .await?;
        }
        Ok(())
    }

    /// Sends this server's share of the rows after the first point.
    async fn send_new(&self, first: i64, is_mine: impl Fn(&str) -> bool) -> Result<(), IndexError> {
        let mut at = first;
        while self.has_time() {
            let mut rows = self.rows(at).await?;
            let Some(last) = rows.last().map(|row| row.rowid) else {
                break;
            };
            rows.retain(|row| is_mine(&row.name));
            // Failures are retried by all servers.
            self.send(rows).await;
            at = last;
            self.move_points(Some(at), None).await?;
        }
        Ok(())
    }

    /// Sends rows; returns the first that failed.
    async fn send(&self, rows: Vec<ObjectRecord>) -> Option<i64> {
        let mut under_way = JoinSet::new();
        let mut failed: Option<i64> = None;
        let mut note = |outcome: Option<i64>| {
            if let Some(row) = outcome {
                failed = Some(failed.map_or(row, |before| before.min(row)));
            }
        };
        for row in rows {
            while under_way.len() >= self.sync.config.row_concurrency {
                note(under_way.join_next().await.and_then(|done| done.ok()?));
            }
            let (sync, pair) = (self.sync.clone(), self.pair.clone());
            under_way.spawn(async move {
                let outcome = pair.sync(&row).await;
                match sync.count_result(&pair, &row.name, outcome) {
                    true => None,
                    false => Some(row.rowid),
                }
            });
        }
        while let Some(done) = under_way.join_next().await {
            note(done.ok().flatten());
        }
        failed
    }
}

impl ContainerSync {
    /// Counts a result; false if it must be retried.
    fn count_result(&self, pair: &Pair, object: &str, outcome: Result<Done, RowError>) -> bool {
        let mut stats = self.lock();
        match outcome {
            Ok(Done::Put) => stats.puts += 1,
            Ok(Done::Deleted) => stats.deletes += 1,
            Ok(Done::Nothing) => {}
            Err(error) => {
                stats.failures += 1;
                let (account, container) = (&pair.account, &pair.container);
                warn!(account, container, object, %error, "an object is not synced");
                return false;
            }
        }
        true
    }
}

/// Databases linked on the devices.
fn linked(root: PathBuf) -> std::io::Result<Vec<DbKey>> {
    let mut keys = Vec::new();
    for device in folders(&root)? {
        let store = root.join(&device).join(sync_store::SYNC_STORE);
        for partition in folders(&store)? {
            for suffix in folders(&store.join(&partition))? {
                for name in folders(&store.join(&partition).join(&suffix))? {
                    let Some(hash) = ObjectHash::from_hex(&name) else {
                        continue;
                    };
                    keys.push(DbKey::new(&device, &partition, DbKind::Container, hash));
                }
            }
        }
    }
    Ok(keys)
}
