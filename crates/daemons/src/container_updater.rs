//! Container updater: reports containers' totals and times to the account's primaries when they
//! differ from the last report, and records them as reported once a majority accepted.
//!
//! There are two sources of containers. A sweep, at every `interval`, checks those written through
//! this process's servers since the last one ([`Written`]), and those to be retried. A walk, at
//! most every five minutes, finds what others wrote: it compares the times of files without opening
//! them, so that idle containers cost next to nothing. Without a server in this process there is a
//! walk at every `interval`. The first walk looks an hour back, for what a crash left unreported;
//! the second checks everything, slowly.
//!
//! The duration of a sweep or walk is reported as Swift's `container_updater_sweep`.
//!
//! Swift quarantines a container if none of its account's servers has the account. Here it is
//! retried: nothing moves account databases to new primaries yet, and until something does, a
//! missing account may only be misplaced.

mod folders;
mod report;
mod written;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cairn_formats::ini::{ConfError, Section};
use cairn_http::own_thread;
use cairn_index::{ContainerBroker, ContainerDb, DbKey, DriveCheck, IndexError, IndexPool};
use cairn_peer::{Backends, Rings};
use cairn_types::HashPath;
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use crate::daemon::{Cycle, Daemon, DaemonKind, PassFilter, PassFuture, Schedule};
use crate::log_limit::DeviceErrors;
use crate::pace::Pace;
use crate::recon_cache::{CONTAINER_RECON_FILE, DEFAULT_RECON_CACHE_PATH, ReconCache};
use report::{Report, ReportResult};
pub use written::{NotesRows, NotesWrites, Written};

/// Minimum interval between starts of walks, if a server of this process records its writes.
const WALK_INTERVAL: Duration = Duration::from_secs(300);
/// Age limit of changes found by the first walk.
const FIRST_WALK_AGE_MAX: Duration = Duration::from_secs(3600);
/// Tolerance for file times, which are coarser than the clock.
const FILE_TIME_SLACK: Duration = Duration::from_secs(2);
/// Suffix folders listed per step of a walk.
const SUFFIXES_PER_STEP: usize = 64;
/// Pause of a walk as a multiple of its last listing's duration: at most a tenth of a core per
/// device.
const PAUSE_FACTOR: u32 = 9;
/// Maximum suppressed accounts; others are retried earlier.
const SUPPRESSED_MAX: usize = 10_000;

/// `[container-updater]`; names, units and defaults are Swift's.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerUpdaterConfig {
    /// Interval from one sweep's start to the next one's.
    pub interval: Duration,
    /// Maximum concurrent containers, and devices walked at once.
    pub concurrency: usize,
    /// Maximum containers per second for each of `concurrency`; 0 is unlimited.
    pub containers_per_second: f64,
    /// Timeout of a request to an account server, including the connection.
    pub call_timeout: Duration,
    /// Time for which an account is skipped after a failure.
    pub account_suppression_time: Duration,
    /// Requires that devices are mount points.
    pub mount_check: bool,
    pub recon_cache_path: PathBuf,
}

impl ContainerUpdaterConfig {
    /// Reads the updater's section.
    ///
    /// # Errors
    /// `Value` for a value that is no number or duration, a negative rate, and a concurrency
    /// outside of 1 to 1024.
    pub fn read(section: &Section) -> Result<Self, ConfError> {
        let default = if section.get("slowdown").is_some() {
            warn!("slowdown is deprecated in favor of containers_per_second");
            1.0 / (section.seconds_or("slowdown", 0.01)?.as_secs_f64() + 0.01)
        } else {
            50.0
        };
        let containers_per_second = section.f64_or("containers_per_second", default)?;
        if containers_per_second < 0.0 {
            return Err(section.bad("containers_per_second", "expected 0 (no limit) or more"));
        }
        let concurrency = section.usize_or("concurrency", 4)?;
        if !(1..=1024).contains(&concurrency) {
            return Err(section.bad("concurrency", "expected 1 to 1024"));
        }
        Ok(ContainerUpdaterConfig {
            interval: section.seconds_or("interval", 300.0)?,
            concurrency,
            containers_per_second,
            call_timeout: section.seconds_or("conn_timeout", 0.5)?
                + section.seconds_or("node_timeout", 3.0)?,
            account_suppression_time: section.seconds_or("account_suppression_time", 60.0)?,
            mount_check: section.bool_or("mount_check", true),
            recon_cache_path: section
                .str_or("recon_cache_path", DEFAULT_RECON_CACHE_PATH)
                .into(),
        })
    }
}

