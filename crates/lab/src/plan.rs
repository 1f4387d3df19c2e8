//! The plan: the common form into which every workload file is read, and the load generator's only
//! input.
//!
//! A plan is a sequence of stages; a stage has concurrent works; a work has workers that draw from
//! a mix of operations. Parsers resolve the inheritance of their format (`config`, `auth` and
//! `storage` of a workload, a stage, a work), expand sweeps into stages, and check bounds, so a
//! plan that reaches the generator can be run. It is written as `plan.json` beside the results and
//! sent to drivers, so everything in it is serde data. Durations are seconds there.

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
    /// Format of the workload file, as named in reports: `cosbench`, `ssbench`, `swift-bench`,
    /// `lab`.
    pub format: String,
    /// Seed of the run: with the same seed, each worker draws the same sequence.
    pub seed: u64,
    /// The store of works without their own. The command line may replace it.
    pub access: Access,
    pub stages: Vec<Stage>,
}

/// Address of and authentication to a store: COSBench's `<auth>` and `<storage>`, whatever the
/// format.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Access {
    pub auth: Settings,
    pub storage: Settings,
}

/// A type with settings, in COSBench's form: `type="swauth" config="username=…;password=…"`. Other
/// formats use the same types and keys:
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
    /// The type; if empty, that of the plan applies.
    pub kind: String,
    pub config: BTreeMap<String, String>,
}

/// A step of the plan, which ends when all its works have.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stage {
    /// Name, unique within the plan; `s1-init` in COSBench's numbering.
    pub name: String,
    pub works: Vec<Work>,
    /// Pause after the works have ended (`closuredelay`); a stage without works only pauses.
    #[serde(with = "seconds")]
    pub close_delay: Duration,
    /// A program of the driver's host to run before and after (`trigger`), if the command line
    /// allows programs; otherwise skipped with a note.
    pub trigger: Option<Trigger>,
    /// Parameters of the sweep that created this stage: values as written, by name.
    pub swept: BTreeMap<String, String>,
}

/// COSBench's `trigger`: a script and its arguments, for one host or all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Trigger {
    pub command: String,
    pub arguments: Vec<String>,
}

/// Purpose of a work: reports group by it, and all but `Main` must perform each item once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkKind {
    /// Creates each container of its operation's container selector once.
    Init,
    /// Writes every object of (containers × objects) once.
    Prepare,
    #[default]
    Main,
    /// Deletes every object of (containers × objects) once; an absent one is not an error.
    Cleanup,
    /// Deletes containers; an absent one is not an error.
    Dispose,
    /// Pauses for its runtime.
    Delay,
}

/// A group of workers that draw from a mix of operations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Work {
    pub name: String,
    pub kind: WorkKind,
    /// Maximum number of concurrent operations, over all drivers.
    pub workers: u32,
    /// Time before the counted period (COSBench's `rampup`).
    #[serde(with = "seconds")]
    pub rampup: Duration,
    /// The counted period. `None`: until the totals are reached, or every item of a special work is
    /// done.
    #[serde(with = "maybe_seconds")]
    pub runtime: Option<Duration>,
    /// Time after the counted period.
    #[serde(with = "seconds")]
    pub rampdown: Duration,
    /// Number of operations after which the work ends (`totalOps`), over all workers.
    pub total_ops: Option<u64>,
    /// Number of bytes after which the work ends (`totalBytes`), over all workers.
    pub total_bytes: Option<u64>,
    /// Accepted failure ratio in millionths (`afr`), beyond which the stage fails. COSBench's
    /// defaults: 200 000 for main works, 0 for special ones.
    pub afr: u32,
    /// Division of containers or objects between workers.
    pub division: Division,
    /// Length of a timeline sample; COSBench's default is 5 seconds.
    #[serde(with = "seconds")]
    pub interval: Duration,
    /// Name of the only driver that runs it (`driver`).
    pub driver: Option<String>,
    pub operations: Vec<Operation>,
    pub pacing: Pacing,
    /// Ends the work before its runtime once the rate has been steady.
    pub steady: Option<Steady>,
    /// Repeats the work with more and more workers until more do not help.
    pub knee: Option<Knee>,
    /// The work's own store.
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

/// The selector that is divided into one part per worker (COSBench's `division`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Division {
    #[default]
    None,
    Container,
    Object,
}

/// One kind of request in a work's mix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Operation {
    pub kind: OperationKind,
    /// Its weight in the mix, relative to the sum of all ratios of the work. Special works have one
    /// operation with ratio 1.
    pub ratio: f64,
    /// Name in results: COSBench's `id` or `name`, or the kind.
    pub name: String,
    /// Size class in results. `None`: decades of bytes moved.
    pub size_class: Option<String>,
    pub containers: Names,
    pub objects: Objects,
    /// Size of written objects in bytes.
    pub sizes: Option<Selector>,
    pub content: Content,
    /// Write verifiable content, and verify it when reading (COSBench's `hashCheck`).
    pub hashcheck: bool,
    /// Read only a part of the object.
    pub range: Option<RangeRead>,
    /// Write in parts of this many bytes (S3 multipart, a Swift static large object).
    pub part_bytes: Option<u64>,
    /// Write with a chunked body of undeclared length (COSBench's `chunked`).
    pub chunked: bool,
    /// The folder whose files `filewrite` uploads.
    pub files: Option<String>,
    /// Additional headers of a write, a copy or a post (`X-Delete-After`, `X-Storage-Policy`).
    pub headers: BTreeMap<String, String>,
    // Fields below are left out where they have their defaults, so that plans of older programs have the
    // digests they had.
    /// Endings of the names that a copy gets: of its container and of itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub copy_container_suffix: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub copy_suffix: String,
    /// Number of objects that one bulk deletion names.
    #[serde(skip_serializing_if = "is_zero")]
    pub batch: u32,
    /// An init makes containers that keep versions; deletions delete all versions of an object.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub versioned: bool,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
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
            copy_container_suffix: String::new(),
            copy_suffix: String::new(),
            batch: 0,
            versioned: false,
        }
    }
}

