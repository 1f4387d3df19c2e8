//! One write of one disk fails, of some blocks, and never again: the disks beside it go on as if
//! nothing were, so that every request succeeds; a power cut then loses nothing.

use std::time::Duration;

use anyhow::Result;

use super::super::Outcome;
use super::super::medium::{Fault, Op};
use super::super::rig::{self, MIXED, STRICT};
use super::{Ground, outcome};
use crate::model::load::Counts;

pub(super) fn round(ground: &Ground<'_>) -> Result<Outcome> {
    let mut rig = ground.rig()?;
    let mut keys = rig::keys(8, 20, 4);
    rig.make_containers(&keys)?;
    let account = rig.account()?;
    let seed = rig.random.next();
    let (mut total, mut wrong) = (Counts::tolerant(), Vec::new());
    let disk = &rig.disks[(seed % 4) as usize];
    let during = rig::load(&account, &mut keys, MIXED, seed, || {
        std::thread::sleep(Duration::from_millis(700));
        let mut fault = Fault::of(Op::Write, disk.data());
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
