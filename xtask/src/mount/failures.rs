//! The store goes away and comes back, and mounts are ended and killed: nothing acknowledged is
//! lost, failures are reported to the caller, and nothing hangs.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::store::Store;
use super::{CONTAINER, Mount, Setup};
use cairn_testkit::random::Random;

pub(super) fn second(setup: &Setup, first: &Path) -> Result<()> {
    let other = Mount::start(setup, "second", &["--read-only"])?;
    for text in ["one", "another"] {
        fs::write(first.join("shared"), text)?;
        let read = fs::read_to_string(other.dir.join("shared"))?;
        ensure!(
            read == text,
            "the second mount reads {read:?}, not {text:?}"
        );
    }
    ensure!(
        fs::write(other.dir.join("no"), b"").is_err(),
        "a read-only mount was written to"
    );
    other.stop()
}

pub(super) fn away(store: &mut Store, at: &Path) -> Result<()> {
    let file = at.join("kept");
    let mut out = File::create(&file)?;
    out.write_all(b"written while the store was away")?;
    store.kill();
    let start = Instant::now();
    ensure!(
        out.sync_all().is_err(),
        "synced to a store that is not there"
    );
    ensure!(
        fs::metadata(at.join("nowhere")).is_err(),
        "found on a store that is not there"
    );
    let took = start.elapsed();
    ensure!(took < Duration::from_secs(60), "it took {took:?}");
    store.start()?;
    out.sync_all().context("after the store came back")?;
    let text = fs::read_to_string(&file)?;
    ensure!(text == "written while the store was away", "{text:?}");
    Ok(())
}

pub(super) fn terminated(setup: &Setup, mount: Mount) -> Result<()> {
    let dir = mount.dir.clone();
    let mut open = File::create(dir.join("open"))?;
    open.write_all(b"not closed")?;
    mount.stop()?;
    drop(open);
    let again = Mount::start(setup, "again", &[])?;
    let text = fs::read_to_string(again.dir.join("open"))?;
    ensure!(text == "not closed", "{text:?}");
    again.stop()
}

/// Kills the store while files are written: `fsync` returns an error, the bytes are kept, and the
/// next successful `fsync` stores them.
pub(super) fn killed_during_writes(store: &mut Store, at: &Path) -> Result<()> {
    let mut files = Vec::new();
    for (i, size) in [100usize, 5 << 20, 80 << 20].into_iter().enumerate() {
        let bytes = Random::new(i as u64).bytes(size);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        let mut file = options.open(at.join(format!("killed-{i}")))?;
        let (first, rest) = bytes.split_at(size / 2);
        file.write_all(first)?;
        if i == 2 {
            store.kill();
        }
        file.write_all(rest)?;
        files.push((i, file, bytes));
    }
    for (i, file, bytes) in &files {
        let start = Instant::now();
        ensure!(file.sync_all().is_err(), "file {i} was synced to no store");
        let took = start.elapsed();
        ensure!(took < Duration::from_secs(60), "it took {took:?}");
        let mut head = [0; 50];
        file.read_exact_at(&mut head, 0)?;
        ensure!(head == bytes[..50], "file {i} is not as it was written");
    }
    store.start()?;
    let mut account = store.account()?;
    for (i, file, bytes) in files {
        file.sync_all().context("after the store came back")?;
        let path = format!("/{CONTAINER}/killed-{i}");
        let answer = account.must("GET", &path, "", &[], b"")?;
        ensure!(answer.body == bytes, "file {i} is not whole on the store");
        drop(file);
        fs::remove_file(at.join(format!("killed-{i}")))?;
    }
    Ok(())
}

/// A program that writes, waits for a line, and exits successfully if `close` returns an error.
const CLOSE: &str = "
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(file, b'closed later')
print('written', flush=True)
sys.stdin.readline()
try:
    os.close(file)
except OSError as error:
    sys.exit(0 if error.errno == 5 else f'{error}')
sys.exit('closed without an error')
";

/// Closes a file while the store is away: `close` returns an error, and the file is stored by the
/// next `fsync`.
pub(super) fn closed_without_a_store(store: &mut Store, at: &Path) -> Result<()> {
    let path = at.join("closed");
    let mut writer = Command::new("python3")
        .args(["-c", CLOSE])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let output = writer.stdout.take().context("no output")?;
    BufReader::new(output).read_line(&mut line)?;
    store.kill();
    drop(writer.stdin.take());
    let ended = writer.wait()?;
    store.start()?;
    ensure!(ended.success(), "close: {ended}");
    OpenOptions::new().write(true).open(&path)?.sync_all()?;
    let mut account = store.account()?;
    let answer = account.must("GET", &format!("/{CONTAINER}/closed"), "", &[], b"")?;
    ensure!(answer.body == b"closed later", "{:?}", answer.text());
    Ok(())
}

