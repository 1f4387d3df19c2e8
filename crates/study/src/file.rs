//! Study files: TOML that declares clusters, workloads and figures, with published values for
//! comparison. `docs/studies.md` describes the format.
//!
//! `${name}` is replaced by a parameter, or by a value of an enclosing sweep (`for.name = [...]`);
//! a sweep multiplies its table. Everything is bounded, so untrusted files may be read; but what
//! they describe is then executed on this host.

mod model;
mod template;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use toml::{Table, Value};

pub use model::{
    Class, Cluster, Coding, Comparison, Device, Figure, Gate, Network, Node, Point, Repetitions,
    Role, Store, Workload,
};
use template::Scope;

const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of clusters, or workloads, with sweeps expanded.
const EXPANDED_MAX: usize = 1000;
const NODES_MAX: usize = 64;
const DEVICES_MAX: usize = 64;

#[derive(Debug, Error)]
pub enum StudyError {
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{}: {bytes} bytes: a study file has at most {FILE_BYTES_MAX}", path.display())]
    TooLarge { path: PathBuf, bytes: u64 },
    #[error("{0}")]
    Toml(String),
    #[error("{at}: {found}; expected {expected}")]
    Wrong {
        at: String,
        found: String,
        expected: String,
    },
}

impl StudyError {
    fn wrong(
        at: impl Into<String>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> StudyError {
        StudyError::Wrong {
            at: at.into(),
            found: found.into(),
            expected: expected.into(),
        }
    }
}

/// A study with sweeps expanded and parameters replaced.
#[derive(Clone, Debug)]
pub struct Study {
    pub name: String,
    pub title: String,
    /// The question, and the published study's result.
    pub asked: String,
    pub seen: String,
    pub scale: String,
    /// Time dilation: a second of emulated time lasts this many seconds.
    pub dilation: f64,
    pub seed: u64,
    pub repetitions: Repetitions,
    pub gate: Gate,
    pub clusters: Vec<Cluster>,
    pub workloads: Vec<Workload>,
    pub figures: Vec<Figure>,
    /// Notes for the reader, given in the file.
    pub notes: Vec<String>,
    /// Folder that workload file names are relative to.
    pub folder: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    name: String,
    #[serde(default)]
    title: String,
    #[serde(default)]
    asked: String,
    #[serde(default)]
    seen: String,
    #[serde(default = "one")]
    dilation: f64,
    #[serde(default = "first_seed")]
    seed: u64,
    #[serde(default)]
    repetitions: Repetitions,
    #[serde(default)]
    gate: Gate,
    #[serde(default)]
    media: BTreeMap<String, cairn_emulate::model::Medium>,
    #[serde(default)]
    classes: BTreeMap<String, Class>,
    #[serde(default)]
    notes: Vec<String>,
}

fn one() -> f64 {
    1.0
}

fn first_seed() -> u64 {
    1
}

/// Options of the command line.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    pub scale: Option<String>,
    pub parameters: BTreeMap<String, String>,
}

/// Reads a study file.
///
/// # Errors
/// `Io` or `TooLarge` for the file; `Toml` or `Wrong` for its text: see [`parse`].
pub fn read(path: &Path, choices: &Choices) -> Result<Study, StudyError> {
    let io = |source| StudyError::Io {
        path: path.to_owned(),
        source,
    };
    let bytes = std::fs::metadata(path).map_err(io)?.len();
    if bytes > FILE_BYTES_MAX {
        let path = path.to_owned();
        return Err(StudyError::TooLarge { path, bytes });
    }
    let text = std::fs::read_to_string(path).map_err(io)?;
    let mut study = parse(&text, choices).map_err(|error| match error {
        StudyError::Toml(words) => StudyError::Toml(format!("{}: {words}", path.display())),
        other => other,
    })?;
    study.folder = path.parent().unwrap_or(Path::new("")).to_owned();
    Ok(study)
}

