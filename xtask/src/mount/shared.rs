//! Two mounts, like those of two hosts, that write the same files concurrently; the result is
//! compared with a plain GET of the store.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail, ensure};

use super::store::Store;
use super::{CONTAINER, Mount, Setup};
use cairn_testkit::random::Random;

/// Writers on each of the two mounts.
const RANKS: usize = 4;
const WRITERS: usize = 2 * RANKS;

/// Runs `write` for each writer concurrently, with the directory of the mount that it uses.
fn on_both(dirs: [&Path; 2], write: impl Fn(usize, &Path) -> Result<()> + Sync) -> Result<()> {
    let write = &write;
    std::thread::scope(|scope| {
        let start = |writer: usize| scope.spawn(move || write(writer, dirs[writer % 2]));
        let writers: Vec<_> = (0..WRITERS).map(start).collect();
        let mut ended = writers.into_iter().map(|writer| writer.join());
        ended.try_for_each(|ended| ended.unwrap_or_else(|_| bail!("a writer panicked")))
    })
}

/// The content as another client reads it. Only a majority of servers has the last commit, so all
/// are asked (X-Newest).
fn stored(store: &Store, name: &str) -> Result<Vec<u8>> {
    let path = format!("/{CONTAINER}/{name}");
    let newest = [("X-Newest", "true")];
    Ok(store.account()?.must("GET", &path, "", &newest, b"")?.body)
}

pub(super) fn run(setup: &Setup, store: &Store, first: &Path) -> Result<()> {
    let other = Mount::start(setup, "other-host", &[])?;
    let dirs = [first, &*other.dir];
    strides(store, dirs, "strides-small", 100, 20).context("small strides")?;
    // Record size of a checkpoint benchmark that other mounts got wrong.
    strides(store, dirs, "strides-large", 47_008, 40).context("large strides")?;
    emptied(store, dirs).context("O_TRUNC on both")?;
    appends(store, dirs).context("appends")?;
    exclusive(dirs).context("exclusive creates")?;
    for name in ["strides-small", "strides-large", "emptied", "log"] {
        fs::remove_file(first.join(name))?;
    }
    other.stop()
}

/// An N-1 checkpoint: each writer writes every eighth record of one file, and syncs in the middle.
fn strides(store: &Store, dirs: [&Path; 2], name: &str, record: usize, count: usize) -> Result<()> {
    let bytes_of = |place: usize| Random::new(place as u64).bytes(record);
    on_both(dirs, |writer, dir| {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false);
        let file = file.open(dir.join(name))?;
        for index in 0..count {
            let place = index * WRITERS + writer;
            file.write_all_at(&bytes_of(place), (place * record) as u64)?;
            if index == count / 2 {
                file.sync_all()?;
            }
        }
        Ok(file.sync_all()?)
    })?;
    let expected: Vec<u8> = (0..count * WRITERS).flat_map(bytes_of).collect();
    let is_as_expected = |bytes: &[u8], who: &str| {
        let places = bytes.chunks(record).zip(expected.chunks(record));
        let wrong = places.filter(|(is, should)| is != should).count();
        ensure!(
            bytes == expected,
            "{who}: {} bytes of {}, {wrong} wrong records",
            bytes.len(),
            expected.len()
        );
        Ok(())
    };
    is_as_expected(&stored(store, name)?, "the store")?;
    for dir in dirs {
        is_as_expected(&fs::read(dir.join(name))?, "a mount")?;
    }
    Ok(())
}

/// All open a file with O_TRUNC before any of them writes: no open may truncate what another writer
/// has closed.
fn emptied(store: &Store, dirs: [&Path; 2]) -> Result<()> {
    fs::write(dirs[0].join("emptied"), vec![b'.'; 3 * WRITERS])?;
    let all_open = Barrier::new(WRITERS);
    on_both(dirs, |writer, dir| {
        let file = File::create(dir.join("emptied"));
        all_open.wait();
        let file = file?;
        file.write_all_at(&[b'a' + writer as u8], 2 * writer as u64)?;
        Ok(file.sync_all()?)
    })?;
    let bytes = stored(store, "emptied")?;
    ensure!(
        bytes == b"a\0b\0c\0d\0e\0f\0g\0h",
        "{:?}",
        String::from_utf8_lossy(&bytes)
    );
    Ok(())
}

fn appends(store: &Store, dirs: [&Path; 2]) -> Result<()> {
    const LINES: usize = 25;
    on_both(dirs, |writer, dir| {
        let mut options = OpenOptions::new();
        let mut log = options.append(true).create(true).open(dir.join("log"))?;
        for line in 0..LINES {
            // One write per line: another writer's may come between two writes.
            log.write_all(format!("{writer} {line}\n").as_bytes())?;
            log.sync_data()?;
        }
        Ok(())
    })?;
    let text = String::from_utf8(stored(store, "log")?)?;
    let mut lines: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for line in text.lines() {
        let (writer, number) = line.split_once(' ').context("a line is torn")?;
        lines
            .entry(writer.parse()?)
            .or_default()
            .push(number.parse()?);
    }
    for writer in 0..WRITERS {
        let found = lines.remove(&writer).unwrap_or_default();
        ensure!(
            found.iter().copied().eq(0..LINES),
            "writer {writer}: {found:?}"
        );
    }
    Ok(())
}

fn exclusive(dirs: [&Path; 2]) -> Result<()> {
    const NAMES: usize = 15;
    let all_there = Barrier::new(WRITERS);
    let made: [AtomicUsize; NAMES] = Default::default();
    on_both(dirs, |_, dir| {
        for (number, made) in made.iter().enumerate() {
            all_there.wait();
            match File::create_new(dir.join(format!("lock-{number}"))) {
                Ok(_) => {
                    made.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    })?;
    for (number, made) in made.into_iter().enumerate() {
        let made = made.into_inner();
        ensure!(made == 1, "lock-{number} was made {made} times");
        fs::remove_file(dirs[0].join(format!("lock-{number}")))?;
    }
    Ok(())
}
