//! A single failed write of some blocks on one disk: the other devices continue, so that every
//! request succeeds; a power cut then loses nothing. If all devices are folders of that disk, the
//! write is one to a database's log: that database is used again only after it was re-read from the
//! disk, and the others, and all devices, stay in service. (A failed write of the file system's own
//! metadata takes it out of service, which is the kernel's behaviour.)

use std::time::Duration;

use anyhow::Result;

use super::super::Outcome;
use super::super::medium::{Fault, Op};
use super::super::rig::{self, MIXED, STRICT};
use super::{Setup, outcome};
use cairn_testkit::model::load::Counts;
use cairn_testkit::process::wait_for;

pub(super) fn round(setup: &Setup<'_>, shared: bool) -> Result<Outcome> {
    let mut rig = setup.shaped(|shape| shape.shared = shared)?;
    let mut keys = rig::keys(8, 20, 4);
    rig.make_containers(&keys)?;
    let account = rig.account()?;
    let seed = rig.random.next_u64();
    let (mut total, mut wrong) = (Counts::tolerant(), Vec::new());
    let disk = &rig.disks[seed as usize % rig.disks.len()];
    let during = rig::load(&account, &mut keys, MIXED, seed, || {
        std::thread::sleep(Duration::from_millis(700));
        let places = || match shared {
            true => disk.places(&rig.files(0, is_log_of_one_device)),
            false => disk.data(),
        };
        // On a busy machine no row may have come to that device yet.
        wait_for("a place on the disk to fail at", 20, || {
            Ok(!places().is_empty())
        })?;
        let places = places();
        let mut fault = Fault::of(Op::Write, places);
        fault.left = Some(1);
        disk.medium.fail(fault);
        std::thread::sleep(Duration::from_millis(800));
        Ok(())
    })?;
    total.add(during, &mut wrong);
    let after = rig::load(&account, &mut keys, STRICT, seed + 1, || {
        std::thread::sleep(Duration::from_millis(1500));
        Ok(())
    })?;
    total.add(after, &mut wrong);
    total.wrong = wrong;
    rig.cut_power();
    rig.start_anew(*rig.random.clone().pick(&[0, 0, 500]))?;
    let lost = rig.lost(&keys)?;
    Ok(outcome(&rig, total, lost))
}

fn is_log_of_one_device(path: &str) -> bool {
    path.contains("/d1/containers/") && (path.ends_with("-wal") || path.ends_with(".pending"))
}
