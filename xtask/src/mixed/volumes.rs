//! Nodes of Cairn that keep objects in volumes, among nodes of OpenStack Swift with files: a device is
//! imported when its node becomes Cairn's, and exported when it is OpenStack Swift's again, as
//! `docs/pebbles.md` tells operators.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::cluster::{Cluster, Kind, Part};
use super::confs::NODES;
use super::{passes, proof};
use crate::engine::EngineName;
use cairn_testkit::conf::with_option;
use cairn_testkit::swift::Swift;
use cairn_testkit::workspace::{run_quiet, utf8};

/// The daemons of a node with volumes are in its server's process, and make a pass every second or so.
const INTERVAL: &str = "1";
const DAEMONS: [&str; 3] = [
    "object-replicator",
    "object-reconstructor",
    "object-updater",
];
/// Time for their passes after a server was away.
const PASSES_TIME: Duration = Duration::from_secs(6);
/// Time until a device that was emptied is filled again.
const FILLED_TIMEOUT: Duration = Duration::from_secs(180);

fn etc(dir: &Path) -> PathBuf {
    dir.join("etc-volumes")
}

fn conf(dir: &Path, node: usize) -> PathBuf {
    etc(dir).join(format!("object-server-{node}.conf"))
}

/// Writes confs of nodes with volumes beside those of nodes with files. The rings are the same.
pub(super) fn complete(swift: &Swift, dir: &Path) -> Result<()> {
    let (from, to) = (swift.etc(), etc(dir));
    std::fs::create_dir_all(&to)?;
    for entry in std::fs::read_dir(&from)? {
        let name = entry?.file_name();
        if name != "swift.conf" {
            symlink(from.join(&name), to.join(&name))?;
        }
    }
    let text = std::fs::read_to_string(from.join("swift.conf"))?;
    let text = EngineName::in_conf(Some(EngineName::Pebbles), &text);
    std::fs::write(to.join("swift.conf"), text)?;
    for node in 1..=NODES {
        // rsync knows of files only.
        let path = swift.server_conf("object", node);
        let text = std::fs::read_to_string(&path)?;
        let text = with_option(&text, "object-replicator", "sync_method", "ssync");
        std::fs::write(&path, &text)?;
        let text = with_option(&text, "DEFAULT", "swift_dir", utf8(&to)?);
        let text = DAEMONS.iter().fold(text, |text, daemon| {
            with_option(&text, daemon, "interval", INTERVAL)
        });
        std::fs::write(conf(dir, node), text)?;
    }
    Ok(())
}

/// The program and the conf of an object server of Cairn with volumes.
pub(super) fn serve(dir: &Path, node: usize) -> (PathBuf, PathBuf) {
    (
        dir.join(Kind::Cairn.folder()).join("cairn"),
        conf(dir, node),
    )
}

/// Moves a node's objects to the engine of its next server, while it has none.
pub(super) fn migrate(cluster: &Cluster, node: usize, to: Kind) -> Result<()> {
    let (direction, etc) = match to {
        Kind::Cairn => ("import", etc(&cluster.dir)),
        Kind::Swift => ("export", cluster.swift.etc()),
    };
    let mut command = Command::new(cluster.program(Kind::Cairn, "cairn"));
    command.args(["pebbles", direction, "--stopped", "--skip-mount-check"]);
    command
        .arg("--swift-dir")
        .arg(etc)
        .arg(device(cluster, node));
    let told = run_quiet(&mut command).with_context(|| format!("{direction} of node {node}"))?;
    print!("{told}");
    Ok(())
}

fn device(cluster: &Cluster, node: usize) -> PathBuf {
    cluster.swift.node(node).join(format!("d{node}"))
}

/// Waits for the passes of daemons that are in their servers' processes.
pub(super) fn settle() {
    std::thread::sleep(PASSES_TIME);
}

/// Checks a cluster whose objects are all in volumes: both dispersion reports, also after the device of a
/// node was emptied while its server was killed.
pub(super) fn all_is_well(cluster: &mut Cluster) -> Result<()> {
    passes::mend(cluster)?;
    dispersed(cluster)?;
    let node = 2;
    cluster.kill(Part::Object(node))?;
    proof::lose_device(cluster, node)?;
    cluster.revive(Part::Object(node))?;
    dispersed(cluster)?;
    passes::audit(cluster)?;
    println!("the device of node {node} was emptied, and filled again");
    Ok(())
}

fn dispersed(cluster: &Cluster) -> Result<()> {
    let start = Instant::now();
    loop {
        let reports = Kind::BOTH.map(|kind| proof::dispersed(cluster, kind));
        let Some(error) = reports.into_iter().find_map(Result::err) else {
            println!("both dispersion reports: 100 % of both policies' samples");
            return Ok(());
        };
        if start.elapsed() > FILLED_TIMEOUT {
            bail!("after {FILLED_TIMEOUT:?}: {error:#}");
        }
        passes::mend(cluster)?;
        settle();
    }
}
