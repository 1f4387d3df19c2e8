//! Writes to container databases fail for 0.7 seconds, on all their disks at once, so that every
//! replica of a row meets the same error; objects are on other disks, which work, and continue to
//! be acknowledged. After a power cut all of them must be listed.

use std::time::Duration;

use anyhow::Result;

use super::super::Outcome;
use super::super::medium::Op;
use super::super::rig::{self, Mix, ROWS};
use super::{Setup, outcome};

const LASTS: Duration = Duration::from_millis(700);

pub(super) fn round(setup: &Setup<'_>, exclusive: bool) -> Result<Outcome> {
    let mut rig = setup.shaped(|shape| (shape.exclusive, shape.apart) = (exclusive, true))?;
    // Single rows and batches of rows are written in different ways.
    let (containers, pace) = match setup.seed % 2 {
        0 => (2, Duration::ZERO),
        _ => (8, Duration::from_millis(120)),
    };
    let mut keys = rig::keys(8, 96, containers);
    rig.make_containers(&keys)?;
    let account = rig.account()?;
    let seed = rig.random.next_u64();
    // Time during which rows still arrive after the error, before the power cut.
    let after = Duration::from_millis(1500 + rig.random.below(2500));
    let kept_of_thousand = *rig.random.pick(&[0, 0, 0, 500]);
    let mix = Mix { pace, ..ROWS };
    let counts = rig::load(&account, &mut keys, mix, seed, || {
        std::thread::sleep(Duration::from_millis(1500));
        for disk in rig.of_containers() {
            disk.fail(Op::Write, disk.data());
        }
        std::thread::sleep(LASTS);
        rig.heal();
        std::thread::sleep(after);
        rig.cut_power();
        Ok(())
    })?;
    rig.start_anew(kept_of_thousand)?;
    let lost = rig.lost(&keys)?;
    Ok(outcome(&rig, counts, lost))
}
