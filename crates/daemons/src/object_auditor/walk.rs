//! One walk over the objects of some devices.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use cairn_disk::engine::{Audited, Content};
use cairn_disk::{
    Device, DeviceError, DiskError, Engine, FragmentChoice, ObjectId, ObjectKey, ObjectReader,
    OpenObject, OpenOptions, PartitionKey,
};
use cairn_http::own_thread;
use cairn_types::{PolicyIndex, Timestamp};
use serde_json::{Map, Value};
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use super::dark_data::Found;
use super::{AuditStats, DarkDataAction, ObjectAuditor};
use crate::log_limit::LogLimit;
use crate::pace::{BytePace, Pace};

/// Maximum content in bytes that is read in one job.
const INLINE_MAX_BYTES: u64 = 64 << 10;
const CHUNK_BYTES: usize = 64 << 10;
/// Minimum interval between writes of the checkpoint.
const STATUS_INTERVAL: Duration = Duration::from_secs(60);

/// Delay after which an unreadable object is read again; a second failure quarantines it.
const REREAD_DELAY: Duration = Duration::from_secs(12);
/// Maximum objects waiting for that; others wait for the next walk.
const REREAD_OBJECTS_MAX: usize = 1000;

/// Reason for quarantining an object that no container lists.
const DARK: &str = "dark data: no container lists it";

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    All,
    /// Opens objects at this rate per second.
    ZeroByte(f64),
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::All => "ALL",
            Kind::ZeroByte(_) => "ZBF",
        }
    }

    pub(super) fn recon_key(self) -> String {
        format!("object_auditor_stats_{}", self.name())
    }
}

pub(super) struct Walk {
    auditor: Arc<ObjectAuditor>,
    kind: Kind,
    devices: Vec<String>,
    /// Whether monitoring entries are per device.
    is_part: bool,
    files: Pace,
    bytes: BytePace,
    /// Counts since the last report, and before it.
    recent: AuditStats,
    reported: AuditStats,
    report: Report,
    logged: LogLimit,
    read_again: VecDeque<Reread>,
    /// Results of the watcher: listed, unknown, dark.
    watched: [u64; 3],
}

/// An object that could not be read.
struct Reread {
    due: Instant,
    walked: Walked,
    object: ObjectId,
}

/// A device and the engine of one policy on it.
#[derive(Clone)]
struct Walked {
    device: Arc<Device>,
    engine: Arc<dyn Engine>,
    policy: PolicyIndex,
}

#[derive(Clone, Copy, PartialEq)]
enum Attempt {
    First,
    Again,
}

struct Report {
    at: Instant,
    /// Seconds since the epoch.
    since: f64,
    busy: Duration,
}

impl Walk {
    pub(super) fn new(
        auditor: Arc<ObjectAuditor>,
        kind: Kind,
        devices: Vec<String>,
        is_part: bool,
    ) -> Self {
        let config = &auditor.config;
        let files_per_second = match kind {
            Kind::All => config.files_per_second,
            Kind::ZeroByte(rate) => rate,
        };
        Walk {
            kind,
            devices,
            is_part,
            files: Pace::new(files_per_second),
            bytes: BytePace::new(config.bytes_per_second),
            recent: AuditStats::default(),
            reported: AuditStats::default(),
            report: Report {
                at: Instant::now(),
                since: auditor.parts.clock.now().as_f64(),
                busy: Duration::ZERO,
            },
            logged: LogLimit::default(),
            read_again: VecDeque::new(),
            watched: [0; 3],
            auditor,
        }
    }