/// Kills a mount: everything synced is in the store.
pub(super) fn killed_mount(setup: &Setup) -> Result<()> {
    let mut mount = Mount::start(setup, "killed", &[])?;
    let mut synced = Vec::new();
    for (i, size) in [10usize, 1 << 20, 12 << 20].into_iter().enumerate() {
        let bytes = Random::new(i as u64).bytes(size);
        let mut file = File::create(mount.dir.join(format!("synced-{i}")))?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        file.write_all_at(b"not synced", 0)?;
        synced.push((i, bytes, file));
    }
    mount.process.kill();
    drop(mount);
    let again = Mount::start(setup, "killed", &[])?;
    for (i, bytes, file) in synced {
        drop(file);
        let path = again.dir.join(format!("synced-{i}"));
        ensure!(fs::read(&path)? == bytes, "file {i}");
        fs::remove_file(&path)?;
    }
    again.stop()
}

/// A disk is away while files are written again, and comes back with their versions of before: mounts
/// see and go on with those that were written.
pub(super) fn disk_away(setup: &Setup, store: &mut Store) -> Result<()> {
    // As many that a mount that asks one server does not find the right one for each of them.
    const FILES: usize = 24;
    let name = |number: usize| format!("away-{number}");
    let mount = Mount::start(setup, "before", &[])?;
    for number in 0..FILES {
        fs::write(mount.dir.join(name(number)), b"first")?;
    }
    mount.stop()?;
    let (disk, elsewhere) = store.a_disk()?;
    store.kill();
    fs::rename(&disk, &elsewhere)?;
    store.start()?;
    let mount = Mount::start(setup, "meanwhile", &[])?;
    for number in 0..FILES {
        fs::write(mount.dir.join(name(number)), b"second")?;
    }
    mount.stop()?;
    store.kill();
    // An empty folder, if a server has made one.
    let _ = fs::remove_dir_all(&disk);
    fs::rename(&elsewhere, &disk)?;
    store.start()?;
    let mount = Mount::start(setup, "afterwards", &[])?;
    let mut wrong = Vec::new();
    for number in 0..FILES {
        let path = mount.dir.join(name(number));
        let mut file = OpenOptions::new().append(true).open(&path)?;
        file.write_all(b" third")?;
        file.sync_all()?;
        drop(file);
        let read = fs::read_to_string(&path)?;
        if read != "second third" {
            wrong.push(read);
        }
    }
    ensure!(wrong.is_empty(), "{} of {FILES}: {wrong:?}", wrong.len());
    for number in 0..FILES {
        fs::remove_file(mount.dir.join(name(number)))?;
    }
    mount.stop()
}

/// A rename interrupted in the middle leaves both names: deleting either does not delete the
/// other's bytes.
pub(super) fn broken_rename(setup: &Setup, store: &Store) -> Result<()> {
    let mut account = store.account()?;
    let (path, bytes) = (
        format!("/{CONTAINER}/half-a"),
        Random::new(4).bytes(20 << 20),
    );
    for (goes, stays) in [("half-a", "half-b"), ("half-b", "half-a")] {
        let mount = Mount::start(setup, "half", &[])?;
        fs::write(mount.dir.join("half-a"), &bytes)?;
        let query = "?multipart-manifest=get&format=raw";
        let manifest = account.must("GET", &path, query, &[], b"")?.text();
        let id = manifest.split("/.segments/").nth(1);
        let id = id.and_then(|rest| rest.split('/').next());
        let id = id.context("a manifest without segments")?;
        // Repeats the requests of a rename, except its last two.
        let mark = format!("/{CONTAINER}/.segments/{id}/shared");
        account.must("PUT", &mark, "", &[], b"")?;
        let target = format!("{CONTAINER}/half-b");
        let headers = [("Destination", target.as_str())];
        account.must("COPY", &path, "?multipart-manifest=get", &headers, b"")?;
        fs::remove_file(mount.dir.join(goes))?;
        mount.stop()?;
        let path = format!("/{CONTAINER}/{stays}");
        let answer = account.must("GET", &path, "", &[], b"")?;
        ensure!(answer.body == bytes, "{stays} went with {goes}");
        account.must("DELETE", &path, "", &[], b"")?;
    }
    Ok(())
}

/// Sends SIGTERM while the store is away: the mount ends, and reports that data was not written.
pub(super) fn terminated_without_a_store(setup: &Setup, store: &mut Store) -> Result<()> {
    let mount = Mount::start(setup, "alone", &[])?;
    let mut open = File::create(mount.dir.join("lost"))?;
    open.write_all(b"lost")?;
    store.kill();
    let ended = mount.exit_code();
    drop(open);
    store.start()?;
    let code = ended?;
    ensure!(code == Some(1), "it ended with {code:?}");
    Ok(())
}
