//! Comparison of a container's databases: their counts, and the versions of objects in them.

use std::collections::BTreeMap;

use cairn_types::PolicyIndex;
use serde_json::Value;

use super::Auditor;
use super::ask::{NoPage, Pages, count, spread};

/// Objects in the databases, each in its newest version.
#[derive(Default)]
pub(super) struct ContainerListing {
    pub(super) objects: BTreeMap<String, Listed>,
    /// The policy; `None` if no database has it.
    pub(super) policy: Option<PolicyIndex>,
}

#[derive(Default)]
pub(super) struct Listed {
    pub(super) hash: String,
    modified: String,
}

impl Listed {
    fn of(row: &Value) -> Listed {
        let text = |name: &str| row.get(name).and_then(Value::as_str).unwrap_or_default();
        Listed {
            hash: text("hash").to_owned(),
            modified: text("last_modified").to_owned(),
        }
    }
}

impl Auditor {
    pub(super) async fn audit_container(&self, account: &str, name: &str) -> ContainerListing {
        self.tell(format!("Auditing container \"{name}\"")).await;
        let path = format!("/{account}/{name}");
        let mut is_consistent = true;
        if !self.account(account).await.containers.contains(name) {
            is_consistent = false;
            self.tell(format!("  Container {path} not in account listing!"))
                .await;
        }
        let hash = self.hash_path.hash(account, Some(name), None);
        let partition = self.container_ring.partition(hash);
        let mut listing = ContainerListing::default();
        let mut counts = Vec::new();
        for node in self.container_ring.primaries(partition) {
            let (ip, device) = (&node.device.ip, &node.device.device);
            let mut pages = Pages::of(&node.device, partition, &path);
            let mut is_first = true;
            while let Some(page) = pages.next(self).await {
                is_consistent &= page.is_ok();
                let (headers, rows) = match page {
                    Ok(page) => page,
                    Err(NoPage::Status) => {
                        self.count(|stats| stats.containers.missing += 1);
                        self.tell(format!(
                            "  Bad status GETting container \"{path}\" on {ip}/{device}"
                        ))
                        .await;
                        continue;
                    }
                    Err(NoPage::NoAnswer) => {
                        self.count(|stats| stats.containers.exceptions += 1);
                        self.tell(format!(
                            "  Exception GETting container \"{path}\" on {ip}/{device}"
                        ))
                        .await;
                        continue;
                    }
                };
                if std::mem::take(&mut is_first) {
                    counts.extend(count(&headers, "x-container-object-count"));
                    let policy = count(&headers, "x-backend-storage-policy-index");
                    let policy = policy.and_then(|index| index.try_into().ok());
                    listing.policy = listing.policy.or(policy.map(PolicyIndex));
                }
                is_consistent &= self.compare(name, &rows, &mut listing).await;
            }
        }
        if counts.is_empty() {
            is_consistent = false;
            self.tell(format!("  Failed to fetch container {path} at all!"))
                .await;
        } else if let Some((most, least)) = spread(&counts) {
            self.count(|stats| stats.containers.counts_differ += 1);
            is_consistent = false;
            self.tell("  Container databases don't agree on number of objects.".to_owned())
                .await;
            self.tell(format!("  Max: {most}, Min: {least}")).await;
        }
        self.count(|stats| stats.containers.checked += 1);
        if !is_consistent {
            self.note(&path).await;
        }
        listing
    }

    /// Adds the rows of one database; returns false if they differ from another's.
    async fn compare(&self, name: &str, rows: &[Value], listing: &mut ContainerListing) -> bool {
        let mut is_same = true;
        for row in rows {
            let Some(object) = row.get("name").and_then(Value::as_str) else {
                continue;
            };
            let listed = Listed::of(row);
            let Some(known) = listing.objects.get_mut(object) else {
                listing.objects.insert(object.to_owned(), listed);
                continue;
            };
            if known.modified == listed.modified {
                continue;
            }
            is_same = false;
            if listed.modified > known.modified {
                *known = listed;
            }
            self.count(|stats| stats.containers.objects_differ += 1);
            self.tell(format!(
                "  Different versions of {name}/{object} in container dbs."
            ))
            .await;
        }
        is_same
    }
}
