//! Snapshot of everything an account shows over HTTP: its headers and listing, those of its
//! containers, and every object's headers and body.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use anyhow::{Result, bail, ensure};
use serde_json::Value;

use super::content::Model;
use cairn_testkit::wire::{Account, Response};

type Headers = BTreeMap<String, String>;

pub(crate) struct Snapshot {
    account: (Headers, Vec<Value>),
    pub(crate) containers: BTreeMap<String, (Headers, Vec<Value>)>,
    objects: BTreeMap<(String, String), (Headers, Vec<u8>)>,
}

/// Headers that differ between requests or servers.
const PASSING: [&str; 6] = [
    "date",
    "x-trans-id",
    "x-openstack-request-id",
    "connection",
    "server",
    "keep-alive",
];

fn headers(response: &Response) -> Headers {
    response
        .headers
        .iter()
        .filter(|(n, _)| !PASSING.contains(&n.as_str()))
        .cloned()
        .collect()
}

impl Snapshot {
    pub(crate) fn take(account: &mut Account) -> Result<Snapshot> {
        let listing = account.listing("")?;
        let mut snapshot = Snapshot {
            account: (headers(&account.must("HEAD", "", "", &[], b"")?), listing),
            containers: BTreeMap::new(),
            objects: BTreeMap::new(),
        };
        for name in names(&snapshot.account.1) {
            let path = format!("/{name}");
            let rows = account.listing(&path)?;
            for object in names(&rows) {
                let response = account.call("GET", &format!("{path}/{object}"), "", &[], b"")?;
                let mut headers = headers(&response);
                headers.insert("status".into(), response.status.to_string());
                // HEAD returns the same as GET.
                let head = account.call("HEAD", &format!("{path}/{object}"), "", &[], b"")?;
                ensure!(
                    head.status == response.status
                        && head.header("etag") == response.header("etag"),
                    "HEAD and GET of {path}/{object} differ"
                );
                snapshot
                    .objects
                    .insert((name.clone(), object), (headers, response.body));
            }
            let head = account.must("HEAD", &path, "", &[], b"")?;
            snapshot.containers.insert(name, (headers(&head), rows));
        }
        Ok(snapshot)
    }

    /// Compares everything shown. Totals of the account are updated in the background, and compared
    /// `with_totals` only.
    pub(crate) fn same_as(&self, other: &Snapshot, with_totals: bool) -> Result<()> {
        let (mine, theirs) = (self.facts(with_totals), other.facts(with_totals));
        let names: BTreeSet<&String> = mine.keys().chain(theirs.keys()).collect();
        let mut wrong = Vec::new();
        for name in names {
            compare(name, &mine.get(name), &theirs.get(name), &mut wrong);
        }
        verdict(wrong)
    }

    /// All facts by their names.
    fn facts(&self, with_totals: bool) -> BTreeMap<String, String> {
        let mut facts = BTreeMap::new();
        let mut add_all = |of: &str, headers: &Headers| {
            for (name, value) in headers {
                facts.insert(format!("{name} of {of}"), value.clone());
            }
        };
        add_all("the account", &shared_by_replicas(&self.account.0));
        for (name, (headers, _)) in &self.containers {
            add_all(&format!("container {name}"), &shared_by_replicas(headers));
        }
        for ((container, name), (headers, _)) in &self.objects {
            add_all(&format!("{container}/{name}"), headers);
        }
        let mut add_rows = |of: &str, rows: &[Value]| {
            for (place, row) in rows.iter().enumerate() {
                let row = row.to_string();
                facts.insert(format!("row {place} of {of}"), row);
            }
        };
        let mut rows = self.account.1.clone();
        for row in &mut rows {
            // The account has the containers' own times, which differ between replicas.
            row["last_modified"] = Value::Null;
        }
        add_rows("the account", &rows);
        for (name, (_, rows)) in &self.containers {
            add_rows(&format!("container {name}"), rows);
        }
        for ((container, name), (_, body)) in &self.objects {
            let mut hasher = DefaultHasher::new();
            body.hash(&mut hasher);
            let words = format!("{} bytes, hash {:x}", body.len(), hasher.finish());
            facts.insert(format!("body of {container}/{name}"), words);
        }
        if !with_totals {
            facts.retain(|name, _| {
                !(name.starts_with("row")
                    || name.contains("-count")
                    || name.contains("-bytes-used"))
                    || !name.ends_with(" of the account")
            });
        }
        facts
    }

    /// Compares with the model: names, bytes, headers, and listings.
    pub(crate) fn matches(&self, model: &Model) -> Result<()> {
        let mut wrong = Vec::new();
        for (name, objects) in &model.containers {
            let Some((headers, rows)) = self.containers.get(name) else {
                wrong.push(format!("container {name} is not listed"));
                continue;
            };
            let expected: Vec<&String> = objects.keys().collect();
            let listed = names(rows);
            let mut listed: Vec<&String> = listed.iter().collect();
            listed.sort();
            compare(
                &format!("the names in {name}"),
                &listed,
                &expected,
                &mut wrong,
            );
            let bytes: usize = objects.values().map(|o| o.body.len()).sum();
            for (header, value) in [("object-count", objects.len()), ("bytes-used", bytes)] {
                let shown = headers.get(&format!("x-container-{header}"));
                compare(
                    &format!("{header} of {name}"),
                    &shown,
                    &Some(&value.to_string()),
                    &mut wrong,
                );
            }
        }
        ensure!(
            self.containers.len() == model.containers.len(),
            "containers that should be gone are listed"
        );
        for (container, objects) in &model.containers {
            for (name, object) in objects {
                let Some((headers, body)) = self.objects.get(&(container.clone(), name.clone()))
                else {
                    continue;
                };
                if *body != object.body {
                    wrong.push(format!("{container}/{name}: other bytes"));
                }
                for (header, value) in &object.headers {
                    let what = format!("{header} of {container}/{name}");
                    compare(&what, &headers.get(header), &Some(value), &mut wrong);
                }
                let meta = headers.keys().filter(|h| h.starts_with("x-object-meta-"));
                for header in meta.filter(|h| !object.headers.contains_key(*h)) {
                    wrong.push(format!(
                        "{container}/{name} has {header}, which should be gone"
                    ));
                }
            }
        }
        verdict(wrong)
    }
}

fn names(rows: &[Value]) -> Vec<String> {
    rows.iter()
        .filter_map(|row| row["name"].as_str())
        .map(str::to_owned)
        .collect()
}

/// Removes headers that differ between replicas of a database: its creation time.
fn shared_by_replicas(headers: &Headers) -> Headers {
    let own = ["x-timestamp", "x-put-timestamp", "last-modified"];
    let mut headers = headers.clone();
    for (name, value) in &mut headers {
        if own.contains(&name.as_str()) {
            value.clear();
        }
    }
    headers
}

fn compare<T: PartialEq + std::fmt::Debug>(
    what: &str,
    mine: &T,
    theirs: &T,
    wrong: &mut Vec<String>,
) {
    if mine != theirs {
        wrong.push(format!("{what}:\n    here  {mine:?}\n    there {theirs:?}"));
    }
}

fn verdict(wrong: Vec<String>) -> Result<()> {
    if wrong.is_empty() {
        return Ok(());
    }
    let shown: Vec<&str> = wrong.iter().take(8).map(String::as_str).collect();
    bail!("{} differences\n  {}", wrong.len(), shown.join("\n  "));
}
