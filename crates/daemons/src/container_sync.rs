//! Sends what changes in a container to another cluster, where its `X-Container-Sync-To` says so.
//!
//! Two points are kept in each container's database. Rows beyond the first are new: each of the
//! container's servers sends its share of them, by the hash of the name, and moves the first point
//! on. Rows between the points were sent once by somebody, or should have been: every server
//! looks at them all, which for most is one question, and moves the second point on over those
//! that are there.

mod config;
mod peer;
mod row;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cairn_formats::sync_realms::Realms;
use cairn_http::Followed;
use cairn_index::{
    ContainerBroker, ContainerInfo, DbKey, DbKind, DriveCheck, IndexDb, IndexError, IndexPool,
    Metadata, ObjectRecord, sync_store,
};
use cairn_peer::Rings;
use cairn_types::{HashPath, ObjectHash};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tracing::{debug, error, info, warn};

use crate::internal_client::InternalClient;
use crate::local::{blocking, folders};
pub use config::ContainerSyncConfig;
use peer::{Clients, Peer};
use row::{Done, Pair, RowError};

/// Rows looked at together; the points are moved after each such page.
const PAGE_ROWS: usize = 100;
/// The realms' file is looked at so often.
const LOOK_EVERY: Duration = Duration::from_secs(300);
/// A container that keeps versions is not synced: its links lead nowhere elsewhere.
const VERSIONS: &str = "X-Container-Sysmeta-Versions-Container";

/// What a pass did.
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

/// What container sync stands on.
pub struct SyncParts {
    /// A pipeline that shows objects as they are stored.
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
    clients: Clients,
    stats: Mutex<SyncStats>,
}

impl ContainerSync {
    pub fn new(config: ContainerSyncConfig, parts: SyncParts) -> Arc<Self> {
        let parse = |file: &str, text: &str| Realms::parse(file, text).map_err(|e| e.to_string());
        Arc::new(ContainerSync {
            realms: Followed::new(config.realms_file.clone(), LOOK_EVERY, parse),
            clients: Clients::new(config.conn_timeout, config.tls.clone()),
            config,
            parts,
            stats: Mutex::default(),
        })
    }

    /// Passes until `stop` turns true, the first at a random moment.
    pub async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        let passes = async {
            sleep(self.config.interval.mul_f64(rand::random())).await;
            loop {
                let started = Instant::now();
                self.once().await;
                let rest = self.config.interval.saturating_sub(started.elapsed());
                sleep(rest.max(Duration::from_millis(10))).await;
            }
        };
        tokio::select! {
            () = passes => {}
            _ = stop.wait_for(|s| *s) => {}
        }
    }

    /// One pass over all containers that are synced. Dropped half-way it leaves rows that the next
    /// pass looks at again.
    pub async fn once(self: &Arc<Self>) -> SyncStats {
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
            // The link is older than the database's end.
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

    /// False: it is not for this server, or not at all.
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
        run.look_back(second, first).await?;
        run.go_on(first, |name| {
            let hash = &self.parts.hash_path;
            let hash = hash.hash(&info.account, Some(&info.container), Some(name));
            let number = u32::from_be_bytes([hash.0[0], hash.0[1], hash.0[2], hash.0[3]]);
            number as usize % nodes == ordinal
        })
        .await?;
        Ok(true)
    }

    /// Which of how many of the container's servers this is.
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

    /// None: not to be synced.
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
        let peer = Peer::find(&self.clients, destination, key).await?;
        Ok(Some(Pair {
            client: self.parts.client.clone(),
            account: account.clone(),
            container: container.clone(),
            policy: info.storage_policy_index,
            peer,
        }))
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

/// One container's turn.
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

    /// All rows up to the first point; the second one stays before the first row that fails.
    async fn look_back(&self, second: i64, first: i64) -> Result<(), IndexError> {
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

    /// This server's share of the rows after the first point.
    async fn go_on(&self, first: i64, is_mine: impl Fn(&str) -> bool) -> Result<(), IndexError> {
        let mut at = first;
        while self.has_time() {
            let mut rows = self.rows(at).await?;
            let Some(last) = rows.last().map(|row| row.rowid) else {
                break;
            };
            rows.retain(|row| is_mine(&row.name));
            // What fails is looked at again by all servers.
            self.send(rows).await;
            at = last;
            self.move_points(Some(at), None).await?;
        }
        Ok(())
    }

    /// The first row that failed.
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
                match sync.tell(&pair, &row.name, outcome) {
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
    /// Counts; false: to be tried again.
    fn tell(&self, pair: &Pair, object: &str, outcome: Result<Done, RowError>) -> bool {
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

/// The databases that devices have links to.
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
