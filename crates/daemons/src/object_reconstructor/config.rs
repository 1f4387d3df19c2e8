//! `[object-reconstructor]`; names, units and defaults are Swift's.

use std::path::PathBuf;
use std::time::Duration;

use cairn_formats::ini::{ConfError, Section};

use crate::object_pass::PassConfig;
use crate::object_replicator::ReplicatorConfig;
use crate::rebuild::RequestNodeCount;

/// Options of the section, with defaults from `[DEFAULT]`.
#[derive(Clone, Debug, PartialEq)]
pub struct ReconstructorConfig {
    pub pass: PassConfig,
    /// Skips partitions that belong here.
    pub handoffs_only: bool,
    /// Maximum handoffs that replace one primary with an unmounted device; `None` is unlimited.
    pub rebuild_handoff_node_count: Option<usize>,
    /// A fragment is quarantined if at most this many, including itself, are found, too few to
    /// rebuild from, and it is older than `quarantine_age`. 0 disables.
    pub quarantine_threshold: usize,
    pub quarantine_age: Duration,
    /// Number of servers queried before that.
    pub request_node_count: RequestNodeCount,
    /// Maximum objects of one handoff job handed over per pass; 0 is unlimited.
    pub max_objects_per_revert: usize,
    pub recon_cache_path: PathBuf,
}

impl ReconstructorConfig {
    /// Reads the section.
    ///
    /// # Errors
    /// As [`ReplicatorConfig::read`]; `Value` also for other numbers that are none, and a bad
    /// `request_node_count`.
    pub fn read(section: &Section) -> Result<Self, ConfError> {
        // Options shared with the replicator.
        let common = ReplicatorConfig::read(section)?;
        let handoffs_first = section.bool_or("handoffs_first", false);
        let handoffs = section.str_or("rebuild_handoff_node_count", "2").trim();
        let handoffs = match handoffs.parse::<i64>() {
            Ok(number) => usize::try_from(number).ok(),
            Err(_) => {
                return Err(section.bad(
                    "rebuild_handoff_node_count",
                    "expected a number; -1 for any number of handoffs",
                ));
            }
        };
        let reclaim_age = section.seconds_or("reclaim_age", 7.0 * 24.0 * 3600.0)?;
        Ok(ReconstructorConfig {
            pass: common.pass,
            handoffs_only: section.bool_or("handoffs_only", handoffs_first),
            rebuild_handoff_node_count: handoffs,
            quarantine_threshold: section.usize_or("quarantine_threshold", 0)?,
            quarantine_age: section.seconds_or("quarantine_age", reclaim_age.as_secs_f64())?,
            request_node_count: RequestNodeCount::read(section)?,
            max_objects_per_revert: section.usize_or("max_objects_per_revert", 0)?,
            recon_cache_path: common.recon_cache_path,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<ReconstructorConfig, ConfError> {
        ReconstructorConfig::read(&Section::from_pairs("object-reconstructor", pairs))
    }

    #[test]
    fn defaults_are_swifts() {
        let config = read(&[]).unwrap();
        assert_eq!(config.rebuild_handoff_node_count, Some(2));
        assert_eq!(config.quarantine_threshold, 0);
        assert_eq!(config.quarantine_age, Duration::from_secs(604_800));
        assert_eq!(config.request_node_count.for_replicas(6), 12);
        assert_eq!(config.max_objects_per_revert, 0);
        assert!(!config.handoffs_only);
        assert_eq!(config.pass.interval, Duration::from_secs(30));
    }

    #[test]
    fn values_are_taken_and_refusals_name_the_option() {
        let config = read(&[
            ("handoffs_first", "yes"),
            ("rebuild_handoff_node_count", "-1"),
            ("reclaim_age", "7"),
            ("request_node_count", "9"),
        ])
        .unwrap();
        assert!(config.handoffs_only);
        assert_eq!(config.rebuild_handoff_node_count, None);
        assert_eq!(config.quarantine_age, Duration::from_secs(7));
        assert_eq!(config.request_node_count.for_replicas(6), 9);
        for (option, value) in [
            ("request_node_count", "many"),
            ("rebuild_handoff_node_count", "some"),
            ("quarantine_threshold", "-1"),
        ] {
            let error = read(&[(option, value)]).unwrap_err().to_string();
            assert!(error.contains(option), "{error}");
        }
    }
}
