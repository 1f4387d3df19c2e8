//! ssbench scenarios: JSON, with the `#` comments of published files.
//!
//! A scenario becomes these stages: containers are created; each size class is filled with its
//! initial files, distributed over the containers in turn; the run; and the pools' objects are
//! deleted. In the run the size class is drawn by the shares of the initial files, then create,
//! read, update or delete by that class's `crud_profile`: both draws are one mix of `classes × 4`
//! operations here, whose shares multiply.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;

use super::error::{Source, WorkloadError, shown};
use super::{Notes, limits, value};
use crate::plan::{
    Access, Content, Draw, Names, Objects, Operation, OperationKind, Plan, Settings, Stage, Work,
    WorkKind,
};
use crate::selector::Selector;

#[derive(Deserialize)]
struct Scenario {
    name: String,
    sizes: Vec<SizeClass>,
    initial_files: BTreeMap<String, u64>,
    crud_profile: Option<[f64; 4]>,
    user_count: u64,
    operation_count: Option<u64>,
    run_seconds: Option<u64>,
    container_base: Option<String>,
    container_count: Option<u64>,
    container_concurrency: Option<u64>,
    delete_after: Option<u64>,
    policy: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct SizeClass {
    name: String,
    size_min: u64,
    size_max: u64,
    crud_profile: Option<[f64; 4]>,
}

/// Supported keys; others are noted as ignored.
const KEYS: &[&str] = &[
    "name",
    "sizes",
    "initial_files",
    "crud_profile",
    "user_count",
    "operation_count",
    "run_seconds",
    "container_base",
    "container_count",
    "container_concurrency",
    "delete_after",
    "policy",
];

/// Positions of the scenario's keys in the text, which serde does not provide.
struct Reader<'t> {
    source: &'t Source<'t>,
    json: &'t str,
}

impl Reader<'_> {
    /// Position of the `nth` occurrence of `"key"`, from 0.
    fn at(&self, key: &str, nth: usize) -> usize {
        let quoted = format!("\"{key}\"");
        let mut places = self.json.match_indices(&quoted).map(|(at, _)| at);
        places
            .nth(nth)
            .or_else(|| self.json.find(&quoted))
            .unwrap_or(0)
    }

    fn bounded(&self, key: &str, nth: usize, value: u64, low: u64, high: u64) -> Checked<u64> {
        value::whole(&value.to_string(), low, high)
            .map_err(|wrong| self.source.wrong(self.at(key, nth), wrong))
    }

    fn text(&self, key: &str, nth: usize, text: &str) -> Checked<String> {
        value::plain(text).map_err(|wrong| self.source.wrong(self.at(key, nth), wrong))
    }
}

type Checked<T> = Result<T, WorkloadError>;

pub(super) fn read(source: &Source<'_>, notes: &mut Notes) -> Checked<Plan> {
    let json = without_comments(source.text);
    let wrong = |error: serde_json::Error| {
        let what = error.to_string();
        let what = what.split(" at line ").next().unwrap_or(&what).to_owned();
        source.error_at_line(
            error.line(),
            error.column(),
            what,
            "an ssbench scenario in JSON",
        )
    };
    let scenario: Scenario = serde_json::from_str(&json).map_err(wrong)?;
    let keys: BTreeMap<String, serde::de::IgnoredAny> =
        serde_json::from_str(&json).map_err(wrong)?;
    for key in keys.keys().filter(|key| !KEYS.contains(&key.as_str())) {
        notes.add(format!("passed over '{}' of the scenario", shown(key)));
    }
    let reader = Reader {
        source,
        json: &json,
    };
    reader.plan(&scenario)
}

