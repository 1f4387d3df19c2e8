//! One seed: a cluster's life from its start to the last check.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use cairn_http::{Body, own_thread};
use http::Method;
use tokio::time::sleep;

use crate::check::{self, Objects};
use crate::client::{self, CONTAINER_MARK};
use crate::cluster::{Cluster, DAEMONS};
use crate::faults::FaultInjector;
use crate::gates;
use crate::load::{self, CONTAINERS, TRANSIENT};
use crate::manner::Manner;
use crate::model::{Change, Model};
use crate::panics;
use crate::policies::{FRAGMENTS, FRAGMENTS_INDEX, policy_of};
use crate::rings::{ClusterRings, RingSets};
use crate::shared::{NODES, Shared};
use crate::swaps;

/// Maximum rounds of the daemons until the cluster must be in order.
const ROUNDS_MAX: usize = 14;
/// Longer than the reclaim age.
const EIGHT_DAYS: Duration = Duration::from_secs(8 * 24 * 3600);

/// Result of a seed.
pub(crate) struct Outcome {
    /// Hash over all events, in order.
    pub(crate) hash: u64,
    pub(crate) events: u64,
    /// Violations.
    pub(crate) wrong: Vec<String>,
    pub(crate) lines: Vec<String>,
}

/// Runs one seed on this thread.
pub(crate) fn seed(seed: u64, rings: &RingSets, scratch: &Path, manner: Manner) -> Result<Outcome> {
    let folder = tempfile::Builder::new()
        .prefix("seed")
        .tempdir_in(scratch)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()?;
    own_thread::take_over(Some(seed));
    let outcome = runtime.block_on(live(seed, rings, folder.path(), manner));
    drop(runtime);
    own_thread::take_over(None);
    outcome
}

async fn live(seed: u64, rings: &RingSets, root: &Path, manner: Manner) -> Result<Outcome> {
    let shared = Arc::new(Shared::new(seed, manner, rings.has_fragments));
    let policies = rings.policies.clone();
    // While rings differ, two majorities need not intersect.
    let may_change = shared.fault_dice.below(3) == 0 && !manner.is_conditional;
    let rings = ClusterRings::begin(rings, root, may_change)?;
    let cluster = Cluster::start(shared.clone(), policies, rings, root)?;
    let model = Arc::new(Model::default());
    make_containers(&cluster, &model).await?;
    let count = 25 + shared.load_dice.below(35);
    let mut injector = FaultInjector::new(cluster.clone());
    let mut wrong = tokio::select! {
        biased;
        wrong = drive(&cluster, &model, count, seed) => wrong,
        ended = injector.strike() => {
            ended?;
            Vec::new()
        }
    };
    injector.end()?;
    // Requests in flight end, and error limits of proxies expire.
    sleep(Duration::from_secs(120)).await;
    let mut objects = None;
    if wrong.is_empty() {
        (wrong, objects) = converge(&cluster, &model, None).await;
    }
    if wrong.is_empty() {
        shared.log(|| "eight days pass".into());
        sleep(EIGHT_DAYS).await;
        (wrong, _) = converge(&cluster, &model, objects.as_ref()).await;
        let after = wrong.iter_mut();
        after.for_each(|w| *w = format!("after the reclaim age: {w}"));
    }
    for line in &wrong {
        shared.log(|| line.clone());
    }
    cluster.end();
    wrong.extend(panics::take());
    let (hash, events, lines) = shared.take_log();
    Ok(Outcome {
        hash,
        events,
        wrong,
        lines,
    })
}

/// Runs the clients.
async fn drive(cluster: &Arc<Cluster>, model: &Arc<Model>, count: u64, seed: u64) -> Vec<String> {
    let clients = async {
        match cluster.shared.manner.is_conditional {
            true => swaps::drive(cluster, &model.swaps).await,
            false => load::drive(cluster, model, count).await,
        }
    };
    let (mut wrong, torn) = tokio::join!(biased; clients, gates::drive(cluster, seed));
    wrong.extend(torn);
    wrong
}

async fn make_containers(cluster: &Cluster, model: &Model) -> Result<()> {
    let (name, mark) = ((TRANSIENT.to_owned(), String::new()), "first");
    let change = Change::Put {
        etag: mark.to_owned(),
        size: 0,
        delete_at: None,
    };
    let at = cluster.proxy_clocks[0].now();
    model.container.begin(&name, at, change);
    for container in CONTAINERS.iter().chain([&TRANSIENT]) {
        let path = client::path(container, None);
        let mut headers = vec![(CONTAINER_MARK, mark.to_owned())];
        if policy_of(container, cluster.shared.has_fragments) == FRAGMENTS_INDEX {
            headers.push(("x-storage-policy", FRAGMENTS.to_owned()));
        }
        let made = client::ask(cluster, 0, Method::PUT, &path, &headers, Body::empty()).await;
        match made.map(|answer| answer.status) {
            Some(201 | 202) => {}
            other => bail!("{container} was not made in a cluster that works: {other:?}"),
        }
    }
    model.container.acknowledge(&name, at, at);
    // Clocks differ by less.
    sleep(Duration::from_secs(3)).await;
    Ok(())
}

/// Runs the daemons until everything is in order, or returns what is not after the last round.
/// `before` has the objects of the last time all was in order.
async fn converge(
    cluster: &Cluster,
    model: &Model,
    before: Option<&Objects>,
) -> (Vec<String>, Option<Objects>) {
    let (mut wrong, mut objects) = (Vec::new(), None);
    for round in 0..ROUNDS_MAX {
        for node in 0..NODES {
            let Some(running) = cluster.node(node) else {
                continue;
            };
            for daemon in DAEMONS {
                running.pass(daemon).await;
            }
        }
        sleep(Duration::from_secs(60)).await;
        let (mut found, seen) = check::all(cluster, model, before).await;
        if cluster.shared.manner.is_conditional {
            swaps::check(cluster, &model.swaps, &mut found).await;
        }
        (wrong, objects) = (found, Some(seen));
        cluster
            .shared
            .log(|| format!("round {round}: {} not in order", wrong.len()));
        if wrong.is_empty() {
            break;
        }
    }
    (wrong, objects)
}
