//! Shortage of file descriptors: the store's processes can open hardly any files for a while. They
//! refuse requests, and afterwards everything works as before, on all devices.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use super::super::Outcome;
use super::super::rig::{self, MIXED, STRICT};
use super::{Setup, outcome};
use cairn_testkit::model::load::Counts;
use cairn_testkit::random::Random;

pub(super) fn round(setup: &Setup<'_>) -> Result<Outcome> {
    let mut rig = setup.rig()?;
    // Servers that could not respond are retried at once.
    rig.store.set(
        "proxy",
        "app:proxy-server",
        "error_suppression_interval",
        "1",
    )?;
    rig.restart()?;
    let mut keys = rig::keys(16, 20, 4);
    rig.make_containers(&keys)?;
    let account = rig.account()?;
    let (seed, mut random) = (rig.random.next_u64(), rig.random.clone());
    let group: Vec<u32> = rig
        .store
        .processes()
        .iter()
        .flat_map(|p| family(p.id()))
        .collect();
    let mut total = Counts::tolerant();
    let mut wrong = Vec::new();
    let during = rig::load(&account, &mut keys, MIXED, seed, || {
        std::thread::sleep(Duration::from_millis(500));
        for _ in 0..5 {
            for id in &group {
                limit(*id, Some(lowest_taken(*id) + random.below(6)))?;
            }
            std::thread::sleep(Duration::from_millis(100 + random.below(300)));
            for id in &group {
                limit(*id, None)?;
            }
            std::thread::sleep(Duration::from_millis(random.below(200)));
        }
        Ok(())
    })?;
    total.add(during, &mut wrong);
    // Wait until the proxy tries them again.
    std::thread::sleep(Duration::from_millis(2000));
    let after = rig::load(&account, &mut keys, STRICT, seed + 1, || {
        std::thread::sleep(Duration::from_millis(1500));
        Ok(())
    })?;
    total.add(after, &mut wrong);
    total.wrong = wrong;
    rig.cut_power();
    rig.start_anew(*Random::new(seed).pick(&[0, 500]))?;
    let lost = rig.lost(&keys)?;
    Ok(outcome(&rig, total, lost))
}

/// A process and its children.
fn family(id: u32) -> Vec<u32> {
    let children = format!("/proc/{id}/task/{id}/children");
    let children = std::fs::read_to_string(children).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|c| c.parse().ok());
    std::iter::once(id)
        .chain(children.flat_map(family))
        .collect()
}

/// Number of consecutive descriptors in use from 0 on, which is what a limit counts.
fn lowest_taken(id: u32) -> u64 {
    let folder = Path::new("/proc").join(id.to_string()).join("fd");
    let mut lowest = 0;
    while folder.join(lowest.to_string()).symlink_metadata().is_ok() {
        lowest += 1;
    }
    lowest
}

/// Sets the limit of open files; `None`: the original one.
fn limit(id: u32, most: Option<u64>) -> Result<()> {
    let id = Pid::from_raw(id as i32).context("a process has an id")?;
    let before = rustix::process::getrlimit(Resource::Nofile);
    let new = Rlimit {
        current: most.or(before.maximum),
        maximum: before.maximum,
    };
    prlimit(Some(id), Resource::Nofile, new).context("limiting open files")?;
    Ok(())
}
