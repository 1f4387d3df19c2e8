//! Container reconciler: moves objects to the policy of their container. If both halves of a split
//! cluster create one container with different policies, some objects are in the losing policy.
//! Container replicators queue them in the account `.misplaced_objects`; the reconciler copies (or
//! deletes) each in the right policy, removes it from the wrong one, and dequeues it.
//!
//! Each step is written at the timestamp of the original write plus a small offset: later than the
//! misplaced write, and earlier than any later write of a client.

mod config;
mod entry;
mod relocate;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use cairn_http::{Body, Clock, Request, respond};
use cairn_index::PolicyClaim;
use cairn_peer::backend_uri;
use cairn_peer::{Backends, LoadedRing, Node, Rings};
use cairn_types::{HashPath, PolicyIndex, Quorum, Timestamp};
use http::header::{HeaderName, HeaderValue, USER_AGENT};
use http::{HeaderMap, Method, StatusCode};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{debug, error, info};

use crate::calls;
use crate::daemon::{Daemon, DaemonKind, PassFilter, PassFuture, Schedule};
use crate::internal_client::{InternalClient, InternalClientError};
pub use config::ContainerReconcilerConfig;
pub use entry::{DELETE_TYPE, MISPLACED_OBJECTS_ACCOUNT, PUT_TYPE, queue_container};
use entry::{Entry, slightly_later};
use relocate::Outcome;

const NODE_TIMEOUT: Duration = Duration::from_secs(15);
/// Time for which a container's policy is cached.
const POLICY_TTL: Duration = Duration::from_secs(30);
/// Maximum cached policies.
const POLICIES_MAX: usize = 10_000;

/// Dependencies of the reconciler.
pub struct ReconcilerParts {
    /// Client of a pipeline without filters that change objects.
    pub client: InternalClient,
    pub hash_path: HashPath,
    pub rings: Arc<Rings>,
    pub backends: Arc<Backends>,
    pub clock: Clock,
}

/// The daemon, for a whole cluster.
pub struct ContainerReconciler {
    config: ContainerReconcilerConfig,
    parts: ReconcilerParts,
    policies: Mutex<HashMap<(String, String), (Instant, PolicyIndex)>>,
    stats: Mutex<BTreeMap<&'static str, u64>>,
}

impl ContainerReconciler {
    pub fn new(config: ContainerReconcilerConfig, parts: ReconcilerParts) -> Arc<Self> {
        Arc::new(ContainerReconciler {
            config,
            parts,
            policies: Mutex::default(),
            stats: Mutex::default(),
        })
    }

