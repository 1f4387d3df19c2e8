//! Expected requests of a published workload file, parsed independently of the lab: ratios, sizes,
//! names and totals with which the requests at the [relay](super::relay) are compared. Supports
//! only what such files contain.

use std::path::Path;

use anyhow::{Context, Result, bail};

mod cosbench;
mod ssbench;
mod swift_bench;

#[derive(Debug, Default)]
pub(super) struct Expected {
    /// Kind of the store: `swift`, `s3`, `mock`, …
    pub(super) storage: String,
    pub(super) stages: Vec<Stage>,
}

#[derive(Debug, Default)]
pub(super) struct Stage {
    pub(super) name: String,
    pub(super) works: Vec<Work>,
}

#[derive(Debug, Default)]
pub(super) struct Work {
    /// Runtime in seconds.
    pub(super) runtime: Option<f64>,
    /// Number of operations; exact if there is no runtime.
    pub(super) total: Option<u64>,
    pub(super) operations: Vec<Operation>,
}

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Make,
    Drop,
    List,
    Read,
    Head,
    /// A write of any object, if the work does not distinguish writes.
    Write,
    /// A write of a new object.
    Create,
    /// A write of an existing object.
    Update,
    Delete,
}

#[derive(Debug)]
pub(super) struct Operation {
    pub(super) kind: Kind,
    pub(super) amount: Amount,
    pub(super) containers: Names,
    /// Names of objects; `None` for operations on containers.
    pub(super) objects: Option<Names>,
    pub(super) sizes: Option<Sizes>,
}

impl Operation {
    /// Label: `read`; with several pools `tiny read`.
    pub(super) fn label(&self) -> String {
        let kind = format!("{:?}", self.kind).to_lowercase();
        let pool = self.objects.as_ref().filter(|o| o.order == Order::Pool);
        match pool.map(|names| names.prefix.trim_end_matches('_')) {
            Some(class) => format!("{class} {kind}"),
            None => kind,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Amount {
    /// Fraction of the work's operations, 0 to 1.
    Share(f64),
    /// Each name once, with the total number.
    Each(u64),
    /// Everything that the run has written and not deleted.
    Rest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Uniformly distributed.
    Any,
    /// Consecutive.
    Turn,
    /// An object of a pool that the run itself wrote, or the next new one; numbers do not matter.
    Pool,
}

/// Names `prefix` + number + `suffix`.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) prefix: String,
    pub(super) suffix: String,
    pub(super) low: u64,
    pub(super) high: u64,
    pub(super) order: Order,
}

impl Names {
    /// The number in a name, if it has this form.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        let rest = name.strip_prefix(&self.prefix)?;
        let number: u64 = rest.strip_suffix(&self.suffix)?.parse().ok()?;
        (self.low..=self.high).contains(&number).then_some(number)
    }

    pub(super) fn span(&self) -> u64 {
        self.high - self.low + 1
    }
}

/// Multiples of `unit`; bars are drawn by weight, and numbers uniformly within a bar.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    pub(super) unit: u64,
    pub(super) bars: Vec<(u64, u64, u64)>,
}

/// The factors of `--time-scale`, `--ops-scale` and `--size-scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    pub(super) time: f64,
    pub(super) ops: f64,
    pub(super) size: f64,
}

pub(super) fn read(file: &Path, text: &str) -> Result<Expected> {
    let extension = file.extension().and_then(|extension| extension.to_str());
    match extension {
        Some("xml") => cosbench::read(text),
        Some("scenario") => ssbench::read(text),
        Some("conf") => swift_bench::read(text),
        other => bail!("no second reading of {}", other.unwrap_or("such a file")),
    }
    .with_context(|| format!("reading {} once more", file.display()))
}

