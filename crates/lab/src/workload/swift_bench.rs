//! Reader of swift-bench's conf: PUTs into randomly drawn containers, GETs of the written objects,
//! DELETEs of all of them, each with its own concurrency; containers are created before and deleted
//! after.

use std::time::Duration;

use cairn_formats::ini::{Conf, ConfError};

use super::error::{Source, WorkloadError, shown};
use super::names::one_name;
use super::{Notes, limits, value};
use crate::plan::{
    Access, Content, Draw, Names, Objects, Operation, OperationKind, Plan, Settings, Stage, Work,
    WorkKind,
};
use crate::selector::{Bar, Selector};

/// Supported options.
const OPTIONS: &[&str] = &[
    "auth",
    "user",
    "key",
    "auth_version",
    "use_proxy",
    "concurrency",
    "put_concurrency",
    "get_concurrency",
    "del_concurrency",
    "object_sources",
    "lower_object_size",
    "upper_object_size",
    "object_size",
    "num_objects",
    "num_gets",
    "delete",
    "container_name",
    "num_containers",
    "url",
    "policy_name",
    "timeout",
    "delay",
];

struct Bench<'t> {
    source: &'t Source<'t>,
    /// Options with lower-case names, as in Python's ConfigParser.
    options: Vec<(String, String)>,
}

type Checked<T> = Result<T, WorkloadError>;

pub(super) fn read(source: &Source<'_>, notes: &mut Notes) -> Checked<Plan> {
    if source.text.len() > limits::CONF_BYTES {
        return Err(source.error(
            0,
            format!("a conf of {} bytes", source.text.len()),
            format!("at most {} bytes", limits::CONF_BYTES),
        ));
    }
    let section = Conf::parse(source.file, source.text)
        .and_then(|conf| conf.section("bench"))
        .map_err(|error| match error {
            ConfError::Syntax { line, what, .. } => {
                let text = source
                    .text
                    .lines()
                    .nth(line.saturating_sub(1))
                    .unwrap_or("");
                let column = text.chars().take_while(|c| c.is_whitespace()).count() + 1;
                source.error_at_line(line, column, what, "'[bench]', then 'option = value' lines")
            }
            other => source.error(0, other.to_string(), "a [bench] section"),
        })?;
    let bench = Bench {
        source,
        options: section
            .iter()
            .map(|(name, value)| {
                (
                    name.to_ascii_lowercase().replace('-', "_"),
                    value.to_owned(),
                )
            })
            .collect(),
    };
    for (name, _) in &bench.options {
        if !OPTIONS.contains(&name.as_str()) && name != "log_level" {
            notes.add(format!("passed over the option '{}'", shown(name)));
        }
    }
    bench.plan()
}

