//! The disk cache: bytes that it has are read without the store, also after a `kill -9`, and damage
//! in its directory changes no byte that a program reads.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::store::Store;
use super::{CONTAINER, Mount, Setup};
use cairn_testkit::random::Random;
use cairn_testkit::workspace::utf8;

/// Large enough for segments.
const LARGE_BYTES: usize = 40 << 20;
const SMALL_BYTES: usize = 100_000;

/// Little memory, so that reads come from the disk.
fn mount(setup: &Setup, name: &str, dir: &Path, size: &str) -> Result<Mount> {
    let cache = utf8(dir)?;
    let options = [
        "--cache",
        "8M",
        "--disk-cache",
        cache,
        "--disk-cache-size",
        size,
    ];
    Mount::start(setup, name, &options)
}

/// The cache's files.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for folder in fs::read_dir(dir)? {
        let folder = folder?.path();
        if folder.is_dir() {
            for file in fs::read_dir(folder)? {
                files.push(file?.path());
            }
        }
    }
    Ok(files)
}

fn stored_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for file in files(dir)? {
        match fs::metadata(file) {
            Ok(metadata) => bytes += metadata.len(),
            // The mount has removed it meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

pub(super) fn run(setup: &Setup, store: &Store) -> Result<()> {
    let dir = setup.dir.join("disk-cache");
    let contents = [
        Random::new(21).bytes(LARGE_BYTES),
        Random::new(22).bytes(SMALL_BYTES),
    ];
    let names = ["cached-large", "cached-small"];
    let mut first = mount(setup, "cached", &dir, "1G")?;
    for (name, bytes) in names.iter().zip(&contents) {
        fs::write(first.dir.join(name), bytes)?;
    }
    let is_same = |mount: &Mount| -> Result<()> {
        for (name, bytes) in names.iter().zip(&contents) {
            let read = fs::read(mount.dir.join(name)).with_context(|| (*name).to_owned())?;
            ensure!(read == *bytes, "{name}: other bytes");
        }
        Ok(())
    };
    // The disk takes no block while it is behind: read until it has all, past the kernel's pages.
    for _ in 0..50 {
        is_same(&first)?;
        if stored_bytes(&dir)? >= (LARGE_BYTES + SMALL_BYTES) as u64 {
            break;
        }
        for name in names {
            let file = fs::File::open(first.dir.join(name))?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let is_refused = Mount::start(setup, "cached-too", &["--disk-cache", utf8(&dir)?]).is_err();
    ensure!(is_refused, "two mounts use one directory");
    first.process.kill();
    drop(first);
    // Without its segments a file is read from the cache, or not at all.
    let mut account = store.account()?;
    let listing = account.must(
        "GET",
        &format!("/{CONTAINER}"),
        "?prefix=.segments/",
        &[],
        b"",
    )?;
    let path = format!("/{CONTAINER}/cached-large");
    let manifest = account.must("GET", &path, "?multipart-manifest=get", &[], b"")?;
    let manifest = manifest.text();
    let mut gone = Vec::new();
    for name in listing
        .text()
        .lines()
        .filter(|name| manifest.contains(name))
    {
        let path = format!("/{CONTAINER}/{name}");
        let body = account.must("GET", &path, "", &[], b"")?.body;
        account.must("DELETE", &path, "", &[], b"")?;
        gone.push((path, body));
    }
    ensure!(!gone.is_empty(), "no segments in {manifest}");
    let second = mount(setup, "cached", &dir, "1G")?;
    is_same(&second).context("from the cache")?;
    // Damaged files are read from the store.
    for (path, body) in gone {
        account.must("PUT", &path, "", &[], &body)?;
    }
    for (number, file) in files(&dir)?.into_iter().enumerate() {
        let mut bytes = fs::read(&file)?;
        match number % 4 {
            0 => bytes.truncate(bytes.len() / 2),
            1 => bytes
                .iter_mut()
                .rev()
                .take(1000)
                .for_each(|byte| *byte ^= 0x55),
            2 => bytes.clear(),
            _ => continue,
        }
        fs::write(&file, bytes)?;
    }
    is_same(&second).context("from a damaged cache")?;
    second.stop()?;
    for name in names {
        account.must("DELETE", &format!("/{CONTAINER}/{name}"), "", &[], b"")?;
    }
    Ok(())
}

/// Kills mounts while their caches are written, with less room than the file needs.
pub(super) fn killed(setup: &Setup) -> Result<()> {
    const ROOM: u64 = 16 << 20;
    let dir = setup.dir.join("small-disk-cache");
    let bytes = Random::new(23).bytes(LARGE_BYTES);
    let plain = Mount::start(setup, "uncached", &[])?;
    fs::write(plain.dir.join("bounded"), &bytes)?;
    for round in 0..6usize {
        let mut mount = mount(setup, "bounded", &dir, "16M")?;
        let file = mount.dir.join("bounded");
        if round > 0 {
            let end = LARGE_BYTES / 6 * round;
            let read = read_head(&file, end)?;
            ensure!(read == bytes[..end], "round {round}: other bytes");
            mount.process.kill();
            continue;
        }
        ensure!(fs::read(&file)? == bytes, "other bytes");
        mount.stop()?;
        let stored = stored_bytes(&dir)?;
        ensure!(stored <= ROOM, "{stored} bytes in a cache of {ROOM}");
    }
    let last = mount(setup, "bounded", &dir, "16M")?;
    ensure!(
        fs::read(last.dir.join("bounded"))? == bytes,
        "after the kills: other bytes"
    );
    last.stop()?;
    fs::remove_file(plain.dir.join("bounded"))?;
    plain.stop()
}

fn read_head(file: &Path, bytes: usize) -> Result<Vec<u8>> {
    use std::io::Read;
    let mut head = vec![0; bytes];
    fs::File::open(file)?.read_exact(&mut head)?;
    Ok(head)
}
