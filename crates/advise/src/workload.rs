//! Workload description from a file: sizes, a mix of operations, a rate or a closed loop, growth.

use serde::{Deserialize, Serialize};

use crate::error::AdviseError;
use crate::quantity::Bytes;
use crate::read::{self, within};

pub const FILE: &str = "the workload file";

/// A workload. `docs/advise.md` describes the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    #[serde(default = "unnamed")]
    pub name: String,
    pub sizes: Sizes,
    /// Weights of the operations; only their ratios matter.
    #[serde(default)]
    pub read: f64,
    #[serde(default)]
    pub write: f64,
    #[serde(default)]
    pub delete: f64,
    #[serde(default)]
    pub head: f64,
    /// Closed loop: each worker's next operation begins when the previous one has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<u32>,
    /// Open loop: operations per second, whatever the store does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Number of objects that are read; with their sizes it determines the working set.
    #[serde(default = "thousand")]
    pub objects: f64,
    #[serde(default = "four")]
    pub containers: u32,
    /// Zipf exponent: the k-th object is read in proportion to k to the power of minus this; 0:
    /// uniform.
    #[serde(default)]
    pub zipf: f64,
    /// Latency limits for which the fraction of requests is reported.
    #[serde(default = "usual_limits")]
    pub limits_ms: Vec<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth: Option<Growth>,
}

/// Bytes to be added, for the required capacity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Growth {
    pub bytes_per_day: Bytes,
    pub days: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Sizes {
    One(Bytes),
    Classes(Vec<SizeClass>),
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizeClass {
    pub bytes: Bytes,
    pub share: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    Read,
    Write,
    Delete,
    Head,
}

impl Operation {
    pub fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Delete => "delete",
            Operation::Head => "head",
        }
    }
}

fn unnamed() -> String {
    "workload".into()
}
fn thousand() -> f64 {
    1000.0
}
fn four() -> u32 {
    4
}
fn usual_limits() -> Vec<f64> {
    vec![1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0]
}

impl Workload {
    /// Parses a workload.
    ///
    /// # Errors
    /// The invalid field, its value and the remedy.
    pub fn parse(text: &str) -> Result<Workload, AdviseError> {
        let workload: Workload = read::toml(FILE, text)?;
        workload.check()?;
        Ok(workload)
    }

    /// Checks the ranges of fields and shares, and that there is one of rate and workers.
    ///
    /// # Errors
    /// The invalid field, its value and the remedy.
    pub fn check(&self) -> Result<(), AdviseError> {
        for class in self.classes() {
            within(FILE, "sizes", class.bytes.0, 0.0, 5e12)?;
            within(FILE, "sizes.share", class.share, 0.0, 1e9)?;
        }
        if self.classes().iter().map(|c| c.share).sum::<f64>() <= 0.0 {
            let remedy = "give at least one class a share above 0";
            return Err(AdviseError::field(FILE, "sizes", "without a share", remedy));
        }
        for (operation, share) in self.mix() {
            within(FILE, operation.name(), share, 0.0, 1e9)?;
        }
        if self.mix().iter().map(|(_, share)| share).sum::<f64>() <= 0.0 {
            let remedy = "give read, write, delete or head a share above 0";
            return Err(AdviseError::field(FILE, "read", 0, remedy));
        }
        match (self.workers, self.rate) {
            (Some(workers), None) => within(FILE, "workers", workers.into(), 1.0, 1e5)?,
            (None, Some(rate)) => within(FILE, "rate", rate, 0.001, 1e8)?,
            (Some(_), Some(rate)) => {
                let remedy = "give either rate (an open loop) or workers (a closed one), not both";
                return Err(AdviseError::field(FILE, "rate", rate, remedy));
            }
            (None, None) => {
                let remedy = "give workers (a closed loop) or rate (an open one)";
                return Err(AdviseError::field(FILE, "workers", "missing", remedy));
            }
        }
        within(FILE, "objects", self.objects, 1.0, 1e15)?;
        within(FILE, "containers", self.containers.into(), 1.0, 1e6)?;
        within(FILE, "zipf", self.zipf, 0.0, 4.0)?;
        for limit in &self.limits_ms {
            within(FILE, "limits_ms", *limit, 1e-3, 1e7)?;
        }
        if let Some(growth) = self.growth {
            within(
                FILE,
                "growth.bytes_per_day",
                growth.bytes_per_day.0,
                0.0,
                1e18,
            )?;
            within(FILE, "growth.days", growth.days, 0.0, 36_500.0)?;
        }
        Ok(())
    }

    pub fn classes(&self) -> Vec<SizeClass> {
        match &self.sizes {
            Sizes::One(bytes) => vec![SizeClass {
                bytes: *bytes,
                share: 1.0,
            }],
            Sizes::Classes(classes) => classes.clone(),
        }
    }

    pub fn mix(&self) -> [(Operation, f64); 4] {
        [
            (Operation::Read, self.read),
            (Operation::Write, self.write),
            (Operation::Delete, self.delete),
            (Operation::Head, self.head),
        ]
    }

    /// The operation's share of all, 0 to 1.
    pub fn share(&self, operation: Operation) -> f64 {
        let all: f64 = self.mix().iter().map(|(_, share)| share).sum();
        let own = self.mix().into_iter().find(|(o, _)| *o == operation);
        own.map_or(0.0, |(_, share)| share) / all
    }

    pub fn mean_size(&self) -> f64 {
        let classes = self.classes();
        let all: f64 = classes.iter().map(|c| c.share).sum();
        classes.iter().map(|c| c.share * c.bytes.0).sum::<f64>() / all
    }

    /// Final bytes of objects: those read, and growth.
    pub fn stored_bytes(&self) -> f64 {
        let grown = self.growth.map_or(0.0, |g| g.bytes_per_day.0 * g.days);
        self.objects * self.mean_size() + grown
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const SMALL: &str = "sizes = \"4KB\"\nread = 80\nwrite = 20\nworkers = 16\n";

    #[test]
    fn a_file_is_read() {
        let workload = Workload::parse(SMALL).unwrap();
        assert_eq!(workload.share(Operation::Write), 0.2);
        assert_eq!(workload.mean_size(), 4000.0);
        let classes = "sizes = [{ bytes = 1000, share = 3 }, { bytes = \"5KB\", share = 1 }]\n\
                       write = 1\nrate = 50\n[growth]\nbytes_per_day = \"1GB\"\ndays = 10\n";
        let workload = Workload::parse(classes).unwrap();
        assert_eq!(workload.mean_size(), 2000.0);
        assert_eq!(workload.stored_bytes(), 1e10 + 2e6);
    }

    #[test]
    fn bad_fields_are_named() {
        for (from, to, parts) in [
            ("workers = 16", "", ["workers is missing", "open"]),
            (
                "workers = 16",
                "workers = 16\nrate = 5",
                ["rate is 5", "not both"],
            ),
            ("workers = 16", "workers = 0", ["workers is 0", "from 1"]),
            (
                "read = 80\nwrite = 20",
                "read = 0",
                ["read is 0", "above 0"],
            ),
            ("read = 80", "read = -1", ["read is -1", "from 0"]),
            ("\"4KB\"", "\"4XB\"", ["line 1", "sizes"]),
            ("workers", "wrokers", ["wrokers", "expected one of"]),
        ] {
            assert!(SMALL.contains(from), "{from}");
            let error = Workload::parse(&SMALL.replace(from, to))
                .unwrap_err()
                .to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }
}