impl Bench<'_> {
    fn plan(&self) -> Checked<Plan> {
        if !self.boolean("use_proxy", true)? {
            return Err(self.wrong(
                "use_proxy",
                "a bench of the storage servers without a proxy",
                "'use_proxy = yes'",
            ));
        }
        let put = self.workers("put_concurrency")?;
        let get = self.workers("get_concurrency")?;
        let del = self.workers("del_concurrency")?;
        let objects = self.number("num_objects", 1000, 0, limits::TOTAL_OPS)?;
        let gets = self.number("num_gets", 10_000, 0, limits::TOTAL_OPS)?;
        let containers = self.containers()?;
        let delay = self.number("delay", 0, 0, limits::TIME.as_secs())?;
        let mut stages = vec![containers_stage(
            WorkKind::Init,
            OperationKind::Init,
            &containers,
            put,
        )];
        let sizes = self.sizes()?;
        let mut main = |name: &str, kind: OperationKind, workers: u32, total: u64| {
            if total > 0 {
                let mut operation = operation(kind, &containers);
                if kind == OperationKind::Write {
                    operation.sizes = Some(sizes.clone());
                }
                stages.push(Stage {
                    name: name.to_owned(),
                    works: vec![Work {
                        name: name.to_owned(),
                        workers,
                        total_ops: Some(total),
                        // swift-bench counts failures and continues.
                        afr: 1_000_000,
                        operations: vec![operation],
                        ..Work::default()
                    }],
                    ..Stage::default()
                });
            }
        };
        main("put", OperationKind::Write, put, objects);
        main("get", OperationKind::Read, get, gets);
        if self.boolean("delete", true)? {
            main("delete", OperationKind::Delete, del, objects);
            let last = stages.len().saturating_sub(2);
            if let Some(before) = stages.get_mut(last).filter(|_| objects > 0) {
                before.close_delay = Duration::from_secs(delay);
            }
            stages.push(containers_stage(
                WorkKind::Dispose,
                OperationKind::Dispose,
                &containers,
                del,
            ));
        }
        Ok(Plan {
            name: "swift-bench".to_owned(),
            access: self.access()?,
            stages,
            ..Plan::default()
        })
    }

    fn access(&self) -> Checked<Access> {
        let text = |name: &str| {
            let text = self.get(name).unwrap_or("");
            value::plain(text).map_err(|wrong| self.at(name, wrong.found, wrong.expected))
        };
        let mut auth = Settings::default();
        let mut user = text("user")?;
        match self.get("auth_version").unwrap_or("1.0") {
            "" | "1" | "1.0" => auth.kind = "swauth".to_owned(),
            "2" | "2.0" | "3" | "3.0" => {
                auth.kind = "keystone".to_owned();
                if let Some((tenant, name)) = user.clone().split_once(':') {
                    auth.config
                        .insert("tenant_name".to_owned(), tenant.to_owned());
                    user = name.to_owned();
                }
            }
            other => {
                let found = format!("the auth version '{}'", shown(other));
                return Err(self.at("auth_version", found, "1.0, 2.0 or 3"));
            }
        }
        let mut storage = Settings {
            kind: "swift".to_owned(),
            ..Settings::default()
        };
        let timeout = self.number("timeout", 10, 1, limits::TIME.as_secs())?;
        let said = |pairs: &[(&str, String)], settings: &mut Settings| {
            let said = pairs.iter().filter(|(_, value)| !value.is_empty());
            settings
                .config
                .extend(said.map(|(key, value)| ((*key).to_owned(), value.clone())));
        };
        let sign_in = [
            ("auth_url", text("auth")?),
            ("username", user),
            ("password", text("key")?),
        ];
        said(&sign_in, &mut auth);
        let policy = text("policy_name")?;
        let place = [("storage_url", text("url")?), ("policy", policy)];
        said(&place, &mut storage);
        storage
            .config
            .insert("timeout".to_owned(), (timeout * 1000).to_string());
        Ok(Access { auth, storage })
    }

    /// Container names from `NAME_0` on; a single one is called NAME. swift-bench generates a new
    /// NAME for each run if none is given.
    fn containers(&self) -> Checked<Names> {
        let count = self.number("num_containers", 20, 1, 100_000_000)?;
        let name = self.get("container_name").filter(|name| !name.is_empty());
        let name = value::plain(name.unwrap_or("swift-bench"))
            .map_err(|wrong| self.at("container_name", wrong.found, wrong.expected))?;
        if let (1, Some(names)) = (count, one_name(&name)) {
            return Ok(names);
        }
        Ok(Names {
            prefix: format!("{name}_"),
            numbers: Selector::Uniform {
                low: 0,
                high: count - 1,
            },
            ..Names::default()
        })
    }

    /// Sizes of given files, or a range, or one size.
    fn sizes(&self) -> Checked<Selector> {
        let sources: Vec<&str> = self
            .get("object_sources")
            .unwrap_or("")
            .split_whitespace()
            .collect();
        if sources.len() > limits::BARS {
            let expected = format!("at most {}", limits::BARS);
            return Err(self.at("object_sources", "more files", expected));
        }
        if !sources.is_empty() {
            // Only the files' sizes are used, not their content.
            let bars = sources.iter().map(|path| {
                let bytes = std::fs::metadata(path)
                    .map(|meta| meta.len())
                    .map_err(|error| {
                        let found = format!("'{}': {error}", shown(path));
                        self.at("object_sources", found, "files that can be read")
                    })?;
                Ok(Bar {
                    low: bytes.min(limits::OBJECT_BYTES),
                    high: bytes.min(limits::OBJECT_BYTES),
                    weight: 1,
                })
            });
            return bars.collect::<Checked<Vec<Bar>>>().map(Selector::Histogram);
        }
        let low = self.size("lower_object_size", 10)?;
        let high = self.size("upper_object_size", 10)?;
        if high > low {
            return Ok(Selector::Uniform { low, high });
        }
        self.size("object_size", 1).map(Selector::Constant)
    }

    /// Parses bytes; `k`, `M` and `G` are powers of 1024.
    fn size(&self, name: &str, default: u64) -> Checked<u64> {
        let Some(text) = self
            .get(name)
            .map(str::trim)
            .filter(|text| !text.is_empty())
        else {
            return Ok(default);
        };
        let units = [("k", 1u64 << 10), ("M", 1 << 20), ("G", 1 << 30)];
        let (digits, unit) = units
            .iter()
            .find_map(|(letter, unit)| Some((text.strip_suffix(letter)?, *unit)))
            .unwrap_or((text, 1));
        let number = value::whole(digits, 0, limits::OBJECT_BYTES / unit);
        number.map(|number| number * unit).map_err(|_| {
            let expected = format!("bytes up to {}, or '10k', '2M', '1G'", limits::OBJECT_BYTES);
            self.at(name, format!("'{}'", shown(text)), expected)
        })
    }

    /// `concurrency`, if given, applies to all three.
    fn workers(&self, name: &str) -> Checked<u32> {
        let common = self.number("concurrency", 0, 0, limits::WORKERS)?;
        let workers = match common {
            0 => self.number(name, 10, 1, limits::WORKERS)?,
            common => common,
        };
        Ok(u32::try_from(workers).unwrap_or(u32::MAX))
    }

    fn number(&self, name: &str, default: u64, low: u64, high: u64) -> Checked<u64> {
        match self.get(name).filter(|text| !text.trim().is_empty()) {
            None => Ok(default),
            Some(text) => value::whole(text, low, high)
                .map_err(|wrong| self.at(name, wrong.found, wrong.expected)),
        }
    }

    /// swift-bench takes every text but its few for false, so a typo would disable deleting.
    fn boolean(&self, name: &str, default: bool) -> Checked<bool> {
        match self.get(name).filter(|text| !text.trim().is_empty()) {
            None => Ok(default),
            Some(text) => {
                value::boolean(text).map_err(|wrong| self.at(name, wrong.found, "'yes' or 'no'"))
            }
        }
    }

    fn get(&self, name: &str) -> Option<&str> {
        let found = self.options.iter().find(|(option, _)| option == name);
        found.map(|(_, value)| value.as_str())
    }

    fn wrong(&self, name: &str, found: &str, expected: &str) -> WorkloadError {
        self.at(name, found, expected)
    }

    /// An error at the last occurrence of an option, which is the effective one.
    fn at(
        &self,
        name: &str,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> WorkloadError {
        let mut offset = 0;
        let mut place = 0;
        for line in self.source.text.split_inclusive('\n') {
            let option = line.split(['=', ':']).next().unwrap_or("").trim();
            if option.to_ascii_lowercase().replace('-', "_") == name {
                place = offset + (line.len() - line.trim_start().len());
            }
            offset += line.len();
        }
        let found = format!("{name}: {}", found.into());
        self.source.error(place, found, expected)
    }
}

