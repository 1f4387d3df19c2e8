//! `[object-reconstructor]`; names, units and defaults are Swift's.

use std::path::PathBuf;
use std::time::Duration;

use cairn_formats::ini::{ConfError, Section};

use crate::object_replicator::ReplicatorConfig;

/// What the reconstructor reads from its conf section, with those of `[DEFAULT]` behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct ReconstructorConfig {
    /// `ring_ip`, else `bind_ip`: devices of the ring with this address are ours; all addresses
    /// of this machine where it is unspecified.
    pub ring_ip: String,
    /// `bind_port`; `None` with `servers_per_port`: then the address alone tells our devices.
    pub port: Option<u16>,
    /// Between two passes.
    pub interval: Duration,
    /// Partitions at work at once on one device.
    pub concurrency: usize,
    /// Between two lines about a pass's progress.
    pub stats_interval: Duration,
    /// How often the rings' files are looked at while a pass is under way.
    pub ring_check_interval: Duration,
    /// Leave partitions alone that belong here.
    pub handoffs_only: bool,
    /// Handoffs that stand in for one primary whose device is not mounted; `None`: any number.
    pub rebuild_handoff_node_count: Option<usize>,
    /// A fragment with so many others or fewer, itself included, and too few to rebuild from, is
    /// quarantined when it is older than `quarantine_age`. 0: none is.
    pub quarantine_threshold: usize,
    pub quarantine_age: Duration,
    /// How many servers are asked before that.
    pub request_node_count: RequestNodeCount,
    /// Objects of one handoff job handed over in a pass; 0: all.
    pub max_objects_per_revert: usize,
    /// For a request's head or a piece of SSYNC to be taken.
    pub node_timeout: Duration,
    /// For an answer that takes the other side some work.
    pub http_timeout: Duration,
    /// A pass of which nothing is heard for so long is given up (`lockup_timeout`).
    pub lockup_timeout: Duration,
    pub recon_cache_path: PathBuf,
}

/// A number, or a number for each replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestNodeCount {
    Nodes(usize),
    PerReplica(usize),
}

impl RequestNodeCount {
    fn read(section: &Section) -> Result<Self, ConfError> {
        let text = section.str_or("request_node_count", "2 * replicas");
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let number = words.first().and_then(|word| word.parse().ok());
        match (number, &words[..]) {
            (Some(number), [_]) => Ok(RequestNodeCount::Nodes(number)),
            (Some(number), [_, "*", word]) if word.eq_ignore_ascii_case("replicas") => {
                Ok(RequestNodeCount::PerReplica(number))
            }
            _ => Err(section.bad(
                "request_node_count",
                "expected a number, or one as in 2 * replicas",
            )),
        }
    }

    pub(super) fn for_replicas(self, replicas: usize) -> usize {
        match self {
            RequestNodeCount::Nodes(number) => number,
            RequestNodeCount::PerReplica(number) => number.saturating_mul(replicas),
        }
    }
}

impl ReconstructorConfig {
    pub fn read(section: &Section) -> Result<Self, ConfError> {
        // What it has in common with the replicator is read alike.
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
            ring_ip: common.ring_ip,
            port: common.port,
            interval: common.interval,
            concurrency: common.concurrency,
            stats_interval: common.stats_interval,
            ring_check_interval: common.ring_check_interval,
            handoffs_only: section.bool_or("handoffs_only", handoffs_first),
            rebuild_handoff_node_count: handoffs,
            quarantine_threshold: section.usize_or("quarantine_threshold", 0)?,
            quarantine_age: section.seconds_or("quarantine_age", reclaim_age.as_secs_f64())?,
            request_node_count: RequestNodeCount::read(section)?,
            max_objects_per_revert: section.usize_or("max_objects_per_revert", 0)?,
            node_timeout: common.node_timeout,
            http_timeout: common.http_timeout,
            lockup_timeout: common.lockup_timeout,
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
        assert_eq!(config.interval, Duration::from_secs(30));
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
