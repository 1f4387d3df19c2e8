//! `cairn pebbles import|export`: a device's objects from files to volumes, or back.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cairn_disk::{Devices, DevicesConfig, DiskFileConfig, DiskFileEngine, Engine, Engines, barred};
use cairn_formats::ini::Section;
use cairn_node::cluster::Clusters;
use cairn_node::engines::{EngineModules, SharedState, part_powers};
use cairn_node::lock::FolderLock;
use cairn_pebbles::migration::IDLE_CLOSE;
use cairn_pebbles::{Migrated, Migration, PebblesConfig, PebblesEngine};
use cairn_types::StoragePolicy;
use clap::Args;

use crate::locations::SwiftDir;

/// An age that nothing reaches: what is old is for the server to remove, by its own conf.
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
const FILES: &str = "diskfile";
const VOLUMES: &str = "pebbles";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Import,
    Export,
}

impl Direction {
    /// The engines that objects come from and go to.
    fn engines(self) -> (&'static str, &'static str) {
        match self {
            Direction::Import => (FILES, VOLUMES),
            Direction::Export => (VOLUMES, FILES),
        }
    }
}

#[derive(Debug, Args)]
pub struct Migrate {
    /// Folder of the device, as /srv/node/sdb1
    device: PathBuf,
    /// Only this policy, by name or index
    #[arg(long)]
    policy: Option<String>,
    /// The folder of swift.conf
    #[arg(long, value_name = "DIR", default_value = "/etc/swift")]
    swift_dir: PathBuf,
    /// Say that all that uses this device is stopped, which is required: of Cairn's servers and
    /// daemons those that run are noticed, but not those of OpenStack Swift, nor a daemon's --once
    #[arg(long, required = true)]
    stopped: bool,
    /// Size of new volumes, as pebbles_volume_bytes in the object server's conf; 0: by the file system
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    volume_bytes: u64,
    /// Take a device that is not mounted, too
    #[arg(long)]
    skip_mount_check: bool,
}

/// Moves what is there; true if nothing is left where it was.
pub(super) fn run(called: &Migrate, direction: Direction, out: &mut impl Write) -> Result<bool> {
    let device = std::path::absolute(&called.device)?;
    let (root, name) = parts(&device)?;
    check_user(&device)?;
    // Held until all is done: a server that is started meanwhile is refused the folder.
    let _locks = lock(root, &device)?;
    let devices = Devices::new(DevicesConfig {
        mount_check: !called.skip_mount_check,
        idle_close: IDLE_CLOSE,
        ..DevicesConfig::new(root)
    });
    let cluster = Clusters::default().get(&called.swift_dir)?;
    let conf = SwiftDir::open(&called.swift_dir)?.conf;
    let section = Section::from_pairs("pebbles", &[]);
    let mut shared = SharedState::default();
    let set = EngineModules::all().make(&cluster, &section, &devices, &mut shared)?;
    let policies = chosen(called, direction, &set.engines, conf.policies.iter())?;
    if direction == Direction::Export {
        // By the part power of the ring, in which volumes are not.
        let rings = cluster.rings().map(drop);
        rings.context("a ring says in which partition's folder a file is")?;
    }

    let of_files = DiskFileConfig {
        reclaim_age: NEVER,
        ..DiskFileConfig::default()
    };
    let of_volumes = PebblesConfig {
        reclaim_age: NEVER,
        volume_bytes: called.volume_bytes,
        bars_files: false,
        takes_turns: false,
        ..PebblesConfig::default()
    };
    let files = DiskFileEngine::new(conf.hash_path.clone(), &conf.policies, of_files);
    let files: Arc<dyn Engine> = Arc::new(files);
    let hash_path = conf.hash_path.clone();
    let volumes = PebblesEngine::new(hash_path, &conf.policies, of_volumes, Arc::default());
    // Objects go to the partitions that they are in now.
    let volumes = volumes.with_part_powers(part_powers(&cluster));
    let volumes: Arc<dyn Engine> = Arc::new(volumes);
    let (from, to) = match direction {
        Direction::Import => (files, volumes.clone()),
        Direction::Export => (volumes.clone(), files),
    };
    let moved = policies.into_iter().try_fold(true, |is_all, policy| {
        barred::unbar(&devices.get(name)?.disk()?, policy.index)?;
        let migration = Migration {
            device: devices.get(name)?,
            policy: policy.index,
            from: from.clone(),
            to: to.clone(),
        };
        let of = format!("{}: policy {}", device.display(), policy.name);
        let migrated = migration.run();
        let migrated = migrated.with_context(|| format!("{of}: stopped; run it again"))?;
        report(&of, &migrated, out)?;
        Ok(is_all && migrated.left == 0)
    });
    // Writes a checkpoint, so that the server need not read all volumes.
    volumes.shutdown();
    devices.shutdown();
    moved
}