fn operation(kind: OperationKind, containers: &Names) -> Operation {
    Operation {
        kind,
        name: kind.as_str().to_owned(),
        containers: containers.clone(),
        objects: Objects::Pool {
            pool: "objects".to_owned(),
            names: Names {
                prefix: "object_".to_owned(),
                digits: 9,
                numbers: Selector::Sequential {
                    low: 1,
                    high: limits::NUMBER,
                },
                ..Names::default()
            },
            draw: Draw::Random,
        },
        // swift-bench sends one character repeatedly.
        content: Content::Zero,
        ..Operation::default()
    }
}

fn containers_stage(
    work: WorkKind,
    kind: OperationKind,
    containers: &Names,
    workers: u32,
) -> Stage {
    let (low, high) = containers.numbers.bounds();
    let operation = Operation {
        kind,
        name: kind.as_str().to_owned(),
        containers: Names {
            numbers: Selector::Range { low, high },
            ..containers.clone()
        },
        ..Operation::default()
    };
    Stage {
        name: kind.as_str().to_owned(),
        works: vec![Work {
            name: kind.as_str().to_owned(),
            kind: work,
            workers,
            afr: if work == WorkKind::Init { 0 } else { 1_000_000 },
            operations: vec![operation],
            ..Work::default()
        }],
        ..Stage::default()
    }
}
