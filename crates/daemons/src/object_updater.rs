//! Object updater: delivers container updates that object servers could not. It walks each device's
//! `async_pending`, sends every update to the container's primaries, and removes it once all of
//! them accepted. Primaries that accepted are recorded in the file, and not sent to again.
//!
//! An older update of the same object that adds nothing is removed unsent. A POST to content that
//! is replaced meanwhile by an older PUT leaves two valid ones: one has the newest metadata, the
//! other the newest content. (OpenStack Swift's updater sends the newest alone.)

mod config;
mod limiter;
mod oldest;

use std::sync::Arc;
use std::time::Duration;

use cairn_disk::async_pending::{self, AsyncUpdate, PendingFile};
use cairn_disk::{Device, Devices, DiskError};
use cairn_http::params::{is_true, unquote};
use cairn_http::{Body, Clock, Request, own_thread};
use cairn_peer::backend_uri;
use cairn_peer::{Backends, Node, Rings};
use cairn_types::{HashPath, PolicyIndex, PolicySet, Timestamp};
use http::header::{HeaderMap, HeaderName, HeaderValue, LOCATION, USER_AGENT};
use parking_lot::Mutex;
use serde_json::{Map, json};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::calls;
use crate::daemon::{Daemon, DaemonKind, PassFilter, PassFuture, Schedule};
use crate::log_limit::DeviceErrors;
use crate::pace::Pace;
use crate::recon_cache::{OBJECT_RECON_FILE, ReconCache};
use limiter::Limiter;
use oldest::Oldest;

pub use config::{PerContainer, UpdaterConfig};

/// Results of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepStats {
    /// Accepted by all primaries, and removed.
    pub successes: u64,
    /// Not yet accepted by some.
    pub failures: u64,
    /// Redirected to a shard.
    pub redirects: u64,
    /// Removed unsent because of a newer one.
    pub outdated_unlinks: u64,
    /// Could not be read, listed or removed.
    pub errors: u64,
    /// Deferred by the rate limit (`max_objects_per_container_per_second`); each was sent later in
    /// the sweep, or skipped.
    pub deferrals: u64,
    pub drains: u64,
    pub skips: u64,
}

impl SweepStats {
    fn add(&mut self, other: SweepStats) {
        self.successes += other.successes;
        self.failures += other.failures;
        self.redirects += other.redirects;
        self.outdated_unlinks += other.outdated_unlinks;
        self.errors += other.errors;
        self.deferrals += other.deferrals;
        self.drains += other.drains;
        self.skips += other.skips;
    }
}

/// Timestamps that a container compares with its row.
#[derive(Clone, Copy, Debug)]
struct RowTimes {
    content: Timestamp,
    content_type: Timestamp,
    metadata: Timestamp,
}

impl RowTimes {
    fn of(update: &AsyncUpdate) -> Self {
        let time = |name| {
            let text = std::str::from_utf8(update.header(name)?).ok()?;
            Timestamp::parse(text).ok()
        };
        let content = time("x-timestamp").unwrap_or(Timestamp::ZERO);
        RowTimes {
            content,
            content_type: time("x-content-type-timestamp").unwrap_or(content),
            metadata: time("x-meta-timestamp").unwrap_or(content),
        }
    }

    fn are_within(self, newer: &RowTimes) -> bool {
        self.content <= newer.content
            && self.content_type <= newer.content_type
            && self.metadata <= newer.metadata
    }
}

/// The daemon, for all devices under one folder.
pub struct ObjectUpdater {
    config: UpdaterConfig,
    hash_path: HashPath,
    policies: Arc<PolicySet>,
    rings: Arc<Rings>,
    devices: Arc<Devices>,
    backends: Arc<Backends>,
    recon: ReconCache,
    /// Results of the current or the last sweep.
    stats: Mutex<SweepStats>,
    oldest: Mutex<Oldest>,
    logged: DeviceErrors,
}

impl ObjectUpdater {
    pub fn new(
        config: UpdaterConfig,
        hash_path: HashPath,
        policies: Arc<PolicySet>,
        rings: Arc<Rings>,
        devices: Arc<Devices>,
        backends: Arc<Backends>,
    ) -> Arc<Self> {
        let stats = Mutex::default();
        Arc::new(ObjectUpdater {
            recon: ReconCache::new(&config.recon_cache_path, OBJECT_RECON_FILE),
            oldest: Mutex::default(),
            logged: DeviceErrors::default(),
            config,
            hash_path,
            policies,
            rings,
            devices,
            backends,
            stats,
        })
    }

