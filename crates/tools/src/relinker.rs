//! `swift-object-relinker relink|cleanup CONF`: links objects into their new partitions before a
//! ring's partitions are doubled, and removes the old names after.
//!
//! Progress per device is in `<device>/relink.objects[-N].json`, so that a run that was
//! interrupted, or had errors, resumes; `.relink.objects[-N].lock` there excludes concurrent runs.
//! Both are Swift's.

mod arguments;
mod device;
mod progress;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result, bail};
use cairn_daemons::recon_cache::{DEFAULT_RECON_CACHE_PATH, ReconCache};
use cairn_disk::engine::Collision;
use cairn_disk::{Devices, DevicesConfig, Engine, Engines};
use cairn_formats::ini::Section;
use cairn_node::cluster::{Cluster, Clusters};
use cairn_node::conf::read_conf;
use cairn_node::engines::{EngineModules, SharedState};
use cairn_node::logging::{self, LogOptions};
use cairn_node::privileges;
use cairn_node::settings::{self, Folders};
use cairn_node::syslog::SyslogOptions;
use cairn_peer::Rings;
use cairn_types::{PolicyIndex, StoragePolicy};
use parking_lot::Mutex;
use tracing::{info, warn};

pub(crate) use arguments::Arguments;
use device::{Task, Totals};
use progress::Recon;

const SECTION: &str = "object-relinker";
/// Exit code: nothing to do, as no ring's partitions are being doubled.
const NO_POLICY: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Before the ring has more partitions.
    Relink,
    /// After it has.
    Cleanup,
}

impl Step {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Step::Relink => "relink",
            Step::Cleanup => "cleanup",
        }
    }
}

/// Arguments of the program; missing ones come from the conf.
#[derive(Clone, Debug)]
pub(crate) struct Called {
    pub(crate) step: Step,
    pub(crate) conf: Option<PathBuf>,
    pub(crate) swift_dir: Option<PathBuf>,
    /// Names or indexes; empty for all.
    pub(crate) policies: Vec<String>,
    /// The folder of devices.
    pub(crate) devices: Option<PathBuf>,
    pub(crate) user: Option<String>,
    /// Devices; empty for all.
    pub(crate) device_list: Vec<String>,
    pub(crate) partitions: Vec<u32>,
    pub(crate) skip_mount_check: bool,
    /// Objects per second and device; 0 is unlimited.
    pub(crate) files_per_second: Option<f64>,
    pub(crate) stats_interval: Option<f64>,
    /// Devices processed concurrently; none for all.
    pub(crate) workers: Option<usize>,
    pub(crate) debug: bool,
    pub(crate) clobber_hardlink_collisions: bool,
}

/// Runs the program; 0: done, 1: with errors, 2: nothing to do.
pub(crate) fn run(called: &Called) -> Result<u8> {
    let section = section(called)?;
    start_log(called, &section)?;
    if let Some(user) = called.user.clone().or_else(|| settings::user(&section)) {
        privileges::become_user(&user)?;
    }
    let mut place = Folders::read(&section);
    place.swift_dir = called.swift_dir.clone().unwrap_or(place.swift_dir);
    place.devices = called.devices.clone().unwrap_or(place.devices);
    place.mount_check &= !called.skip_mount_check;
    let cluster = Clusters::default().get(&place.swift_dir)?;
    let devices = Devices::new(DevicesConfig {
        mount_check: place.mount_check,
        ..DevicesConfig::new(&place.devices)
    });
    let mut shared = SharedState::default();
    let made = EngineModules::all().make(&cluster, &section, &devices, &mut shared)?;
    let files_per_second = match called.files_per_second {
        Some(rate) => rate,
        None => section.f64_or("files_per_second", 0.0)?,
    };
    if files_per_second < 0.0 {
        return Err(section
            .bad("files_per_second", "expected 0 (no limit) or more")
            .into());
    }
    let clobbers =
        called.clobber_hardlink_collisions || section.bool_or("clobber_hardlink_collisions", false);
    let interval = match called.stats_interval {
        Some(seconds) => seconds,
        None => section.f64_or("stats_interval", 300.0)?,
    };
    let cache = ReconCache::new(
        section.str_or("recon_cache_path", DEFAULT_RECON_CACHE_PATH),
        "relinker.recon",
    );
    let mut names = devices.names();
    if !called.device_list.is_empty() {
        names.retain(|name| called.device_list.contains(name));
    }
    names.sort();
    let recon = Arc::new(Recon::begin(cache, &names, interval));
    let rings = cluster.rings()?;
    let limits = Limits {
        files_per_second,
        clobbers,
    };
    let (tasks, is_any_without_names) =
        tasks(called, &cluster, &rings, &made.engines, &limits, &recon)?;
    if tasks.is_empty() {
        let code = match is_any_without_names {
            // Another node may have files of the same policy, and the operator calls this on all of them.
            true => 0,
            false => {
                warn!("No policy found to increase the partition power.");
                NO_POLICY
            }
        };
        recon.end(code);
        return Ok(code);
    }
    let workers = called.workers.filter(|workers| *workers > 0);
    let workers = workers.unwrap_or(names.len()).clamp(1, 256);
    let totals = work(&tasks, &devices, &names, workers)?;
    let code = u8::from(totals.errors > 0);
    let Totals {
        hash_dirs,
        files,
        linked,
        removed,
        errors,
    } = totals;
    let step = called.step.name();
    let said = format!(
        "[step={step}] {hash_dirs} hash dirs processed ({files} files, {linked} linked, {removed} \
         removed, {errors} errors)"
    );
    match code {
        0 => info!("{said}"),
        _ => warn!("{said}"),
    }
    recon.end(code);
    Ok(code)
}

