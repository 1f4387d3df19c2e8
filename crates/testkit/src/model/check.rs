//! The final check: every object is in a possible state, and every listing agrees with the objects.
//! Both may take a while (replicas may differ, failed container updates are repeated in the
//! background), so both are retried until they are right or a deadline passes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::keys::{Key, State, Write, version_of};
use super::load;
use crate::wire::Account;

const OBJECT_DEADLINE: Duration = Duration::from_secs(10);
/// Deadline for each further object once a few were not right within the normal one.
const LATER_DEADLINE: Duration = Duration::from_millis(500);
/// Deadline for all listings together.
const LISTING_DEADLINE: Duration = Duration::from_secs(60);

/// A listing's row for an object: size in bytes and ETag.
type Row = (u64, String);

/// Checks everything; returns a description of each violation.
///
/// # Errors
/// The listing of a container cannot be had: see [`Account::listing`]. A failed GET of an object
/// is a violation, and no error.
pub fn all(account: &mut Account, keys: &[Vec<Key>]) -> Result<Vec<String>> {
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
                // While the object's state is uncertain, the listing may show either.
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

/// Returns the object's expected row when it is in a possible state, else a description of the
/// violation.
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
            // A GET that reaches a damaged replica breaks off; that replica is quarantined, so the
            // next attempt reads another.
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

/// Checks the listing against the expected rows; several requests in a row must match (each may be
/// answered by another replica). Returns nothing on success, else the last differences.
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

/// Deletes all objects; the containers must become empty and be deletable too.
///
/// # Errors
/// An answer to a DELETE of an object is wrong, a DELETE of a container is not answered, or a
/// container cannot be deleted within 60 seconds.
pub fn empty(account: &mut Account, keys: &[Vec<Key>]) -> Result<()> {
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
