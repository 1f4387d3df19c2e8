//! One disk, or two, cannot read what is in its object files: whoever asks gets all of it from the
//! others.

use anyhow::Result;

use super::super::Outcome;
use super::super::medium::Op;
use super::super::rig::{self, MIXED};
use super::{Ground, outcome};
use crate::model::keys::{State, version_of};

pub(super) fn round(ground: &Ground<'_>) -> Result<Outcome> {
    let mut rig = ground.rig()?;
    let mut keys = rig::keys(8, 12, 4);
    rig.make_containers(&keys)?;
    let seed = rig.random.next();
    let counts = rig::load(&rig.account()?, &mut keys, MIXED, seed, || {
        std::thread::sleep(std::time::Duration::from_secs(2));
        Ok(())
    })?;
    rig.read_anew()?;
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
