//! Statistics of a thread's workers since the last collection: counts and histograms per operation
//! and size class, counted and uncounted requests apart.
//!
//! Each thread has one, so its lock is contended only at the moment of collection.

use crate::plan::Operation;
use crate::record::{ErrorKind, OperationResult, WORST_KEPT, WorstRequest, keep_worst};

/// Size classes of operations that define none: decades of bytes moved.
pub(crate) const DECADES: [&str; 11] = [
    "0", "<10B", "<100B", "<1KB", "<10KB", "<100KB", "<1MB", "<10MB", "<100MB", "<1GB", ">=1GB",
];

/// The size class of a number of bytes.
#[inline]
pub(crate) fn decade(bytes: u64) -> usize {
    if bytes == 0 {
        0
    } else {
        (bytes.ilog10() as usize + 1).min(DECADES.len() - 1)
    }
}

/// A finished request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Observed {
    /// Index among the work's operations.
    pub(crate) operation: usize,
    pub(crate) counted: bool,
    pub(crate) bytes: u64,
    pub(crate) checked: bool,
    pub(crate) first_byte_ns: u64,
    pub(crate) last_byte_ns: u64,
    /// Open loop: latency without the wait for a worker.
    pub(crate) service_ns: Option<u64>,
    /// It ended within the counted time, whether or not it was due in it.
    pub(crate) ended_counted: bool,
}

#[derive(Debug)]
struct Cell {
    result: OperationResult,
    /// Faster requests than this are not among the slowest.
    floor: u64,
}

/// Cells by operation and class; allocated on first use.
type Bank = Vec<[Option<Box<Cell>>; DECADES.len()]>;

#[derive(Debug)]
pub(crate) struct Recorder {
    counted: Bank,
    uncounted: Bank,
    /// Are the classes decades? By operation.
    decades: Vec<bool>,
    /// Operations and bytes since the start, for progress.
    pub(crate) ops: u64,
    pub(crate) bytes: u64,
}

fn bank(operations: usize) -> Bank {
    (0..operations).map(|_| Default::default()).collect()
}

impl Recorder {
    pub(crate) fn new(operations: &[Operation]) -> Self {
        Self {
            counted: bank(operations.len()),
            uncounted: bank(operations.len()),
            decades: operations
                .iter()
                .map(|operation| operation.size_class.is_none())
                .collect(),
            ops: 0,
            bytes: 0,
        }
    }

    fn cell(&mut self, operation: usize, counted: bool, bytes: u64) -> &mut Cell {
        let class = if self.decades[operation] {
            decade(bytes)
        } else {
            0
        };
        let bank = if counted {
            &mut self.counted
        } else {
            &mut self.uncounted
        };
        bank[operation][class].get_or_insert_with(|| {
            Box::new(Cell {
                result: OperationResult::default(),
                floor: 0,
            })
        })
    }

    /// Records a success; `describe` is called only for one of the slowest requests.
    #[inline]
    pub(crate) fn success(&mut self, observed: &Observed, describe: impl FnOnce() -> WorstRequest) {
        self.ops += 1;
        self.bytes += observed.bytes;
        let cell = self.cell(observed.operation, observed.counted, observed.bytes);
        let result = &mut cell.result;
        result.ops += 1;
        result.bytes += observed.bytes;
        result.checked += u64::from(observed.checked);
        result.first_byte.record(observed.first_byte_ns);
        result.last_byte.record(observed.last_byte_ns);
        if let Some(service_ns) = observed.service_ns {
            result.service.record(service_ns);
        }
        Self::open_loop(result, observed, true);
        if observed.last_byte_ns > cell.floor {
            result.worst.push(describe());
            if result.worst.len() >= 4 * WORST_KEPT {
                keep_worst(&mut result.worst);
                cell.floor = result.worst.last().map_or(0, |worst| worst.last_byte_ns);
            }
        }
    }

    /// Records an open loop request's delay before the start, and whether it ended within the
    /// counted time.
    fn open_loop(result: &mut OperationResult, observed: &Observed, succeeded: bool) {
        let Some(service_ns) = observed.service_ns else {
            return;
        };
        let delay = observed.last_byte_ns.saturating_sub(service_ns);
        result.delay.record(delay);
        let ended = result.ended.get_or_insert(0);
        if succeeded && observed.ended_counted {
            *ended += 1;
            result.ended_bytes += observed.bytes;
        }
    }