fn report(of: &str, migrated: &Migrated, out: &mut impl Write) -> Result<()> {
    for (partition, hash, reason) in &migrated.named {
        let hash = hash.hex();
        writeln!(out, "left: {hash} of partition {partition}: {reason}")?;
    }
    let (moved, left) = (migrated.moved, migrated.left);
    Ok(writeln!(out, "{of}: {moved} moved, {left} left")?)
}

/// Files that another user makes are that user's, and a server could not read them.
fn check_user(device: &Path) -> Result<()> {
    let (own, of_device) = (rustix::process::geteuid(), device.metadata()?.uid());
    if own.as_raw() != of_device {
        bail!(
            "{} is of user {of_device}, and this runs as {}: run it as the user of the servers, \
             who has to read what it writes, and has to own the folder",
            device.display(),
            own.as_raw()
        );
    }
    Ok(())
}

/// Locks the folder of devices against servers, also where a link leads to the device.
fn lock(root: &Path, device: &Path) -> Result<Vec<FolderLock>> {
    let mut locks = FolderLock::all_of_objects(root)?;
    let (root, device) = (root.canonicalize()?, device.canonicalize()?);
    if let Some(real) = device.parent().filter(|real| *real != root) {
        locks.extend(FolderLock::all_of_objects(real)?);
    }
    Ok(locks)
}

/// The folder of devices, and the device's name in it.
fn parts(device: &Path) -> Result<(&Path, &str)> {
    let name = device.file_name().and_then(|name| name.to_str());
    match (device.parent(), name) {
        (Some(root), Some(name)) if device.is_dir() => Ok((root, name)),
        _ => bail!(
            "DEVICE is {}: expected the folder of a device, as /srv/node/sdb1",
            device.display()
        ),
    }
}

/// The policies that swift.conf has at the engine objects go to: elsewhere no server would find them.
fn chosen<'a>(
    called: &Migrate,
    direction: Direction,
    engines: &Engines,
    policies: impl Iterator<Item = &'a StoragePolicy>,
) -> Result<Vec<&'a StoragePolicy>> {
    let is_named = |policy: &StoragePolicy| {
        called.policy.as_ref().is_none_or(|named| {
            named.parse() == Ok(policy.index.0)
                || policy.name.eq_ignore_ascii_case(named)
                || policy.aliases.contains(named)
        })
    };
    let (_, to) = direction.engines();
    let is_set = |policy: &StoragePolicy| {
        let engine = engines.of(policy.index);
        engine.is_some_and(|engine| engine.name() == to)
    };
    let named: Vec<_> = policies.filter(|policy| is_named(policy)).collect();
    let chosen: Vec<_> = named
        .iter()
        .copied()
        .filter(|policy| is_set(policy))
        .collect();
    if chosen.is_empty() {
        let conf = called.swift_dir.join("swift.conf");
        let conf = conf.display();
        match (&called.policy, named.is_empty()) {
            (Some(policy), true) => bail!("--policy is {policy:?}: {conf} has no such policy"),
            _ => bail!(
                "{conf}: diskfile_module of no policy asked for is the engine {to}: set it first, \
                 with the servers stopped, for they look for objects where it says"
            ),
        }
    }
    Ok(chosen)
}
