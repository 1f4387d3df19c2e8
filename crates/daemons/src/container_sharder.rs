//! The container sharder: splits large containers into shards, moves misplaced rows, and merges
//! shards that have shrunk.
//!
//! Each cycle visits every container on this node's devices that is, or may be, sharded: audits its
//! ranges (`audit.rs`), moves rows that belong elsewhere (`misplaced.rs`), finds ranges, creates
//! shards and fills them (`cleave.rs`), finds shards to merge or to split (`candidates.rs`), and
//! reports a shard's totals to its root. All of it proceeds in steps that may be interrupted and
//! are resumed by the next visit. Replicas of a container are sharded independently; only the first
//! of them decides on the bounds.

mod audit;
mod calls;
mod candidates;
mod cleave;
mod config;
mod context;
mod misplaced;
mod progress;
mod stats;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_formats::shard::{ShardRange, State};
use cairn_http::params::is_true;
use cairn_index::{
    ContainerBroker, ContainerDb, DbKey, DbKind, DbState, DriveCheck, IndexError, IndexPool,
};
use cairn_peer::{Backends, LoadedRing, Rings};
use cairn_ring::Device;
use cairn_types::{HashPath, PolicySet, Timestamp};
use parking_lot::Mutex;
use serde_json::{Map, json};
use thiserror::Error;
use tracing::{error, info, warn};

use crate::daemon::{Daemon, DaemonKind, PassFilter, PassFuture, Schedule};
use crate::db_replicator::DbReplicator;
use crate::internal_client::InternalClient;
use crate::local::{self, blocking};
use crate::log_limit::DeviceErrors;
use crate::recon_cache::{CONTAINER_RECON_FILE, ReconCache};

pub use audit::hash_container_name;
pub use config::ContainerSharderConfig;
pub use stats::SharderStats;

const SHARDING: &str = "X-Container-Sysmeta-Sharding";

/// Reasons for ending a visit early.
#[derive(Debug, Error)]
pub enum SharderError {
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error("shard ranges of {root} cannot be had: {reason}")]
    NoRanges { root: String, reason: String },
    #[error("no device of this node is in the container ring")]
    NoDevice,
}

type Result<T> = std::result::Result<T, SharderError>;

/// Dependencies of a sharder.
pub struct SharderParts {
    pub hash_path: HashPath,
    pub policies: Arc<PolicySet>,
    pub rings: Arc<Rings>,
    pub pool: Arc<IndexPool>,
    pub backends: Arc<Backends>,
    pub client: InternalClient,
    /// Prefix of internal accounts: `.`.
    pub auto_create_account_prefix: String,
}

/// The daemon, for all devices under one folder.
pub struct ContainerSharder {
    config: ContainerSharderConfig,
    hash_path: HashPath,
    rings: Arc<Rings>,
    pool: Arc<IndexPool>,
    backends: Arc<Backends>,
    client: InternalClient,
    /// Prefix of accounts of shards: `.shards_`.
    shards_prefix: String,
    replicator: Arc<DbReplicator>,
    recon: ReconCache,
    stats: Mutex<SharderStats>,
    /// This node's devices with containers.
    local: Mutex<Vec<Arc<Device>>>,
    logged: DeviceErrors,
}

/// A container during a visit.
struct Visited {
    db: ContainerDb,
    device: Arc<Device>,
    /// Index of this replica in the ring; none on a handoff.
    replica: Option<usize>,
    /// `account/container`.
    name: String,
    /// The root container; for a root its own name.
    root: String,
    is_root: bool,
    policy: i64,
}

impl Visited {
    fn container(&self) -> &str {
        split(&self.name).1
    }
}

fn split(name: &str) -> (&str, &str) {
    name.split_once('/').unwrap_or((name, ""))
}

/// Whether the container may be sharded: it is marked for sharding, or has shards, whatever its
/// metadata.
fn is_enabled(broker: &ContainerBroker<'_>) -> std::result::Result<bool, IndexError> {
    let metadata = broker.metadata()?;
    let told = metadata
        .get(SHARDING)
        .is_some_and(|(word, _)| is_true(word));
    Ok(told || broker.has_shards()?)
}

impl ContainerSharder {
    pub fn new(config: ContainerSharderConfig, parts: SharderParts) -> Arc<Self> {
        let replicator = DbReplicator::new(
            config.replication.clone(),
            parts.hash_path.clone(),
            &parts.policies,
            parts.rings.clone(),
            parts.pool.clone(),
            parts.backends.clone(),
        );
        Arc::new(ContainerSharder {
            recon: ReconCache::new(&config.recon_cache_path, CONTAINER_RECON_FILE),
            config,
            hash_path: parts.hash_path,
            rings: parts.rings,
            pool: parts.pool,
            backends: parts.backends,
            client: parts.client,
            shards_prefix: format!("{}shards_", parts.auto_create_account_prefix),
            replicator,
            stats: Mutex::default(),
            local: Mutex::default(),
            logged: DeviceErrors::default(),
        })
    }