/// Bounds of every task.
struct Limits {
    files_per_second: f64,
    /// Whether a name that another object has is taken from it.
    clobbers: bool,
}

/// A task for each policy that was asked for and whose ring is in the step, and whether there is one of these that
/// needs no task: its engine finds objects by both part powers.
fn tasks(
    called: &Called,
    cluster: &Cluster,
    rings: &Rings,
    engines: &Engines,
    limits: &Limits,
    recon: &Arc<Recon>,
) -> Result<(Vec<Task>, bool)> {
    let (mut tasks, mut is_any_without_names) = (Vec::new(), false);
    for policy in cluster.policies.iter() {
        let is_named = |named: &String| {
            named.parse() == Ok(policy.index.0)
                || policy.name.eq_ignore_ascii_case(named)
                || policy.aliases.contains(named)
        };
        if !called.policies.is_empty() && !called.policies.iter().any(is_named) {
            continue;
        }
        let ring = rings
            .object(policy.index)
            .context("a policy without ring")?;
        let (power, next) = (ring.ring().part_power(), ring.ring().next_part_power());
        let Some(next) = next else { continue };
        if (next == power) != (called.step == Step::Cleanup) {
            continue;
        }
        let Some(engine) = relinkable(engines, policy) else {
            is_any_without_names |= engines.of(policy.index).is_some();
            continue;
        };
        tasks.push(Task {
            step: called.step,
            policy: policy.index,
            policy_name: policy.name.clone(),
            part_power: power,
            next_part_power: next,
            partitions: called.partitions.clone(),
            files_per_second: limits.files_per_second,
            collision: match (limits.clobbers, called.step) {
                (false, _) => Collision::Refuse,
                (true, Step::Relink) => Collision::Quarantine,
                (true, Step::Cleanup) => Collision::KeepNew,
            },
            engine,
            recon: recon.clone(),
        });
    }
    Ok((tasks, is_any_without_names))
}

/// The engine of a policy; `None` if it lacks the capability, which is logged.
fn relinkable(engines: &Engines, policy: &StoragePolicy) -> Option<Arc<dyn Engine>> {
    let engine = engines.of(policy.index)?;
    if engine.relinking().is_none() {
        let (policy, engine) = (&policy.name, engine.name());
        info!(
            policy,
            engine, "objects are found by both part powers: nothing to relink"
        );
        return None;
    }
    Some(engine.clone())
}

/// The conf's section; Swift's defaults without a conf.
fn section(called: &Called) -> Result<Section> {
    let Some(path) = &called.conf else {
        return Ok(Section::from_pairs(SECTION, &[]));
    };
    let path = std::path::absolute(path)?;
    let conf = read_conf(&path)?;
    if !conf.has_section(SECTION) {
        let path = path.display();
        bail!("{path}: there is no section [{SECTION}]: add it, it may be empty");
    }
    Ok(conf.section(SECTION)?)
}

fn start_log(called: &Called, section: &Section) -> Result<()> {
    let syslog = match called.conf {
        Some(_) => Some(SyslogOptions::read(section, SECTION)?),
        None => None,
    };
    let log = LogOptions {
        syslog,
        level: called.debug.then(|| "debug".to_owned()),
        ..LogOptions::default()
    };
    logging::start(&log, settings::log_level(section)?)
}

/// Processes devices concurrently, up to the limit; the policies of each one after the other.
fn work(
    tasks: &[Task],
    devices: &Arc<Devices>,
    names: &[String],
    workers: usize,
) -> Result<Totals> {
    let (send, receive) = std::sync::mpsc::channel::<String>();
    let queue = Arc::new(Mutex::new(receive));
    for name in names {
        let _ = send.send(name.clone());
    }
    drop(send);
    let mut threads = Vec::new();
    for _ in 0..workers {
        let (queue, tasks, devices) = (queue.clone(), tasks.to_vec(), devices.clone());
        threads.push(thread::spawn(move || {
            let mut totals = Totals::default();
            loop {
                let name = {
                    let queue = queue.lock();
                    queue.recv()
                };
                let Ok(name) = name else { return totals };
                for task in &tasks {
                    totals.add(&task.run(&devices, &name));
                }
            }
        }));
    }
    let mut totals = Totals::default();
    for thread in threads {
        match thread.join() {
            Ok(of_thread) => totals.add(&of_thread),
            Err(_) => bail!("a relinker's thread ended"),
        }
    }
    Ok(totals)
}

/// `objects`, `objects-1`.
fn datadir(policy: PolicyIndex) -> String {
    policy.dir("objects")
}