/// Parses a study file's text.
///
/// # Errors
/// `Toml` if it is no TOML; `Wrong` for the first key, value, scale or parameter that is not as
/// expected, or without a cluster or a workload.
pub fn parse(text: &str, choices: &Choices) -> Result<Study, StudyError> {
    let mut table: Table = toml::from_str(text).map_err(|e| StudyError::Toml(e.to_string()))?;
    let (scale, scope) = parameters(&mut table, choices)?;
    let clusters = tables(&mut table, "cluster")?;
    let workloads = tables(&mut table, "workload")?;
    let figures = tables(&mut table, "figure")?;
    let head: Head = scope.fill("the study", &Value::Table(table))?;
    check_head(&head)?;
    let study = Study {
        clusters: expand(&scope, "cluster", &clusters, |scope, at, table| {
            cluster(scope, at, table, &head)
        })?,
        workloads: expand(&scope, "workload", &workloads, workload)?,
        figures: expand(&scope, "figure", &figures, |scope, at, table| {
            scope.fill(at, &Value::Table(table.clone()))
        })?,
        name: head.name,
        title: head.title,
        asked: head.asked,
        seen: head.seen,
        scale,
        dilation: head.dilation,
        seed: head.seed,
        repetitions: head.repetitions,
        gate: head.gate,
        notes: head.notes,
        folder: PathBuf::new(),
    };
    for (what, count) in [
        ("cluster", study.clusters.len()),
        ("workload", study.workloads.len()),
    ] {
        if count == 0 {
            return Err(StudyError::wrong(
                "the study",
                format!("no [[{what}]]"),
                "at least one",
            ));
        }
    }
    different("cluster", study.clusters.iter().map(|c| c.name.as_str()))?;
    different("workload", study.workloads.iter().map(|w| w.name.as_str()))?;
    Ok(study)
}

fn check_head(head: &Head) -> Result<(), StudyError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if head.name.is_empty() || head.name.len() > 60 || !head.name.chars().all(plain) {
        let expected = "1 to 60 letters, digits, '-' and '_'";
        return Err(StudyError::wrong(
            "name",
            format!("{:?}", head.name),
            expected,
        ));
    }
    if !(1.0..=100.0).contains(&head.dilation) {
        let found = head.dilation.to_string();
        return Err(StudyError::wrong("dilation", found, "1 to 100"));
    }
    let repetitions = &head.repetitions;
    if repetitions.least == 0 || repetitions.most < repetitions.least || repetitions.most > 1000 {
        let found = format!("{} to {}", repetitions.least, repetitions.most);
        let expected = "least from 1 on, most no less, 1000 at most";
        return Err(StudyError::wrong("repetitions", found, expected));
    }
    for (name, medium) in &head.media {
        let at = format!("media.{name}");
        medium
            .check()
            .map_err(|words| StudyError::wrong(at, words, "a disk"))?;
    }
    Ok(())
}

fn different<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<(), StudyError> {
    let mut seen = std::collections::BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            let found = format!("two that are called {name:?}");
            let expected = "names that say the swept values, as name = \"db-${disk}\"";
            return Err(StudyError::wrong(format!("[[{what}]]"), found, expected));
        }
    }
    Ok(())
}

/// Parameters at the chosen scale.
fn parameters(table: &mut Table, choices: &Choices) -> Result<(String, Scope), StudyError> {
    let mut own = take_table(table, "parameters")?;
    let mut scales = take_table(table, "scales")?;
    let named = table.remove("scale");
    let named = named.as_ref().and_then(Value::as_str).map(str::to_owned);
    let scale = choices.scale.clone().or(named).unwrap_or_default();
    if !scale.is_empty() {
        let known: Vec<String> = scales.keys().cloned().collect();
        let Some(Value::Table(values)) = scales.remove(&scale) else {
            let expected = format!("one of: {}", known.join(", "));
            return Err(StudyError::wrong(
                "the scale",
                format!("{scale:?}"),
                expected,
            ));
        };
        own.extend(values);
    }
    for (name, value) in &choices.parameters {
        if !own.contains_key(name) {
            let known: Vec<&str> = own.keys().map(String::as_str).collect();
            let expected = format!("a parameter of the study: {}", known.join(", "));
            return Err(StudyError::wrong("--set", format!("{name:?}"), expected));
        }
        own.insert(name.clone(), template::typed(value));
    }
    Ok((scale, Scope::new(own)))
}

fn take_table(table: &mut Table, key: &str) -> Result<Table, StudyError> {
    match table.remove(key) {
        None => Ok(Table::new()),
        Some(Value::Table(inner)) => Ok(inner),
        Some(other) => Err(StudyError::wrong(key, other.type_str(), "a table")),
    }
}

/// The tables of `[[key]]`.
fn tables(table: &mut Table, key: &str) -> Result<Vec<Table>, StudyError> {
    let wrong = |found: &str| StudyError::wrong(key, found, format!("[[{key}]]"));
    match table.remove(key) {
        None => Ok(Vec::new()),
        Some(Value::Array(values)) => values
            .into_iter()
            .map(|value| match value {
                Value::Table(table) => Ok(table),
                other => Err(wrong(other.type_str())),
            })
            .collect(),
        Some(other) => Err(wrong(other.type_str())),
    }
}

