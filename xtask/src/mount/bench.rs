//! `cargo xtask bench mount`: a mounted container beside the store's own PUT and GET, and beside
//! other mounts of the same store, in the same run and in turns. Prints each performance bar with
//! the measured value.
//!
//! Cold means a mount that has just begun: nothing is in its memory or in the kernel's. The store's
//! devices are in the page cache for all of them alike.

mod table;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::checkpoint::{self, Shape};
use super::rivals::{self, Rival};
use super::store::Traits;
use super::{CONTAINER, Mount, Setup};
use crate::bench::usage::cpu_seconds;
use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::process::{Process, wait_for};
use cairn_testkit::random::Random;
use cairn_testkit::wire::{Account, quote};
use cairn_testkit::workspace;
use table::Table;

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Part {
    /// Writing and reading of one stream.
    Streams,
    Creates,
    Listings,
    Checkpoint,
}

impl Part {
    const ALL: [Part; 4] = [
        Part::Streams,
        Part::Creates,
        Part::Listings,
        Part::Checkpoint,
    ];
}

/// Options of the benchmark.
pub(crate) struct Plan<'a> {
    pub(crate) rounds: usize,
    /// Folder of S3QL's programs, if they are not on the path.
    pub(crate) s3ql: Option<&'a Path>,
    /// Parts to measure; none: all.
    pub(crate) parts: &'a [Part],
    /// The program `cairn` of another build, whose mounts are measured too, in turn.
    pub(crate) against: Option<&'a Path>,
}

/// A build whose mounts are measured.
struct Subject {
    name: &'static str,
    setup: Setup,
}

const MOUNT: &str = "cairn mount";
const OTHER: &str = "the other build's";
const STORE: &str = "the store";
const FOUR_RANGES: &str = "the store, 4 ranges";
const WRITE: &str = "write 1 GiB";
const READ: &str = "cold read of 1 GiB";
const LIST: &str = "ls -l of 10,000, cold";
const CREATE: [&str; 2] = ["create 4 KB, 1 at once", "create 4 KB, 16 at once"];
const CREATORS: [usize; 2] = [1, 16];
const CREATE_CPU: [&str; 2] = ["1 at once, store", "16 at once, store"];
const CREATE_OWN_CPU: [&str; 2] = ["1 at once, mount", "16 at once, mount"];
const READ_CPU: &str = "cold read, mount";
const FILE_BYTES: u64 = 1 << 30;
const NAMES: usize = 10_000;
/// Ranks of the checkpoint.
const RANKS: usize = 1000;
/// Bytes of disk for a byte of the checkpoint: three replicas of what is written, of indexes that merges
/// replace, which stay until no reader can need them, and of the flattened file.
const ROOM: u64 = 14;
const CREATE_TIME: Duration = Duration::from_secs(4);
const PIECE_BYTES: usize = 1 << 20;

/// A store with nothing in it, for mounts.
fn start_store(dir: &Path) -> Result<(Cairn, Setup)> {
    ensure!(
        rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists(),
        "a mount needs root and /dev/fuse"
    );
    let binary = fs::canonicalize(workspace::build_cairn()?)?;
    let dir = fs::canonicalize(dir)?;
    let mut store = Cairn::create(&binary, &dir.join("store"), None)?;
    store.start(Spread::OneProcess)?;
    let setup = Setup {
        binary,
        dir,
        url: store.url(),
        name_bytes: super::NAME_BYTES,
        traits: Traits::CAIRN,
    };
    Ok((store, setup))
}

/// Runs the checkpoint alone.
pub(crate) fn run_checkpoint(ranks: usize) -> Result<()> {
    let scratch = workspace::scratch("bench-mount")?;
    let (mut store, setup) = start_store(scratch.path())?;
    let mut account = store.account()?;
    account.must("PUT", &format!("/{CONTAINER}"), "", &[], b"")?;
    let words = checkpoint(&mut Table::default(), &setup, &mut account, ranks)?;
    store.stop()?;
    println!("{words}");
    Ok(())
}

