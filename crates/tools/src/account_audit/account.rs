//! Comparison of an account's databases: their counts.

use std::collections::BTreeSet;

use super::Auditor;
use super::ask::{NoPage, Pages, count, spread};

/// All names in any of the databases.
#[derive(Default)]
pub(super) struct AccountListing {
    pub(super) containers: BTreeSet<String>,
}

impl Auditor {
    pub(super) async fn audit_account(&self, account: &str) -> AccountListing {
        self.tell(format!("Auditing account \"{account}\"")).await;
        let path = format!("/{account}");
        let hash = self.hash_path.hash(account, None, None);
        let partition = self.account_ring.partition(hash);
        let mut listing = AccountListing::default();
        let (mut containers, mut objects) = (Vec::new(), Vec::new());
        let mut is_consistent = true;
        for node in self.account_ring.primaries(partition) {
            let (ip, device) = (&node.device.ip, &node.device.device);
            let mut pages = Pages::of(&node.device, partition, &path);
            let mut is_first = true;
            while let Some(page) = pages.next(self).await {
                is_consistent &= page.is_ok();
                let (headers, rows) = match page {
                    Ok(page) => page,
                    Err(NoPage::Status) => {
                        self.count(|stats| stats.accounts.missing += 1);
                        self.tell(format!(
                            "  Bad status GETting account '{account}'  from {ip}:{device}"
                        ))
                        .await;
                        continue;
                    }
                    Err(NoPage::NoAnswer) => {
                        self.count(|stats| stats.accounts.exceptions += 1);
                        self.tell(format!(
                            "  Exception GETting account '{account}' on {ip}:{device}"
                        ))
                        .await;
                        continue;
                    }
                };
                if std::mem::take(&mut is_first) {
                    containers.extend(count(&headers, "x-account-container-count"));
                    objects.extend(count(&headers, "x-account-object-count"));
                }
                let names = rows.iter().filter_map(|row| row.get("name")?.as_str());
                listing.containers.extend(names.map(str::to_owned));
            }
        }
        for (what, counts) in [("containers", &containers), ("objects", &objects)] {
            let apart = spread(counts);
            if apart.is_none() && !counts.is_empty() {
                continue;
            }
            is_consistent = false;
            self.count(|stats| match what {
                "containers" => stats.accounts.counts_differ += 1,
                _ => stats.accounts.objects_differ += 1,
            });
            self.tell(format!(
                "  Account databases for '{account}' don't agree on number of {what}."
            ))
            .await;
            if let Some((most, least)) = apart {
                self.tell(format!("  Max: {most}, Min: {least}")).await;
            }
        }
        self.count(|stats| stats.accounts.checked += 1);
        if !is_consistent {
            self.note(&path).await;
        }
        listing
    }
}
