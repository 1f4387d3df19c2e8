//! Statistics of a cycle, by the names of Swift's sharder.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// Counts by category and name, and containers to report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SharderStats {
    counts: BTreeMap<&'static str, BTreeMap<&'static str, f64>>,
    in_progress: Vec<Value>,
    sharding_candidates: Vec<Value>,
    shrinking_candidates: Vec<Value>,
}

/// Counts that are reported even if zero.
const SHOWN: [(&str, &[&str]); 7] = [
    (
        "visited",
        &["attempted", "success", "failure", "skipped", "completed"],
    ),
    (
        "scanned",
        &[
            "attempted",
            "success",
            "failure",
            "found",
            "min_time",
            "max_time",
        ],
    ),
    ("created", &["attempted", "success", "failure"]),
    (
        "cleaved",
        &["attempted", "success", "failure", "min_time", "max_time"],
    ),
    (
        "misplaced",
        &[
            "attempted",
            "success",
            "failure",
            "found",
            "placed",
            "unplaced",
        ],
    ),
    (
        "audit_root",
        &[
            "attempted",
            "success",
            "failure",
            "has_overlap",
            "num_overlap",
        ],
    ),
    ("audit_shard", &["attempted", "success", "failure"]),
];

impl SharderStats {
    pub(super) fn add(&mut self, category: &'static str, name: &'static str, step: usize) {
        if step > 0 {
            *self
                .counts
                .entry(category)
                .or_default()
                .entry(name)
                .or_default() += step as f64;
        }
    }

    /// Records a duration in seconds, as minimum and maximum.
    pub(super) fn took(&mut self, category: &'static str, seconds: f64) {
        let seconds = (seconds * 1000.0).round() / 1000.0;
        let times = self.counts.entry(category).or_default();
        let least = times.entry("min_time").or_insert(seconds);
        *least = least.min(seconds);
        let most = times.entry("max_time").or_insert(seconds);
        *most = most.max(seconds);
    }

    pub(super) fn progress(&mut self, container: Value) {
        self.in_progress.push(container);
    }

    pub(super) fn may_shard(&mut self, container: Value) {
        self.sharding_candidates.push(container);
    }

    pub(super) fn may_shrink(&mut self, container: Value) {
        self.shrinking_candidates.push(container);
    }

    /// A count.
    pub fn count(&self, category: &str, name: &str) -> u64 {
        let count = self
            .counts
            .get(category)
            .and_then(|counts| counts.get(name));
        count.copied().unwrap_or(0.0) as u64
    }

    fn value(number: f64) -> Value {
        match number.fract() == 0.0 {
            true => json!(number as i64),
            false => json!(number),
        }
    }

    /// The entry for the recon cache.
    pub(super) fn recon(&self, candidates_max: i64) -> Value {
        let mut all = Map::new();
        for (category, names) in SHOWN {
            let counts = self.counts.get(category);
            let mut shown = Map::new();
            for name in names {
                let count = counts.and_then(|counts| counts.get(name)).copied();
                shown.insert((*name).into(), Self::value(count.unwrap_or(0.0)));
            }
            for (name, count) in counts.into_iter().flatten() {
                shown.insert((*name).into(), Self::value(*count));
            }
            all.insert(category.into(), Value::Object(shown));
        }
        let top = |candidates: &[Value], by: &str| {
            let mut sorted = candidates.to_vec();
            sorted.sort_by_key(|c| -c.get(by).and_then(Value::as_i64).unwrap_or(0));
            if let Ok(most) = usize::try_from(candidates_max) {
                sorted.truncate(most);
            }
            json!({"found": candidates.len(), "top": sorted})
        };
        let sharding = top(&self.sharding_candidates, "object_count");
        all.insert("sharding_candidates".into(), sharding);
        let shrinking = top(&self.shrinking_candidates, "compactible_ranges");
        all.insert("shrinking_candidates".into(), shrinking);
        all.insert(
            "sharding_in_progress".into(),
            json!({"all": self.in_progress}),
        );
        Value::Object(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_monitoring_reads_them() {
        let mut stats = SharderStats::default();
        stats.add("visited", "success", 1);
        stats.add("misplaced", "placed", 0);
        stats.took("cleaved", 1.5);
        stats.took("cleaved", 0.25);
        for count in [3, 9, 5] {
            stats.may_shard(json!({"object_count": count}));
        }
        let recon = stats.recon(2);
        assert_eq!(recon["visited"]["success"], json!(1));
        assert_eq!(recon["cleaved"]["min_time"], json!(0.25));
        assert_eq!(recon["cleaved"]["max_time"], json!(1.5));
        let candidates = &recon["sharding_candidates"];
        assert_eq!(candidates["found"], json!(3));
        assert_eq!(candidates["top"][0]["object_count"], json!(9));
        assert_eq!(candidates["top"].as_array().map(Vec::len), Some(2));
        assert_eq!(stats.count("visited", "success"), 1);
    }
}