/// Runs the benchmark.
pub(crate) fn run(plan: &Plan<'_>) -> Result<()> {
    let scratch = workspace::scratch("bench-mount")?;
    let (mut store, setup) = start_store(scratch.path())?;
    let mut account = store.account()?;
    account.must("PUT", &format!("/{CONTAINER}"), "", &[], b"")?;
    let (parts, rounds) = match plan.parts.is_empty() {
        true => (&Part::ALL[..], plan.rounds),
        false => (plan.parts, plan.rounds),
    };
    let rivals = match plan.against {
        Some(_) => Vec::new(),
        None => rivals::all(&setup, &mut account, plan.s3ql)?,
    };
    let mut subjects = Vec::new();
    if let Some(other) = plan.against {
        let setup = Setup {
            binary: fs::canonicalize(other)?,
            ..setup.clone()
        };
        subjects.push(Subject { name: OTHER, setup });
    }
    let name = MOUNT;
    subjects.push(Subject { name, setup });
    let mut table = Table::default();
    let mut words = String::new();
    for part in parts {
        match part {
            Part::Streams => {
                for _ in 0..rounds {
                    streams(&mut table, &subjects, &mut account, &rivals)?;
                }
            }
            Part::Creates => {
                let roots: Vec<u32> = store.processes().iter().map(Process::id).collect();
                for _ in 0..rounds {
                    creates(&mut table, &subjects, &account, &roots)?;
                }
            }
            Part::Listings => listings(&mut table, &subjects, &account, &rivals, rounds)?,
            Part::Checkpoint => {
                for Subject { setup, .. } in subjects.iter().filter(|s| s.name == MOUNT) {
                    let told = checkpoint(&mut table, setup, &mut account, RANKS);
                    words = told.unwrap_or_else(|e| format!("the checkpoint failed: {e:#}"));
                }
            }
        }
    }
    store.stop()?;
    table.show(&words);
    workspace::keep("bench-mount", "bench.json", &table.0)
}

fn rate(bytes: u64, since: Instant) -> f64 {
    bytes as f64 / 1e6 / since.elapsed().as_secs_f64()
}

/// Writes and reads one stream: a file through each mount, an object of the store.
fn streams(
    table: &mut Table,
    subjects: &[Subject],
    account: &mut Account,
    rivals: &[Rival],
) -> Result<()> {
    let path = format!("/{CONTAINER}/plain");
    let start = Instant::now();
    put_stream(account, &path)?;
    table.add(WRITE, STORE, "MB/s", rate(FILE_BYTES, start));
    account.must("DELETE", &path, "", &[], b"")?;
    for Subject { name, setup } in subjects {
        let mount = Mount::start(setup, "mnt", &[])?;
        let start = Instant::now();
        write_file(&mount.dir.join("written"))?;
        table.add(WRITE, name, "MB/s", rate(FILE_BYTES, start));
        mount.stop()?;
        let path = format!("/{CONTAINER}/written");
        let start = Instant::now();
        get_range(account, &path, 0, FILE_BYTES)?;
        table.add(READ, STORE, "MB/s", rate(FILE_BYTES, start));
        let start = Instant::now();
        get_ranges(account, &path, 4)?;
        table.add(READ, FOUR_RANGES, "MB/s", rate(FILE_BYTES, start));
        let mount = Mount::start(setup, "mnt", &[])?;
        let (start, used) = (Instant::now(), cpu_seconds(&[mount.process.id()]));
        read_file(&mount.dir.join("written"))?;
        table.add(READ, name, "MB/s", rate(FILE_BYTES, start));
        let used = cpu_seconds(&[mount.process.id()]) - used;
        table.add(READ_CPU, name, "CPU-s of the mount", used);
        fs::remove_file(mount.dir.join("written"))?;
        mount.stop()?;
    }
    let Some(Subject { setup, .. }) = subjects.last() else {
        return Ok(());
    };
    for rival in rivals {
        let mount = rival.mount(setup)?;
        let start = Instant::now();
        write_file(&mount.dir.join("written"))?;
        rival.on_store(&mount, account, "written", FILE_BYTES)?;
        table.add(WRITE, rival.name(), "MB/s", rate(FILE_BYTES, start));
        rival.unmount(mount)?;
        let mount = rival.mount_cold(setup)?;
        let start = Instant::now();
        read_file(&mount.dir.join("written"))?;
        table.add(READ, rival.name(), "MB/s", rate(FILE_BYTES, start));
        fs::remove_file(mount.dir.join("written"))?;
        rival.unmount(mount)?;
    }
    Ok(())
}

