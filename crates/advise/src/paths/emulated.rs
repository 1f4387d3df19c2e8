//! An emulated cluster is not the cluster that it stands for: limits of processors are a control
//! group's, and what has times of its own goes by the host's.

use super::QUANTUM_SECONDS;
use crate::cache::Memory;
use crate::calibration::FileCost;
use crate::cluster::Node;
use crate::engine::{Engine, Quota};

/// Seconds of the host in which a limit of processors is counted.
const LIMIT_PERIOD_SECONDS: f64 = 0.02;

/// Processors of a node. Those of an emulated one that are limited are as quick as the host's until
/// the limit of a period is used up.
pub(super) fn add_processor(node: &Node, dilation: Option<f64>, engine: &mut Engine) -> usize {
    let cores = node.cores as usize;
    match dilation.filter(|dilation| node.core_speed < *dilation) {
        None => engine.add_station(cores, Some(QUANTUM_SECONDS)),
        Some(dilation) => {
            let period = LIMIT_PERIOD_SECONDS / dilation;
            let seconds = f64::from(node.cores) * node.core_speed / dilation * period;
            engine.add_limited_station(cores, QUANTUM_SECONDS, Quota { seconds, period })
        }
    }
}

/// Age at which a log of rows is merged. Logs of an emulated cluster are merged by the host's time, and a
/// cell is over before that, unless it has so many objects, to be read from disks, that most of the
/// time has passed when they are all there.
pub(super) fn merge_seconds(files: &FileCost, memory: &Memory, dilation: Option<f64>) -> f64 {
    match (dilation, memory) {
        (None, _) => files.merge_seconds,
        (Some(_), Memory::Holds { .. }) => f64::INFINITY,
        (Some(dilation), Memory::Forgets { .. }) => files.merge_seconds / dilation,
    }
}

/// Speed of a core while it is not stopped, against a core of the calibrated host.
pub(super) fn burst_speed(node: &Node, dilation: Option<f64>) -> f64 {
    node.core_speed.max(dilation.unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// A cell that has no time to become as old as its log must be keeps its rows logged.
    #[test]
    fn logs_are_merged_by_the_time_of_the_host() {
        let files = FileCost::default();
        let holds = Memory::Holds {
            content: 1.0,
            changes: 1.0,
        };
        let forgets = Memory::Forgets {
            interval: 0.1,
            round: 0,
            touched: HashSet::new(),
        };
        assert_eq!(merge_seconds(&files, &holds, None), 30.0);
        assert_eq!(merge_seconds(&files, &holds, Some(10.0)), f64::INFINITY);
        assert_eq!(merge_seconds(&files, &forgets, Some(10.0)), 3.0);
    }
}