    /// Results of the current or the last sweep.
    pub fn stats(&self) -> SweepStats {
        *self.stats.lock()
    }

    /// Walks all devices once. Dropped half-way it leaves every update unchanged, or accepted by
    /// some and not yet recorded; sending again is harmless.
    pub async fn pass(self: &Arc<Self>) -> SweepStats {
        let started = Instant::now();
        let until = started + self.config.interval;
        *self.stats.lock() = SweepStats::default();
        *self.oldest.lock() = Oldest::default();
        let devices = self.devices.clone();
        // Empty if the task failed: nothing to walk this time.
        let names = own_thread::blocking(move || devices.names())
            .await
            .unwrap_or_default();
        for name in names {
            match self.devices.get(&name) {
                Ok(device) => self.sweep_device(&device.background(), until).await,
                Err(error) => debug!(device = name, %error, "object updater skips this device"),
            }
        }
        let stats = self.stats();
        if stats != SweepStats::default() {
            info!(
                elapsed_s = started.elapsed().as_secs_f64(),
                successes = stats.successes,
                failures = stats.failures,
                redirects = stats.redirects,
                outdated_unlinks = stats.outdated_unlinks,
                errors = stats.errors,
                deferrals = stats.deferrals,
                drains = stats.drains,
                skips = stats.skips,
                "object update sweep completed"
            );
        }
        self.report_sweep(started).await;
        stats
    }

    async fn report_sweep(&self, started: Instant) {
        let now = Clock::system().now();
        let oldest = {
            let oldest = self.oldest.lock();
            oldest.stats(self.config.shown, now)
        };
        let mut entries = Map::new();
        let elapsed = started.elapsed().as_secs_f64();
        entries.insert("object_updater_sweep".into(), json!(elapsed));
        entries.insert("object_updater_last".into(), json!(now.as_f64()));
        entries.insert("object_updater_stats".into(), oldest);
        self.recon.update(entries).await;
    }

    fn count(&self, add: SweepStats) {
        self.stats.lock().add(add);
    }

    fn count_error(&self, device: &Device, what: &'static str, error: &DiskError) {
        if matches!(error, DiskError::Device(_)) {
            debug!(device = device.name(), %error, what, "object updater skips this device");
        } else {
            if self.logged.is_due(device.name(), error) {
                warn!(device = device.name(), %error, what, "object updater cannot do this");
            }
            self.count(SweepStats {
                errors: 1,
                ..SweepStats::default()
            });
        }
    }

    /// Sweeps one device; deferred updates are sent up to `until`.
    async fn sweep_device(self: &Arc<Self>, device: &Arc<Device>, until: Instant) {
        let mut pace = Pace::new(self.config.objects_per_second);
        let mut reported = Instant::now();
        let mut limiter = Limiter::new(&self.config.per_container, Instant::now());
        let mut under_way = JoinSet::new();
        for policy in self.policies.iter().map(|policy| policy.index) {
            let suffixes = match device
                .read(move |d| async_pending::list_suffixes(d, policy))
                .await
            {
                Ok(suffixes) => suffixes,
                Err(error) => {
                    self.count_error(device, "list async_pending", &error);
                    continue;
                }
            };
            for suffix in suffixes {
                for file in self.updates_that_count(device, policy, suffix).await {
                    pace.step().await;
                    let file = match &mut limiter {
                        Some(limiter) => self.admit(limiter, device, file).await,
                        None => Some(file),
                    };
                    if let Some(file) = file {
                        self.begin(&mut under_way, device, file).await;
                    }
                    if reported.elapsed() >= self.config.report_interval {
                        reported = Instant::now();
                        info!(stats = ?self.stats(), "object update sweep under way");
                    }
                }
            }
        }
        if let Some(mut limiter) = limiter {
            while let Some((at, file)) = limiter.drain(until) {
                tokio::time::sleep_until(at).await;
                pace.step().await;
                self.begin(&mut under_way, device, file).await;
            }
            let limiter::Counts {
                deferrals,
                skips,
                drains,
            } = limiter.counts;
            self.count(SweepStats {
                deferrals,
                drains,
                skips,
                ..SweepStats::default()
            });
        }
        while under_way.join_next().await.is_some() {}
    }

    async fn begin(
        self: &Arc<Self>,
        under_way: &mut JoinSet<()>,
        device: &Arc<Device>,
        file: PendingFile,
    ) {
        while under_way.len() >= self.config.concurrency {
            under_way.join_next().await;
        }
        let (updater, device) = (self.clone(), device.clone());
        under_way.spawn(async move { updater.process(&device, file).await });
    }

