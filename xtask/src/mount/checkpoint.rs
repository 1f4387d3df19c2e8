//! A checkpoint: many simulated ranks on several mounts write their records of one file in turn,
//! each through a handle of its own, and close it. Afterwards the file is one ordinary object.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::{CONTAINER, Mount, Setup};
use cairn_testkit::process::wait_for;
use cairn_testkit::wire::Account;

/// Shape of a checkpoint: the number of mounts and ranks, records per rank, and bytes per record.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) ranks: usize,
    pub(super) records: usize,
    pub(super) record_bytes: usize,
    pub(super) hosts: usize,
}

impl Shape {
    pub(super) fn bytes(&self) -> u64 {
        (self.ranks * self.records * self.record_bytes) as u64
    }
}

/// Durations of a checkpoint's phases.
pub(super) struct Times {
    /// From the first open until the last close has returned: everything is durable then.
    pub(super) written: Duration,
    /// From there until the object has no small parts (flattened).
    pub(super) flattened: Duration,
    /// A plain GET of the whole object by another client.
    pub(super) read: Duration,
    pub(super) bytes: u64,
}

const NAME: &str = "checkpoint";
const FLATTEN_SECONDS: u64 = 600;

/// Fills a record with bytes that depend on the record's index in the file.
fn fill(place: usize, bytes: &mut [u8]) {
    let mut word = (place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for eight in bytes.chunks_mut(8) {
        eight.copy_from_slice(&word.to_le_bytes()[..eight.len()]);
        word = word.wrapping_add(0x2545_f491_4f6c_dd1d);
    }
}

pub(super) fn run(setup: &Setup, account: &mut Account, shape: Shape) -> Result<Times> {
    let mut mounts = Vec::new();
    for host in 0..shape.hosts {
        mounts.push(Mount::start(setup, &format!("host-{host}"), &[])?);
    }
    let dirs: Vec<&Path> = mounts.iter().map(|mount| &*mount.dir).collect();
    let start = Instant::now();
    std::thread::scope(|scope| {
        let rank = |rank: usize| {
            let dir = dirs[rank % dirs.len()];
            scope.spawn(move || write(dir, rank, shape))
        };
        let ranks: Vec<_> = (0..shape.ranks).map(rank).collect();
        let mut ended = ranks.into_iter().map(|rank| rank.join());
        ended.try_for_each(|ended| ended.unwrap_or_else(|_| bail!("a rank panicked")))
    })?;
    dirs.iter().try_for_each(|dir| sync(dir))?;
    let (written, start) = (start.elapsed(), Instant::now());
    let path = format!("/{CONTAINER}/{NAME}");
    wait_for("flattening", FLATTEN_SECONDS, || {
        let query = "?multipart-manifest=get&format=raw";
        let manifest = account.must("GET", &path, query, &[], b"")?.text();
        Ok(!manifest.contains(".parts\""))
    })?;
    let (flattened, start) = (start.elapsed(), Instant::now());
    let mut place = 0;
    let mut expected = vec![0; shape.record_bytes];
    let (mut filled, mut bytes) = (expected.len(), 0);
    account.stream(&path, |piece| {
        let mut piece = piece;
        bytes += piece.len() as u64;
        while !piece.is_empty() {
            if filled == expected.len() {
                fill(place, &mut expected);
                (place, filled) = (place + 1, 0);
            }
            let count = piece.len().min(expected.len() - filled);
            let is_it = piece[..count] == expected[filled..filled + count];
            ensure!(is_it, "record {} is another one", place - 1);
            filled += count;
            piece = &piece[count..];
        }
        Ok(())
    })?;
    ensure!(
        bytes == shape.bytes(),
        "{bytes} bytes, not {}",
        shape.bytes()
    );
    let read = start.elapsed();
    account.must("DELETE", &path, "", &[], b"")?;
    for mount in mounts {
        mount.stop()?;
    }
    Ok(Times {
        written,
        flattened,
        read,
        bytes,
    })
}

/// A checkpoint of a few seconds.
pub(super) fn in_short(setup: &Setup, account: &mut Account) -> Result<String> {
    let shape = Shape {
        ranks: 60,
        records: 30,
        record_bytes: 47_008,
        // Without conditions of writes one mount at a time may write a file.
        hosts: if setup.traits.decides { 3 } else { 1 },
    };
    let times = run(setup, account, shape)?;
    Ok(format!(
        "{} bytes, durable in {:.1} s, flattened {:.1} s later, read in {:.1} s",
        times.bytes,
        times.written.as_secs_f64(),
        times.flattened.as_secs_f64(),
        times.read.as_secs_f64(),
    ))
}

fn write(dir: &Path, rank: usize, shape: Shape) -> Result<()> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false);
    let file = file.open(dir.join(NAME))?;
    let mut record = vec![0; shape.record_bytes];
    for number in 0..shape.records {
        let place = number * shape.ranks + rank;
        fill(place, &mut record);
        file.write_all_at(&record, (place * shape.record_bytes) as u64)?;
    }
    Ok(())
}

/// Reports what a close could not store: its error is lost here.
fn sync(dir: &Path) -> Result<()> {
    let file = OpenOptions::new().write(true).open(dir.join(NAME))?;
    file.sync_all().context("the last fsync")
}