/// The pieces of a file of [`FILE_BYTES`]. No two are equal: S3QL stores equal blocks once.
struct Pieces {
    piece: Vec<u8>,
    number: u64,
}

impl Pieces {
    fn new() -> Pieces {
        Pieces {
            piece: Random::new(1).bytes(PIECE_BYTES),
            number: 0,
        }
    }

    fn next(&mut self) -> Option<&[u8]> {
        if self.number == FILE_BYTES / PIECE_BYTES as u64 {
            return None;
        }
        self.piece[..8].copy_from_slice(&self.number.to_le_bytes());
        self.number += 1;
        Some(&self.piece)
    }
}

fn write_file(path: &Path) -> Result<()> {
    let mut pieces = Pieces::new();
    let mut file = File::create(path)?;
    while let Some(piece) = pieces.next() {
        file.write_all(piece)?;
    }
    Ok(file.sync_all()?)
}

fn read_file(path: &Path) -> Result<()> {
    let mut file = File::open(path)?;
    let mut read = vec![0; PIECE_BYTES];
    let mut pieces = Pieces::new();
    while let Some(expected) = pieces.next() {
        file.read_exact(&mut read)?;
        // Its number, and its end: all of it would take as long as reading does.
        let ends = |piece: &[u8]| (piece[..8].to_vec(), piece[PIECE_BYTES - 8..].to_vec());
        ensure!(ends(&read) == ends(expected), "other bytes were read");
    }
    ensure!(
        file.read(&mut read)? == 0,
        "the file is longer than was written"
    );
    Ok(())
}

/// Sends one request's head, and returns the stream for the rest.
fn begin(account: &Account, method: &str, path: &str, lines: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", account.port))?;
    stream.set_nodelay(true)?;
    let (token, path) = (&account.token, format!("{}{}", account.path, quote(path)));
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nX-Auth-Token: {token}\r\n{lines}\r\n"
    );
    stream.write_all(head.as_bytes())?;
    Ok(stream)
}