    pub(crate) fn failure(
        &mut self,
        observed: &Observed,
        kind: ErrorKind,
        describe: impl FnOnce() -> WorstRequest,
    ) {
        self.ops += 1;
        let cell = self.cell(observed.operation, observed.counted, observed.bytes);
        let result = &mut cell.result;
        *result.errors.entry(kind).or_default() += 1;
        Self::open_loop(result, observed, false);
        if result.failures.len() < WORST_KEPT {
            result.failures.push(describe());
        }
    }

    /// Takes all results: counted ones, and uncounted ones.
    pub(crate) fn take(
        &mut self,
        operations: &[Operation],
    ) -> (Vec<OperationResult>, Vec<OperationResult>) {
        let counted = std::mem::replace(&mut self.counted, bank(operations.len()));
        let uncounted = std::mem::replace(&mut self.uncounted, bank(operations.len()));
        (
            name_all(counted, operations),
            name_all(uncounted, operations),
        )
    }
}

fn name_all(bank: Bank, operations: &[Operation]) -> Vec<OperationResult> {
    let mut results = Vec::new();
    for (index, (cells, operation)) in bank.into_iter().zip(operations).enumerate() {
        for (class, cell) in cells.into_iter().enumerate() {
            let Some(cell) = cell else { continue };
            let mut result = cell.result;
            result.index = index as u32;
            result.name = match operation.name.as_str() {
                "" => operation.kind.as_str().to_owned(),
                name => name.to_owned(),
            };
            result.kind = operation.kind;
            result.size_class = operation
                .size_class
                .clone()
                .unwrap_or_else(|| DECADES[class].to_owned());
            keep_worst(&mut result.worst);
            results.push(result);
        }
    }
    results
}

/// Merges results with those of the same operation and class; new ones are inserted in the plan's
/// order, smallest class first.
pub fn merge(into: &mut Vec<OperationResult>, from: Vec<OperationResult>) {
    let class = |result: &OperationResult| {
        DECADES
            .iter()
            .position(|name| *name == result.size_class)
            .unwrap_or(0)
    };
    for result in from {
        let key = (result.index, class(&result));
        match into.binary_search_by_key(&key, |known| (known.index, class(known))) {
            Ok(at) => into[at].merge(&result),
            Err(at) => into.insert(at, result),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::OperationKind;

    fn observe(bytes: u64, last_byte_ns: u64) -> Observed {
        Observed {
            operation: 0,
            counted: true,
            bytes,
            checked: false,
            first_byte_ns: 1,
            last_byte_ns,
            service_ns: None,
            ended_counted: true,
        }
    }

    #[test]
    fn classes_and_worst() {
        let operations = [Operation {
            kind: OperationKind::Read,
            name: "r".into(),
            ..Operation::default()
        }];
        let mut recorder = Recorder::new(&operations);
        for n in 0..1000u64 {
            let observed = observe(if n < 10 { 0 } else { 64_000 }, n);
            let describe = || WorstRequest {
                last_byte_ns: n,
                ..WorstRequest::default()
            };
            recorder.success(&observed, describe);
        }
        recorder.failure(
            &observe(64_000, 5),
            ErrorKind::Status(503),
            WorstRequest::default,
        );
        let (counted, uncounted) = recorder.take(&operations);
        assert!(uncounted.is_empty());
        let classes: Vec<_> = counted
            .iter()
            .map(|r| (r.size_class.as_str(), r.ops, r.failed()))
            .collect();
        assert_eq!(classes, [("0", 10, 0), ("<100KB", 990, 1)]);
        let worst: Vec<_> = counted[1]
            .worst
            .iter()
            .map(|worst| worst.last_byte_ns)
            .collect();
        assert_eq!(worst, (980..1000).rev().collect::<Vec<u64>>());
        let mut all = Vec::new();
        merge(&mut all, counted.clone());
        merge(&mut all, counted);
        assert_eq!(
            (all.len(), all[1].ops, all[1].last_byte.count()),
            (2, 1980, 1980)
        );
    }

    #[test]
    fn decades() {
        let name = |bytes| DECADES[decade(bytes)];
        assert_eq!(
            [name(0), name(1), name(9), name(10)],
            ["0", "<10B", "<10B", "<100B"]
        );
        assert_eq!(
            [name(999), name(1000), name(64_000)],
            ["<1KB", "<10KB", "<100KB"]
        );
        assert_eq!([name(999_999_999), name(u64::MAX)], ["<1GB", ">=1GB"]);
    }
}
