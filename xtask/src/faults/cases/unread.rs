//! One or two disks cannot read their object files: clients get everything from the others. If all
//! disks fail to read for a moment, everything is there afterwards: a temporary error must
//! quarantine nothing.

use anyhow::Result;

use super::super::Outcome;
use super::super::medium::Op;
use super::super::rig::{self, MIXED, Rig};
use super::{Setup, outcome};
use cairn_testkit::model::keys::{Key, State, version_of};
use cairn_testkit::model::load::Counts;

pub(super) fn round(setup: &Setup<'_>) -> Result<Outcome> {
    let mut rig = setup.rig()?;
    let (keys, counts) = written(&mut rig)?;
    let first = rig.random.below(4) as usize;
    for number in [first, (first + 1) % 4]
        .into_iter()
        .take(1 + setup.seed as usize % 2)
    {
        let files = rig.files(number, rig::holds_objects);
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

/// Clients read while no disk can; their responses do not matter.
pub(super) fn moment(setup: &Setup<'_>) -> Result<Outcome> {
    let mut rig = setup.shaped(|shape| shape.coded = setup.seed.is_multiple_of(2))?;
    let (keys, counts) = written(&mut rig)?;
    for number in 0..rig.disks.len() {
        let files = rig.files(number, rig::holds_objects);
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

/// A store with objects, none of them in the page cache.
fn written(rig: &mut Rig) -> Result<(Vec<Vec<Key>>, Counts)> {
    let mut keys = rig::keys(8, 12, 4);
    rig.make_containers(&keys)?;
    let seed = rig.random.next_u64();
    let counts = rig::load(&rig.account()?, &mut keys, MIXED, seed, || {
        std::thread::sleep(std::time::Duration::from_secs(2));
        Ok(())
    })?;
    rig.read_anew()?;
    Ok((keys, counts))
}