/// Results, in numbers of containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpdateStats {
    /// Reported and recorded.
    pub successes: u64,
    /// To be retried.
    pub failures: u64,
    /// Without changes.
    pub no_changes: u64,
    /// Could not be read or recorded.
    pub errors: u64,
}

/// The daemon, for all devices under one folder.
pub struct ContainerUpdater {
    config: ContainerUpdaterConfig,
    hash_path: HashPath,
    rings: Arc<Rings>,
    pool: Arc<IndexPool>,
    backends: Arc<Backends>,
    written: Arc<Written>,
    /// Whether a server of this process records its writes in `written`.
    has_server: bool,
    recon: ReconCache,
    suppressed: Mutex<HashMap<String, Instant>>,
    /// Devices that have been walked.
    walked: Mutex<HashMap<String, Walked>>,
    stats: Mutex<UpdateStats>,
    logged: DeviceErrors,
}

/// Coverage of a device by walks.
#[derive(Clone, Copy, Debug)]
struct Walked {
    /// Earlier changes have been checked; none: only those just before the start.
    until: Option<SystemTime>,
    /// Whether an unknown change was missed, so that the next walk must check everything.
    missed: bool,
}

impl ContainerUpdater {
    /// Creates the daemon; `written` is filled by the container server of this process, if there is
    /// one.
    pub fn new(
        config: ContainerUpdaterConfig,
        hash_path: HashPath,
        rings: Arc<Rings>,
        pool: Arc<IndexPool>,
        backends: Arc<Backends>,
        written: Option<Arc<Written>>,
    ) -> Arc<Self> {
        Arc::new(ContainerUpdater {
            recon: ReconCache::new(&config.recon_cache_path, CONTAINER_RECON_FILE),
            config,
            hash_path,
            rings,
            pool,
            backends,
            has_server: written.is_some(),
            written: written.unwrap_or_default(),
            suppressed: Mutex::default(),
            walked: Mutex::default(),
            stats: Mutex::default(),
            logged: DeviceErrors::default(),
        })
    }

    /// Results since the start.
    pub fn stats(&self) -> UpdateStats {
        *self.stats.lock()
    }

    /// Checks the due containers. Dropped half-way it leaves the rest to a walk.
    pub async fn sweep(self: &Arc<Self>) {
        let started = Instant::now();
        self.suppressed.lock().retain(|_, until| *until > started);
        let due = self.written.take(started);
        let before = self.stats();
        let mut pace =
            Pace::new(self.config.containers_per_second * self.config.concurrency as f64);
        let mut under_way = JoinSet::new();
        for key in due {
            pace.step().await;
            while under_way.len() >= self.config.concurrency {
                under_way.join_next().await;
            }
            let updater = self.clone();
            under_way.spawn(async move { updater.process(key).await });
        }
        while under_way.join_next().await.is_some() {}
        self.log_pass("container update sweep completed", started, before);
        if self.has_server {
            self.report_to_monitoring(started).await;
        }
    }

    /// Checks every container of all devices.
    pub async fn pass(self: &Arc<Self>) {
        let root = self.pool.devices().to_owned();
        for device in blocking(move || folders::devices(&root))
            .await
            .unwrap_or_default()
        {
            let all = Walked {
                until: None,
                missed: true,
            };
            self.walked.lock().insert(device, all);
        }
        self.walk().await;
    }

    /// Checks the containers, on all devices, that changed since the last walk.
    pub async fn walk(self: &Arc<Self>) {
        let (started, before) = (Instant::now(), self.stats());
        if self.written.take_lost() {
            // Forgotten containers are found by a walk over everything.
            for walked in self.walked.lock().values_mut() {
                walked.missed = true;
            }
        }
        let root = self.pool.devices().to_owned();
        let devices = match blocking(move || folders::devices(&root)).await {
            Ok(devices) => devices,
            Err(error) => {
                return warn!(%error, "container updater cannot list the devices");
            }
        };
        let mut under_way = JoinSet::new();
        for device in devices {
            while under_way.len() >= self.config.concurrency {
                under_way.join_next().await;
            }
            let updater = self.clone();
            under_way.spawn(async move { updater.walk_device(device).await });
        }
        while under_way.join_next().await.is_some() {}
        self.log_pass("container update walk completed", started, before);
        if !self.has_server {
            self.report_to_monitoring(started).await;
        }
    }

