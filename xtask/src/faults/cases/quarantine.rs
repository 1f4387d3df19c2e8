//! All replicas of all objects are corrupted while they are read and overwritten: the quarantine
//! must get the corrupt versions, never those that replaced them.

use std::sync::Mutex;
use std::time::Duration;

use anyhow::Result;

use super::super::Outcome;
use super::super::rig::{self, MIXED, Mix, Rig};
use super::{Setup, outcome};
use cairn_testkit::model::keys::{Key, State, Write, next_version, version_of};
use cairn_testkit::model::load::{self, Counts};
use cairn_testkit::random::Random;
use cairn_testkit::wire::Account;

const LARGE: Mix<'_> = Mix {
    sizes: &[100, 65_537, 300_000, 1 << 20],
    gets: 0,
    deletes: 0,
    ..MIXED
};

pub(super) fn round(setup: &Setup<'_>) -> Result<Outcome> {
    let mut rig = setup.rig()?;
    // The auditor reads as fast as possible, repeatedly.
    for (option, value) in [
        ("files_per_second", "0"),
        ("bytes_per_second", "0"),
        ("interval", "1"),
    ] {
        rig.store.set("object", "object-auditor", option, value)?;
    }
    let mut keys = rig::keys(8, 12, 4);
    rig.make_containers(&keys)?;
    let seed = rig.random.next_u64();
    let before = rig::load(&rig.account()?, &mut keys, LARGE, seed, || {
        std::thread::sleep(Duration::from_millis(1500));
        Ok(())
    })?;
    rig.rot(&[0, 1, 2, 3])?;
    let rotten_before = next_version();
    for key in keys.iter_mut().flatten() {
        // No intact copy exists until it is overwritten.
        if !key.possible.contains(&State::Absent) {
            key.possible.push(State::Absent);
        }
    }
    for disk in &rig.disks {
        disk.medium.slow_down(Duration::from_millis(2));
    }
    let mut total = Counts::tolerant();
    let mut wrong = before.wrong.clone();
    total.add(before, &mut Vec::new());
    total.add(read_and_replace(&rig, &mut keys)?, &mut wrong);
    rig.heal();
    // Wait for readers that are behind.
    std::thread::sleep(Duration::from_millis(500));
    wrong.extend(sound_ones_taken_aside(&rig, rotten_before));
    rig.cut_power();
    rig.start_anew(0)?;
    wrong.extend(rig.lost(&keys)?);
    Ok(outcome(&rig, total, wrong))
}

/// Reads each object while its next version is written.
fn read_and_replace(rig: &Rig, keys: &mut [Vec<Key>]) -> Result<Counts> {
    let account = rig.account()?;
    let total = Mutex::new((Counts::tolerant(), Vec::new()));
    std::thread::scope(|scope| {
        for (number, keys) in keys.iter_mut().enumerate() {
            let random = Random::new(number as u64);
            let (reader, writer) = (account.another(), account.another());
            let total = &total;
            scope.spawn(move || {
                let counts = replace(keys, reader, writer, random);
                if let Ok(mut total) = total.lock() {
                    let (sum, wrong) = &mut *total;
                    sum.add(counts, wrong);
                }
            });
        }
    });
    let (mut sum, wrong) = total.into_inner().unwrap_or_default();
    sum.wrong = wrong;
    Ok(sum)
}

fn replace(
    keys: &mut [Key],
    mut reader: Account,
    mut writer: Account,
    mut random: Random,
) -> Counts {
    let mut counts = Counts::tolerant();
    for key in keys {
        let path = key.path();
        let wait = Duration::from_millis(random.below(30));
        std::thread::scope(|scope| {
            let read = scope.spawn(|| {
                let got = reader.call("GET", &path, "", &[], b"");
                got.is_ok_and(|got| got.status == 200 && version_of(&path, &got.body).is_none())
            });
            std::thread::sleep(wait);
            let put = Write::Put {
                version: next_version(),
            };
            let size = *random.pick(LARGE.sizes);
            load::write(&mut writer, key, put, size, &mut counts);
            if read.join().unwrap_or(true) {
                counts
                    .wrong
                    .push(format!("GET {path}: 200, no whole version"));
            }
        });
    }
    counts
}

/// Describes intact later versions in quarantine. (One with corruption in its name may seem
/// intact.)
fn sound_ones_taken_aside(rig: &Rig, rotten_before: u64) -> Vec<String> {
    let is_aside = |path: &str| path.contains("/quarantined/") && path.ends_with(".data");
    let files = (0..rig.disks.len()).flat_map(|disk| rig.files(disk, is_aside));
    let sound = files.filter(|file| {
        let body = std::fs::read(file).unwrap_or_default();
        let line = body.split(|b| *b == b'\n').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line).into_owned();
        let path = line.splitn(4, ' ').nth(3).unwrap_or_default();
        version_of(path, &body) > Some(rotten_before)
    });
    sound
        .map(|file| format!("{} is sound, and in quarantine", file.display()))
        .collect()
}