    /// Runs one pass over the queue; returns counts by Swift's names of outcomes. Dropped half-way
    /// it leaves some objects in both policies and still queued, which the next pass finds moved.
    pub async fn pass(self: &Arc<Self>) -> BTreeMap<&'static str, u64> {
        self.stats.lock().clear();
        let mut under_way = JoinSet::new();
        // The current hour's first, even before the account lists it.
        let current = queue_container(self.parts.clock.now()).to_string();
        self.walk_container(&current, &mut under_way).await;
        match self.queue_containers().await {
            Ok(containers) => {
                // Old ones tend to be empty.
                for container in containers.iter().rev().filter(|name| **name != current) {
                    self.walk_container(container, &mut under_way).await;
                }
            }
            Err(error) => error!(%error, "the queue of misplaced objects cannot be listed"),
        }
        while under_way.join_next().await.is_some() {}
        let stats = self.stats.lock().clone();
        if stats.is_empty() {
            debug!("no object is queued as misplaced");
        } else {
            info!(?stats, "reconciler pass completed");
        }
        stats
    }

    fn count(&self, outcome: &'static str) {
        *self.stats.lock().entry(outcome).or_default() += 1;
    }

    async fn queue_containers(&self) -> Result<Vec<String>, InternalClientError> {
        let path = format!("/v1/{MISPLACED_OBJECTS_ACCOUNT}");
        let (mut containers, mut marker) = (Vec::new(), String::new());
        loop {
            let client = &self.parts.client;
            let page = client
                .page(&path, &marker, &[StatusCode::NOT_FOUND])
                .await?;
            let names = page.iter().filter_map(name_of).map(str::to_owned);
            let known = containers.len();
            containers.extend(names);
            match containers.last() {
                Some(last) if containers.len() > known => marker.clone_from(last),
                _ => return Ok(containers),
            }
        }
    }

    async fn walk_container(self: &Arc<Self>, container: &str, under_way: &mut JoinSet<()>) {
        let path = format!("/v1/{MISPLACED_OBJECTS_ACCOUNT}/{container}");
        let (mut marker, mut is_empty) = (String::new(), true);
        loop {
            let client = &self.parts.client;
            let fine = [StatusCode::NOT_FOUND];
            let page = match client.page(&path, &marker, &fine).await {
                Ok(page) => page,
                Err(error) => {
                    error!(container, %error, "misplaced objects cannot be listed");
                    break;
                }
            };
            let Some(last) = page.iter().filter_map(name_of).next_back() else {
                break;
            };
            marker = last.to_owned();
            is_empty = false;
            for row in &page {
                let Some(entry) = Entry::parse(container, row) else {
                    self.count("invalid_record");
                    error!(container, %row, "no entry of the queue looks like that");
                    continue;
                };
                if self.is_mine(&entry) {
                    self.begin(entry, under_way).await;
                }
            }
        }
        let age = self.config.reclaim_age.as_secs_f64();
        let is_old = container
            .parse::<f64>()
            .is_ok_and(|time| time < self.parts.clock.now().as_f64() - age);
        if is_empty && is_old {
            self.remove_container(container, &path).await;
        }
    }

    async fn begin(self: &Arc<Self>, entry: Entry, under_way: &mut JoinSet<()>) {
        while under_way.len() >= self.config.concurrency {
            under_way.join_next().await;
        }
        let reconciler = self.clone();
        under_way.spawn(async move { reconciler.process(&entry).await });
    }

    fn is_mine(&self, entry: &Entry) -> bool {
        let (container, object) = (Some(&*entry.container), Some(&*entry.object));
        let hash = self.parts.hash_path.hash(&entry.account, container, object);
        let number = u128::from_be_bytes(hash.0);
        let processes = u128::from(self.config.processes);
        processes == 0 || number % processes == u128::from(self.config.process)
    }

    async fn remove_container(&self, container: &str, path: &str) {
        let fine = [
            StatusCode::NOT_FOUND,
            StatusCode::CONFLICT,
            StatusCode::PRECONDITION_FAILED,
        ];
        let removed = self.parts.client.ask(Method::DELETE, path, &[], &fine);
        if let Err(error) = removed.await {
            debug!(container, %error, "an empty container of the queue stays");
        }
    }

    async fn process(&self, entry: &Entry) {
        let outcome = self.reconcile(entry).await;
        self.count(outcome.name());
        let (path, policy, outcome_name) = (entry.path(), entry.policy.0, outcome.name());
        if outcome == Outcome::LostSource {
            error!(
                path,
                policy, "a misplaced object was found nowhere and is given up"
            );
        }
        if outcome.is_done() {
            info!(
                path,
                policy,
                outcome = outcome_name,
                "misplaced object handled"
            );
            self.count("success");
            self.take_off(entry).await;
        } else {
            info!(
                path,
                policy,
                outcome = outcome_name,
                "misplaced object must be retried"
            );
            self.count("retry");
        }
    }

    /// The policy on which most of the container's servers agree, by their histories. `None` if too
    /// few respond.
    async fn container_policy(&self, account: &str, container: &str) -> Option<PolicyIndex> {
        let key = (account.to_owned(), container.to_owned());
        if let Some((asked, policy)) = self.policies.lock().get(&key)
            && asked.elapsed() < POLICY_TTL
        {
            return Some(*policy);
        }
        let policy = self.ask_for_policy(account, container).await?;
        let mut known = self.policies.lock();
        if known.len() >= POLICIES_MAX {
            known.clear();
        }
        known.insert(key, (Instant::now(), policy));
        Some(policy)
    }

    async fn ask_for_policy(&self, account: &str, container: &str) -> Option<PolicyIndex> {
        let path = format!("/{account}/{container}");
        let ring = self.parts.rings.container();
        let nodes = ring.primaries(self.partition(&ring, account, container));
        let enough = Quorum::majority_of(nodes.len());
        let answers = self
            .ask_nodes(account, container, Method::HEAD, &path, None)
            .await;
        let known = |status: StatusCode| status.is_success() || status == StatusCode::NOT_FOUND;
        let claims: Vec<(PolicyClaim, PolicyIndex)> = answers
            .iter()
            .filter(|(status, _)| known(*status))
            .filter_map(|(_, headers)| claim(headers))
            .collect();
        if !enough.is_reached_by(claims.len()) {
            return None;
        }
        let best = claims.iter().min_by(|a, b| a.0.rank(&b.0))?;
        Some(best.1)
    }

    fn partition(&self, ring: &LoadedRing, account: &str, container: &str) -> u32 {
        ring.partition(&self.parts.hash_path, account, Some(container), None)
    }

    /// Requests from all primaries of a container; failures are omitted.
    async fn ask_nodes(
        &self,
        account: &str,
        container: &str,
        method: Method,
        path: &str,
        time: Option<Timestamp>,
    ) -> Vec<(StatusCode, HeaderMap)> {
        let ring = self.parts.rings.container();
        let partition = self.partition(&ring, account, container);
        let mut calls = JoinSet::new();
        for node in ring.primaries(partition) {
            let request = request(&node, partition, &method, path, time);
            let backends = self.parts.backends.clone();
            calls.spawn(async move {
                let answer = calls::call(&backends, &node, request, NODE_TIMEOUT).await;
                answer
                    .inspect_err(
                        |error| debug!(node = node.name(), %error, "a container server is silent"),
                    )
                    .ok()
            });
        }
        let mut answers = Vec::new();
        while let Some(answer) = calls.join_next().await {
            answers.extend(answer.ok().flatten());
        }
        answers
    }

    /// Dequeues an entry. If that fails, the next pass finds it again, with its object moved.
    async fn take_off(&self, entry: &Entry) {
        let container = &entry.queue_container;
        let path = format!("/{MISPLACED_OBJECTS_ACCOUNT}/{container}/{}", entry.name);
        let time = slightly_later(entry.queued.max(entry.time), 2);
        let account = MISPLACED_OBJECTS_ACCOUNT;
        self.count("pop_queue");
        self.ask_nodes(account, container, Method::DELETE, &path, Some(time))
            .await;
    }
}

