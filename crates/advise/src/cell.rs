//! A measured cell: a cluster, a workload, and the results of several repetitions. `docs/advise.md`
//! has the schema; studies and `cairn advise measure` write such files.

use serde::{Deserialize, Serialize};

use crate::cluster::Cluster;
use crate::emulation::Emulation;
use crate::error::AdviseError;
use crate::read::{self, within};
use crate::workload::Workload;

pub const FILE: &str = "the cell file";
pub const SCHEMA: &str = "cairn-advise-cell/1";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    pub schema: String,
    pub name: String,
    /// Disks or networks were emulated.
    #[serde(default)]
    pub emulated: bool,
    /// It passed its producer's checks.
    #[serde(default = "yes")]
    pub accepted: bool,
    /// How its hardware was emulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulation: Option<Emulation>,
    /// The zone whose devices were lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_zone: Option<u32>,
    pub cluster: Cluster,
    pub workload: Workload,
    pub repetitions: Vec<Measured>,
}

fn yes() -> bool {
    true
}

/// Maximum fraction of the host used by other programs; a repetition with more is invalid.
pub const OTHERS_MAX: f64 = 0.15;

/// One repetition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Successful operations per second.
    pub throughput: f64,
    pub p50_ms: f64,
    pub p95_ms: f64,
    pub p99_ms: f64,
    /// Limits in milliseconds, and the fraction of operations (0 to 1) within each.
    pub within: Vec<(f64, f64)>,
    #[serde(default)]
    pub failed: u64,
    /// CPU seconds of the store and of the load generator per operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_cpu: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_cpu: Option<f64>,
    /// The storage servers' part of `store_cpu`, if proxies have separate processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_cpu: Option<f64>,
    /// Fraction of the host's CPUs used by others meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<f64>,
    /// Requests of the emulated disks for each operation, over all disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskUse>,
    /// Lateness of the emulated hardware, as a fraction of its times: the worst device or network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<f64>,
    /// Time that threads of the store and of the load waited for a processor, as a fraction of the
    /// requests' time, where hardware was emulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_wait: Option<f64>,
    /// Time of a single sync on the store's disk before the load began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lone_sync_ms: Option<f64>,
}

/// Requests to disks for one operation, and how busy these were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskUse {
    pub reads: f64,
    pub writes: f64,
    pub flushes: f64,
    pub read_bytes: f64,
    pub written_bytes: f64,
    pub busy: f64,
}

impl Cell {
    /// Parses a cell.
    ///
    /// # Errors
    /// The invalid field, its value and the remedy.
    pub fn parse(text: &str) -> Result<Cell, AdviseError> {
        let cell: Cell = read::json(FILE, text)?;
        cell.check()?;
        Ok(cell)
    }

    /// Checks the schema, the cluster, the workload, and the ranges of measured values.
    ///
    /// # Errors
    /// The invalid field, its value and the remedy.
    pub fn check(&self) -> Result<(), AdviseError> {
        if self.schema != SCHEMA {
            let remedy = format!("this version reads {SCHEMA}");
            return Err(AdviseError::field(FILE, "schema", &self.schema, remedy));
        }
        self.cluster.check()?;
        self.workload.check()?;
        if let Some(emulation) = &self.emulation {
            emulation.check(&self.cluster)?;
        }
        if self.repetitions.is_empty() {
            let remedy = "a cell has at least one repetition";
            return Err(AdviseError::field(FILE, "repetitions", "empty", remedy));
        }
        for it in &self.repetitions {
            for (field, value) in [
                ("throughput", it.throughput),
                ("p50_ms", it.p50_ms),
                ("p95_ms", it.p95_ms),
                ("p99_ms", it.p99_ms),
            ] {
                within(FILE, format!("{}: {field}", self.name), value, 1e-9, 1e12)?;
            }
            for (limit, part) in &it.within {
                within(FILE, format!("{}: within", self.name), *limit, 0.0, 1e12)?;
                within(FILE, format!("{}: within", self.name), *part, 0.0, 1.0)?;
            }
        }
        Ok(())
    }

    pub fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// The cell with its valid repetitions; `None` if there is none.
    pub fn quiet(&self) -> Option<Cell> {
        let mut quiet = self.clone();
        quiet.repetitions.retain(Measured::is_quiet);
        (self.accepted && !quiet.repetitions.is_empty()).then_some(quiet)
    }

