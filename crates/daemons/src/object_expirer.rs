//! Object expirer: walks the queue that object servers keep in the account `.expiring_objects`,
//! deletes each object through a proxy if its expiry time still equals the entry's, and removes the
//! entry.
//!
//! The queue is Swift's, and so is its partitioning among processes: each handles the entries whose
//! name's MD5, modulo their number, equals its index.

mod config;
mod task;

use std::sync::Arc;
use std::time::Duration;

use cairn_http::{Body, Clock, Request};
use cairn_peer::backend_uri;
use cairn_peer::{Backends, Node, Rings};
use cairn_types::plant::Plant;
use cairn_types::{HashPath, Timestamp};
use http::header::{HeaderName, HeaderValue, USER_AGENT};
use http::{Method, StatusCode};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use crate::calls;
use crate::daemon::{Daemon, DaemonKind, PassFilter, PassFuture, Schedule};
use crate::internal_client::{InternalClient, InternalClientError};
use crate::pace::Pace;
use crate::recon_cache::{OBJECT_RECON_FILE, ReconCache};
pub use config::ObjectExpirerConfig;
use task::{Interleaved, Task};

const NODE_TIMEOUT: Duration = Duration::from_secs(15);

/// Results of a pass, in numbers of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpirerStats {
    /// Deleted, or no longer expiring; and removed from the queue.
    pub expired: u64,
    /// To be retried.
    pub errors: u64,
}

/// Dependencies of the expirer.
pub struct ExpirerParts {
    /// Client of a pipeline without filters for clients.
    pub client: InternalClient,
    /// From swift.conf.
    pub auto_create_account_prefix: String,
    pub hash_path: HashPath,
    pub rings: Arc<Rings>,
    pub backends: Arc<Backends>,
    pub clock: Clock,
}

/// The daemon, for a whole cluster.
pub struct ObjectExpirer {
    config: ObjectExpirerConfig,
    account: String,
    parts: ExpirerParts,
    recon: ReconCache,
    stats: Mutex<ExpirerStats>,
}

impl ObjectExpirer {
    pub fn new(config: ObjectExpirerConfig, parts: ExpirerParts) -> Arc<Self> {
        Arc::new(ObjectExpirer {
            recon: ReconCache::new(&config.recon_cache_path, OBJECT_RECON_FILE),
            account: format!(
                "{}{}",
                parts.auto_create_account_prefix, config.account_name
            ),
            config,
            parts,
            stats: Mutex::default(),
        })
    }

    /// Results of the current or the last pass.
    pub fn stats(&self) -> ExpirerStats {
        *self.stats.lock()
    }

    /// Runs one pass over the queue. Dropped half-way it leaves some objects deleted and still
    /// queued, which the next pass finds gone.
    pub async fn pass(self: &Arc<Self>) -> ExpirerStats {
        if !self.config.dequeue_from_legacy {
            info!("this expirer works on no queue: dequeue_from_legacy is not set");
            return ExpirerStats::default();
        }
        let started = Instant::now();
        *self.stats.lock() = ExpirerStats::default();
        let containers = match self.queue_containers().await {
            Ok(containers) => containers,
            Err(error) => {
                error!(%error, "the expirer's queue cannot be listed");
                return self.stats();
            }
        };
        let mut work = Work {
            pace: Pace::new(self.config.tasks_per_second),
            under_way: JoinSet::new(),
            waiting: Interleaved::default(),
            reported: started,
        };
        for container in containers {
            if let Err(error) = self.walk_container(&container, &mut work).await
                && error.status() != Some(StatusCode::NOT_FOUND)
            {
                error!(container, %error, "a container of the expirer's queue cannot be listed");
            }
        }
        self.start_waiting(&mut work).await;
        while work.under_way.join_next().await.is_some() {}
        self.report(started).await;
        self.stats()
    }