impl Sizes {
    pub(super) fn mean(&self) -> f64 {
        let weight: u64 = self.bars.iter().map(|bar| bar.2).sum();
        let sum: f64 = self
            .bars
            .iter()
            .map(|bar| (bar.0 + bar.1) as f64 / 2.0 * bar.2 as f64)
            .sum();
        sum / weight.max(1) as f64 * self.unit as f64
    }
}

impl Work {
    /// Number of requests and bytes of bodies as far as the file determines them, and the number of
    /// requests that `--ops-scale` affects.
    fn load(&self) -> [f64; 3] {
        let prefix = |o: &Operation| o.objects.as_ref().map(|names| names.prefix.clone());
        let read = |read: &Operation| {
            let mut of_class = self.operations.iter().filter(|o| prefix(o) == prefix(read));
            let sizes = of_class.find_map(|o| o.sizes.as_ref());
            sizes.map_or(0.0, Sizes::mean)
        };
        let mut load = [0.0; 3];
        for operation in &self.operations {
            let count = match (operation.amount, self.total) {
                (Amount::Each(count), _) => count as f64,
                (Amount::Share(share), Some(total)) => share * total as f64,
                _ => 0.0,
            };
            let bytes = match (&operation.sizes, operation.kind) {
                (Some(sizes), _) => sizes.mean(),
                (None, Kind::Read) => read(operation),
                _ => 0.0,
            };
            load[0] += count;
            load[1] += count * bytes;
            if matches!(operation.amount, Amount::Share(_)) {
                load[2] += count;
            }
        }
        load
    }
}

/// Minimum requests per second of an unoptimised store on a shared disk.
const REQUESTS_PER_SECOND_MIN: f64 = 150.0;
const BYTES: f64 = 25e6;
/// Maximum seconds of an unscaled file.
const SECONDS_MAX: f64 = 170.0;

impl Expected {
    /// No scaling if the file takes less than three minutes; otherwise factors for about one
    /// minute.
    pub(super) fn scale(&self) -> Scale {
        let works = || self.stages.iter().flat_map(|stage| &stage.works);
        let seconds: f64 = works().filter_map(|work| work.runtime).sum();
        let load = |of: usize| works().map(|work| work.load()[of]).sum::<f64>();
        let (requests, bytes, drawn) = (load(0), load(1), load(2));
        if seconds + requests / REQUESTS_PER_SECOND_MIN + bytes / BYTES <= SECONDS_MAX {
            return Scale {
                time: 1.0,
                ops: 1.0,
                size: 1.0,
            };
        }
        let to = |whole: f64, most: f64| match whole <= most {
            true => 1.0,
            false => rounded(most / whole),
        };
        let ops = to(drawn, 20.0 * REQUESTS_PER_SECOND_MIN);
        Scale {
            time: to(seconds, 30.0),
            ops,
            size: to(bytes * ops, 20.0 * BYTES),
        }
    }

    /// The expectation at another scale.
    pub(super) fn scaled(mut self, by: Scale) -> Expected {
        for work in self.stages.iter_mut().flat_map(|stage| &mut stage.works) {
            work.runtime = work.runtime.map(|seconds| seconds * by.time);
            work.total = work.total.map(|total| times(total, by.ops));
            for sizes in work.operations.iter_mut().filter_map(|o| o.sizes.as_mut()) {
                if sizes.unit > 1 {
                    sizes.unit = times(sizes.unit, by.size);
                    continue;
                }
                for bar in &mut sizes.bars {
                    *bar = (times(bar.0, by.size), times(bar.1, by.size), bar.2);
                }
            }
        }
        self
    }
}

/// Rounds down to one significant digit.
fn rounded(factor: f64) -> f64 {
    let power = 10f64.powf(factor.log10().floor());
    ((factor / power).floor() * power * 1e9).round() / 1e9
}

/// Scales a number; zero stays zero, and others stay at least one.
fn times(number: u64, factor: f64) -> u64 {
    match number {
        0 => 0,
        _ => ((number as f64 * factor).round() as u64).max(1),
    }
}