fn put_stream(account: &Account, path: &str) -> Result<()> {
    let mut pieces = Pieces::new();
    let mut stream = begin(
        account,
        "PUT",
        path,
        &format!("Content-Length: {FILE_BYTES}\r\n"),
    )?;
    while let Some(piece) = pieces.next() {
        stream.write_all(piece)?;
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    Ok(())
}

fn get_range(account: &Account, path: &str, first: u64, length: u64) -> Result<()> {
    let last = first + length - 1;
    let mut stream = begin(
        account,
        "GET",
        path,
        &format!("Range: bytes={first}-{last}\r\n"),
    )?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut bytes = 0;
    loop {
        match stream.read(&mut piece)? {
            0 => break,
            count => bytes += count as u64,
        }
    }
    // The response's head is counted too.
    ensure!(bytes > length, "{bytes} bytes came of {length}");
    Ok(())
}

fn get_ranges(account: &Account, path: &str, count: u64) -> Result<()> {
    let part = FILE_BYTES / count;
    std::thread::scope(|scope| {
        let start = |i| scope.spawn(move || get_range(account, path, i * part, part));
        let readers: Vec<_> = (0..count).map(start).collect();
        let mut ended = readers.into_iter().map(|reader| reader.join());
        ended.try_for_each(|ended| ended.unwrap_or_else(|_| bail!("a reader panicked")))
    })
}

/// Calls `make` from several threads for a fixed time, each call with a fresh number; returns calls
/// per second.
fn by_many(
    threads: usize,
    next: &AtomicU64,
    make: impl Fn(u64, &mut Account) -> Result<()> + Sync,
    account: &Account,
) -> Result<f64> {
    let (start, first) = (Instant::now(), next.load(Ordering::Relaxed));
    let make = &make;
    std::thread::scope(|scope| {
        let work = || {
            let mut own = account.another();
            while start.elapsed() < CREATE_TIME {
                make(next.fetch_add(1, Ordering::Relaxed), &mut own)?;
            }
            Ok(())
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut ended = workers.into_iter().map(|worker| worker.join());
        ended.try_for_each(|ended| ended.unwrap_or_else(|_| bail!("a worker panicked")))
    })?;
    let made = next.load(Ordering::Relaxed) - first;
    Ok(made as f64 / start.elapsed().as_secs_f64())
}

/// Makes small files through mounts, and small objects of the store.
fn creates(
    table: &mut Table,
    subjects: &[Subject],
    account: &Account,
    store: &[u32],
) -> Result<()> {
    let next = AtomicU64::new(0);
    let bytes = Random::new(2).bytes(4000);
    for (at, at_once) in CREATORS.into_iter().enumerate() {
        let put = |number: u64, account: &mut Account| {
            let path = format!("/{CONTAINER}/put/{number}");
            account.must("PUT", &path, "", &[], &bytes).map(drop)
        };
        let (used, first) = (cpu_seconds(store), next.load(Ordering::Relaxed));
        let puts = by_many(at_once, &next, put, account)?;
        table.add(CREATE[at], STORE, "/s", puts);
        let each = 1000.0 / (next.load(Ordering::Relaxed) - first) as f64;
        let used = (cpu_seconds(store) - used) * each;
        table.add(CREATE_CPU[at], STORE, "CPU-ms of the store", used);
        for Subject { name, setup } in subjects {
            let mount = Mount::start(setup, "mnt", &[])?;
            let dir = mount.dir.join("created");
            fs::create_dir_all(&dir)?;
            let create = |number: u64, _: &mut Account| {
                let mut file = File::create(dir.join(number.to_string()))?;
                file.write_all(&bytes)?;
                Ok(file.sync_all()?)
            };
            let own = [mount.process.id()];
            let (used, own_used) = (cpu_seconds(store), cpu_seconds(&own));
            let first = next.load(Ordering::Relaxed);
            let creates = by_many(at_once, &next, create, account)?;
            table.add(CREATE[at], name, "/s", creates);
            let each = 1000.0 / (next.load(Ordering::Relaxed) - first) as f64;
            let used = (cpu_seconds(store) - used) * each;
            table.add(CREATE_CPU[at], name, "CPU-ms of the store", used);
            let used = (cpu_seconds(&own) - own_used) * each;
            table.add(CREATE_OWN_CPU[at], name, "CPU-ms of the mount", used);
            mount.stop()?;
            remove_below(account, "created/")?;
        }
    }
    remove_below(account, "put/")
}

fn listings(
    table: &mut Table,
    subjects: &[Subject],
    account: &Account,
    rivals: &[Rival],
    rounds: usize,
) -> Result<()> {
    let Some(Subject { setup, .. }) = subjects.last() else {
        return Ok(());
    };
    let mount = Mount::start(setup, "mnt", &[])?;
    fs::create_dir_all(mount.dir.join("names"))?;
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let work = || loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= NAMES as u64 {
                return Ok(());
            }
            fs::write(mount.dir.join(format!("names/{number:05}")), b"")?;
        };
        let workers: Vec<_> = (0..16).map(|_| scope.spawn(work)).collect();
        let mut ended = workers.into_iter().map(|worker| worker.join());
        ended.try_for_each(|ended| ended.unwrap_or_else(|_| bail!("a worker panicked")))
    })?;
    mount.stop()?;
    // rclone takes the directory's own object for a file of its name. Without it the directory is one
    // by what is in it, for both.
    let marker = format!("/{CONTAINER}/names");
    account.another().must("DELETE", &marker, "", &[], b"")?;
    // A listing with all names shows that the store has each name's row.
    wait_for("all names in the listing", 60, || {
        let path = format!("/{CONTAINER}");
        let query = "?prefix=names/&limit=10000";
        let names = account.another().must("GET", &path, query, &[], b"")?;
        Ok(names.text().lines().count() == NAMES)
    })?;
    for _ in 0..rounds {
        for Subject { name, setup } in subjects {
            let mount = Mount::start(setup, "mnt", &[])?;
            let took = list(&mount.dir.join("names"))?;
            table.add(LIST, name, "ms", took);
            mount.stop()?;
        }
        // S3QL keeps names in a database of its own, and does not see these objects.
        for rival in rivals.iter().filter(|rival| rival.sees_objects()) {
            let mount = rival.mount_of(setup, CONTAINER)?;
            table.add(LIST, rival.name(), "ms", list(&mount.dir.join("names"))?);
            rival.unmount(mount)?;
        }
    }
    Ok(())
}