    async fn report(&self, started: Instant) {
        let stats = self.stats();
        let elapsed = started.elapsed().as_secs_f64();
        info!(
            elapsed_s = elapsed,
            expired = stats.expired,
            errors = stats.errors,
            "expiration pass completed"
        );
        let mut entries = Map::new();
        entries.insert("object_expiration_pass".into(), json!(elapsed));
        entries.insert("expired_last_pass".into(), json!(stats.expired));
        self.recon.update(entries).await;
    }

    fn count(&self, count: impl FnOnce(&mut ExpirerStats)) {
        count(&mut self.stats.lock());
    }

    /// Containers of the queue that are due, oldest first.
    async fn queue_containers(&self) -> Result<Vec<String>, InternalClientError> {
        let now = self.parts.clock.now();
        let path = format!("/v1/{}", self.account);
        let (mut containers, mut marker) = (Vec::new(), String::new());
        loop {
            let page = self
                .parts
                .client
                .page(&path, &marker, &[StatusCode::NOT_FOUND])
                .await?;
            let Some(last) = page.iter().filter_map(name_of).next_back() else {
                return Ok(containers);
            };
            marker = last.to_owned();
            for name in page.iter().filter_map(name_of) {
                match Timestamp::parse(name) {
                    Ok(time) if time > now => return Ok(containers),
                    Ok(_) => containers.push(name.to_owned()),
                    Err(_) => error!(name, "no container of the expirer's queue is named so"),
                }
            }
        }
    }