    /// Reads the update and admits it by its container's rate limit. An unreadable one is admitted.
    async fn admit(
        &self,
        limiter: &mut Limiter<PendingFile>,
        device: &Arc<Device>,
        file: PendingFile,
    ) -> Option<PendingFile> {
        let read = {
            let file = file.clone();
            device.read(move |disk| Ok(file.read(disk))).await
        };
        let Ok(Some(update)) = read else {
            return Some(file);
        };
        limiter.admit(target(&update), file, Instant::now())
    }

    /// Updates under a suffix, except those made obsolete by a newer one of the same object, which
    /// are removed.
    async fn updates_that_count(
        &self,
        device: &Arc<Device>,
        policy: PolicyIndex,
        suffix: String,
    ) -> Vec<PendingFile> {
        let listed = device
            .read(move |d| async_pending::list_updates(d, policy, &suffix))
            .await;
        let files = match listed {
            Ok(files) => files,
            Err(error) => {
                self.count_error(device, "list a suffix of async_pending", &error);
                return Vec::new();
            }
        };
        let mut counting = Vec::new();
        for of_object in files.chunk_by(|a, b| a.hash == b.hash) {
            match of_object {
                [alone] => counting.push(alone.clone()),
                several => counting.extend(self.not_obsolete(device, several.to_vec()).await),
            }
        }
        counting
    }

    /// The valid ones of several updates of one object, newest first.
    async fn not_obsolete(
        &self,
        device: &Arc<Device>,
        files: Vec<PendingFile>,
    ) -> Vec<PendingFile> {
        let read = device.read(move |disk| {
            let read = files.into_iter().map(|file| {
                let times = file.read(disk).map(|update| RowTimes::of(&update));
                (file, times)
            });
            Ok(read.collect::<Vec<_>>())
        });
        let files = match read.await {
            Ok(files) => files,
            Err(error) => {
                self.count_error(device, "read updates", &error);
                return Vec::new();
            }
        };
        let (mut counting, mut newer) = (Vec::new(), Vec::new());
        for (file, times) in files {
            let is_obsolete = |times: RowTimes| newer.iter().any(|newer| times.are_within(newer));
            if !times.is_some_and(is_obsolete) {
                newer.extend(times);
                counting.push(file);
                continue;
            }
            match device.write(move |disk| file.remove(disk)).await {
                Ok(()) => self.count(SweepStats {
                    outdated_unlinks: 1,
                    ..SweepStats::default()
                }),
                Err(error) => self.count_error(device, "remove an outdated update", &error),
            }
        }
        counting
    }

    /// Processes one update: sends it, and once more if redirected; then removes or rewrites it.
    async fn process(&self, device: &Arc<Device>, file: PendingFile) {
        let read = {
            let file = file.clone();
            device.read(move |disk| Ok(file.read(disk))).await
        };
        let mut update = match read {
            Ok(Some(update)) => update,
            // Gone: replaced by a newer one. Unreadable: the next sweep retries.
            Ok(None) => {
                return self.count(SweepStats {
                    errors: 1,
                    ..SweepStats::default()
                });
            }
            Err(error) => return self.count_error(device, "read an update", &error),
        };
        let mut changed = false;
        for _ in 0..2 {
            match self.send(&mut update, file.policy).await {
                Sent::ToAll => {
                    self.count(SweepStats {
                        successes: 1,
                        ..SweepStats::default()
                    });
                    if let Err(error) = device.write(move |disk| file.remove(disk)).await {
                        self.count_error(device, "remove a delivered update", &error);
                    }
                    return;
                }
                Sent::Redirected => {
                    self.count(SweepStats {
                        redirects: 1,
                        ..SweepStats::default()
                    });
                    changed = true;
                }
                Sent::ToSome { news } => {
                    self.count(SweepStats {
                        failures: 1,
                        ..SweepStats::default()
                    });
                    let mut oldest = self.oldest.lock();
                    let (account, container) = (&update.account, &update.container);
                    oldest.failed(account, container, file.timestamp, self.config.tracked_max);
                    drop(oldest);
                    changed |= news;
                    break;
                }
            }
        }
        if changed && let Err(error) = device.write(move |disk| file.rewrite(disk, &update)).await {
            self.count_error(device, "note who has an update", &error);
        }
    }

