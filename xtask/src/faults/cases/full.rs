//! Disks without any space left: uploads may be refused, but everything is read, listed and deleted
//! as ever, and what was deleted makes room for uploads again.

use std::fs::File;
use std::time::Duration;

use anyhow::Result;
use rustix::fs::FallocateFlags;

use super::super::Outcome;
use super::super::rig::{self, MIXED, Mix, Rig, STRICT};
use super::{Ground, outcome};
use crate::model::keys::{Key, State, Write, version_of};
use crate::model::load::{self, Counts};
use crate::process::wait_for;

/// What is left for objects of each disk, before they fill it.
const LEFT: u64 = 24 << 20;

/// A file of nobody's that takes space.
const TAKEN: &str = "not-the-stores";

/// In a container of its own.
const PROBE: &str = "/faults-probe/o";

const LARGE: Mix<'_> = Mix {
    sizes: &[100, 65_537, 1 << 20, 2 << 20],
    gets: 1,
    deletes: 0,
    ..MIXED
};
const SMALL: Mix<'_> = Mix {
    sizes: &[0, 100, 4096],
    ..STRICT
};

pub(super) fn round(ground: &Ground<'_>) -> Result<Outcome> {
    let mut rig = ground.rig()?;
    let mut keys = rig::keys(8, 24, 4);
    rig.make_containers(&keys)?;
    let mut account = rig.account()?;
    account.must("PUT", "/faults-probe", "", &[], b"")?;
    let seed = rig.random.next();
    let (mut total, mut wrong) = (Counts::tolerant(), Vec::new());
    // Others take all of it but what is set aside, or the store itself does.
    let left = *rig.random.clone().pick(&[0, LEFT]);
    let filled = rig::load(&account, &mut keys, LARGE, seed, || {
        std::thread::sleep(Duration::from_millis(1000));
        fill(&rig, left)?;
        std::thread::sleep(Duration::from_millis(2000));
        Ok(())
    })?;
    total.add(filled, &mut wrong);
    wrong.extend(all_is_read(&rig, &keys)?);
    total.add(deleted(&rig, &mut keys)?, &mut wrong);
    wrong.extend(all_is_read(&rig, &keys)?);
    if left == 0 {
        // What the store deleted may be less than what a file system keeps from all but root.
        for disk in &rig.disks {
            std::fs::remove_file(disk.mount_point.join(TAKEN))?;
        }
    }
    let has_room = wait_for("an upload", 30, || {
        let mut account = account.another();
        Ok(account.call("PUT", PROBE, "", &[], b"")?.status == 201)
    });
    if let Err(error) = has_room {
        wrong.push(format!("after deletions: {error:#}"));
    }
    let after = rig::load(&account, &mut keys, SMALL, seed + 1, || {
        std::thread::sleep(Duration::from_millis(1000));
        Ok(())
    })?;
    total.add(after, &mut wrong);
    total.wrong = wrong;
    rig.cut_power();
    rig.start_anew(*rig.random.clone().pick(&[0, 500]))?;
    let lost = rig.lost(&keys)?;
    Ok(outcome(&rig, total, lost))
}

/// Takes all space of each disk but so much, into a file of nobody's.
fn fill(rig: &Rig, left: u64) -> Result<()> {
    for disk in &rig.disks {
        let file = File::create(disk.mount_point.join(TAKEN))?;
        let stat = rustix::fs::statvfs(&disk.mount_point)?;
        let free = match left {
            0 => stat.f_bfree,
            _ => stat.f_bavail,
        };
        let mut piece = (free * stat.f_frsize).saturating_sub(left);
        let mut taken = 0;
        while piece >= 4096 {
            match rustix::fs::fallocate(&file, FallocateFlags::empty(), taken, piece) {
                Ok(()) if left > 0 => break,
                Ok(()) => taken += piece,
                Err(_) => piece /= 2,
            }
        }
    }
    Ok(())
}

/// Objects and listings, which no disk that is full may keep anybody from.
fn all_is_read(rig: &Rig, keys: &[Vec<Key>]) -> Result<Vec<String>> {
    let mut account = rig.account()?;
    let mut wrong = Vec::new();
    let mut containers: Vec<&str> = keys.iter().flatten().map(|k| &*k.container).collect();
    containers.sort_unstable();
    containers.dedup();
    for container in containers {
        for method in ["GET", "HEAD"] {
            let status = account.call(method, container, "", &[], b"")?.status;
            if !matches!(status, 200 | 204) {
                wrong.push(format!("{method} {container}: {status} on full disks"));
            }
        }
    }
    for key in keys.iter().flatten() {
        let Some(State::Present { version, .. }) = key.settled() else {
            continue;
        };
        let path = key.path();
        // A replica whose disk took no overwrite has an older one.
        match account.call("GET", &path, "", &[("X-Newest", "true")], b"") {
            Ok(got) if got.status == 200 && version_of(&path, &got.body) == Some(version) => {}
            Ok(got) => wrong.push(format!("GET {path}: {} on full disks", got.status)),
            Err(error) => wrong.push(format!("GET {path}: {error:#}")),
        }
    }
    Ok(wrong)
}

/// Most of all objects, each at its first try.
fn deleted(rig: &Rig, keys: &mut [Vec<Key>]) -> Result<Counts> {
    let mut account = rig.account()?;
    let mut counts = Counts::default();
    for (number, key) in keys.iter_mut().flatten().enumerate() {
        if number % 4 != 3 {
            load::write(&mut account, key, Write::Delete, 0, &mut counts);
        }
    }
    Ok(counts)
}