    /// Reports the duration of a pass that finds writes.
    async fn report_to_monitoring(&self, started: Instant) {
        let elapsed = json!(started.elapsed().as_secs_f64());
        let entries = [("container_updater_sweep".to_owned(), elapsed)];
        self.recon.update(entries.into_iter().collect()).await;
    }

    async fn walk_device(&self, device: String) {
        let started = SystemTime::now();
        let before = self.walked.lock().get_mut(&device).map(|walked| {
            let before = *walked;
            walked.missed = false;
            before
        });
        let (since, until) = match before {
            None => (started.checked_sub(FIRST_WALK_AGE_MAX), None),
            Some(Walked { missed: true, .. }) => (None, Some(started)),
            // A future time means that the clock was set back.
            Some(Walked { until, .. }) => (until.filter(|t| *t <= started), Some(started)),
        };
        let since = since.and_then(|time| time.checked_sub(FILE_TIME_SLACK));
        let walk = self.walk_changed(&device, since).await;
        let mut walked = self.walked.lock();
        match walk {
            Ok(true) => {
                let missed = walked.get(&device).is_some_and(|walked| walked.missed);
                walked.insert(device, Walked { until, missed });
                return;
            }
            Ok(false) => {}
            Err(error) if self.logged.is_due(&device, &error) => {
                warn!(device, %error, "container updater cannot walk this device");
            }
            Err(_) => {}
        }
        if let (Some(walked), Some(before)) = (walked.get_mut(&device), before) {
            walked.missed |= before.missed;
        }
    }

    /// Walks changes since a time; false if there are none or the device is missing.
    async fn walk_changed(&self, device: &str, since: Option<SystemTime>) -> io::Result<bool> {
        let mut pace = Pace::new(self.config.containers_per_second);
        let partitions = self.list(device, folders::partitions).await?;
        let is_there = !partitions.is_empty();
        for partition in partitions {
            let suffixes = {
                let partition = partition.clone();
                let list = move |root: &_, device: &_| folders::suffixes(root, device, &partition);
                self.list(device, list).await?
            };
            for some in suffixes.chunks(SUFFIXES_PER_STEP) {
                let (partition, some) = (partition.clone(), some.to_vec());
                let list = move |root: &_, device: &_| {
                    folders::changed(root, device, &partition, &some, since)
                };
                for key in self.list(device, list).await? {
                    pace.step().await;
                    self.process(key).await;
                }
            }
        }
        Ok(is_there)
    }

