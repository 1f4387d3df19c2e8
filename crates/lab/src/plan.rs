//! The one form that every workload file is read into, and all that the engine knows of it.
//!
//! A plan is stages, one after the other; a stage is works, side by side; a work is workers that
//! draw from a mix of operations. Parsers resolve what their format inherits (`config`, `auth` and
//! `storage` of a workload, a stage, a work), expand sweeps into stages, and check bounds: a plan
//! that reaches the engine can be run. It is written as `plan.json` beside the results and sent to
//! drivers, so all of it is serde data. Durations are seconds there.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::selector::Selector;

/// A whole workload.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Plan {
    pub name: String,
    pub description: String,
    /// Which format it was read from, as a report names it: `cosbench`, `ssbench`, `swift-bench`,
    /// `lab`.
    pub format: String,
    /// Makes the run repeatable: with the same seed, each worker draws the same sequence.
    pub seed: u64,
    /// The store that works use which name none of their own. The command line may replace it.
    pub access: Access,
    pub stages: Vec<Stage>,
}

/// How to sign in and where: COSBench's `<auth>` and `<storage>`, whatever the format.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Access {
    pub auth: Settings,
    pub storage: Settings,
}

/// A type with settings, as COSBench writes them: `type="swauth" config="username=…;password=…"`.
/// Other formats use the same types and keys:
///
/// | part | type | keys |
/// | --- | --- | --- |
/// | auth | `none`, `mock`, `basic` | `username`, `password` |
/// | | `swauth` (alias `tempauth`) | `username`, `password`, `auth_url` |
/// | | `keystone` | `username`, `password`, `tenant_name`, `auth_url` (`…/v2.0` or `…/v3`), `service`, `region`; v3: `domain`, `user_domain`, `project_domain` |
/// | | `httpauth` | `username`, `password` |
/// | storage | `none`, `mock`, `noop` | `size` (of what a read returns) |
/// | | `swift` | `policy`, `token`, `storage_url` (several: separated by `,`), `timeout` (ms) |
/// | | `s3` | `accesskey`, `secretkey`, `endpoint`, `region`, `path_style_access`, `timeout` |
/// | | `librados` (alias `rados`) | `accesskey` (the user), `secretkey` (its key), `endpoint` (monitor), `pool`, `conf` |
/// | | `file` (alias `dir`) | `path`, `layout` (`n-n`, `n-1`), `block` (bytes), `fsync` (`none`, `close`, `block`) |
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Empty: not said, that of the plan holds.
    pub kind: String,
    pub config: BTreeMap<String, String>,
}

/// One step of the plan; it ends when all its works have.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stage {
    /// Unique within the plan; `s1-init` where COSBench would number it so.
    pub name: String,
    pub works: Vec<Work>,
    /// To wait after the works have ended (`closuredelay`); a stage without works only waits.
    #[serde(with = "seconds")]
    pub close_delay: Duration,
    /// A program of the driver's host to run before and after (`trigger`), when the command line
    /// allows programs; otherwise told and passed over.
    pub trigger: Option<Trigger>,
    /// The parameters of a sweep that made this stage, name to value as written.
    pub swept: BTreeMap<String, String>,
}

/// COSBench's `trigger`: a script, and its arguments, one host or all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Trigger {
    pub command: String,
    pub arguments: Vec<String>,
}

/// What a work is for: reports group by it, and all but `Main` must do each thing once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkKind {
    /// Makes containers: those of its operation's container selector, each once.
    Init,
    /// Writes every object of (containers × objects) once.
    Prepare,
    #[default]
    Main,
    /// Deletes every object of (containers × objects) once; one that is absent is no error.
    Cleanup,
    /// Deletes containers; one that is absent is no error.
    Dispose,
    /// Does nothing for its runtime.
    Delay,
}

/// Workers that draw from a mix of operations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Work {
    pub name: String,
    pub kind: WorkKind,
    /// Operations under way at most; over all drivers.
    pub workers: u32,
    /// Not counted, before (COSBench's `rampup`).
    #[serde(with = "seconds")]
    pub rampup: Duration,
    /// Counted. `None`: until the totals are reached, or every object of a special work is done.
    #[serde(with = "maybe_seconds")]
    pub runtime: Option<Duration>,
    /// Not counted, after.
    #[serde(with = "seconds")]
    pub rampdown: Duration,
    /// Ends after so many operations (`totalOps`), over all workers.
    pub total_ops: Option<u64>,
    /// Ends after so many bytes (`totalBytes`), over all workers.
    pub total_bytes: Option<u64>,
    /// Accepted failure ratio in millionths (`afr`): more failures and the stage has failed.
    /// COSBench's own: 200 000 for main works, 0 for special ones.
    pub afr: u32,
    /// How workers share what they work on.
    pub division: Division,
    /// Seconds of a timeline sample; COSBench's 5.
    #[serde(with = "seconds")]
    pub interval: Duration,
    /// Only the driver of this name runs it (`driver`).
    pub driver: Option<String>,
    pub operations: Vec<Operation>,
    pub pacing: Pacing,
    /// Ends before its runtime once the rate has been steady.
    pub steady: Option<Steady>,
    /// Runs again and again with more workers until more do not help.
    pub knee: Option<Knee>,
    /// A store of its own.
    pub access: Option<Access>,
}

