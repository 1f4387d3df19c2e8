//! Closes that wait for a journal (`--close=async`): the mount and the store are killed right after
//! them, and the next mount with the journal has all files.

use std::fs::{self, File};
use std::io::Write;

use anyhow::{Result, ensure};

use super::store::Store;
use super::{CONTAINER, Mount, Setup};
use cairn_testkit::random::Random;
use rustix::process::Signal;

const FILES: u64 = 200;

fn bytes(number: u64) -> Vec<u8> {
    let mut random = Random::new(number);
    let length = random.bytes(1)[0] as usize * 100;
    random.bytes(length)
}

pub(super) fn run(setup: &Setup, store: &mut Store) -> Result<()> {
    let journal = setup.dir.join("journal");
    let journal = journal.to_string_lossy();
    let options = ["--close=async", "--journal", &journal];
    let mount = Mount::start(setup, "async", &options)?;
    let dir = mount.dir.join("journaled");
    fs::create_dir(&dir)?;
    let mut open = Vec::new();
    for number in 0..FILES {
        let mut file = File::create(dir.join(number.to_string()))?;
        file.write_all(&bytes(number))?;
        open.push(file);
    }
    // No close of these can reach the store.
    store.kill();
    drop(open);
    mount.process.signal(Signal::KILL);
    drop(mount);
    store.start()?;
    let mut account = store.account()?;
    let answer = account.must(
        "GET",
        &format!("/{CONTAINER}"),
        "?prefix=journaled/",
        &[],
        b"",
    )?;
    let early = answer.body.iter().filter(|byte| **byte == b'\n').count();
    let mount = Mount::start(setup, "async", &options)?;
    for number in 0..FILES {
        let read = fs::read(mount.dir.join("journaled").join(number.to_string()))?;
        ensure!(
            read == bytes(number),
            "file {number} is not as it was closed"
        );
    }
    mount.stop()?;
    for number in 0..FILES {
        let path = format!("/{CONTAINER}/journaled/{number}");
        let answer = account.must("GET", &path, "", &[], b"")?;
        ensure!(
            answer.body == bytes(number),
            "file {number} is not whole on the store"
        );
    }
    let left = fs::read_dir(setup.dir.join("journal"))?.count();
    ensure!(
        left == 1,
        "{left} files are in the journal, not only the container's name"
    );
    ensure!(
        early < FILES as usize,
        "all files were on the store before: nothing was shown"
    );
    Ok(())
}