    pub(super) async fn run(mut self) -> AuditStats {
        let started = Instant::now();
        let mut devices = self.devices.clone();
        // Random order, so that every device is reached even if processes end early.
        own_thread::shuffle(&mut devices);
        for name in devices {
            let device = match self.auditor.parts.devices.get(&name) {
                Ok(device) => device.background(),
                Err(error) => {
                    debug!(device = name, %error, "not audited");
                    continue;
                }
            };
            let policies = self.auditor.parts.policies.clone();
            for policy in policies.iter() {
                let Some(engine) = self.auditor.parts.engines.of(policy.index) else {
                    continue;
                };
                let walked = Walked {
                    device: device.clone(),
                    engine: engine.clone(),
                    policy: policy.index,
                };
                if let Err(error) = self.walk_policy(&walked).await {
                    match error {
                        DiskError::Device(error) => debug!(device = name, %error, "not audited"),
                        error => self.count_error(&name, &error),
                    }
                }
            }
        }
        while let Some(next) = self.read_again.front() {
            tokio::time::sleep_until(next.due).await;
            self.read_due_again().await;
        }
        self.report_to_monitoring().await;
        self.reported.add(&self.recent);
        let stats = &self.reported;
        info!(
            kind = self.kind.name(),
            seconds = started.elapsed().as_secs_f64(),
            objects = stats.passes,
            bytes = stats.bytes_processed,
            quarantined = stats.quarantined,
            errors = stats.errors,
            "object audit completed"
        );
        if !stats.sizes.is_empty() {
            info!(sizes = ?stats.sizes, "object audit: objects by size");
        }
        if self.auditor.watcher.is_some() && self.kind == Kind::All {
            let [ok, unknown, dark] = self.watched;
            info!(unknown, ok, dark, "dark data");
        }
        self.reported
    }

    async fn walk_policy(&mut self, walked: &Walked) -> Result<(), DiskError> {
        let kind = self.kind.name();
        let Walked {
            device,
            engine,
            policy,
        } = walked.clone();
        let listing = engine.clone();
        let partitions = device
            .read(move |disk| listing.partitions_to_audit(disk, policy, kind))
            .await?;
        let mut written = None;
        for (at, partition) in partitions.iter().copied().enumerate() {
            if written.is_none_or(|at: Instant| at.elapsed() >= STATUS_INTERVAL) {
                written = Some(Instant::now());
                let left = partitions[at..].to_vec();
                self.write_status(walked, left).await;
            }
            let at = PartitionKey::new(policy, partition);
            let listing = engine.clone();
            let hashes = device.read(move |disk| listing.objects(disk, at)).await;
            match hashes {
                Ok(hashes) => {
                    for hash in hashes {
                        self.read_due_again().await;
                        self.audit_one(walked, at.object(hash), Attempt::First)
                            .await?;
                    }
                    if self.kind == Kind::All
                        && let Err(error) = self.check_hashes(walked, at).await
                    {
                        self.failed(device.name(), error)?;
                    }
                }
                Err(error) => self.failed(device.name(), error)?,
            }
        }
        if !partitions.is_empty() {
            // The next walk starts over.
            self.write_status(walked, Vec::new()).await;
        }
        Ok(())
    }

    /// Invalidates suffix hashes that differ from the objects.
    async fn check_hashes(&self, walked: &Walked, at: PartitionKey) -> Result<(), DiskError> {
        let engine = walked.engine.clone();
        let settled = walked
            .device
            .read(move |disk| engine.settled_hashes(disk, at))
            .await?;
        for (suffix, hash) in settled {
            let (engine, name) = (walked.engine.clone(), suffix.clone());
            let checked = walked
                .device
                .write(move |disk| engine.check_suffix(disk, at, &name, &hash));
            if checked.await? {
                let (device, partition) = (walked.device.name(), at.partition);
                info!(
                    device,
                    partition, suffix, "a suffix was not as it was hashed"
                );
            }
        }
        Ok(())
    }

    async fn write_status(&self, walked: &Walked, left: Vec<u32>) {
        let kind = self.kind.name();
        let (engine, policy) = (walked.engine.clone(), walked.policy);
        let written = walked
            .device
            .write(move |disk| engine.note_audited(disk, policy, kind, &left));
        if let Err(error) = written.await {
            warn!(device = walked.device.name(), %error, "auditor status not written");
        }
    }