/// A kind of request. It concerns objects unless stated otherwise.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    #[default]
    Read,
    Write,
    /// Uploads files from the driver's host (COSBench's `filewrite`).
    FileWrite,
    /// Writes an existing object (ssbench's UPDATE), counted separately from `Write`.
    Update,
    Delete,
    Head,
    /// Lists a container.
    List,
    /// Copies an object within the store.
    Copy,
    /// Changes an object's metadata.
    Post,
    /// Deletes many objects with one request.
    BulkDelete,
    /// Lists the versions of an object, or of all objects of a container.
    Versions,
    /// Creates a container.
    Init,
    /// Deletes a container.
    Dispose,
    /// Writes in a prepare work.
    Prepare,
    /// Deletes in a cleanup work.
    Cleanup,
}

impl OperationKind {
    /// The name in COSBench's `Op-Type` column.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::FileWrite => "filewrite",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Head => "head",
            Self::List => "list",
            Self::Copy => "copy",
            Self::Post => "post",
            Self::BulkDelete => "bulk-delete",
            Self::Versions => "versions",
            Self::Init => "init",
            Self::Dispose => "dispose",
            Self::Prepare => "prepare",
            Self::Cleanup => "cleanup",
        }
    }
}

/// Numbered names, `prefix` + number + `suffix`; COSBench's are `mycontainers1`, `myobjects1`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Names {
    pub prefix: String,
    pub suffix: String,
    /// Minimum number of digits, padded with zeros: 6 for ssbench's `ssbench_000001`. 0 or 1: no
    /// padding.
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
    /// Replaces the content of `out` by the name with `number`.
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

/// The objects that an operation accesses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Objects {
    /// Numbered objects, existing or not, as in COSBench; the container is drawn separately.
    Numbered(Names),
    /// Members of a pool, which tracks the objects that this run has written and not deleted, as in
    /// ssbench and swift-bench. A write creates the next new name, in a container drawn then, and
    /// adds it on success; a read, head or update draws an existing one; a delete removes one. An
    /// operation whose pool is empty is skipped in the mix until it is not; a work of only such
    /// operations ends. Pools last for the whole run; each driver has its own.
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

/// The way in which a member of a pool is drawn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Draw {
    #[default]
    Random,
    /// The least recently used one.
    Oldest,
}

/// Content of written objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// Incompressible, and different for each object.
    #[default]
    Random,
    Zero,
}

/// A partial read: `length` bytes from a random offset that is a multiple of `align`, uniformly
/// distributed over the object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RangeRead {
    pub length: Selector,
    pub align: u64,
    /// Size of the objects, as far as the plan knows; upper bound of the offsets.
    pub object_bytes: u64,
}

/// Rule for when operations start.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pacing {
    /// Closed loop: each worker starts the next operation when the last has ended and `think` has
    /// passed.
    Closed { think: Option<Think> },
    /// Open loop: operations are due at `rate` per second whatever the store does, and latency
    /// counts from the due time. At most `workers` run concurrently; others wait, and their wait is
    /// included.
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

/// Distribution of an open loop's operations over time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// Like those of independent users.
    #[default]
    Poisson,
    /// Equal gaps.
    Constant,
}

/// Criterion of a steady rate: over the last `window`, the rates of its intervals are within
/// `tolerance` (0.05: 5 %) of their mean. Evaluated after the ramp-up, at each interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Steady {
    #[serde(with = "seconds")]
    pub window: Duration,
    pub tolerance: f64,
}

/// Parameters of the search for the knee, where more workers do not help: starts with the work's
/// `workers`, multiplied by `factor` for each step up to `max_workers`; each step runs the work's
/// ramp-up and runtime and is a stage of its own in the results. Ends after a step whose throughput
/// rose by less than `min_gain` (0.05: 5 %) or in which an operation's p99 (last byte) exceeded
/// `p99_limit`. With `max_rate` the rate of an open loop is multiplied instead, until the store
/// cannot keep up.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Knee {
    pub factor: f64,
    pub max_workers: u32,
    pub min_gain: f64,
    #[serde(with = "maybe_seconds")]
    pub p99_limit: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_rate: Option<f64>,
}

/// Serialises durations as fractional seconds.
pub mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes the seconds as a number.
    ///
    /// # Errors
    /// An error of the serializer; any duration is a number.
    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(value.as_secs_f64())
    }

    /// Reads seconds from a number.
    ///
    /// # Errors
    /// The value is no number, is negative, or is too large for a duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let value = f64::deserialize(deserializer)?;
        Duration::try_from_secs_f64(value).map_err(D::Error::custom)
    }
}

/// Serialises optional durations as fractional seconds or null.
pub mod maybe_seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Writes the seconds as a number, or null.
    ///
    /// # Errors
    /// An error of the serializer; any duration is a number.
    pub fn serialize<S: Serializer>(
        value: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => serializer.serialize_some(&value.as_secs_f64()),
            None => serializer.serialize_none(),
        }
    }

    /// Reads seconds from a number, or nothing from null.
    ///
    /// # Errors
    /// The value is neither null nor a number, is negative, or is too large for a duration.
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
                max_rate: None,
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