impl Default for Work {
    fn default() -> Self {
        Self {
            name: String::new(),
            kind: WorkKind::Main,
            workers: 1,
            rampup: Duration::ZERO,
            runtime: None,
            rampdown: Duration::ZERO,
            total_ops: None,
            total_bytes: None,
            afr: 200_000,
            division: Division::None,
            interval: Duration::from_secs(5),
            driver: None,
            operations: Vec::new(),
            pacing: Pacing::default(),
            steady: None,
            knee: None,
            access: None,
        }
    }
}

/// Which selector is cut into one part per worker (COSBench's `division`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Division {
    #[default]
    None,
    Container,
    Object,
}

/// One kind of request of a work's mix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Operation {
    pub kind: OperationKind,
    /// Its share of the mix: its ratio over the sum of all ratios of the work. Special works have
    /// one operation, whose ratio is 1.
    pub ratio: f64,
    /// What results are kept under: COSBench's `id` or `name`, or the kind.
    pub name: String,
    /// The size class results are kept under. `None`: classes of one decade by the bytes moved.
    pub size_class: Option<String>,
    pub containers: Names,
    pub objects: Objects,
    /// Bytes of what it writes.
    pub sizes: Option<Selector>,
    pub content: Content,
    /// Write a checkable content, and check it on reading (COSBench's `hashCheck`).
    pub hashcheck: bool,
    /// Reads: a part of the object only.
    pub range: Option<RangeRead>,
    /// Writes: in parts of so many bytes (S3 multipart, a Swift static large object).
    pub part_bytes: Option<u64>,
    /// Writes: send the body chunked, without a length told before (COSBench's `chunked`).
    pub chunked: bool,
    /// `filewrite`: the folder whose files are uploaded.
    pub files: Option<String>,
    /// Headers that a write carries besides (`X-Delete-After`, `X-Storage-Policy`).
    pub headers: BTreeMap<String, String>,
}

impl Default for Operation {
    fn default() -> Self {
        Self {
            kind: OperationKind::Read,
            ratio: 1.0,
            name: String::new(),
            size_class: None,
            containers: Names::default(),
            objects: Objects::default(),
            sizes: None,
            content: Content::Random,
            hashcheck: false,
            range: None,
            part_bytes: None,
            chunked: false,
            files: None,
            headers: BTreeMap::new(),
        }
    }
}

/// A request of the target. Objects, unless it says container.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    #[default]
    Read,
    Write,
    /// Uploads files of the driver's host (COSBench's `filewrite`).
    FileWrite,
    /// A write to an object that exists (ssbench's UPDATE): counted apart from `Write`.
    Update,
    Delete,
    Head,
    /// A container's listing.
    List,
    /// Make a container.
    Init,
    /// Delete a container.
    Dispose,
    /// A write of a prepare work.
    Prepare,
    /// A delete of a cleanup work.
    Cleanup,
}

impl OperationKind {
    /// As COSBench's `Op-Type` column has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::FileWrite => "filewrite",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Head => "head",
            Self::List => "list",
            Self::Init => "init",
            Self::Dispose => "dispose",
            Self::Prepare => "prepare",
            Self::Cleanup => "cleanup",
        }
    }
}

/// Numbered names: `prefix` + number + `suffix`; COSBench's are `mycontainers1`, `myobjects1`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Names {
    pub prefix: String,
    pub suffix: String,
    /// Digits at least, filled with zeros: ssbench's `ssbench_000001` has 6. 0 or 1: as it is.
    pub digits: u8,
    pub numbers: Selector,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            prefix: String::new(),
            suffix: String::new(),
            digits: 0,
            numbers: Selector::Constant(1),
        }
    }
}

impl Names {
    /// Writes the name with `number` to `out`, which is emptied first.
    pub fn write(&self, number: u64, out: &mut String) {
        use std::fmt::Write;
        out.clear();
        out.push_str(&self.prefix);
        let digits = usize::from(self.digits);
        // Writing to a String cannot fail.
        let _ = write!(out, "{number:0digits$}");
        out.push_str(&self.suffix);
    }
}