    /// Runs one pass over all containers, or some.
    pub async fn pass(&self, only: &PassFilter) -> SharderStats {
        let (start, began) = (self.now(), Instant::now());
        *self.stats.lock() = SharderStats::default();
        let ring = self.ring();
        let devices = self.find_local(&ring).await;
        let mut reported = Instant::now();
        for device in devices {
            if !only.has_device(&device.device) {
                continue;
            }
            if let Err(error) = self.visit_device(&ring, &device, only).await
                && self.logged.is_due(&device.device, &error)
            {
                warn!(device = device.device, %error, "the sharder cannot list this device");
            }
            if reported.elapsed() >= self.config.stats_interval {
                reported = Instant::now();
                self.report(start, began).await;
            }
        }
        self.report(start, began).await;
        self.stats.lock().clone()
    }

    async fn report(&self, start: Timestamp, began: Instant) {
        let stats = self.stats.lock().recon(self.config.recon_candidates);
        let count = |name| self.stats.lock().count("visited", name);
        let (visited, failures) = (count("attempted"), count("failure"));
        let elapsed_s = began.elapsed().as_secs_f64();
        if visited > 0 {
            info!(visited, failures, elapsed_s, "sharder cycle");
        }
        let mut entries = Map::new();
        let stats = json!({"start": start.as_f64(), "sharding": stats});
        entries.insert("sharding_stats".into(), stats);
        entries.insert("sharding_time".into(), json!(elapsed_s));
        entries.insert("sharding_last".into(), json!(self.now().as_f64()));
        self.recon.update(entries).await;
    }

    fn now(&self) -> Timestamp {
        (self.pool.config().clock)()
    }

    fn ago(&self, age: Duration) -> Timestamp {
        let now = Duration::from_secs_f64(self.now().as_f64().max(0.0));
        Timestamp::from_unix(now.saturating_sub(age))
    }

    fn ring(&self) -> Arc<LoadedRing> {
        self.rings.container()
    }

    fn count(&self, category: &'static str, name: &'static str) {
        self.stats.lock().add(category, name, 1);
    }

    fn db(&self, key: DbKey) -> ContainerDb {
        self.pool.container_by_key(key).checked(DriveCheck {
            mount_check: self.config.replication.mount_check,
            reserve: None,
        })
    }

    /// Devices with containers, which also receive shards.
    async fn find_local(&self, ring: &LoadedRing) -> Vec<Arc<Device>> {
        let own = self.config.replication.own.replicated_devices(ring);
        let root = self.pool.devices().to_owned();
        let found = blocking(move || {
            let holds = |device: &Arc<Device>| {
                root.join(&device.device)
                    .join(DbKind::Container.datadir())
                    .is_dir()
            };
            Ok(own.into_iter().filter(holds).collect::<Vec<_>>())
        });
        let found = found.await.unwrap_or_default();
        self.local.lock().clone_from(&found);
        found
    }

    async fn visit_device(
        &self,
        ring: &LoadedRing,
        device: &Arc<Device>,
        only: &PassFilter,
    ) -> std::io::Result<()> {
        let (root, name) = (self.pool.devices().to_owned(), device.device.clone());
        let partitions = blocking(move || local::partitions(&root, &name, DbKind::Container));
        for partition in partitions.await? {
            if !only.has_partition(partition) {
                continue;
            }
            let (root, name) = (self.pool.devices().to_owned(), device.device.clone());
            let found = move || local::databases(&root, &name, DbKind::Container, partition);
            let primaries = ring.primaries(partition);
            let replica = primaries
                .iter()
                .find(|node| node.device.id == device.id)
                .and_then(|node| node.index.into());
            for key in blocking(found).await? {
                self.visit(key, device, replica).await;
            }
        }
        Ok(())
    }

    async fn visit(&self, key: DbKey, device: &Arc<Device>, replica: Option<usize>) {
        let db = self.db(key);
        let visited = match self.load_container(&db, device, replica).await {
            Ok(Some(visited)) => visited,
            Ok(None) => return self.count("visited", "skipped"),
            Err(IndexError::NotFound { .. } | IndexError::Closed) => return,
            Err(error) => {
                self.count("visited", "failure");
                let hash = db.key().hash.hex();
                if self.logged.is_due(&device.device, &error) {
                    error!(device = device.device, hash, %error, "the sharder cannot read this");
                }
                return;
            }
        };
        self.count("visited", "attempted");
        let began = Instant::now();
        let outcome = self.process(&visited).await;
        match &outcome {
            Ok(()) => self.count("visited", "success"),
            Err(error) => {
                self.count("visited", "failure");
                error!(container = visited.name, %error, "a container is not sharded further");
            }
        }
        let error = outcome.err().map(|error| error.to_string());
        if let Err(error) = self.note_progress(&visited, error, began.elapsed()).await {
            warn!(container = visited.name, %error, "the progress of sharding cannot be read");
        }
    }

