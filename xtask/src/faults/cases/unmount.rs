//! Disks are unmounted from a running store with its daemons, as by an operator: idle ones by a
//! plain `umount`, and one lazily under load, whose file system must then be released.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Outcome, Setup, outcome};
use crate::faults::disk::Disk;
use crate::faults::rig::{MIXED, STRICT, keys, load};

/// Time for a disk to be released: seconds, and more on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(200);

pub(super) fn round(setup: &Setup<'_>) -> Result<Outcome> {
    let mut rig = setup.rig()?;
    for role in ["account", "container", "object"] {
        rig.store.set(role, "DEFAULT", "mount_check", "true")?;
    }
    rig.restart()?;
    let mut keys = keys(4, 30, 3);
    rig.make_containers(&keys)?;
    let account = rig.account()?;
    let seed = rig.random.next_u64();
    let mut counts = load(&account, &mut keys, STRICT, seed, || {
        std::thread::sleep(Duration::from_secs(3));
        Ok(())
    })?;
    let mut wrong = Vec::new();
    for disk in &rig.disks {
        let begun = Instant::now();
        while let Err(error) = disk.unmount(false) {
            if begun.elapsed() > TIMEOUT {
                wrong.push(format!("an idle disk cannot be unmounted: {error:#}"));
                disk.unmount(true)?;
                break;
            }
            std::thread::sleep(AGAIN);
        }
    }
    rig.disks.iter().try_for_each(Disk::mount)?;
    let seed = rig.random.next_u64();
    let disk = &rig.disks[0];
    let under_load = load(&account, &mut keys, MIXED, seed, || {
        std::thread::sleep(Duration::from_secs(1));
        disk.unmount(true)?;
        let begun = Instant::now();
        while !disk.is_free()? {
            if begun.elapsed() > TIMEOUT {
                wrong.push("a disk unmounted lazily is kept under load".to_owned());
                break;
            }
            std::thread::sleep(AGAIN);
        }
        disk.mount()?;
        std::thread::sleep(Duration::from_secs(1));
        Ok(())
    })?;
    counts.add(under_load, &mut wrong);
    wrong.extend(rig.lost(&keys)?);
    Ok(outcome(&rig, counts, wrong))
}