impl Daemon for ContainerReconciler {
    fn kind(&self) -> DaemonKind {
        DaemonKind::ContainerReconciler
    }

    fn schedule(&self) -> Schedule {
        Schedule::from_end(self.config.interval)
    }

    fn once(self: Arc<Self>, _: PassFilter) -> PassFuture {
        Box::pin(async move { _ = self.pass().await })
    }
}

fn request(
    node: &Node,
    partition: u32,
    method: &Method,
    path: &str,
    time: Option<Timestamp>,
) -> Request {
    let mut request = Request::new(Body::empty());
    *request.method_mut() = method.clone();
    *request.uri_mut() = backend_uri(node, partition, path, None);
    let headers = request.headers_mut();
    if let Some(time) = time.and_then(|time| HeaderValue::from_str(&time.internal()).ok()) {
        headers.insert(HeaderName::from_static("x-timestamp"), time);
    }
    headers.insert(USER_AGENT, calls::user_agent("container-reconciler"));
    request
}

/// A replica's policy claim, from a container server's headers.
fn claim(headers: &HeaderMap) -> Option<(PolicyClaim, PolicyIndex)> {
    let time = |name| respond::header_timestamp(headers, name).unwrap_or_default();
    let index = respond::header(headers, "x-backend-storage-policy-index")?;
    let claim = PolicyClaim {
        put: time("x-backend-put-timestamp"),
        delete: time("x-backend-delete-timestamp"),
        status_changed: time("x-backend-status-changed-at"),
        count: 0,
    };
    Some((claim, PolicyIndex(index.parse().ok()?)))
}

fn name_of(row: &Value) -> Option<&str> {
    row.get("name").and_then(Value::as_str)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
