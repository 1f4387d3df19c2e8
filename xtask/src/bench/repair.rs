//! Benchmark of repair after one device of four was wiped: time until its objects are back, and the
//! effect on clients. Cairn's replicators (SSYNC) and OpenStack Swift's (rsync) alternate, each
//! with its own servers, over the same confs, rings and device folders, so that both repair the
//! same loss; with `--ssync` Swift's by SSYNC as well.
//!
//! A pass of each node's replicator (`once`) begins with the loss; when all have ended and every
//! file is back and on disk (rsync syncs nothing), the device is repaired. With `--file-system`
//! each device has a disk of its own, and the lost one is replaced by an empty one. The hashes of
//! the partitions are up to date before, as in a cluster in service. With `--give-up N` Swift's
//! replicators are stopped after N times the duration of Cairn's, which gives a lower bound and the
//! number of objects restored by then. At the end the same files are created without any replicator
//! (`floor.rs`): no repair can be faster than that on this machine.
//!
//! With `--engine pebbles` Cairn has a cluster of its own, with volumes (`volumes.rs`).

mod floor;
mod volumes;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;

use super::disk::Disk;
use super::load::{Job, Verb};
use super::{CONTAINERS, Only, Options, load_process, with_containers};
use crate::engine::EngineName;
use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::conf::rsync_module;
use cairn_testkit::process::{Process, free_ports, wait_for_port};
use cairn_testkit::random::Random;
use cairn_testkit::swift::{CORE_PIPELINE, Layout, Swift};
use cairn_testkit::venv::Venv;
use cairn_testkit::wire::Account;
use cairn_testkit::workspace::{self, utf8};

const DEVICES: usize = 4;
/// Maximum number of passes to restore the device.
const PASSES_MAX: usize = 5;
/// Clients: number of connections, and requests per second on each; every fifth is a PUT.
const CLIENTS: u64 = 4;
const RATE: f64 = 10.0;

/// Selects a conf of a node: the first is for Cairn's replicator, the second for Swift's.
type ConfOf = fn(&(PathBuf, PathBuf)) -> &PathBuf;

#[derive(serde::Serialize)]
struct Results {
    stores: Vec<Repaired>,
    files_alone: FilesAlone,
}

/// Time for creating the lost files, and nothing else.
#[derive(serde::Serialize)]
struct FilesAlone {
    files: usize,
    seconds: f64,
}

/// Results of one store.
#[derive(serde::Serialize)]
struct Repaired {
    store: &'static str,
    files: usize,
    /// Number of restored objects; fewer if it was stopped before its end.
    back: usize,
    seconds: f64,
    /// `None`: the replicators ran all the time.
    passes: Option<usize>,
    before: Foreground,
    meanwhile: Foreground,
}

#[derive(serde::Serialize)]
struct Foreground {
    requests: u64,
    errors: u64,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    gets_p99_ms: f64,
    puts_p99_ms: f64,
}

/// The cluster's files, common to both stores.
struct Setup {
    swift: Swift,
    /// A file system for each device, unless all are on the workspace's.
    disks: Vec<Disk>,
    /// Number of times that the first of them was replaced.
    replaced: usize,
    dir: PathBuf,
    /// For each node the conf of Cairn's replicator, and that of Swift's.
    confs: Vec<(PathBuf, PathBuf)>,
    objects: u64,
    size: u64,
    part_power: u32,
}