    /// Sends to every primary that has not accepted the update yet.
    async fn send(&self, update: &mut AsyncUpdate, policy: PolicyIndex) -> Sent {
        let (account, container) = target(update);
        let path = format!("/{account}/{container}/{}", update.object);
        let ring = self.rings.container();
        let partition = ring.partition(&self.hash_path, account, Some(container), None);
        let headers = headers_out(update, policy);
        let mut calls = JoinSet::new();
        for node in ring.primaries(partition) {
            let id = i64::from(node.device.id);
            if update.successes.contains(&id) {
                continue;
            }
            let request = request(&node, partition, &update.op, &path, &headers);
            let (backends, call_timeout) = (self.backends.clone(), self.config.node_timeout);
            calls.spawn(async move { (id, call(&backends, &node, request, call_timeout).await) });
        }
        let (mut news, mut failed, mut redirect) = (false, false, None::<(String, Timestamp)>);
        while let Some(answer) = calls.join_next().await {
            match answer {
                Ok((id, Answer::Taken)) => {
                    update.successes.push(id);
                    news = true;
                }
                Ok((_, Answer::Redirect(path, timestamp))) => {
                    failed = true;
                    if redirect
                        .as_ref()
                        .is_none_or(|(_, newest)| *newest < timestamp)
                    {
                        redirect = Some((path, timestamp));
                    }
                }
                Ok((_, Answer::Refused)) | Err(_) => failed = true,
            }
        }
        match redirect {
            _ if !failed => Sent::ToAll,
            Some((path, _)) => {
                // Primaries that accepted are not the shard's. A shard that redirects to the
                // update's origin would make a loop: restart at the root then.
                update.successes.clear();
                let back = update.container_path.as_deref() == Some(path.as_str());
                update.container_path = (!back).then_some(path);
                Sent::Redirected
            }
            None => Sent::ToSome { news },
        }
    }
}

impl Daemon for ObjectUpdater {
    fn kind(&self) -> DaemonKind {
        DaemonKind::ObjectUpdater
    }

    fn schedule(&self) -> Schedule {
        Schedule::from_start(self.config.interval)
    }

    fn once(self: Arc<Self>, _: PassFilter) -> PassFuture {
        Box::pin(async move { _ = self.pass().await })
    }
}

/// Account and container, or shard, to update.
fn target(update: &AsyncUpdate) -> (&str, &str) {
    let shard = update.container_path.as_deref();
    let shard = shard.and_then(|path| path.split_once('/'));
    shard.unwrap_or((&update.account, &update.container))
}

enum Sent {
    ToAll,
    Redirected,
    /// `news` if another node accepted it.
    ToSome {
        news: bool,
    },
}

enum Answer {
    Taken,
    Redirect(String, Timestamp),
    Refused,
}

fn headers_out(update: &AsyncUpdate, policy: PolicyIndex) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in &update.headers {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
            headers.insert(name, value);
        }
    }
    headers.insert(USER_AGENT, calls::user_agent("object-updater"));
    headers
        .entry("x-backend-storage-policy-index")
        .or_insert_with(|| HeaderValue::from(policy.0));
    for name in [
        "x-backend-accept-redirect",
        "x-backend-accept-quoted-location",
    ] {
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static("true"));
    }
    headers
}

fn request(node: &Node, partition: u32, op: &str, path: &str, headers: &HeaderMap) -> Request {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = backend_uri(node, partition, path, None);
    *request.method_mut() = op.parse().unwrap_or(http::Method::PUT);
    *request.headers_mut() = headers.clone();
    request
}

async fn call(
    backends: &Backends,
    node: &Node,
    request: Request,
    call_timeout: Duration,
) -> Answer {
    let (status, headers) = match calls::call(backends, node, request, call_timeout).await {
        Ok(answer) => answer,
        Err(error) => {
            info!(node = node.name(), %error, "container update failed");
            return Answer::Refused;
        }
    };
    match redirect(&headers) {
        Some((path, timestamp)) if status.as_u16() == 301 => Answer::Redirect(path, timestamp),
        _ if status.is_success() => Answer::Taken,
        _ => {
            debug!(node = node.name(), %status, "container update refused");
            Answer::Refused
        }
    }
}

/// The target of a redirect, and its timestamp.
fn redirect(headers: &HeaderMap) -> Option<(String, Timestamp)> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    let location: http::Uri = headers.get(LOCATION)?.to_str().ok()?.parse().ok()?;
    let quoted = text("x-backend-location-is-quoted").is_some_and(is_true);
    let path = location.path();
    let path = if quoted {
        unquote(path).ok()?
    } else {
        path.to_owned()
    };
    let (account, rest) = path.strip_prefix('/')?.split_once('/')?;
    let container = rest.split('/').next()?;
    if account.is_empty() || container.is_empty() {
        return None;
    }
    let timestamp = Timestamp::parse(text("x-backend-redirect-timestamp")?).ok()?;
    Some((format!("{account}/{container}"), timestamp))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
