//! Tells accounts what their containers hold: each container's counts and times go to the
//! account's primaries when they differ from what was reported last, and are noted as reported
//! once most of them have taken it.
//!
//! Two ways lead to a container. A sweep, at every `interval`, looks at those written to through
//! this process's servers since the last one ([`Written`]), and at those to be tried again. A
//! walk, every five minutes at most, finds what others wrote: it goes by the times of files,
//! which it does not open, so that idle containers cost next to nothing. Without a server in this
//! process there is a walk at every `interval`. The first walk looks an hour back, for what a crash
//! left unreported; the second looks at everything, slowly.
//!
//! What a sweep or walk took is told to monitoring as Swift's `container_updater_sweep`.
//!
//! Swift quarantines a container none of whose account's servers know the account. Here it is
//! tried again: nothing moves account databases to new primaries yet, and until something does,
//! an account that is not found may be only misplaced.

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
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use crate::log_limit::DeviceErrors;
use crate::pace::Pace;
use crate::recon_cache::{CONTAINER_RECON_FILE, DEFAULT_RECON_CACHE_PATH, ReconCache};
use crate::rounds::every;
use report::{Report, Told};
pub use written::{NotesWrites, Written};

/// From one walk's start to the next one's, at least, where a server of this process tells what is
/// written.
const WALK_INTERVAL: Duration = Duration::from_secs(300);
/// How far back the first walk looks.
const RECENT: Duration = Duration::from_secs(3600);
/// File times are coarser than the clock.
const SLACK: Duration = Duration::from_secs(2);
/// Suffix folders listed by one step of a walk.
const SUFFIXES_AT_ONCE: usize = 64;
/// A walk rests so many times as long as its last listing took, which is a tenth of a core for
/// each device.
const REST: u32 = 9;
/// Accounts not to be bothered, at most; further ones are tried again earlier.
const SUPPRESSED_MAX: usize = 10_000;

/// `[container-updater]`; names, units and defaults are Swift's.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerUpdaterConfig {
    /// From one sweep's start to the next one's.
    pub interval: Duration,
    /// Containers under way at once, and devices walked at once.
    pub concurrency: usize,
    /// Containers looked at each second by one of `concurrency`, at most; 0: no limit.
    pub containers_per_second: f64,
    /// For one account server's answer, connecting to it included.
    pub patience: Duration,
    /// For so long an account is not told again that could not be told.
    pub account_suppression_time: Duration,
    /// A device is used only where a file system is mounted.
    pub mount_check: bool,
    pub recon_cache_path: PathBuf,
}

impl ContainerUpdaterConfig {
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
            patience: section.seconds_or("conn_timeout", 0.5)?
                + section.seconds_or("node_timeout", 3.0)?,
            account_suppression_time: section.seconds_or("account_suppression_time", 60.0)?,
            mount_check: section.bool_or("mount_check", true),
            recon_cache_path: section
                .str_or("recon_cache_path", DEFAULT_RECON_CACHE_PATH)
                .into(),
        })
    }
}

/// What was done, each a number of containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpdateStats {
    /// Reported, and noted as such.
    pub successes: u64,
    /// To be tried again.
    pub failures: u64,
    /// With nothing to report.
    pub no_changes: u64,
    /// Could not be read or noted.
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
    /// A server of this process notes in `written` what it writes to.
    is_told: bool,
    recon: ReconCache,
    suppressed: Mutex<HashMap<String, Instant>>,
    /// Devices that have been walked.
    walked: Mutex<HashMap<String, Walked>>,
    stats: Mutex<UpdateStats>,
    logged: DeviceErrors,
}

/// How far a device is known.
#[derive(Clone, Copy, Debug)]
struct Walked {
    /// All that changed before then has been looked at; none: only what changed just before the
    /// start.
    until: Option<SystemTime>,
    /// Since then something was left out, and nobody knows what: the next walk is over everything.
    missed: bool,
}

impl ContainerUpdater {
    /// `written`: what the container server of this process notes; none where there is no such
    /// server.
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
            is_told: written.is_some(),
            written: written.unwrap_or_default(),
            suppressed: Mutex::default(),
            walked: Mutex::default(),
            stats: Mutex::default(),
            logged: DeviceErrors::default(),
        })
    }

    /// What has been done since the start.
    pub fn stats(&self) -> UpdateStats {
        *self.stats.lock()
    }

    /// Sweeps and walks until `stop` turns true.
    pub async fn run(self: Arc<Self>, stop: watch::Receiver<bool>) {
        let interval = self.config.interval;
        let sweeps = every(interval, stop.clone(), || self.sweep());
        let between_walks = match self.is_told {
            true => interval.max(WALK_INTERVAL),
            false => interval,
        };
        let walks = every(between_walks, stop, || self.walk());
        tokio::join!(sweeps, walks);
    }

    /// Looks at the containers that are due. Dropped half-way it leaves the rest to a walk.
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
        self.tell("container update sweep completed", started, before);
        if self.is_told {
            self.tell_monitoring(started).await;
        }
    }

    /// Looks at every container of all devices.
    pub async fn once(self: &Arc<Self>) {
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

    /// Looks at the containers, on all devices, that changed since the last walk.
    pub async fn walk(self: &Arc<Self>) {
        let (started, before) = (Instant::now(), self.stats());
        if self.written.take_lost() {
            // Whatever they were, a walk over everything finds them.
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
        self.tell("container update walk completed", started, before);
        if !self.is_told {
            self.tell_monitoring(started).await;
        }
    }

    /// How long the kind of pass took that finds what is written.
    async fn tell_monitoring(&self, started: Instant) {
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
            None => (started.checked_sub(RECENT), None),
            Some(Walked { missed: true, .. }) => (None, Some(started)),
            // A time ahead of now is of a clock that was put back.
            Some(Walked { until, .. }) => (until.filter(|t| *t <= started), Some(started)),
        };
        let since = since.and_then(|time| time.checked_sub(SLACK));
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

    /// False: there is nothing, be it that the device is not there.
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
            for some in suffixes.chunks(SUFFIXES_AT_ONCE) {
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

    /// One step of a walk, and its rest.
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
        sleep(took * REST).await;
        Ok(listed)
    }

    fn tell(&self, what: &'static str, started: Instant, before: UpdateStats) {
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

    /// One container: read, reported where that is due, and noted.
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
            Told::Most => self.note_reported(&db, key, report).await,
            Told::NoAccount => {
                self.count(|stats| stats.failures += 1);
                // Nobody can reach it; its objects are found by auditors.
                let orphan = || IndexError::corrupt("no account replicas exist");
                let gone: Result<(), _> = db.read(move |_| Err(orphan())).await;
                if let Err(error) = gone {
                    let (account, container) = (&report.account, &report.container);
                    debug!(account, container, %error, "a container that no account has");
                }
            }
            Told::TooFew => {
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
            // Removed meanwhile, or the process ends.
            IndexError::NotFound { .. } | IndexError::Closed => return,
            IndexError::Busy { .. } | IndexError::Locked { .. } => {
                debug!(device, %error, what, "container updater cannot do this now");
                self.written.note(key, Instant::now());
            }
            IndexError::NotMounted { .. }
            | IndexError::NoSpace { .. }
            | IndexError::DriveFailed { .. } => {
                debug!(device, %error, what, "container updater skips this device");
                // When it is back, what it missed is found by a walk over everything.
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

/// Files are listed where a hanging disk hangs no request.
async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let ended = || Err(io::Error::other("the work panicked"));
    own_thread::blocking(f).await.unwrap_or_else(ended)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