pub(super) fn run(options: &Options) -> Result<()> {
    let cairn = fs::canonicalize(workspace::build_cairn()?)?;
    let dir = workspace::scratch("repair")?;
    let venv = Venv::prepare()?;
    let has_volumes = options.engine == Some(EngineName::Pebbles);
    let mut all = Vec::new();
    if has_volumes && options.only != Some(Only::Swift) {
        all.push(volumes::repaired(&venv, &cairn, dir.path(), options)?);
        if options.only == Some(Only::Cairn) {
            return workspace::keep("bench", "repair-volumes.json", &all);
        }
    }
    let mut setup = Setup::create(&venv, dir.path(), options, None)?;
    // Cairn fills the cluster, as it is faster.
    let mut store = setup.start_cairn(&cairn)?;
    setup.fill()?;
    let program = dir.path().join("swift-object-replicator");
    symlink(&cairn, &program)?;
    let passes = setup.pass(&program, |confs| &confs.0, None)?;
    println!("the cluster is in step after {passes:.1} s");
    if options.only != Some(Only::Swift) && !has_volumes {
        all.push(setup.repaired("Cairn", &program, |confs| &confs.0, None)?);
    }
    let of_cairn = all.first().map(|repaired| repaired.seconds);
    let at_most = options.give_up.and_then(|times| Some(times * of_cairn?));
    store.stop()?;
    setup.swift.stop();
    if options.only != Some(Only::Cairn) {
        setup.swift.start()?;
        let _rsync = setup.start_rsync()?;
        let program = setup.upstreams_program(&venv)?;
        all.push(setup.repaired("OpenStack Swift", &program, |confs| &confs.1, at_most)?);
        if options.ssync {
            let store = "OpenStack Swift, SSYNC";
            all.push(setup.repaired(store, &program, |confs| &confs.0, at_most)?);
        }
        setup.swift.stop();
    }
    if let (None, Some((cairn, others))) = (options.only, all.split_first()) {
        for other in others {
            let more = if other.back < other.files {
                "more than "
            } else {
                ""
            };
            let times = other.seconds / cairn.seconds;
            println!("Cairn is {more}{times:.1} × as fast as {}", other.store);
        }
    }
    let files_alone = setup.files_alone()?;
    for repaired in &all {
        let times = repaired.seconds / files_alone.seconds;
        println!("{} took {times:.1} times as long as that", repaired.store);
    }
    let all = Results {
        stores: all,
        files_alone,
    };
    let file = match has_volumes {
        true => "repair-volumes.json",
        false => "repair.json",
    };
    workspace::keep("bench", file, &all)
}

impl Setup {
    fn create(
        venv: &Venv,
        dir: &Path,
        options: &Options,
        engine: Option<EngineName>,
    ) -> Result<Setup> {
        let layout = Layout {
            devices: DEVICES,
            pipeline: CORE_PIPELINE,
            part_power: options.part_power,
            rows_from: 2,
            ..Layout::default()
        };
        let swift = Swift::create(venv, &dir.join("swift"), layout)?;
        let conf = swift.etc().join("swift.conf");
        let text = fs::read_to_string(&conf)?;
        fs::write(&conf, EngineName::in_conf(engine, &text))?;
        let mut disks = Vec::new();
        for device in 1..=DEVICES {
            let path = swift.node(device).join(format!("d{device}"));
            let image = dir.join(format!("d{device}.img"));
            disks.push(Disk::at(&path, &image, options.file_system)?);
        }
        let mut confs = Vec::new();
        let rsync_port = free_ports(1)?[0];
        for device in 1..=DEVICES {
            confs.push(replicator_confs(&swift, device, rsync_port)?);
        }
        let setup = Setup {
            swift,
            disks,
            replaced: 0,
            dir: dir.to_owned(),
            confs,
            objects: options.objects.unwrap_or(100_000),
            size: options.sizes.first().copied().unwrap_or(10_000),
            part_power: options.part_power,
        };
        setup.write_rsyncd(rsync_port)?;
        Ok(setup)
    }

    fn start_cairn(&mut self, binary: &Path) -> Result<Cairn> {
        self.swift.start_memcached()?;
        let (dir, port) = (self.dir.join("cairn"), self.swift.port);
        let mut store = Cairn::of_confs(binary, &dir, port, self.swift.confs());
        store.start(Spread::OneProcess)?;
        Ok(store)
    }

