//! Faults of all kinds, on one, some or all disks, temporary or permanent, during writes and reads;
//! then all disks lose power.

use std::time::Duration;

use anyhow::Result;

use super::super::Outcome;
use super::super::disk::Disk;
use super::super::medium::{Fault, Op};
use super::super::rig::{self, MIXED};
use super::{Setup, outcome};
use cairn_testkit::random::Random;

pub(super) fn round(setup: &Setup<'_>, coded: bool) -> Result<Outcome> {
    let mut rig = setup.shaped(|shape| shape.coded = coded)?;
    let mut keys = rig::keys(8, 30, 4);
    rig.make_containers(&keys)?;
    let account = rig.account()?;
    let (seed, mut random) = (rig.random.next_u64(), rig.random.clone());
    let kept_of_thousand = *random.pick(&[0, 0, 500, 1000]);
    let counts = rig::load(&account, &mut keys, MIXED, seed, || {
        std::thread::sleep(Duration::from_millis(500));
        for _ in 0..1 + random.below(3) {
            let mut hit = false;
            for disk in &rig.disks {
                if random.below(2) == 0 || !hit {
                    disturb(disk, &mut random);
                    hit = true;
                }
            }
            std::thread::sleep(Duration::from_millis(100 + random.below(900)));
            // Some faults last until the power cut.
            if random.below(3) > 0 {
                rig.heal();
            }
            std::thread::sleep(Duration::from_millis(random.below(900)));
        }
        rig.cut_power();
        Ok(())
    })?;
    rig.start_anew(kept_of_thousand)?;
    let lost = rig.lost(&keys)?;
    Ok(outcome(&rig, counts, lost))
}

fn disturb(disk: &Disk, random: &mut Random) {
    let op = *random.pick(&[Op::Write, Op::Write, Op::Write, Op::Read, Op::Flush]);
    let everything = std::iter::once(0..disk.medium.size()).collect();
    let ranges = match random.below(4) {
        0 => everything,
        _ => disk.data(),
    };
    let mut fault = Fault::of(op, ranges);
    match random.below(4) {
        0 => fault.left = Some(1 + random.below(3) as u32),
        1 => fault.of_thousand = 100,
        2 => disk
            .medium
            .slow_down(Duration::from_millis(5 + random.below(20))),
        _ => {}
    }
    disk.medium.fail(fault);
}