    /// Audits unreadable objects again that are due.
    async fn read_due_again(&mut self) {
        let is_due = |next: &Reread| next.due <= Instant::now();
        while self.read_again.front().is_some_and(is_due)
            && let Some(next) = self.read_again.pop_front()
        {
            let audited = self.audit_one(&next.walked, next.object, Attempt::Again);
            if let Err(error) = audited.await {
                debug!(device = next.walked.device.name(), %error, "not audited");
            }
        }
    }

    async fn audit_one(
        &mut self,
        walked: &Walked,
        object: ObjectId,
        attempt: Attempt,
    ) -> Result<(), DiskError> {
        self.files.step().await;
        let began = Instant::now();
        let (device, engine) = (&walked.device, walked.engine.clone());
        let is_read = self.kind == Kind::All;
        let now = self.auditor.parts.clock.now();
        // Expired objects remain until the expirer deletes them: replicators send them, and clients
        // may open them.
        let options = OpenOptions {
            now,
            open_expired: true,
            inline_limit: if is_read { INLINE_MAX_BYTES } else { 0 },
            fragment: FragmentChoice::default(),
        };
        let temporary = self.auditor.config.rsync_tempfile_timeout;
        let audited = device.write(move |disk| {
            if let Some(rsync) = engine.rsync() {
                rsync.remove_temporary(disk, object, temporary)?;
            }
            engine.audit(disk, object, &options)
        });
        let result = match audited.await {
            Ok(Audited::Object(key, open)) => {
                let written = open.info.timestamp();
                let delete_at = open.info.metadata.delete_at();
                let has_expired = delete_at.is_some_and(|at| Timestamp::from_secs(at) <= now);
                match self.read(walked, key.clone(), *open).await {
                    // Its row may be gone already.
                    Ok(()) if has_expired => Ok(()),
                    Ok(()) => self.watch(walked, key, written).await,
                    broken => broken,
                }
            }
            Ok(Audited::Quarantined(reason)) => Err(DiskError::Quarantined(reason)),
            Ok(Audited::Nothing) => Ok(()),
            Err(error) => Err(error),
        };
        match result {
            // A replacement is audited by the next walk.
            Ok(()) | Err(DiskError::StateChanged) => self.recent.passes += 1,
            Err(DiskError::Quarantined(reason)) => {
                self.recent.passes += 1;
                self.recent.quarantined += 1;
                let (device, partition) = (device.name(), object.at.partition);
                let hash = object.hash.hex();
                error!(
                    device,
                    partition, hash, reason, "object failed audit: quarantined"
                );
            }
            Err(error) => {
                let may_pass =
                    matches!(error, DiskError::Unreadable(_)) && attempt == Attempt::First;
                if may_pass && self.read_again.len() < REREAD_OBJECTS_MAX {
                    self.read_again.push_back(Reread {
                        due: Instant::now() + REREAD_DELAY,
                        walked: walked.clone(),
                        object,
                    });
                }
                self.failed(device.name(), error)?;
            }
        }
        self.report.busy += began.elapsed();
        if self.report.at.elapsed() >= self.auditor.config.log_time {
            self.make_report().await;
        }
        Ok(())
    }

