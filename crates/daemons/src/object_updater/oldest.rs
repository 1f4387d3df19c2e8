//! Containers whose updates have failed for longest, for monitoring.

use std::collections::{BTreeSet, HashMap};

use cairn_types::Timestamp;
use serde_json::{Value, json};

/// Oldest failed update of each container; above the limit the newest are dropped.
#[derive(Debug, Default)]
pub(super) struct Oldest {
    by_time: BTreeSet<(Timestamp, (String, String))>,
    times: HashMap<(String, String), Timestamp>,
}

impl Oldest {
    pub(super) fn failed(&mut self, account: &str, container: &str, at: Timestamp, max: usize) {
        let key = (account.to_owned(), container.to_owned());
        match self.times.get(&key) {
            Some(known) if *known <= at => return,
            Some(known) => _ = self.by_time.remove(&(*known, key.clone())),
            None => {}
        }
        self.by_time.insert((at, key.clone()));
        self.times.insert(key, at);
        if self.times.len() > max
            && let Some((_, newest)) = self.by_time.pop_last()
        {
            self.times.remove(&newest);
        }
    }

    /// Statistics by the names of `swift-recon` and upstream's updater.
    pub(super) fn stats(&self, shown: usize, now: Timestamp) -> Value {
        let entries: Vec<Value> = self
            .by_time
            .iter()
            .take(shown)
            .map(|(at, (account, container))| {
                json!({"timestamp": at.as_f64(), "account": account, "container": container})
            })
            .collect();
        let oldest = self.by_time.first().map(|(at, _)| at.as_f64());
        let bytes: usize = self
            .times
            .keys()
            .map(|(account, container)| 2 * (account.len() + container.len()) + 96)
            .sum();
        json!({
            "failures_oldest_timestamp": oldest,
            "failures_oldest_timestamp_age": oldest.map(|at| now.as_f64() - at),
            "failures_account_container_count": self.times.len(),
            "failures_oldest_timestamp_account_containers": {
                "oldest_count": entries.len(),
                "oldest_entries": entries,
            },
            "tracker_memory_usage": bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_each_container_stay() {
        let mut oldest = Oldest::default();
        for (container, at) in [("b", 20), ("a", 10), ("a", 5), ("a", 30), ("c", 25)] {
            oldest.failed("AUTH_x", container, Timestamp::from_secs(at), 2);
        }
        let stats = oldest.stats(1, Timestamp::from_secs(100));
        assert_eq!(stats["failures_account_container_count"], 2);
        assert_eq!(stats["failures_oldest_timestamp"], 5.0);
        assert_eq!(stats["failures_oldest_timestamp_age"], 95.0);
        let shown = &stats["failures_oldest_timestamp_account_containers"];
        assert_eq!(shown["oldest_count"], 1);
        assert_eq!(shown["oldest_entries"][0]["container"], "a");
        let none = Oldest::default().stats(5, Timestamp::ZERO);
        assert!(none["failures_oldest_timestamp"].is_null());
    }
}