/// Which objects an operation is about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Objects {
    /// Numbered, whether they exist or not, as COSBench does it; the container is drawn beside.
    Numbered(Names),
    /// Those of a pool, which knows what this run has written and not deleted, as ssbench and
    /// swift-bench do it: a write makes the next new name, in a container drawn then, and puts it
    /// in when it has succeeded; a read, head or update draws one that exists; a delete takes one
    /// out. An operation that finds the pool empty is left out of the mix for that time; a work of
    /// such operations only ends. Pools last for the whole run; each driver has its own.
    Pool {
        pool: String,
        names: Names,
        draw: Draw,
    },
}

impl Default for Objects {
    fn default() -> Self {
        Self::Numbered(Names::default())
    }
}

/// Which object of a pool is drawn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Draw {
    #[default]
    Random,
    /// The one not used for longest.
    Oldest,
}

/// What written objects hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// Does not compress; differs from object to object.
    #[default]
    Random,
    Zero,
}

/// A read of a part: `length` bytes from an offset that is a multiple of `align`, each such offset
/// of the object as likely.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RangeRead {
    pub length: Selector,
    pub align: u64,
    /// How large the objects are, as far as the plan knows; offsets are drawn below.
    pub object_bytes: u64,
}

/// When an operation starts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pacing {
    /// Each worker starts the next when the last has ended, and `think` has passed.
    Closed { think: Option<Think> },
    /// Operations are due at `rate` a second whatever the store does, and latency counts from when
    /// one was due. At most `workers` are under way; others wait, and their wait counts.
    Open { rate: f64, arrivals: Arrivals },
}

impl Default for Pacing {
    fn default() -> Self {
        Self::Closed { think: None }
    }
}

/// A pause between a worker's operations.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Think {
    Constant(#[serde(with = "seconds")] Duration),
    Uniform {
        #[serde(with = "seconds")]
        low: Duration,
        #[serde(with = "seconds")]
        high: Duration,
    },
    Exponential {
        #[serde(with = "seconds")]
        mean: Duration,
    },
}

/// How operations of an open loop are spread over time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// As independent users make them.
    #[default]
    Poisson,
    /// Equal gaps.
    Constant,
}

/// Steady: over the last `window`, the rates of its intervals lie within `tolerance` (0.05: 5 %)
/// of their mean. Looked at after the ramp-up, on each interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Steady {
    #[serde(with = "seconds")]
    pub window: Duration,
    pub tolerance: f64,
}

/// Where more workers do not help: `workers` of the work is the start, multiplied by `factor` for
/// each step up to `max_workers`; each step runs the work's ramp-up and runtime and is a stage of
/// its own in the results. Ends after a step whose throughput rose by less than `min_gain` (0.05:
/// 5 %) or in which an operation's p99 (last byte) passed `p99_limit`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Knee {
    pub factor: f64,
    pub max_workers: u32,
    pub min_gain: f64,
    #[serde(with = "maybe_seconds")]
    pub p99_limit: Option<Duration>,
}

/// Durations as seconds, fractions and all.
pub mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(value.as_secs_f64())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let value = f64::deserialize(deserializer)?;
        Duration::try_from_secs_f64(value).map_err(D::Error::custom)
    }
}

/// The same, or null.
pub mod maybe_seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(
        value: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.serialize_some(&value.as_secs_f64()),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Option::<f64>::deserialize(deserializer)?
            .map(|value| Duration::try_from_secs_f64(value).map_err(D::Error::custom))
            .transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_json() {
        let work = Work {
            runtime: Some(Duration::from_millis(1500)),
            pacing: Pacing::Open {
                rate: 100.0,
                arrivals: Arrivals::Poisson,
            },
            operations: vec![Operation {
                objects: Objects::Pool {
                    pool: "small".into(),
                    names: Names::default(),
                    draw: Draw::Random,
                },
                sizes: Some(Selector::Zipf {
                    low: 1,
                    high: 9,
                    exponent: 0.9,
                }),
                ..Operation::default()
            }],
            knee: Some(Knee {
                factor: 2.0,
                max_workers: 64,
                min_gain: 0.05,
                p99_limit: None,
            }),
            ..Work::default()
        };
        let stage = Stage {
            name: "main".into(),
            works: vec![work],
            ..Stage::default()
        };
        let plan = Plan {
            name: "p".into(),
            stages: vec![stage],
            ..Plan::default()
        };
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
    }

    #[test]
    fn names_are_filled() {
        let mut name = String::from("old");
        let names = Names {
            prefix: "a".into(),
            suffix: ".b".into(),
            digits: 6,
            ..Names::default()
        };
        names.write(42, &mut name);
        assert_eq!(name, "a000042.b");
    }
}
