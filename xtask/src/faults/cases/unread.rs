//! One disk, or two, cannot read what is in its object files: whoever asks gets all of it from the
//! others. Where no disk can for a moment, all of it is there after that: an error that passes takes
//! nothing to quarantine.

use anyhow::Result;

use super::super::Outcome;
use super::super::medium::Op;
use super::super::rig::{self, MIXED, Rig};
use super::{Ground, outcome};
use crate::model::keys::{Key, State, version_of};
use crate::model::load::Counts;

pub(super) fn round(ground: &Ground<'_>) -> Result<Outcome> {
    let mut rig = ground.rig()?;
    let (keys, counts) = written(&mut rig)?;
    let first = rig.random.below(4) as usize;
    for number in [first, (first + 1) % 4]
        .into_iter()
        .take(1 + ground.seed as usize % 2)
    {
        let files = rig.files(number, |path| path.contains("/objects/"));
        let disk = &rig.disks[number];
        disk.fail(Op::Read, disk.places(&files));
    }
    let mut account = rig.account()?;
    let mut found = Vec::new();
    for key in keys.iter().flatten() {
        let Some(State::Present { version, .. }) = key.settled() else {
            continue;
        };
        let path = key.path();
        match account.call("GET", &path, "", &[], b"") {
            Ok(got) if got.status == 200 && version_of(&path, &got.body) == Some(version) => {}
            Ok(got) => found.push(format!("{path}: {}, not its bytes", got.status)),
            Err(error) => found.push(format!("{path}: {error:#}")),
        }
    }
    Ok(outcome(&rig, counts, found))
}

/// Everybody asks while no disk can read; what they get then does not matter.
pub(super) fn moment(ground: &Ground<'_>) -> Result<Outcome> {
    let mut rig = ground.shaped(|shape| shape.coded = ground.seed.is_multiple_of(2))?;
    let (keys, counts) = written(&mut rig)?;
    for number in 0..rig.disks.len() {
        let files = rig.files(number, |path| path.contains("/objects/"));
        let disk = &rig.disks[number];
        disk.fail(Op::Read, disk.places(&files));
    }
    let mut account = rig.account()?;
    for key in keys.iter().flatten() {
        let _ = account.call("GET", &key.path(), "", &[], b"");
    }
    rig.heal();
    let lost = rig.lost(&keys)?;
    Ok(outcome(&rig, counts, lost))
}

/// A store with objects, none of them in memory.
fn written(rig: &mut Rig) -> Result<(Vec<Vec<Key>>, Counts)> {
    let mut keys = rig::keys(8, 12, 4);
    rig.make_containers(&keys)?;
    let seed = rig.random.next();
    let counts = rig::load(&rig.account()?, &mut keys, MIXED, seed, || {
        std::thread::sleep(std::time::Duration::from_secs(2));
        Ok(())
    })?;
    rig.read_anew()?;
    Ok((keys, counts))
}
