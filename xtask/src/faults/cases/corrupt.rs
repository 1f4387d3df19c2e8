//! Corrupted bytes of stored objects on one or two disks: a reader gets the right bytes or an
//! error, never a complete body with wrong content.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::super::Outcome;
use super::super::rig::{self, MIXED, Rig};
use super::{Setup, outcome};
use cairn_testkit::model::keys::{State, payload};
use cairn_testkit::random::Random;
use cairn_testkit::wire::Account;

const PASSES: usize = 3;
/// Time until an object with enough intact replicas must be readable.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Original content of objects by path.
type Bodies = BTreeMap<String, Vec<u8>>;

pub(super) fn round(setup: &Setup<'_>, coded: bool) -> Result<Outcome> {
    let mut rig = setup.shaped(|shape| shape.coded = coded)?;
    let mut keys = rig::keys(8, 8, 4);
    rig.make_containers(&keys)?;
    let seed = rig.random.next_u64();
    let counts = rig::load(&rig.account()?, &mut keys, MIXED, seed, || {
        std::thread::sleep(Duration::from_millis(1500));
        Ok(())
    })?;
    let mut bodies = Bodies::new();
    let mut account = rig.account()?;
    for key in keys.iter().flatten() {
        if let Some(State::Present { .. }) = key.settled() {
            let path = key.path();
            let body = account.must("GET", &path, "", &[], b"")?.body;
            bodies.insert(path, body);
        }
    }
    for number in 0..3 {
        large_object(
            &mut account,
            &format!("/faults-0/large-{number}"),
            &mut bodies,
        )?;
    }
    let first = rig.random.below(4) as usize;
    let disks = [first, (first + 1) % 4];
    let disks = &disks[..1 + setup.seed as usize % 2];
    rig.rot(disks)?;
    // Two of three fragments are needed.
    let enough_is_sound = !coded || disks.len() == 1;
    let mut found = Vec::new();
    read(&mut rig, coded, enough_is_sound, &bodies, &mut found)?;
    if enough_is_sound {
        reads_whole(&rig, &bodies, &mut found)?;
    }
    Ok(outcome(&rig, counts, found))
}

/// Creates an object that consists of three others.
fn large_object(account: &mut Account, path: &str, bodies: &mut Bodies) -> Result<()> {
    let (mut whole, mut segments) = (Vec::new(), Vec::new());
    for number in 0..3 {
        let segment = format!("{path}-segment-{number}");
        let body = payload(&segment, number, 200_000);
        account.must("PUT", &segment, "", &[], &body)?;
        segments.push(serde_json::json!({ "path": segment }));
        whole.extend(body);
    }
    let manifest = serde_json::to_vec(&segments)?;
    account.must("PUT", path, "?multipart-manifest=put", &[], &manifest)?;
    let got = account.must("GET", path, "", &[], b"")?.body;
    ensure!(got == whole, "{path} is not its segments");
    bodies.insert(path.to_owned(), whole);
    Ok(())
}

/// Reads everything several times, completely and in parts.
fn read(
    rig: &mut Rig,
    coded: bool,
    enough_is_sound: bool,
    bodies: &Bodies,
    found: &mut Vec<String>,
) -> Result<()> {
    let mut account = rig.account()?;
    for _ in 0..PASSES {
        for (path, body) in bodies {
            let length = body.len() as u64;
            // Parts of replicas have no checksum, here as in Swift.
            if coded && length > 1 && rig.random.below(2) == 0 {
                let (from, to) = part(&mut rig.random, length);
                let range = format!("bytes={from}-{}", to - 1);
                let part = &body[from as usize..to as usize];
                let range = [("Range", range.as_str())];
                let wrong = wrong(&mut account, path, &range, part, enough_is_sound);
                found.extend(wrong);
            } else {
                found.extend(wrong(&mut account, path, &[], body, enough_is_sound));
            }
        }
    }
    Ok(())
}

fn part(random: &mut Random, length: u64) -> (u64, u64) {
    let from = random.below(length);
    (from, from + 1 + random.below(length - from))
}

/// Describes the problem of a response that must not occur.
fn wrong(
    account: &mut Account,
    path: &str,
    range: &[(&str, &str)],
    expected: &[u8],
    enough_is_sound: bool,
) -> Option<String> {
    // A body that breaks off is the only way to report an error after it has begun.
    let got = account.call("GET", path, "", range, b"").ok()?;
    let is_right = match got.status {
        200 | 206 => got.body == expected,
        // No intact copy exists, or a part of a large object is missing.
        404 | 409 => !enough_is_sound,
        status => status >= 500,
    };
    let length = expected.len();
    (!is_right).then(|| format!("{path} {range:?}: {}, not its {length} bytes", got.status))
}

/// Finally every object must be readable.
fn reads_whole(rig: &Rig, bodies: &Bodies, found: &mut Vec<String>) -> Result<()> {
    let mut account = rig.account()?;
    for (path, body) in bodies {
        let until = Instant::now() + TIMEOUT;
        loop {
            let got = account.call("GET", path, "", &[], b"");
            if got.is_ok_and(|got| got.status == 200 && got.body == *body) {
                break;
            }
            if Instant::now() > until {
                found.push(format!("{path} cannot be read"));
                break;
            }
        }
    }
    Ok(())
}
