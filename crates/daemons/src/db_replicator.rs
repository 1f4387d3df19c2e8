//! The account and the container replicator: compares every database on this node's devices with
//! its other replicas and sends missing rows. Replicas return what they have newer: metadata,
//! times, policy, shard ranges.
//!
//! A misplaced database is removed once all primaries have it. One deleted for longer than the
//! reclaim age is removed for good; until then it propagates its deletion to replicas that were
//! away.

mod config;
mod peer;
mod push;
mod reconcile;
mod stats;
#[cfg(test)]
mod tests;
mod whole;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use cairn_index::{
    Broker, ContainerBroker, DbKey, DbKind, DriveCheck, IndexDb, IndexError, IndexPool,
    ReplicationInfo,
};
use cairn_peer::{Backends, LoadedRing, Node, Rings};
use cairn_ring::Device;
use cairn_types::{HashPath, PolicySet, Timestamp};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{debug, error, info, warn};

use crate::daemon::{Daemon, DaemonKind, PassFilter, PassFuture, Schedule};
use crate::local::{self, blocking};
use crate::log_limit::DeviceErrors;
use crate::pace::{Pace, yield_to_clients};
use crate::recon_cache::{ACCOUNT_RECON_FILE, CONTAINER_RECON_FILE, ReconCache};

pub use config::{DbReplicatorConfig, WholeDatabases};
pub(crate) use config::{default_port, own_address};
pub use stats::ReplicationStats;

/// Maximum databases found and not yet started.
const FOUND_MAX: usize = 256;

/// The account or the container replicator of one folder of devices.
pub struct DbReplicator {
    config: DbReplicatorConfig,
    hash_path: HashPath,
    /// Whether containers exchange storage policies, in a cluster with several.
    has_policies: bool,
    rings: Arc<Rings>,
    pool: Arc<IndexPool>,
    backends: Arc<Backends>,
    recon: ReconCache,
    stats: Mutex<ReplicationStats>,
    /// Queues of misplaced objects changed by this pass.
    reconcilers: Mutex<HashSet<DbKey>>,
    logged: DeviceErrors,
}

/// A database to replicate in a pass.
struct Job {
    db: IndexDb,
    /// The ring's id of its device.
    device_id: u32,
}

impl DbReplicator {
    pub fn new(
        config: DbReplicatorConfig,
        hash_path: HashPath,
        policies: &PolicySet,
        rings: Arc<Rings>,
        pool: Arc<IndexPool>,
        backends: Arc<Backends>,
    ) -> Arc<Self> {
        let file = match config.kind {
            DbKind::Account => ACCOUNT_RECON_FILE,
            DbKind::Container => CONTAINER_RECON_FILE,
        };
        Arc::new(DbReplicator {
            recon: ReconCache::new(&config.recon_cache_path, file),
            config,
            hash_path,
            has_policies: policies.iter().count() > 1,
            rings,
            pool,
            backends,
            stats: Mutex::default(),
            reconcilers: Mutex::default(),
            logged: DeviceErrors::default(),
        })
    }

    /// Runs one pass.
    pub async fn pass(self: &Arc<Self>, only: &PassFilter) -> ReplicationStats {
        let start = self.now();
        *self.stats.lock() = ReplicationStats::default();
        let ring = self.ring();
        let devices = self.devices(&ring, only);
        let mut found = self.find(&ring, devices, only);
        let mut pace = Pace::new(self.config.databases_per_second);
        let mut under_way = JoinSet::new();
        while let Some(job) = found.recv().await {
            pace.step().await;
            self.begin(&mut under_way, job).await;
        }
        while under_way.join_next().await.is_some() {}
        let queues: Vec<DbKey> = self.reconcilers.lock().drain().collect();
        for key in queues {
            if let Some(device) = ring.ring().devices().find(|d| *d.device == *key.device) {
                let job = Job {
                    db: self.db(key),
                    device_id: device.id,
                };
                self.begin(&mut under_way, job).await;
            }
        }
        while under_way.join_next().await.is_some() {}
        self.report(start).await
    }

