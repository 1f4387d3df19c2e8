//! Passes of the background daemons, each run on a node by the implementation whose daemons it has.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::cluster::{Cluster, Part};
use super::confs::{NODES, SUPPRESSION_SECONDS};
use super::volumes;

/// Daemons that bring a cluster into step: first those that move objects and rows, then those that
/// depend on them.
const MENDING: [&[&str]; 2] = [
    &[
        "object-updater",
        "object-replicator",
        "object-reconstructor",
        "container-replicator",
    ],
    &[
        "container-sharder",
        "container-updater",
        "account-replicator",
    ],
];
/// Daemons that must find nothing wrong afterwards.
const LOOKING: &[&str] = &[
    "object-auditor",
    "container-auditor",
    "account-auditor",
    "account-reaper",
];
const PASS_TIMEOUT: Duration = Duration::from_secs(300);

/// Brings to these servers the writes that they missed while they were away, so that the next ones
/// may be stopped.
pub(super) fn settle(cluster: &Cluster, parts: &[Part]) -> Result<()> {
    std::thread::sleep(Duration::from_secs(SUPPRESSION_SECONDS));
    let of_part = |part: &Part| -> &[&str] {
        match part {
            Part::Object(_) => &["object-replicator", "object-reconstructor"],
            Part::Container(_) => &[
                "object-updater",
                "container-replicator",
                "container-sharder",
            ],
            Part::Account(_) => &["container-updater", "account-replicator"],
            Part::Proxy(_) => &[],
        }
    };
    let daemons: Vec<&str> = parts.iter().flat_map(of_part).copied().collect();
    pass(cluster, &daemons)?;
    if (1..=NODES).any(|node| cluster.has_own_daemons(node)) {
        volumes::settle();
    }
    Ok(())
}

pub(super) fn mend(cluster: &Cluster) -> Result<()> {
    MENDING
        .iter()
        .try_for_each(|daemons| pass(cluster, daemons))
}

pub(super) fn audit(cluster: &Cluster) -> Result<()> {
    pass(cluster, LOOKING)
}

/// Runs one pass of each daemon on every node, all concurrently, as they run in any cluster.
fn pass(cluster: &Cluster, daemons: &[&str]) -> Result<()> {
    let everywhere = daemons
        .iter()
        .flat_map(|d| (1..=NODES).map(move |node| (d, node)))
        .filter(|(d, node)| !(d.starts_with("object-") && cluster.has_own_daemons(*node)));
    let begun = everywhere.map(|(daemon, node)| Once::start(cluster, daemon, node));
    let mut under_way = begun.collect::<Result<Vec<Once>>>()?;
    let deadline = Instant::now() + PASS_TIMEOUT;
    while !under_way.is_empty() {
        let mut left = Vec::new();
        for mut once in under_way {
            if !once.has_ended()? {
                left.push(once);
            }
        }
        under_way = left;
        ensure!(Instant::now() < deadline, "{daemons:?} do not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A single pass of one daemon; killed when dropped.
struct Once {
    name: String,
    child: Child,
}

impl Once {
    fn start(cluster: &Cluster, daemon: &str, node: usize) -> Result<Once> {
        let kind = cluster.daemons[node - 1];
        let (role, _) = daemon.split_once('-').context("a daemon of no server")?;
        let log = cluster.dir.join("log");
        let name = format!("{}-{daemon}-{node}", kind.folder());
        let mut files = File::options();
        let out = files.create(true).append(true);
        let out = out.open(log.join(format!("{name}.log")))?;
        let child = Command::new(cluster.program(kind, &format!("swift-{daemon}")))
            .arg(cluster.swift.server_conf(role, node))
            .args(["once", "verbose"])
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        Ok(Once { name, child })
    }

    fn has_ended(&mut self) -> Result<bool> {
        let Some(status) = self.child.try_wait()? else {
            return Ok(false);
        };
        ensure!(status.success(), "{} ended with {status}", self.name);
        Ok(true)
    }
}

impl Drop for Once {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