    /// One step of a walk, followed by its pause.
    async fn list<T: Send + 'static>(
        &self,
        device: &str,
        list: impl FnOnce(&std::path::Path, &str) -> io::Result<Vec<T>> + Send + 'static,
    ) -> io::Result<Vec<T>> {
        let (root, device) = (self.pool.devices().to_owned(), device.to_owned());
        let (listed, took) = blocking(move || {
            let started = Instant::now();
            Ok((list(&root, &device)?, started.elapsed()))
        })
        .await?;
        sleep(took * PAUSE_FACTOR).await;
        Ok(listed)
    }

    fn log_pass(&self, what: &'static str, started: Instant, before: UpdateStats) {
        let now = self.stats();
        let elapsed_s = started.elapsed().as_secs_f64();
        let successes = now.successes - before.successes;
        let failures = now.failures - before.failures;
        let errors = now.errors - before.errors;
        let no_changes = now.no_changes - before.no_changes;
        if failures + errors > 0 {
            info!(elapsed_s, successes, failures, errors, no_changes, "{what}");
        } else {
            debug!(elapsed_s, successes, no_changes, "{what}");
        }
    }

    fn count(&self, count: impl FnOnce(&mut UpdateStats)) {
        count(&mut self.stats.lock());
    }

    /// Processes one container: reads it, reports if due, and records that.
    async fn process(&self, key: DbKey) {
        let check = DriveCheck {
            mount_check: self.config.mount_check,
            reserve: None,
        };
        let db = self.pool.container_by_key(key.clone()).checked(check);
        let read = |broker: &ContainerBroker<'_>| Report::of(&broker.info()?, &broker.metadata()?);
        let report = match db.read(read).await {
            Ok(Some(report)) => report,
            Ok(None) => return self.count(|stats| stats.no_changes += 1),
            Err(error) => return self.failed(key, "read a container", &error),
        };
        let now = Instant::now();
        if let Some(until) = self.suppressed_until(&report.account, now) {
            self.count(|stats| stats.failures += 1);
            return self.written.note(key, until);
        }
        match report.send(self).await {
            ReportResult::Most => self.note_reported(&db, key, report).await,
            ReportResult::NoAccount => {
                self.count(|stats| stats.failures += 1);
                // The container is unreachable; auditors find its objects.
                let orphan = || IndexError::corrupt("no account replicas exist");
                let gone: Result<(), _> = db.read(move |_| Err(orphan())).await;
                if let Err(error) = gone {
                    let (account, container) = (&report.account, &report.container);
                    debug!(account, container, %error, "a container that no account has");
                }
            }
            ReportResult::TooFew => {
                self.count(|stats| stats.failures += 1);
                debug!(
                    account = report.account,
                    container = report.container,
                    "container not reported, to be tried again"
                );
                let until = now + self.config.account_suppression_time;
                self.suppress(report.account, until);
                self.written.note(key, until);
            }
        }
    }

    async fn note_reported(&self, db: &ContainerDb, key: DbKey, report: Report) {
        let noted = db.write(None, move |broker| {
            broker.reported(
                &report.put_timestamp,
                &report.delete_timestamp,
                report.object_count,
                report.bytes_used,
            )
        });
        match noted.await {
            Ok(()) => self.count(|stats| stats.successes += 1),
            Err(error) => self.failed(key, "note what is reported", &error),
        }
    }

    fn failed(&self, key: DbKey, what: &'static str, error: &IndexError) {
        let device = &*key.device;
        match error {
            // Removed meanwhile, or the process is shutting down.
            IndexError::NotFound { .. } | IndexError::Closed => return,
            IndexError::Busy { .. } | IndexError::Locked { .. } => {
                debug!(device, %error, what, "container updater cannot do this now");
                self.written.note(key, Instant::now());
            }
            IndexError::NotMounted { .. }
            | IndexError::NoSpace { .. }
            | IndexError::DriveFailed { .. } => {
                debug!(device, %error, what, "container updater skips this device");
                // When the device is back, a walk over everything finds missed changes.
                if let Some(walked) = self.walked.lock().get_mut(device) {
                    walked.missed = true;
                }
            }
            _ => warn!(device, %error, what, "container updater cannot do this"),
        }
        self.count(|stats| stats.errors += 1);
    }

    fn suppressed_until(&self, account: &str, now: Instant) -> Option<Instant> {
        let until = self.suppressed.lock().get(account).copied()?;
        (until > now).then_some(until)
    }

    fn suppress(&self, account: String, until: Instant) {
        let mut suppressed = self.suppressed.lock();
        if suppressed.len() < SUPPRESSED_MAX {
            suppressed.insert(account, until);
        }
    }
}

impl Daemon for ContainerUpdater {
    fn kind(&self) -> DaemonKind {
        DaemonKind::ContainerUpdater
    }

    fn schedule(&self) -> Schedule {
        Schedule::from_start(self.config.interval)
    }

    fn once(self: Arc<Self>, _: PassFilter) -> PassFuture {
        Box::pin(async move { self.pass().await })
    }

    /// Sweeps and walks.
    fn cycles(self: Arc<Self>) -> Vec<Cycle> {
        let between_walks = match self.has_server {
            true => self.config.interval.max(WALK_INTERVAL),
            false => self.config.interval,
        };
        let (sweeping, walking) = (self.clone(), self.clone());
        let sweep = move || -> PassFuture {
            let updater = sweeping.clone();
            Box::pin(async move { updater.sweep().await })
        };
        let walk = move || -> PassFuture {
            let updater = walking.clone();
            Box::pin(async move { updater.walk().await })
        };
        vec![
            Cycle::new(self.schedule(), sweep),
            Cycle::new(Schedule::from_start(between_walks), walk),
        ]
    }
}

/// Runs file operations on a thread of their own, where a hanging disk blocks no request.
async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let ended = || Err(io::Error::other("the work panicked"));
    own_thread::blocking(f).await.unwrap_or_else(ended)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