    async fn begin(self: &Arc<Self>, under_way: &mut JoinSet<()>, job: Job) {
        while under_way.len() >= self.config.concurrency {
            under_way.join_next().await;
        }
        yield_to_clients(&self.pool, &job.db.key().device).await;
        let replicator = self.clone();
        under_way.spawn(async move { replicator.replicate(job).await });
    }

    async fn report(&self, start: Timestamp) -> ReplicationStats {
        let stats = self.stats.lock().clone();
        let (start, now) = (start.as_f64(), self.now().as_f64());
        let kind = self.config.kind.as_str();
        let (attempted, failures, removed) = (stats.attempted, stats.failure, stats.remove);
        let elapsed_s = now - start;
        if failures + removed + stats.rsync + stats.diff + stats.remote_merge > 0 {
            info!(
                kind,
                attempted, failures, removed, elapsed_s, "replication pass over"
            );
        } else {
            debug!(kind, attempted, elapsed_s, "replication pass over");
        }
        self.recon.update(stats.recon_entries(start, now)).await;
        stats
    }

    fn now(&self) -> Timestamp {
        (self.pool.config().clock)()
    }

    fn ring(&self) -> Arc<LoadedRing> {
        match self.config.kind {
            DbKind::Account => self.rings.account(),
            DbKind::Container => self.rings.container(),
        }
    }

    fn db(&self, key: DbKey) -> IndexDb {
        self.pool.db_by_key(key).checked(DriveCheck {
            mount_check: self.config.mount_check,
            reserve: None,
        })
    }

    fn count(&self, count: impl FnOnce(&mut ReplicationStats)) {
        count(&mut self.stats.lock());
    }

    /// This node's devices within the restriction.
    fn devices(&self, ring: &LoadedRing, only: &PassFilter) -> Vec<Arc<Device>> {
        let mut devices = self.config.own.replicated_devices(ring);
        if devices.is_empty() {
            error!(
                kind = self.config.kind.as_str(),
                own = ?self.config.own,
                "the ring has no device with this address: bind_ip and bind_port must be those of \
                 its replication_ip and replication_port"
            );
        }
        devices.retain(|device| only.has_device(&device.device));
        devices
    }

    /// Walks all devices concurrently; their databases are interleaved.
    fn find(
        self: &Arc<Self>,
        ring: &Arc<LoadedRing>,
        devices: Vec<Arc<Device>>,
        only: &PassFilter,
    ) -> mpsc::Receiver<Job> {
        let (tell, found) = mpsc::channel(FOUND_MAX);
        for device in devices {
            let (replicator, ring) = (self.clone(), ring.clone());
            let (tell, only) = (tell.clone(), only.clone());
            // Ends when the receiver is dropped.
            tokio::spawn(async move {
                if let Err(error) = replicator.walk(&ring, &device, &only, tell).await
                    && replicator.logged.is_due(&device.device, &error)
                {
                    warn!(device = device.device, %error, "replicator cannot list this device");
                }
            });
        }
        found
    }