    /// Calls the watcher with a valid object, and takes its action.
    async fn watch(
        &mut self,
        walked: &Walked,
        key: ObjectKey,
        written: Timestamp,
    ) -> Result<(), DiskError> {
        let auditor = self.auditor.clone();
        let Some(watcher) = auditor.watcher.as_ref().filter(|_| self.kind == Kind::All) else {
            return Ok(());
        };
        if watcher.is_in_grace(written, auditor.parts.clock.now()) {
            self.watched[0] += 1;
            return Ok(());
        }
        let (device, engine, object) = (&walked.device, walked.engine.clone(), key.id());
        let state = device.read(move |disk| engine.state(disk, object)).await?;
        let engine = walked.engine.clone();
        match watcher.look_for(&key.name).await {
            Found::Listed => self.watched[0] += 1,
            Found::Unknown => self.watched[1] += 1,
            Found::Dark => {
                self.watched[2] += 1;
                let (name, action) = (&*key.name, watcher.config.action);
                info!(device = device.name(), object = name, ?action, "dark data");
                // An object written meanwhile was not looked up.
                match action {
                    DarkDataAction::Log => {}
                    DarkDataAction::Delete => {
                        let remove = move |disk: &_| engine.remove_unchanged(disk, object, &state);
                        device.write(remove).await?;
                    }
                    DarkDataAction::Quarantine => {
                        let quarantine =
                            move |disk: &_| engine.quarantine_unchanged(disk, object, &state, DARK);
                        if device.write(quarantine).await? {
                            return Err(DiskError::Quarantined(DARK.into()));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads the content at the limited rate; the reader verifies it.
    async fn read(
        &mut self,
        walked: &Walked,
        key: ObjectKey,
        open: OpenObject,
    ) -> Result<(), DiskError> {
        let size = open.info.size;
        let limits = &self.auditor.config.object_size_stats;
        if !limits.is_empty() {
            let limit = limits.iter().find(|limit| size <= **limit);
            let limit = limit.copied().unwrap_or(u64::MAX);
            *self.recent.sizes.entry(limit).or_default() += 1;
        }
        match open.content {
            Content::None => {}
            Content::Inline(bytes) => self.took(bytes.len()).await,
            Content::Stored(stored) => {
                let mut reader = ObjectReader::new(
                    walked.device.clone(),
                    walked.engine.clone(),
                    key,
                    open.info.etag(),
                    stored,
                    0..size,
                    CHUNK_BYTES,
                );
                while let Some(bytes) = reader.next_chunk().await? {
                    self.took(bytes.len()).await;
                }
            }
        }
        Ok(())
    }

    async fn took(&mut self, bytes: usize) {
        self.recent.bytes_processed += bytes as u64;
        self.bytes.took(bytes as u64).await;
    }

    /// Counts an error of one object. Returns an error of a device out of service: all its other
    /// objects would fail as well, and the next walk retries.
    fn failed(&mut self, device: &str, error: DiskError) -> Result<(), DiskError> {
        match error {
            DiskError::Device(DeviceError::Busy(_) | DeviceError::NoThread(_)) => {}
            DiskError::Device(_) => return Err(error),
            _ => {}
        }
        self.count_error(device, &error);
        Ok(())
    }

    fn count_error(&mut self, device: &str, error: &DiskError) {
        self.recent.errors += 1;
        if self.logged.is_due(device, Instant::now()) {
            error!(device, %error, "object audit failed");
        } else {
            debug!(device, %error, "object audit failed");
        }
    }

    async fn make_report(&mut self) {
        let stats = &self.recent;
        let seconds = self.report.at.elapsed().as_secs_f64().max(1e-6);
        info!(
            kind = self.kind.name(),
            passed = stats.passes,
            quarantined = stats.quarantined,
            errors = stats.errors,
            files_per_second = stats.passes as f64 / seconds,
            bytes_per_second = stats.bytes_processed as f64 / seconds,
            "object audit under way"
        );
        self.report_to_monitoring().await;
        self.reported.add(&std::mem::take(&mut self.recent));
        self.report.at = Instant::now();
        self.report.since = self.auditor.parts.clock.now().as_f64();
    }

    async fn report_to_monitoring(&self) {
        let entry = self
            .recent
            .to_recon(self.report.since, self.report.busy.as_secs_f64());
        let entry = if self.is_part {
            let mut names = self.devices.clone();
            names.sort();
            Value::Object(Map::from_iter([(names.concat(), entry)]))
        } else {
            entry
        };
        let entries = Map::from_iter([(self.kind.recon_key(), entry)]);
        self.auditor.recon.update(entries).await;
    }
}