impl Reader<'_> {
    fn plan(&self, scenario: &Scenario) -> Checked<Plan> {
        let policy = self.policy(scenario)?;
        let users = self.bounded("user_count", 0, scenario.user_count, 1, limits::WORKERS)?;
        let containers = self.containers(scenario, policy.as_deref())?;
        let classes = self.classes(scenario)?;
        let mut headers = BTreeMap::new();
        if let Some(seconds) = scenario.delete_after.filter(|seconds| *seconds > 0) {
            let high = limits::TIME.as_secs() * 100;
            let seconds = self.bounded("delete_after", 0, seconds, 1, high)?;
            headers.insert("X-Delete-After".to_owned(), seconds.to_string());
        }
        let made = Made {
            users: u32::try_from(users).unwrap_or(u32::MAX),
            containers,
            headers,
            // Objects of a run are numbered after those of the largest class.
            first: scenario.initial_files.values().copied().max().unwrap_or(0) + 1,
        };
        let mut main = made.run(&classes);
        self.limit(scenario, &mut main)?;
        let concurrency = scenario.container_concurrency.unwrap_or(10);
        let high = limits::WORKERS;
        let concurrency = self.bounded("container_concurrency", 0, concurrency, 1, high)?;
        let mut stages = vec![made.init(u32::try_from(concurrency).unwrap_or(u32::MAX))];
        stages.push(made.population(&classes));
        stages.push(stage("run", vec![main]));
        stages.push(made.cleanup(&classes));
        let mut storage = Settings {
            kind: "swift".to_owned(),
            ..Settings::default()
        };
        storage
            .config
            .extend(policy.map(|policy| ("policy".to_owned(), policy)));
        Ok(Plan {
            name: self.text("name", 0, &scenario.name)?,
            access: Access {
                storage,
                ..Access::default()
            },
            stages,
            ..Plan::default()
        })
    }

    fn policy(&self, scenario: &Scenario) -> Checked<Option<String>> {
        let policy = match &scenario.policy {
            None | Some(serde_json::Value::Null) => return Ok(None),
            Some(serde_json::Value::String(name)) => name.clone(),
            Some(serde_json::Value::Number(number)) => number.to_string(),
            Some(_) => {
                return Err(self.source.error(
                    self.at("policy", 0),
                    "a policy that is no name",
                    "the name of a storage policy",
                ));
            }
        };
        self.text("policy", 0, &policy).map(Some)
    }

    /// Container names from `ssbench_000000_default_policy` on.
    fn containers(&self, scenario: &Scenario, policy: Option<&str>) -> Checked<Names> {
        let base = scenario.container_base.as_deref().unwrap_or("ssbench");
        let count = scenario.container_count.unwrap_or(100);
        let count = self.bounded("container_count", 0, count, 1, 100_000_000)?;
        Ok(Names {
            prefix: format!("{}_", self.text("container_base", 0, base)?),
            suffix: format!("_{}", policy.unwrap_or("default_policy")),
            digits: 6,
            numbers: Selector::Uniform {
                low: 0,
                high: count - 1,
            },
        })
    }

    /// The classes in use: those with initial files.
    fn classes(&self, scenario: &Scenario) -> Checked<Vec<Class>> {
        let mut seen = BTreeSet::new();
        let mut classes = Vec::new();
        let own_profiles_before = |n: usize| {
            let before = scenario.sizes.iter().take(n);
            before.filter(|size| size.crud_profile.is_some()).count()
        };
        for (size, n) in scenario.sizes.iter().zip(0usize..) {
            // The scenario has a name, too, so the position may be slightly wrong.
            let name = self.text("name", n + 1, &size.name)?;
            if !seen.insert(name.clone()) {
                return Err(self.source.error(
                    self.at("name", n + 1),
                    format!("a second size class '{}'", shown(&name)),
                    "size classes of different names",
                ));
            }
            let high = limits::OBJECT_BYTES;
            let largest = self.bounded("size_max", n, size.size_max, 0, high)?;
            let least = self.bounded("size_min", n, size.size_min, 0, largest)?;
            let Some(files) = scenario.initial_files.get(&name).copied() else {
                continue;
            };
            let files = self.bounded(&name, 1, files, 0, 1_000_000_000)?;
            if files == 0 {
                continue;
            }
            let profile = size.crud_profile.or(scenario.crud_profile);
            let at = self.at("crud_profile", own_profiles_before(n));
            classes.push(Class {
                name,
                sizes: if least == largest {
                    Selector::Constant(least)
                } else {
                    Selector::Uniform {
                        low: least,
                        high: largest,
                    }
                },
                files,
                crud: self.crud(profile, at)?,
            });
        }
        let unknown = scenario
            .initial_files
            .keys()
            .find(|name| !seen.contains(*name));
        if let Some(name) = unknown {
            return Err(self.source.error(
                self.at(name, 0),
                format!("initial files of '{}', which is no size class", shown(name)),
                "names of 'sizes'",
            ));
        }
        if classes.is_empty() {
            return Err(self.source.error(
                self.at("initial_files", 0),
                "no size class with initial files",
                "at least one, above 0: they are the shares of the classes in the run",
            ));
        }
        if classes.len() > limits::BARS {
            return Err(self.source.error(
                self.at("sizes", 0),
                format!("{} size classes", classes.len()),
                format!("at most {}", limits::BARS),
            ));
        }
        Ok(classes)
    }

    /// Ratios that sum to 1.
    fn crud(&self, profile: Option<[f64; 4]>, at: usize) -> Checked<[f64; 4]> {
        let sum = profile.iter().flatten().sum::<f64>();
        let usable = |p: &[f64; 4]| p.iter().all(|share| *share >= 0.0) && sum > 0.0;
        match profile.filter(usable).filter(|_| sum.is_finite()) {
            Some(profile) => Ok(profile.map(|share| share / sum)),
            None => Err(self.source.error(
                at,
                "no usable crud_profile",
                "[create, read, update, delete], 0 or more each and not all 0",
            )),
        }
    }

    /// Seconds take precedence over a count.
    fn limit(&self, scenario: &Scenario, main: &mut Work) -> Checked<()> {
        match (scenario.run_seconds, scenario.operation_count) {
            (Some(seconds), _) => {
                let high = limits::TIME.as_secs();
                let seconds = self.bounded("run_seconds", 0, seconds, 1, high)?;
                main.runtime = Some(Duration::from_secs(seconds));
            }
            (None, Some(count)) => {
                let count = self.bounded("operation_count", 0, count, 1, limits::TOTAL_OPS)?;
                main.total_ops = Some(count);
            }
            (None, None) => {
                return Err(self.source.error(
                    0,
                    "a scenario without an end",
                    "'operation_count' or 'run_seconds'",
                ));
            }
        }
        Ok(())
    }
}