    async fn walk(
        &self,
        ring: &LoadedRing,
        device: &Device,
        only: &PassFilter,
        tell: mpsc::Sender<Job>,
    ) -> std::io::Result<()> {
        let (root, kind) = (self.pool.devices().to_owned(), self.config.kind);
        let (name, age) = (device.device.clone(), self.config.reclaim_age);
        let first = (root.clone(), name.clone());
        let mut partitions = blocking(move || {
            local::remove_older(&first.0.join(&first.1).join("tmp"), age, |_| true);
            local::partitions(&first.0, &first.1, kind)
        })
        .await?;
        self.shuffle(&mut partitions);
        for partition in partitions {
            let primaries = || ring.ring().primaries(partition);
            let is_primary = || primaries().iter().any(|p| p.device.id == device.id);
            if !only.has_partition(partition) || (self.config.handoffs_only && is_primary()) {
                continue;
            }
            let (root, name) = (root.clone(), name.clone());
            let keys = blocking(move || local::databases(&root, &name, kind, partition)).await?;
            for key in keys {
                let job = Job {
                    db: self.db(key),
                    device_id: device.id,
                };
                if tell.send(job).await.is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn shuffle(&self, partitions: &mut [u32]) {
        for last in (1..partitions.len()).rev() {
            let dice = (self.pool.config().random)();
            partitions.swap(last, (dice % (last as u128 + 1)) as usize);
        }
    }

    /// Replicates one database for the sharder: whether all nodes succeeded, and each one's result.
    /// Rows of other policies are left to the replicator.
    pub(crate) async fn replicate_alone(&self, key: DbKey, device_id: u32) -> (bool, Vec<bool>) {
        let job = Job {
            db: self.db(key),
            device_id,
        };
        self.replicate_to_all(&job, false).await
    }

    async fn replicate(&self, job: Job) {
        self.replicate_to_all(&job, true).await;
    }

    /// Replicates one database: reclaims, compares it with all replicas, and removes it if
    /// misplaced. Returns whether all succeeded, and each node's result; empty if it was not sent.
    async fn replicate_to_all(&self, job: &Job, reconciles: bool) -> (bool, Vec<bool>) {
        self.count(|stats| stats.attempted += 1);
        let key = job.db.key().clone();
        let ring = self.ring();
        let partition: u32 = key.partition.parse().unwrap_or(u32::MAX);
        let info = match self.prepare(&job.db).await {
            Ok(Some(info)) => info,
            Ok(None) => return (true, Vec::new()),
            Err(IndexError::NotFound { .. } | IndexError::Closed) => return (false, Vec::new()),
            Err(error) => {
                if self.logged.is_due(&key.device, &error) {
                    error!(device = %key.device, hash = key.hash.hex(), %error, "replicator cannot read a database");
                }
                for node in ring.primaries(partition) {
                    self.failed_at(&node);
                }
                return (false, Vec::new());
            }
        };
        let belongs = ring.partition(
            &self.hash_path,
            &info.account,
            info.container.as_deref(),
            None,
        );
        if belongs != partition {
            error!(
                device = %key.device, hash = key.hash.hex(), partition, belongs,
                "a database lies in the wrong partition; it is sent where it belongs"
            );
        }
        let sent = self.send_to_all(job, &ring, belongs, &info).await;
        if reconciles
            && let Err(error) = self.reconcile(job, &info, &sent).await
            && self.logged.is_due(&key.device, &error)
        {
            error!(device = %key.device, hash = key.hash.hex(), %error, "misplaced objects are not queued");
        }
        let is_wanted = belongs == partition
            && ring
                .primaries(partition)
                .iter()
                .any(|node| node.device.id == job.device_id);
        let mut sent = sent;
        if is_wanted {
            // This replica counts as well.
            sent.push(true);
        } else {
            self.remove_misplaced(&job.db, &info, &sent).await;
        }
        (sent.iter().all(|success| *success), sent)
    }

    /// Reclaims old items, and reads the properties to compare. `None` if the whole database was
    /// reclaimed.
    async fn prepare(&self, db: &IndexDb) -> Result<Option<ReplicationInfo>, IndexError> {
        let now = self.now();
        let age = before(now, self.config.reclaim_age);
        let sync_age = before(now, self.config.reclaim_age.saturating_mul(2));
        self.remove_leftovers(db).await;
        if db
            .read(move |broker| broker.has_reclaimable(age, sync_age))
            .await?
        {
            db.reclaim(age, sync_age).await?;
        }
        let (info, is_reclaimable) = db
            .read(move |broker| {
                let info = broker.replication_info()?;
                let is_reclaimable = broker.is_reclaimable(&info, age)?;
                if broker.key().kind == DbKind::Container
                    && let Err(error) = ContainerBroker::of(broker).update_sync_store()
                {
                    let hash = broker.key().hash.hex();
                    error!(hash, %error, "a container is not linked for container sync");
                }
                Ok((info, is_reclaimable))
            })
            .await?;
        if !is_reclaimable {
            return Ok(Some(info));
        }
        if info.is_reported() {
            let still = move |broker: &Broker<'_>| {
                let info = broker.replication_info()?;
                Ok(broker.is_reclaimable(&info, age)? && info.is_reported())
            };
            if db.remove_if(still).await? {
                self.count(|stats| stats.remove += 1);
            }
        }
        Ok(None)
    }

    /// Removes old temporary files of databases.
    async fn remove_leftovers(&self, db: &IndexDb) {
        let (dir, age) = (db.key().dir(self.pool.devices()), self.config.reclaim_age);
        let removed = blocking(move || {
            local::remove_older(&dir, age, |name| name.ends_with(".tmp"));
            Ok(())
        });
        if let Err(error) = removed.await {
            debug!(%error, "leftovers are not removed");
        }
    }

    /// Sends to every replica, and to a handoff in place of one whose disk is gone.
    async fn send_to_all(
        &self,
        job: &Job,
        ring: &LoadedRing,
        partition: u32,
        info: &ReplicationInfo,
    ) -> Vec<bool> {
        let nodes = ring.primaries(partition);
        let own_region = ring.ring().device(job.device_id).map(|own| own.region);
        let in_place = *job.db.key().partition == *partition.to_string();
        let mut targets: VecDeque<Node> = match in_place {
            true => others(nodes, job.device_id).into(),
            // From a wrong partition it may have to go to another one of the same device.
            false => nodes.into(),
        };
        let mut handoffs = ring
            .handoffs(partition, targets.len())
            .into_iter()
            .filter(|node| node.device.id != job.device_id);
        let mut sent = Vec::new();
        while let Some(node) = targets.pop_front() {
            let far = own_region.is_some_and(|own| own != node.device.region);
            let success = match self.send_to(job, &node, partition, info, far).await {
                Ok(success) => success,
                Err(push::PushError::NotMounted) => {
                    warn!(node = node.name(), "the device of a replica is not mounted");
                    targets.extend(handoffs.next());
                    false
                }
                Err(push::PushError::Index(error)) => {
                    error!(node = node.name(), %error, "a database is not replicated");
                    false
                }
            };
            if success {
                self.count(|stats| stats.success += 1);
            } else {
                self.failed_at(&node);
            }
            sent.push(success);
        }
        sent
    }

    fn failed_at(&self, node: &Node) {
        self.count(|stats| stats.failed_at(&node.device.replication_ip, &node.device.device));
    }

    /// Removes a misplaced database once the primaries have it, unless it changed meanwhile.
    async fn remove_misplaced(&self, db: &IndexDb, info: &ReplicationInfo, sent: &[bool]) {
        let successes = sent.iter().filter(|success| **success).count();
        let enough = match self.config.handoff_delete {
            Some(count) => successes >= count.min(sent.len()),
            None => successes == sent.len(),
        };
        if sent.is_empty() || !enough {
            return;
        }
        let (max_row, id) = (info.max_row, info.id.clone());
        let unchanged = move |broker: &Broker<'_>| {
            Ok(broker.max_row()? == max_row
                && broker.id()? == id
                && !reconcile::is_sharding_required(broker)?)
        };
        match db.remove_if(unchanged).await {
            Ok(true) => self.count(|stats| stats.remove += 1),
            Ok(false) => debug!(
                hash = db.key().hash.hex(),
                "a misplaced database has news, it stays"
            ),
            Err(error) => warn!(hash = db.key().hash.hex(), %error, "a misplaced database stays"),
        }
    }
}

impl Daemon for DbReplicator {
    fn kind(&self) -> DaemonKind {
        match self.config.kind {
            DbKind::Account => DaemonKind::AccountReplicator,
            DbKind::Container => DaemonKind::ContainerReplicator,
        }
    }

    fn schedule(&self) -> Schedule {
        Schedule::from_start(self.config.interval)
    }

    fn once(self: Arc<Self>, only: PassFilter) -> PassFuture {
        Box::pin(async move { _ = self.pass(&only).await })
    }
}

/// The other replicas, starting after this one, so that nodes begin differently.
fn others(mut nodes: Vec<Node>, device_id: u32) -> Vec<Node> {
    match nodes.iter().position(|node| node.device.id == device_id) {
        Some(own) => {
            nodes.rotate_left(own);
            nodes.remove(0);
            nodes
        }
        None => nodes,
    }
}

fn before(now: Timestamp, age: Duration) -> Timestamp {
    let now = Duration::from_secs_f64(now.as_f64().max(0.0));
    Timestamp::from_unix(now.saturating_sub(age))
}