    fn fill(&self) -> Result<()> {
        let mut account = with_containers(self.swift.port)?;
        account.must("PUT", "/clients", "", &[], b"")?;
        let job = Job {
            port: self.swift.port,
            token: account.token.clone(),
            prefix: format!("{}/bench-", account.path),
            containers: CONTAINERS,
            verb: Verb::Put,
            size: self.size,
            connections: 32,
            warm_up_seconds: 0,
            seconds: 7200,
            first: 0,
            count: self.objects,
            headers: String::new(),
            ca: None,
        };
        let outcome = load_process(&std::env::current_exe()?, &job)?;
        ensure!(outcome.errors == 0, "{:?}", outcome.error);
        println!(
            "{} objects of {} bytes, 3 replicas each, in {:.0} s",
            outcome.done, self.size, outcome.seconds
        );
        Ok(())
    }

    fn write_rsyncd(&self, port: u16) -> Result<()> {
        let dir = self.dir.display();
        let mut text = format!(
            "use chroot = no\nuid = root\ngid = root\naddress = 127.0.0.1\nport = {port}\n\
             log file = {dir}/rsyncd.log\n"
        );
        for device in 1..=DEVICES {
            let name = format!("object{}", self.swift.port_of("object", device));
            let lock = self.dir.join(format!("rsyncd-{device}.lock"));
            text.push_str(&rsync_module(&name, &self.swift.node(device), &lock));
        }
        fs::write(self.dir.join("rsyncd.conf"), text)?;
        Ok(())
    }

    fn start_rsync(&self) -> Result<[Process; 1]> {
        ensure!(workspace::install("rsync", "rsync"), "rsync is missing");
        let conf = format!("--config={}", self.dir.join("rsyncd.conf").display());
        let arguments = ["--daemon", "--no-detach", &conf];
        let log = self.dir.join("log");
        let mut rsync = [Process::start(
            "rsync",
            Path::new("rsync"),
            &arguments,
            &log,
        )?];
        let text = fs::read_to_string(self.dir.join("rsyncd.conf"))?;
        let port = text.lines().find_map(|line| line.strip_prefix("port = "));
        wait_for_port(port.context("no port")?.parse()?, &mut rsync)?;
        Ok(rsync)
    }

    /// A program `PROGRAM CONF once`, called like Cairn's. Swift's own reads swift.conf from
    /// /etc/swift only.
    fn upstreams_program(&self, venv: &Venv) -> Result<PathBuf> {
        let path = self.dir.join("upstreams-object-replicator");
        let text = format!(
            "#!/bin/sh\nexec {} {} {} object-replicator \"$1\"\n",
            venv.bin.join("python").display(),
            workspace::root().join("tests/swift_once.py").display(),
            self.swift.etc().display()
        );
        workspace::write_script(&path, &text)?;
        Ok(path)
    }