/// Measures a checkpoint, once.
fn checkpoint(
    table: &mut Table,
    setup: &Setup,
    account: &mut Account,
    ranks: usize,
) -> Result<String> {
    let shape = Shape {
        ranks,
        records: 100,
        record_bytes: 47_008,
        hosts: 4,
    };
    let free = rustix::fs::statvfs(&setup.dir)?;
    let (free, needed) = (free.f_bavail * free.f_frsize, ROOM * shape.bytes());
    ensure!(
        free >= needed,
        "a checkpoint of {ranks} ranks takes up to {} GB of disk for a while, and {} are free",
        needed / 1_000_000_000,
        free / 1_000_000_000
    );
    let times = checkpoint::run(setup, account, shape)?;
    for (what, time) in [
        ("checkpoint, written", times.written),
        ("checkpoint, flattened", times.flattened),
        ("checkpoint, one GET", times.read),
    ] {
        table.add(what, MOUNT, "s", time.as_secs_f64());
    }
    let rate = |time: Duration| times.bytes as f64 / 1e6 / time.as_secs_f64();
    Ok(format!(
        "checkpoint of {} bytes by {} ranks on {} mounts: durable at {:.0} MB/s, read by one GET at {:.0} MB/s",
        times.bytes,
        shape.ranks,
        shape.hosts,
        rate(times.written),
        rate(times.read)
    ))
}

/// Duration of `ls -l` in milliseconds.
fn list(dir: &Path) -> Result<f64> {
    let start = Instant::now();
    let output = Command::new("ls").arg("-l").arg(dir).output()?;
    let took = start.elapsed().as_secs_f64() * 1000.0;
    let lines = output.stdout.iter().filter(|byte| **byte == b'\n').count();
    ensure!(
        output.status.success() && lines == NAMES + 1,
        "{lines} lines: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(took)
}

/// Deletes the objects whose names begin with `prefix`.
fn remove_below(account: &Account, prefix: &str) -> Result<()> {
    let path = format!("/{CONTAINER}");
    let mut account = account.another();
    loop {
        let query = format!("?prefix={prefix}&limit=5000");
        let names = account.must("GET", &path, &query, &[], b"")?.text();
        if names.is_empty() {
            return Ok(());
        }
        for name in names.lines() {
            let deleted = account.call("DELETE", &format!("{path}/{name}"), "", &[], b"")?;
            ensure!(
                deleted.is_success() || deleted.status == 404,
                "DELETE {name}: {}",
                deleted.status
            );
        }
    }
}

/// Waits until other clients see an object of that size in the store.
pub(super) fn await_object(account: &mut Account, path: &str, bytes: u64) -> Result<()> {
    wait_for("the upload", 300, || {
        let answer = account.call("HEAD", path, "", &[], b"")?;
        let length = answer.header("content-length");
        let length: Option<u64> = length.map(str::parse).transpose().context("a length")?;
        Ok(answer.is_success() && length == Some(bytes))
    })
}