/// A size class of the run.
struct Class {
    name: String,
    sizes: Selector,
    files: u64,
    crud: [f64; 4],
}

/// State shared by all of a scenario's operations.
struct Made {
    users: u32,
    containers: Names,
    headers: BTreeMap<String, String>,
    first: u64,
}

impl Made {
    fn in_turn(&self) -> Names {
        let (low, high) = self.containers.numbers.bounds();
        Names {
            numbers: Selector::Sequential { low, high },
            ..self.containers.clone()
        }
    }

    fn init(&self, workers: u32) -> Stage {
        let (low, high) = self.containers.numbers.bounds();
        let operation = Operation {
            kind: OperationKind::Init,
            name: "init".to_owned(),
            containers: Names {
                numbers: Selector::Range { low, high },
                ..self.containers.clone()
            },
            ..Operation::default()
        };
        let work = Work {
            name: "init".to_owned(),
            kind: WorkKind::Init,
            workers,
            afr: 0,
            operations: vec![operation],
            ..Work::default()
        };
        stage("init", vec![work])
    }

    /// Writes the initial files: exactly as many of each class as given.
    fn population(&self, classes: &[Class]) -> Stage {
        let operation = |class: &Class| Operation {
            containers: self.in_turn(),
            objects: objects(class, 1, class.files),
            ..self.operation(class, OperationKind::Prepare, 1.0)
        };
        let work = Work {
            name: "population".to_owned(),
            kind: WorkKind::Prepare,
            workers: self.users,
            operations: classes.iter().map(operation).collect(),
            ..Work::default()
        };
        stage("population", vec![work])
    }

    fn run(&self, classes: &[Class]) -> Work {
        let files: f64 = classes.iter().map(|class| class.files as f64).sum();
        let kinds = [
            OperationKind::Write,
            OperationKind::Read,
            OperationKind::Update,
            OperationKind::Delete,
        ];
        let mut operations = Vec::new();
        for class in classes {
            for (kind, share) in kinds.into_iter().zip(class.crud) {
                if share > 0.0 {
                    let ratio = class.files as f64 / files * share;
                    operations.push(self.operation(class, kind, ratio));
                }
            }
        }
        Work {
            name: "run".to_owned(),
            workers: self.users,
            operations,
            ..Work::default()
        }
    }

    /// Deletes the pools' objects. ssbench keeps the initial files for the next run; here a
    /// measured store is left as it was found, except for the containers.
    fn cleanup(&self, classes: &[Class]) -> Stage {
        let operation = |class| self.operation(class, OperationKind::Cleanup, 1.0);
        let work = Work {
            name: "cleanup".to_owned(),
            kind: WorkKind::Cleanup,
            workers: self.users,
            operations: classes.iter().map(operation).collect(),
            ..Work::default()
        };
        stage("cleanup", vec![work])
    }

    fn operation(&self, class: &Class, kind: OperationKind, ratio: f64) -> Operation {
        let writes = matches!(
            kind,
            OperationKind::Write | OperationKind::Update | OperationKind::Prepare
        );
        Operation {
            kind,
            ratio,
            name: kind.as_str().to_owned(),
            size_class: Some(class.name.clone()),
            containers: self.containers.clone(),
            objects: objects(class, self.first, limits::NUMBER),
            sizes: writes.then(|| class.sizes.clone()),
            // ssbench sends one letter repeatedly.
            content: Content::Zero,
            headers: if writes {
                self.headers.clone()
            } else {
                BTreeMap::new()
            },
            ..Operation::default()
        }
    }
}

/// Names from `tiny_000001` on; reads, updates and deletes take the least recently used one.
fn objects(class: &Class, low: u64, high: u64) -> Objects {
    Objects::Pool {
        pool: class.name.clone(),
        names: Names {
            prefix: format!("{}_", class.name),
            suffix: String::new(),
            digits: 6,
            numbers: Selector::Sequential { low, high },
        },
        draw: Draw::Oldest,
    }
}

fn stage(name: &str, works: Vec<Work>) -> Stage {
    Stage {
        name: name.to_owned(),
        works,
        ..Stage::default()
    }
}

/// Replaces `#` comments by blanks, so that positions stay valid.
fn without_comments(text: &str) -> String {
    let (mut in_string, mut escaped, mut in_comment) = (false, false, false);
    let blank = |c: char| {
        if in_comment {
            in_comment = c != '\n';
        } else if in_string {
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
        } else {
            in_string = c == '"';
            in_comment = c == '#';
        }
        if in_comment { ' ' } else { c }
    };
    // The length in bytes changes if a comment contains other characters. serde's lines and columns
    // count bytes, but no comment precedes JSON on the same line.
    text.chars().map(blank).collect()
}