/// Expands each table for every combination of its sweeps' values.
fn expand<T>(
    scope: &Scope,
    what: &str,
    tables: &[Table],
    mut make: impl FnMut(&Scope, &str, &Table) -> Result<T, StudyError>,
) -> Result<Vec<T>, StudyError> {
    let mut made = Vec::new();
    for (number, table) in tables.iter().enumerate() {
        let at = format!("[[{what}]] {}", number + 1);
        let mut table = table.clone();
        let sweeps = take_table(&mut table, "for")?;
        for scope in scope.sweep(&at, &sweeps, EXPANDED_MAX)? {
            if made.len() >= EXPANDED_MAX {
                let expected = format!("at most {EXPANDED_MAX}");
                return Err(StudyError::wrong(
                    at,
                    "more of them, sweeps expanded",
                    expected,
                ));
            }
            made.push(make(&scope, &at, &table)?);
        }
    }
    Ok(made)
}

fn workload(scope: &Scope, at: &str, table: &Table) -> Result<Workload, StudyError> {
    let mut workload: Workload = scope.fill(at, &Value::Table(table.clone()))?;
    workload.swept = scope.swept().clone();
    Ok(workload)
}

fn cluster(scope: &Scope, at: &str, table: &Table, head: &Head) -> Result<Cluster, StudyError> {
    let mut table = table.clone();
    let nodes = tables(&mut table, "node")?;
    let mut cluster: Cluster = scope.fill(at, &Value::Table(table))?;
    cluster.swept = scope.swept().clone();
    let inner = format!("{at} [[cluster.node]]");
    for nodes in expand(scope, &inner, &nodes, |scope, at, table| {
        node(scope, at, table, head)
    })? {
        cluster.nodes.extend(nodes);
    }
    for (number, node) in cluster.nodes.iter_mut().enumerate() {
        if node.name.is_empty() {
            node.name = format!("n{}", number + 1);
        }
    }
    cluster.check(at)?;
    different(
        "cluster.node",
        cluster.nodes.iter().map(|n| n.name.as_str()),
    )?;
    Ok(cluster)
}

/// Expands a node `count` times; `${n}` counts from 1.
fn node(scope: &Scope, at: &str, table: &Table, head: &Head) -> Result<Vec<Node>, StudyError> {
    let mut table = table.clone();
    let count = match table.remove("count") {
        None => 1,
        Some(value) => scope.fill::<u32>(at, &value)?,
    };
    if count as usize > NODES_MAX {
        return Err(StudyError::wrong(
            at,
            format!("count = {count}"),
            format!("at most {NODES_MAX}"),
        ));
    }
    let devices = tables(&mut table, "device")?;
    let mut nodes = Vec::new();
    for number in 1..=count {
        let scope = scope.with("n", Value::Integer(i64::from(number)));
        let mut node: Node = scope.fill(at, &Value::Table(table.clone()))?;
        let inner = format!("{at} [[cluster.node.device]]");
        for devices in expand(&scope, &inner, &devices, |scope, at, table| {
            device(scope, at, table, head)
        })? {
            node.devices.extend(devices);
        }
        if node.devices.len() > DEVICES_MAX {
            let found = format!("{} devices", node.devices.len());
            return Err(StudyError::wrong(
                at,
                found,
                format!("at most {DEVICES_MAX} a node"),
            ));
        }
        if let Some(name) = &node.class {
            let class = head.classes.get(name).ok_or_else(|| {
                let known: Vec<&str> = head.classes.keys().map(String::as_str).collect();
                let expected = format!("one of [classes]: {}", known.join(", "));
                StudyError::wrong(at, format!("class = {name:?}"), expected)
            })?;
            node.limits = class.clone();
        }
        nodes.push(node);
    }
    Ok(nodes)
}

fn device(scope: &Scope, at: &str, table: &Table, head: &Head) -> Result<Vec<Device>, StudyError> {
    let mut table = table.clone();
    let count = match table.remove("count") {
        None => 1,
        Some(value) => scope.fill::<u32>(at, &value)?,
    };
    let mut devices = Vec::new();
    for number in 1..=count.min(DEVICES_MAX as u32 + 1) {
        let scope = scope.with("d", Value::Integer(i64::from(number)));
        let mut device: Device = scope.fill(at, &Value::Table(table.clone()))?;
        if device.medium != model::FOLDER {
            let medium = head.media.get(&device.medium).ok_or_else(|| {
                let known: Vec<&str> = head.media.keys().map(String::as_str).collect();
                let expected = format!(
                    "\"{}\", or one of [media]: {}",
                    model::FOLDER,
                    known.join(", ")
                );
                StudyError::wrong(at, format!("medium = {:?}", device.medium), expected)
            })?;
            device.disk = Some(medium.clone());
        }
        devices.push(device);
    }
    Ok(devices)
}

fn deserialize<T: DeserializeOwned>(at: &str, value: Value) -> Result<T, StudyError> {
    let read = |value: Value| value.try_into::<T>();
    read(value).map_err(|error| {
        let words = error.to_string();
        let words = words.trim().replace('\n', " ");
        StudyError::wrong(at, words, "the keys of docs/studies.md")
    })
}

#[cfg(test)]
mod tests;
