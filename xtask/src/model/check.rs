//! After what happened: every object in a state it may be in, every listing in step with the
//! objects. Both may take a while (replicas may differ, container updates are made up
//! for in the background), so both are asked until they are right or time is up.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::keys::{Key, State, Write, version_of};
use super::load;
use crate::wire::Account;

const OBJECT_DEADLINE: Duration = Duration::from_secs(10);
/// For an object after a few that were not right in that time.
const LATER_DEADLINE: Duration = Duration::from_millis(500);
/// For all listings together.
const LISTING_DEADLINE: Duration = Duration::from_secs(60);

/// What a listing must say of an object: its size and ETag.
type Row = (u64, String);

/// All that is not as it must be, in words.
pub(crate) fn all(account: &mut Account, keys: &[Vec<Key>]) -> Result<Vec<String>> {
    let mut lost = Vec::new();
    let mut rows: BTreeMap<&str, BTreeMap<&str, Option<Row>>> = BTreeMap::new();
    for key in keys.iter().flatten() {
        let rows = rows.entry(&key.container).or_default();
        let patience = if lost.len() < 3 {
            OBJECT_DEADLINE
        } else {
            LATER_DEADLINE
        };
        match object(account, key, patience)? {
            Ok(row) => {
                // In doubt, the listing may say either.
                let certain =
                    key.possible.iter().all(|s| *s == State::Absent) || key.settled().is_some();
                if certain {
                    rows.insert(&key.name, row);
                }
            }
            Err(words) => lost.push(words),
        }
    }
    let known: Vec<&str> = keys.iter().flatten().map(|k| k.name.as_str()).collect();
    let deadline = Instant::now() + LISTING_DEADLINE;
    for (container, rows) in &rows {
        lost.extend(listing(account, container, rows, &known, deadline)?);
    }
    Ok(lost)
}

/// Its row when it is in a possible state, else what is wrong.
fn object(
    account: &mut Account,
    key: &Key,
    patience: Duration,
) -> Result<Result<Option<Row>, String>> {
    let path = key.path();
    let deadline = Instant::now() + patience;
    loop {
        let answer = account.call("GET", &path, "", &[("X-Newest", "true")], b"");
        let response = match answer {
            Ok(response) => response,
            // A damaged replica breaks its body off, and is not asked again.
            Err(_) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            Err(error) => return Ok(Err(format!("{path}: {error:#}"))),
        };
        let found = match response.status {
            404 => State::Absent,
            200 => {
                let Some(version) = version_of(&path, &response.body) else {
                    let size = response.body.len();
                    return Ok(Err(format!(
                        "{path}: {size} bytes that are no whole version"
                    )));
                };
                let posted = response
                    .header("x-object-meta-posted")
                    .and_then(|n| n.parse().ok());
                State::Present { version, posted }
            }
            500.. if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            status => return Ok(Err(format!("{path}: {status}"))),
        };
        if key.possible.contains(&found) {
            let etag = response
                .header("etag")
                .unwrap_or("")
                .trim_matches('"')
                .to_owned();
            let row = (found != State::Absent).then_some((response.body.len() as u64, etag));
            return Ok(Ok(row));
        }
        if Instant::now() > deadline {
            return Ok(Err(format!(
                "{path}: found {found:?}, must be one of {:?}",
                key.possible
            )));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Nothing when the listing has each row as given, on several requests in a row (each may be
/// answered by another replica); else the last differences.
fn listing(
    account: &mut Account,
    container: &str,
    rows: &BTreeMap<&str, Option<Row>>,
    known: &[&str],
    deadline: Instant,
) -> Result<Vec<String>> {
    let mut right = 0;
    while right < 4 {
        let differences = differences(account, container, rows, known)?;
        if differences.is_empty() {
            right += 1;
        } else if Instant::now() > deadline {
            return Ok(differences);
        } else {
            right = 0;
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    Ok(Vec::new())
}

fn differences(
    account: &mut Account,
    container: &str,
    rows: &BTreeMap<&str, Option<Row>>,
    known: &[&str],
) -> Result<Vec<String>> {
    let (mut listed, mut different) = (BTreeMap::new(), Vec::new());
    for entry in account.listing(container)? {
        let name = entry["name"].as_str().unwrap_or_default().to_owned();
        let row = (
            entry["bytes"].as_u64().unwrap_or(0),
            entry["hash"].as_str().unwrap_or("").to_owned(),
        );
        if !known.contains(&name.as_str()) {
            different.push(format!("{container} lists {name}, which was never written"));
        }
        listed.insert(name, row);
    }
    for (name, row) in rows {
        if listed.get(*name) != row.as_ref() {
            let listed = listed.get(*name);
            different.push(format!(
                "{container} lists {name} as {listed:?}, the object is {row:?}"
            ));
        }
    }
    Ok(different)
}

/// Deletes everything; the containers must become empty and go too.
pub(crate) fn empty(account: &mut Account, keys: &[Vec<Key>]) -> Result<()> {
    let mut counts = load::Counts::default();
    for key in keys.iter().flatten() {
        let mut key = Key {
            container: key.container.clone(),
            name: key.name.clone(),
            possible: key.possible.clone(),
        };
        load::write(account, &mut key, Write::Delete, 0, &mut counts);
    }
    anyhow::ensure!(
        counts.wrong.is_empty(),
        "emptying:\n{}",
        counts.wrong.join("\n")
    );
    let containers: BTreeSet<&str> = keys
        .iter()
        .flatten()
        .map(|k| k.container.as_str())
        .collect();
    for path in containers {
        crate::process::wait_for(&format!("{path} empty"), 60, || {
            Ok(account.call("DELETE", path, "", &[], b"")?.status == 204)
        })?;
    }
    Ok(())
}
