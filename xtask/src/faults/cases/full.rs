//! Full disks: uploads may be refused, but everything is read, listed and deleted as usual, and
//! deletions make room for uploads again.

use std::fs::File;
use std::time::Duration;

use anyhow::Result;
use rustix::fs::FallocateFlags;

use super::super::Outcome;
use super::super::rig::{self, MIXED, Mix, Rig, STRICT};
use super::{Setup, outcome};
use cairn_testkit::model::keys::{Key, State, Write, version_of};
use cairn_testkit::model::load::{self, Counts};
use cairn_testkit::process::wait_for;

/// Space left for objects on each disk before it is filled.
const LEFT: u64 = 24 << 20;

/// A file that occupies space, unknown to the store.
const TAKEN: &str = "not-the-stores";

/// An object in a container of its own.
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

pub(super) fn round(setup: &Setup<'_>) -> Result<Outcome> {
    let mut rig = setup.rig()?;
    let mut keys = rig::keys(8, 24, 4);
    rig.make_containers(&keys)?;
    let mut account = rig.account()?;
    account.must("PUT", "/faults-probe", "", &[], b"")?;
    let seed = rig.random.next_u64();
    let (mut total, mut wrong) = (Counts::tolerant(), Vec::new());
    // Either other files take everything except the reserve, or the store itself does.
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
        // Deletions may free less than the blocks that a file system reserves for root.
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

/// Fills each disk except for `left` bytes with the foreign file.
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

/// Checks objects and listings, which must be available despite full disks.
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
        // A replica whose disk refused an overwrite has an older version.
        match account.call("GET", &path, "", &[("X-Newest", "true")], b"") {
            Ok(got) if got.status == 200 && version_of(&path, &got.body) == Some(version) => {}
            Ok(got) => wrong.push(format!("GET {path}: {} on full disks", got.status)),
            Err(error) => wrong.push(format!("GET {path}: {error:#}")),
        }
    }
    Ok(wrong)
}

/// Deletes most objects, each with a single request.
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
