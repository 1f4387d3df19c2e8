//! One slow disk of four: requests succeed with correct responses, and none waits for that disk
//! alone.

use std::time::Duration;

use anyhow::Result;

use super::super::Outcome;
use super::super::rig::{self, STRICT};
use super::{Setup, outcome};
use cairn_testkit::model::load::Counts;

pub(super) fn round(setup: &Setup<'_>) -> Result<Outcome> {
    let mut rig = setup.rig()?;
    let mut keys = rig::keys(8, 20, 4);
    rig.make_containers(&keys)?;
    let account = rig.account()?;
    let seed = rig.random.next_u64();
    let delay = Duration::from_millis(30 + rig.random.below(300));
    let disk = &rig.disks[(seed % 4) as usize];
    let (mut total, mut wrong) = (Counts::tolerant(), Vec::new());
    for slow in [Duration::ZERO, delay] {
        disk.medium.slow_down(slow);
        let counts = rig::load(
            &account,
            &mut keys,
            STRICT,
            rig.random.clone().next_u64(),
            || {
                std::thread::sleep(Duration::from_millis(1500));
                Ok(())
            },
        )?;
        total.add(counts, &mut wrong);
    }
    total.wrong = wrong;
    rig.cut_power();
    rig.start_anew(*rig.random.clone().pick(&[0, 500]))?;
    let lost = rig.lost(&keys)?;
    Ok(outcome(&rig, total, lost))
}