    /// One pass of every node's replicator, all concurrently, stopped after `at_most` seconds;
    /// returns the duration of the slowest.
    fn pass(&self, program: &Path, conf: ConfOf, at_most: Option<f64>) -> Result<f64> {
        let start = Instant::now();
        let log = self.dir.join("log");
        let mut under_way = Vec::new();
        for (confs, device) in self.confs.iter().zip(1usize..) {
            let conf = utf8(conf(confs))?;
            let name = format!("replicator-{device}");
            under_way.push(Process::start(&name, program, &[conf, "once"], &log)?);
        }
        while !under_way.is_empty() {
            under_way.retain_mut(|process| process.ended().is_none());
            std::thread::sleep(Duration::from_millis(20));
            if at_most.is_some_and(|most| start.elapsed().as_secs_f64() > most) {
                under_way.clear();
            }
            ensure!(
                start.elapsed() < Duration::from_secs(4 * 3600),
                "the replicators do not end"
            );
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// Replaces the first device by an empty one; returns the files that it had below `wiped`.
    fn lose(&mut self, wiped: &Path, number: usize) -> Result<BTreeSet<PathBuf>> {
        let lost = files(wiped)?;
        ensure!(!lost.is_empty(), "nothing lies in {}", wiped.display());
        let image = self.dir.join(format!("d1-{number}.img"));
        self.disks[0].replace(&image)?;
        Ok(lost)
    }

    /// Repeats the last loss and creates the files without replicators or servers.
    fn files_alone(&mut self) -> Result<FilesAlone> {
        let folder = self.swift.node(1).join("d1/objects");
        let lost = self.lose(&folder, self.replaced)?;
        let seconds = floor::make_files(&folder, &lost, self.size)?;
        println!(
            "Making these files and nothing else: {} in {seconds:.1} s ({:.0}/s)",
            lost.len(),
            lost.len() as f64 / seconds
        );
        Ok(FilesAlone {
            files: lost.len(),
            seconds,
        })
    }

    fn repaired(
        &mut self,
        store: &'static str,
        program: &Path,
        conf: ConfOf,
        at_most: Option<f64>,
    ) -> Result<Repaired> {
        let number = self.replaced;
        self.replaced += 1;
        let (before, meanwhile) = (format!("before-{number}"), format!("beside-{number}"));
        let wiped = self.swift.node(1).join("d1/objects");
        let clients = Clients::start(self, &before)?;
        std::thread::sleep(Duration::from_secs(5));
        let before = clients.stop()?;
        let lost = self.lose(&wiped, number)?;
        let clients = Clients::start(self, &meanwhile)?;
        let (mut seconds, mut passes) = (0.0, 0);
        let left = loop {
            seconds += self.pass(program, conf, at_most.map(|most| most - seconds))?;
            passes += 1;
            let back = files(&wiped)?;
            let left = lost.difference(&back).count();
            if left == 0 || passes == PASSES_MAX || at_most.is_some_and(|most| seconds >= most) {
                break left;
            }
        };
        let begun = Instant::now();
        rustix::fs::syncfs(fs::File::open(self.disks[0].path())?)?;
        seconds += begun.elapsed().as_secs_f64();
        let meanwhile = clients.stop()?;
        if left > 0 && at_most.is_none_or(|most| seconds < most) {
            bail!(
                "{store}: {left} of {} files not back after {passes} passes",
                lost.len()
            );
        }
        let repaired = Repaired {
            store,
            files: lost.len(),
            back: lost.len() - left,
            seconds,
            passes: Some(passes),
            before,
            meanwhile,
        };
        println!("{}", repaired.line());
        Ok(repaired)
    }
}

impl Repaired {
    fn line(&self) -> String {
        let passes = self.passes;
        let passes = passes.map_or(String::new(), |passes| format!(", {passes} pass(es)"));
        format!(
            "{}: {} of {} objects back in {:.1} s ({:.0}/s){passes}; clients' p99 {:.1} ms ({:.1} \
             before; GET {:.1}, PUT {:.1}), {} errors of {}",
            self.store,
            self.back,
            self.files,
            self.seconds,
            self.back as f64 / self.seconds,
            self.meanwhile.p99_ms,
            self.before.p99_ms,
            self.meanwhile.gets_p99_ms,
            self.meanwhile.puts_p99_ms,
            self.meanwhile.errors,
            self.meanwhile.requests,
        )
    }
}

/// Removes the replicator's section from a node's conf, from which `cairn serve` would run it, and
/// writes separate confs: one for SSYNC, one for rsync.
fn replicator_confs(swift: &Swift, device: usize, rsync_port: u16) -> Result<(PathBuf, PathBuf)> {
    let path = swift.server_conf("object", device);
    let text = fs::read_to_string(&path)?;
    let cut = text.find("[object-replicator]").context("no replicator")?;
    fs::write(&path, &text[..cut])?;
    let head = &text[..text.find("[pipeline:main]").context("no pipeline")?];
    let write = |name: &str, options: &str| -> Result<PathBuf> {
        let conf = path.with_file_name(format!("replicator-{name}-{device}.conf"));
        fs::write(&conf, format!("{head}[object-replicator]\n{options}"))?;
        Ok(conf)
    };
    let rsync = format!(
        "rsync_module = rsync://{{replication_ip}}:{rsync_port}/object{{replication_port}}\n"
    );
    Ok((
        write("ssync", "sync_method = ssync\n")?,
        write("rsync", &rsync)?,
    ))
}

/// The content files below a folder, by their relative paths.
fn files(folder: &Path) -> Result<BTreeSet<PathBuf>> {
    fn below(folder: &Path, root: &Path, found: &mut BTreeSet<PathBuf>) -> Result<()> {
        let Ok(entries) = fs::read_dir(folder) else {
            return Ok(());
        };
        for entry in entries {
            let path = entry?.path();
            match path.extension() {
                Some(extension) if extension == "data" => {
                    found.insert(path.strip_prefix(root)?.to_owned());
                }
                None => below(&path, root, found)?,
                Some(_) => {}
            }
        }
        Ok(())
    }
    let mut found = BTreeSet::new();
    below(folder, folder, &mut found)?;
    Ok(found)
}

/// Measurements of the clients.
struct ClientLatencies {
    /// Latencies in microseconds: of GETs, of PUTs.
    latencies: [Histogram<u64>; 2],
    failed: u64,
}

impl ClientLatencies {
    fn new() -> Result<Self> {
        let histogram = || Histogram::new_with_bounds(1, 600_000_000, 3);
        Ok(ClientLatencies {
            latencies: [histogram()?, histogram()?],
            failed: 0,
        })
    }
}

/// Clients with a constant rate, whatever the state of the store.
struct Clients {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<ClientLatencies>>>,
}

impl Clients {
    /// Starts the clients. `name` is the prefix of the objects they write, and must be new.
    fn start(setup: &Setup, name: &str) -> Result<Clients> {
        let account = Account::login(setup.swift.port)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (objects, size) = (setup.objects, setup.size);
        let threads = (0..CLIENTS).map(|client| {
            let (account, stop) = (account.another(), stop.clone());
            let name = format!("{name}-{client}");
            std::thread::spawn(move || client_loop(account, &name, client, objects, size, &stop))
        });
        let threads = threads.collect();
        Ok(Clients { stop, threads })
    }

    fn stop(self) -> Result<Foreground> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = ClientLatencies::new()?;
        for thread in self.threads {
            let Ok(done) = thread.join() else {
                bail!("a client panicked");
            };
            let seen = done?;
            for (all, of_thread) in all.latencies.iter_mut().zip(seen.latencies) {
                all.add(of_thread)?;
            }
            all.failed += seen.failed;
        }
        let ms = |us: u64| us as f64 / 1000.0;
        let p99 = |latency: &Histogram<u64>| ms(latency.value_at_quantile(0.99));
        let [gets, puts] = all.latencies;
        let mut latency = gets.clone();
        latency.add(&puts)?;
        Ok(Foreground {
            requests: latency.len(),
            errors: all.failed,
            p50_ms: ms(latency.value_at_quantile(0.5)),
            p99_ms: p99(&latency),
            max_ms: ms(latency.max()),
            gets_p99_ms: p99(&gets),
            puts_p99_ms: p99(&puts),
        })
    }
}

/// Latency counts from a request's due time, so that a stalled store is visible.
fn client_loop(
    mut account: Account,
    name: &str,
    client: u64,
    objects: u64,
    size: u64,
    stop: &AtomicBool,
) -> Result<ClientLatencies> {
    let mut seen = ClientLatencies::new()?;
    let mut random = Random::new(client + 1);
    let body = random.bytes(size as usize);
    let start = Instant::now();
    for number in 0u64.. {
        let due = start + Duration::from_secs_f64(number as f64 / RATE);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let is_put = number % 5 == 0;
        let answer = if is_put {
            let path = format!("/clients/{name}-{number}");
            account.call("PUT", &path, "", &[], &body)
        } else {
            let object = random.below(objects);
            let path = format!("/bench-{}/o{object:010}", object % CONTAINERS);
            account.call("GET", &path, "", &[], b"")
        };
        let us = u64::try_from(due.elapsed().as_micros())?;
        seen.latencies[usize::from(is_put)].saturating_record(us.max(1));
        seen.failed += u64::from(!answer.is_ok_and(|answer| answer.is_success()));
    }
    Ok(seen)
}