    /// Collects the tasks of one container of the queue; removes it if empty.
    async fn walk_container(
        self: &Arc<Self>,
        container: &str,
        work: &mut Work,
    ) -> Result<(), InternalClientError> {
        let path = format!("/v1/{}/{container}", self.account);
        let mut marker = String::new();
        let mut is_empty = true;
        'pages: loop {
            let page = self.parts.client.page(&path, &marker, &[]).await?;
            let Some(last) = page.iter().filter_map(name_of).next_back() else {
                break;
            };
            marker = last.to_owned();
            is_empty = false;
            for entry in &page {
                let Some(name) = name_of(entry) else { continue };
                let content_type = entry.get("content_type").and_then(Value::as_str);
                let Some(task) = Task::parse(container, name, content_type.unwrap_or("")) else {
                    error!(
                        container,
                        name, "no entry of the expirer's queue is named so"
                    );
                    continue;
                };
                let now = self.parts.clock.now();
                if task.delete_at > now {
                    // Entries are in the order of time.
                    break 'pages;
                }
                if !self.is_mine(&task) || self.is_delayed(&task, now) {
                    continue;
                }
                work.waiting.push(task);
                if work.waiting.len() >= self.config.task_cache_size {
                    self.start_waiting(work).await;
                }
            }
        }
        if is_empty {
            self.remove_container(container, &path).await;
        }
        Ok(())
    }

    fn is_mine(&self, task: &Task) -> bool {
        self.config.processes == 0 || task.process(self.config.processes) == self.config.process
    }

    fn is_delayed(&self, task: &Task, now: Timestamp) -> bool {
        let delay = self.config.delay(&task.account, &task.container);
        !task.is_async && task.delete_at.as_f64() + delay.as_secs_f64() > now.as_f64()
    }

    async fn remove_container(&self, container: &str, path: &str) {
        let fine = [StatusCode::NOT_FOUND, StatusCode::CONFLICT];
        let removed = self.parts.client.ask(Method::DELETE, path, &[], &fine);
        if let Err(error) = removed.await {
            warn!(container, %error, "an empty container of the expirer's queue stays");
        }
    }

    /// Starts all waiting tasks.
    async fn start_waiting(self: &Arc<Self>, work: &mut Work) {
        for task in work.waiting.take() {
            work.pace.step().await;
            while work.under_way.len() >= self.config.concurrency {
                work.under_way.join_next().await;
            }
            let expirer = self.clone();
            work.under_way
                .spawn(async move { expirer.expire(task).await });
            if work.reported.elapsed() >= self.config.report_interval {
                work.reported = Instant::now();
                info!(stats = ?self.stats(), "expiration pass under way");
            }
        }
    }

    async fn expire(&self, task: Task) {
        if let Err(error) = self.delete(&task).await {
            // Not found: retried until the entry is older than the reclaim age.
            let is_gone = matches!(
                error.status(),
                Some(StatusCode::NOT_FOUND | StatusCode::PRECONDITION_FAILED)
            );
            let age = self.parts.clock.now().as_f64() - task.delete_at.as_f64();
            if !is_gone || age < self.config.reclaim_age.as_secs_f64() {
                self.count(|stats| stats.errors += 1);
                return warn!(entry = task.entry, %error, "an object was not expired");
            }
        }
        self.take_off(&task).await;
        self.count(|stats| stats.expired += 1);
    }

    async fn delete(&self, task: &Task) -> Result<(), InternalClientError> {
        let path = format!("/v1/{}/{}/{}", task.account, task.container, task.object);
        let time = task.delete_at.normal();
        let deleted_at = match Plant::ExpiredNow.is_on() {
            true => self.parts.clock.now().normal(),
            false => time.clone(),
        };
        let mut headers = vec![("x-timestamp", deleted_at)];
        let mut fine = vec![StatusCode::CONFLICT];
        if task.is_async {
            fine.push(StatusCode::NOT_FOUND);
        } else {
            headers.push(("x-if-delete-at", time));
            // The entry is removed here, so the object server need not.
            headers.push(("x-backend-clean-expiring-object-queue", "no".into()));
        }
        let client = &self.parts.client;
        client.ask(Method::DELETE, &path, &headers, &fine).await?;
        Ok(())
    }

    /// Removes the entry at all of its container's servers. If that fails, the next pass finds it
    /// again, with its object gone.
    async fn take_off(&self, task: &Task) {
        let ring = self.parts.rings.container();
        let container = Some(&*task.queue_container);
        let partition = ring.partition(&self.parts.hash_path, &self.account, container, None);
        let path = format!("/{}/{}/{}", self.account, task.queue_container, task.entry);
        let time = self.parts.clock.now().internal();
        let mut calls = JoinSet::new();
        for node in ring.primaries(partition) {
            let request = removal(&node, partition, &path, &time);
            let backends = self.parts.backends.clone();
            calls.spawn(async move {
                match calls::call(&backends, &node, request, NODE_TIMEOUT).await {
                    Ok((status, _)) if status.is_success() => {}
                    Ok((status, _)) => debug!(node = node.name(), %status, "entry not removed"),
                    Err(error) => debug!(node = node.name(), %error, "entry not removed"),
                }
            });
        }
        while calls.join_next().await.is_some() {}
    }
}

impl Daemon for ObjectExpirer {
    fn kind(&self) -> DaemonKind {
        DaemonKind::ObjectExpirer
    }

    fn schedule(&self) -> Schedule {
        Schedule::from_start(self.config.interval).with_random_times()
    }

    fn once(self: Arc<Self>, _: PassFilter) -> PassFuture {
        Box::pin(async move { _ = self.pass().await })
    }
}

fn removal(node: &Node, partition: u32, path: &str, time: &str) -> Request {
    let mut request = Request::new(Body::empty());
    *request.method_mut() = Method::DELETE;
    *request.uri_mut() = backend_uri(node, partition, path, None);
    let headers = request.headers_mut();
    if let Ok(time) = HeaderValue::from_str(time) {
        headers.insert(HeaderName::from_static("x-timestamp"), time);
    }
    headers.insert(USER_AGENT, calls::user_agent("object-expirer"));
    request
}

fn name_of(entry: &Value) -> Option<&str> {
    entry.get("name").and_then(Value::as_str)
}

/// Tasks of a pass in progress.
struct Work {
    pace: Pace,
    under_way: JoinSet<()>,
    waiting: Interleaved,
    reported: Instant,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