    /// The mean over repetitions.
    pub fn mean(&self) -> Measured {
        let all = &self.repetitions;
        let count = all.len().max(1) as f64;
        let mean = |of: fn(&Measured) -> f64| all.iter().map(of).sum::<f64>() / count;
        let some = |of: fn(&Measured) -> Option<f64>| {
            let known: Vec<f64> = all.iter().filter_map(of).collect();
            (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
        };
        let limits = all.first().map_or(&[][..], |first| &first.within[..]);
        let within = limits.iter().enumerate().map(|(index, (limit, _))| {
            let parts = all
                .iter()
                .filter_map(|m| m.within.get(index))
                .map(|(_, part)| part);
            (*limit, parts.sum::<f64>() / count)
        });
        Measured {
            throughput: mean(|m| m.throughput),
            p50_ms: mean(|m| m.p50_ms),
            p95_ms: mean(|m| m.p95_ms),
            p99_ms: mean(|m| m.p99_ms),
            within: within.collect(),
            failed: all.iter().map(|m| m.failed).sum(),
            store_cpu: some(|m| m.store_cpu),
            load_cpu: some(|m| m.load_cpu),
            storage_cpu: some(|m| m.storage_cpu),
            others: some(|m| m.others),
            lone_sync_ms: some(|m| m.lone_sync_ms),
            late: some(|m| m.late),
            cpu_wait: some(|m| m.cpu_wait),
            disk: all.iter().find_map(|m| m.disk),
        }
    }
}

impl Measured {
    /// Was the host undisturbed by other programs, as far as known?
    pub fn is_quiet(&self) -> bool {
        self.others.is_none_or(|part| part <= OTHERS_MAX)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;
    use crate::cluster::tests::HOST;
    use crate::workload::tests::SMALL;

    pub(crate) fn example() -> Cell {
        let one = Measured {
            throughput: 100.0,
            p50_ms: 5.0,
            p95_ms: 9.0,
            p99_ms: 12.0,
            within: vec![(5.0, 0.5), (10.0, 0.96)],
            store_cpu: Some(1e-3),
            load_cpu: Some(2e-4),
            ..Measured::default()
        };
        let two = Measured {
            throughput: 110.0,
            within: vec![(5.0, 0.6), (10.0, 0.98)],
            store_cpu: None,
            ..one.clone()
        };
        Cell {
            schema: SCHEMA.into(),
            name: "one".into(),
            emulated: false,
            accepted: true,
            emulation: None,
            lost_zone: None,
            cluster: Cluster::parse(HOST).unwrap(),
            workload: Workload::parse(SMALL).unwrap(),
            repetitions: vec![one, two],
        }
    }

    #[test]
    fn a_file_repeats_itself_and_means_are_means() {
        let cell = example();
        assert_eq!(Cell::parse(&cell.to_text()).unwrap(), cell);
        let mean = cell.mean();
        assert_eq!((mean.throughput, mean.store_cpu), (105.0, Some(1e-3)));
        assert!((mean.within[0].1 - 0.55).abs() < 1e-12);
    }

    #[test]
    fn repetitions_beside_others_do_not_count() {
        let mut cell = example();
        cell.repetitions[0].others = Some(0.5);
        cell.repetitions[1].others = Some(0.05);
        assert_eq!(cell.quiet().unwrap().repetitions, cell.repetitions[1..]);
        cell.repetitions.truncate(1);
        assert_eq!(cell.quiet(), None);
        cell.repetitions[0].others = None;
        assert_eq!(cell.quiet().unwrap(), cell);
        cell.accepted = false;
        assert_eq!(cell.quiet(), None);
    }

    #[test]
    fn bad_fields_are_named() {
        let text = example().to_text();
        for (from, to, part) in [
            (SCHEMA, "x/0", "schema is x/0"),
            (
                "\"throughput\": 100.0",
                "\"throughput\": -1",
                "one: throughput is -1",
            ),
            ("0.96", "1.96", "one: within is 1.96"),
            ("\"failed\": 0", "\"faield\": 0", "faield"),
        ] {
            assert!(text.contains(from), "{from}");
            let error = Cell::parse(&text.replacen(from, to, 1))
                .unwrap_err()
                .to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_give_an_answer(text in ".{0,200}") {
            let _ = Cell::parse(&text);
            let _ = Cluster::parse(&text);
            let _ = Workload::parse(&text);
            let _ = crate::calibration::Calibration::parse(&text);
            let _ = crate::catalogue::Catalogue::parse(&text);
            let _ = crate::answer::Limits::parse(&text);
        }
    }
}