    /// Reads the container; `None` if the sharder does not handle it.
    async fn load_container(
        &self,
        db: &ContainerDb,
        device: &Arc<Device>,
        replica: Option<usize>,
    ) -> std::result::Result<Option<Visited>, IndexError> {
        let threshold = self.config.shard_container_threshold;
        let now = self.now();
        let (candidate, met) = db
            .read(move |broker| {
                let info = broker.info()?;
                let mut own = broker.own_shard_range()?;
                own.set_counts(info.object_count, info.bytes_used, now);
                let is_candidate = own.is(State::Active) && own.object_count >= threshold;
                let name = broker.own_name()?;
                let candidate = is_candidate.then_some((own, name.clone()));
                if !is_enabled(broker)? {
                    return Ok((candidate, None));
                }
                let met = (name, broker.root_name()?, broker.is_root()?, info);
                Ok((candidate, Some(met)))
            })
            .await?;
        if let Some((own, name)) = candidate {
            let facts = self.facts(db, replica, &name, &name, &own).await;
            self.stats.lock().may_shard(facts);
        }
        Ok(met.map(|(name, root, is_root, info)| Visited {
            db: db.clone(),
            device: device.clone(),
            replica,
            name,
            root,
            is_root,
            policy: info.storage_policy_index,
        }))
    }

    async fn process(&self, visited: &Visited) -> Result<()> {
        let (mut state, is_deleted) = visited
            .db
            .read(|broker| Ok((broker.db_state()?, broker.is_deleted()?)))
            .await?;
        if !self.audit(visited, is_deleted).await? {
            return Ok(());
        }
        self.move_misplaced(visited).await?;
        let leads = visited.replica == Some(0) && self.config.auto_shard && !is_deleted;
        if matches!(state, DbState::Unsharded | DbState::Collapsed) {
            state = self.begin(visited, state, leads).await?;
        }
        if state == DbState::Sharding {
            state = self.shard(visited, leads).await?;
        }
        if visited.db.read(|broker| broker.is_deleted()).await? {
            return Ok(());
        }
        if state == DbState::Sharded && visited.is_root {
            self.manage_shards(visited, leads).await?;
        }
        if !visited.is_root {
            self.report_to_root(visited).await?;
        }
        Ok(())
    }

    /// Begins sharding if it is due; returns the state afterwards.
    async fn begin(&self, visited: &Visited, state: DbState, leads: bool) -> Result<DbState> {
        if leads && visited.is_root {
            self.enable_if_large(visited).await?;
        }
        let (own, has_shards) = visited
            .db
            .read(|broker| Ok((broker.own_shard_range()?, broker.has_shards()?)))
            .await?;
        let may = own.is_cleaving() && (has_shards || leads);
        if may && visited.db.begin_sharding().await? {
            let state = own.state_text();
            info!(container = visited.name, state, "sharding begins");
            return Ok(DbState::Sharding);
        }
        Ok(state)
    }

    /// One step of sharding; returns the state afterwards.
    async fn shard(&self, visited: &Visited, leads: bool) -> Result<DbState> {
        let found = match leads {
            true => self.find_ranges(visited).await?,
            false => 0,
        };
        let created = self.create_shards(visited).await?;
        if found + created > 0 {
            self.replicate(visited.db.key().clone(), visited.device.id)
                .await;
        }
        if self.cleave(visited).await? && self.complete(visited).await? {
            self.count("visited", "completed");
            info!(container = visited.name, "sharded");
            return Ok(DbState::Sharded);
        }
        Ok(DbState::Sharding)
    }

    /// Replicates one database: whether all nodes succeeded, and each one's result.
    async fn replicate(&self, key: DbKey, device_id: u32) -> (bool, Vec<bool>) {
        self.replicator.replicate_alone(key, device_id).await
    }

    /// Merges ranges into the container's own database.
    async fn merge(&self, visited: &Visited, ranges: Vec<ShardRange>) -> Result<()> {
        let merged = visited
            .db
            .write(None, move |broker| broker.merge_shard_ranges(ranges));
        Ok(merged.await?)
    }
}

impl Daemon for ContainerSharder {
    fn kind(&self) -> DaemonKind {
        DaemonKind::ContainerSharder
    }

    fn schedule(&self) -> Schedule {
        Schedule::from_start(self.config.interval)
    }

    fn once(self: Arc<Self>, only: PassFilter) -> PassFuture {
        Box::pin(async move { _ = self.pass(&only).await })
    }
}
