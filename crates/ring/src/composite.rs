//! A composite ring: the combination of the rings of several builders, one for each region, so that
//! every region holds whole replicas. Its `.composite` file records the builders, their order and
//! their versions, so that other builders are not combined by mistake.
//!
//! The file is the one JSON object that OpenStack Swift writes: `components` (`version`, `replicas`
//! and `id` of each builder, in order), `component_builder_files` (id to path), `version` (of the
//! composite, one more each time), `saved_path` and `serialization_version`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;

use cairn_types::json_text::quoted;
use serde::Deserialize;

use crate::builder::{BuilderError, RingBuilder, id_bytes_for};
use crate::data::{FormatVersion, RingData, Row};
use crate::error::RingError;
use crate::files::{io_error, write_atomically};

const SERIALIZATION_VERSION: u32 = 1;

/// Reasons why rings cannot be combined. An error that concerns several builders names each by its
/// position, counted from 0.
#[derive(Debug, thiserror::Error)]
pub enum CompositeError {
    #[error("Two or more component builders are required.")]
    TooFew,
    #[error("{}: {source}", path.display())]
    Builder { path: PathBuf, source: BuilderError },
    #[error("{}", .0.join("\n"))]
    Problems(Vec<String>),
    #[error(
        "None of the component builders has been modified since the existing composite ring was \
         built."
    )]
    Unmodified,
    #[error("{}: File does not contain valid composite ring data: {problem}", path.display())]
    File { path: PathBuf, problem: String },
    #[error(transparent)]
    Ring(#[from] RingError),
}

/// A builder's state at the time of composing.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Component {
    pub version: u64,
    /// A number, kept in the form in which it was written.
    pub replicas: serde_json::Number,
    pub id: String,
}

/// The content of a `.composite` file.
#[derive(Clone, Debug, Default)]
pub struct CompositeBuilder {
    version: u64,
    components: Vec<Component>,
    /// Absolute path of each component.
    builder_files: Vec<PathBuf>,
}

#[derive(Deserialize)]
struct Stored {
    version: u64,
    components: Vec<Component>,
    component_builder_files: BTreeMap<String, String>,
}

impl CompositeBuilder {
    /// A composite without components.
    pub fn new() -> CompositeBuilder {
        CompositeBuilder::default()
    }

    /// Reads a `.composite` file.
    ///
    /// # Errors
    /// `Ring` if the file cannot be read; `File` if it is not the JSON of a composite, or names no
    /// file for a component.
    pub fn load(path: &Path) -> Result<CompositeBuilder, CompositeError> {
        let bytes = fs::read(path).map_err(|e| io_error("read", path, e))?;
        let bad = |problem| CompositeError::File {
            path: path.to_owned(),
            problem,
        };
        let stored: Stored = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
        let file_of = |component: &Component| {
            let file = stored.component_builder_files.get(&component.id);
            let missing = || bad(format!("no file for builder {}", component.id));
            file.map(|file| absolute_path(Path::new(file)))
                .ok_or_else(missing)
        };
        Ok(CompositeBuilder {
            version: stored.version,
            builder_files: stored
                .components
                .iter()
                .map(file_of)
                .collect::<Result<_, _>>()?,
            components: stored.components,
        })
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn components(&self) -> &[Component] {
        &self.components
    }

    /// Combines the rings of `builder_files`; if there are none, those of the last time. Unless
    /// `force` is set, they must be the builders of the last time in the same order, and at least
    /// one must have changed since.
    ///
    /// # Errors
    /// `TooFew` for fewer than two builders, `Builder` for one that cannot be loaded, `Unmodified`
    /// if none has changed. `Problems` for builders that cannot be combined, or differ from those
    /// of the last time. `Ring` if the result is no valid ring.
    pub fn compose(
        &mut self,
        builder_files: &[PathBuf],
        force: bool,
    ) -> Result<RingData, CompositeError> {
        let files = match builder_files {
            [] => self.builder_files.clone(),
            files => files.iter().map(|file| absolute_path(file)).collect(),
        };
        if files.len() < 2 {
            return Err(CompositeError::TooFew);
        }
        let builders = files
            .iter()
            .map(load_builder)
            .collect::<Result<Vec<_>, _>>()?;
        let components = components_of(&builders)?;
        if !self.components.is_empty() && !force && !is_newer(&self.components, &components)? {
            return Err(CompositeError::Unmodified);
        }
        check_together(&builders)?;
        let data = put_together(&builders)?;
        self.version += 1;
        self.components = components;
        self.builder_files = files;
        Ok(data)
    }

    /// Writes a `.composite` file, atomically.
    ///
    /// # Errors
    /// `TooFew` if nothing has been composed yet; `Ring` if the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), CompositeError> {
        if self.components.is_empty() {
            return Err(CompositeError::TooFew);
        }
        let mut text = String::from("{\"components\": [");
        for (i, component) in self.components.iter().enumerate() {
            let Component {
                version,
                replicas,
                id,
            } = component;
            let comma = if i > 0 { ", " } else { "" };
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "{comma}{{\"version\": {version}, \"replicas\": {replicas}, \"id\": "
            );
            text.push_str(&quoted(id));
            text.push('}');
        }
        text.push_str("], \"component_builder_files\": {");
        for (i, (id, file)) in self.files().enumerate() {
            text.push_str(if i > 0 { ", " } else { "" });
            text.push_str(&quoted(id));
            text.push_str(": ");
            text.push_str(&quoted(&file.to_string_lossy()));
        }
        let _ = write!(text, "}}, \"version\": {}, \"saved_path\": ", self.version);
        text.push_str(&quoted(&absolute_path(path).to_string_lossy()));
        let _ = write!(
            text,
            ", \"serialization_version\": {SERIALIZATION_VERSION}}}"
        );
        Ok(write_atomically(path, text.as_bytes())?)
    }

    /// The content in readable form: indented, keys sorted.
    pub fn show(&self) -> String {
        let mut text = String::from("{\n    \"component_builder_files\": {");
        let files: BTreeMap<&str, &PathBuf> = self.files().collect();
        for (i, (id, file)) in files.into_iter().enumerate() {
            text.push_str(if i > 0 { ",\n        " } else { "\n        " });
            text.push_str(&quoted(id));
            text.push_str(": ");
            text.push_str(&quoted(&file.to_string_lossy()));
        }
        text.push_str("\n    },\n    \"components\": [");
        for (i, component) in self.components.iter().enumerate() {
            let Component {
                version,
                replicas,
                id,
            } = component;
            text.push_str(if i > 0 { ",\n        {" } else { "\n        {" });
            text.push_str("\n            \"id\": ");
            text.push_str(&quoted(id));
            let _ = write!(
                text,
                ",\n            \"replicas\": {replicas},\n            \"version\": {version}\n        }}"
            );
        }
        let _ = write!(text, "\n    ],\n    \"version\": {}\n}}", self.version);
        text
    }

    fn files(&self) -> impl Iterator<Item = (&str, &PathBuf)> {
        let ids = self
            .components
            .iter()
            .map(|component| component.id.as_str());
        ids.zip(&self.builder_files)
    }
}

fn absolute_path(path: &Path) -> PathBuf {
    // This fails only if the working folder is gone; then the path is unusable anyway.
    absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn load_builder(path: &PathBuf) -> Result<RingBuilder, CompositeError> {
    RingBuilder::load(path).map_err(|source| CompositeError::Builder {
        path: path.clone(),
        source,
    })
}

/// The components of builders, each of which must have an id.
fn components_of(builders: &[RingBuilder]) -> Result<Vec<Component>, CompositeError> {
    let (mut components, mut problems) = (Vec::new(), Vec::new());
    let mut by_id: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (i, builder) in builders.iter().enumerate() {
        let Some(id) = builder.id() else {
            problems.push(format!(
                "Problem with builder at index {i}: it has no id yet; save it once with \
                 swift-ring-builder"
            ));
            continue;
        };
        by_id.entry(id).or_default().push(i.to_string());
        let replicas = builder.replicas();
        components.push(Component {
            version: builder.version(),
            replicas: serde_json::Number::from_f64(replicas).unwrap_or_else(|| 0.into()),
            id: id.to_owned(),
        });
    }
    for (id, at) in by_id.into_iter().filter(|(_, at)| at.len() > 1) {
        let at = at.join(", ");
        problems.push(format!("Builder id {id:?} used at indexes {at}"));
    }
    problems_or(problems, components)
}

fn problems_or<T>(problems: Vec<String>, value: T) -> Result<T, CompositeError> {
    match problems.is_empty() {
        true => Ok(value),
        false => Err(CompositeError::Problems(problems)),
    }
}

/// Has a builder changed since? Other builders than before are an error.
fn is_newer(old: &[Component], new: &[Component]) -> Result<bool, CompositeError> {
    let (mut problems, mut newer) = (Vec::new(), false);
    for (i, old) in old.iter().enumerate() {
        let Some(new) = new.get(i) else {
            problems.push(format!("Missing builder at index {i}"));
            continue;
        };
        let change = if old.replicas.as_f64() != new.replicas.as_f64() {
            format!(
                "Attribute mismatch for replicas: {} != {}",
                old.replicas, new.replicas
            )
        } else if old.id != new.id {
            format!("Attribute mismatch for id: {:?} != {:?}", old.id, new.id)
        } else if new.version < old.version {
            format!("Older builder version: {} < {}", new.version, old.version)
        } else {
            newer |= old.version < new.version;
            continue;
        };
        problems.push(format!("Invalid builder change at index {i}: {change}"));
    }
    for (i, new) in new.iter().enumerate().skip(old.len()) {
        problems.push(format!("Unexpected extra builder at index {i}: {}", new.id));
    }
    problems_or(problems, newer)
}

/// Checks that builders can be combined: whole replicas, equal partition counts, no device in two
/// builders.
fn check_together(builders: &[RingBuilder]) -> Result<(), CompositeError> {
    let mut by_power: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    let mut problems = Vec::new();
    for (i, builder) in builders.iter().enumerate() {
        by_power.entry(builder.part_power()).or_default().push(i);
        if builder.replicas().fract() != 0.0 {
            let replicas = builder.replicas();
            problems.push(format!(
                "Non integer replica count {replicas} found at index {i}"
            ));
        }
        if builder.devs_changed() || !builder.ever_rebalanced() {
            problems.push(format!(
                "Builder needs rebalance to apply changes at index {i}"
            ));
        }
        if builder.next_part_power().is_some() {
            problems.push(format!(
                "The partition power of the builder at index {i} is being increased: finish that \
                 first"
            ));
        }
    }
    if by_power.len() > 1 {
        let found = by_power.into_iter();
        let found = found.map(|(power, at)| format!("part_power={power} found at indexes {at:?}"));
        problems.push(format!(
            "All builders must have same value for 'part_power'.\n  {}",
            found.collect::<Vec<_>>().join("\n  ")
        ));
    }
    problems_or(problems, ())?;
    check_devices(builders)
}

fn check_devices(builders: &[RingBuilder]) -> Result<(), CompositeError> {
    let (mut problems, mut regions, mut devices) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
    for (i, builder) in builders.iter().enumerate() {
        let own: BTreeSet<u32> = builder.devices().map(|d| d.device.region).collect();
        for region in own {
            if let Some(other) = regions.insert(region, i) {
                problems.push(format!(
                    "Same region found in different rings: {region} at indexes {other} and {i}"
                ));
            }
        }
        for device in builder.devices().map(|d| &d.device) {
            let place = (&device.ip, device.port, &device.device);
            if let Some(other) = devices.insert(place, i).filter(|other| *other != i) {
                let (ip, port, name) = place;
                problems.push(format!(
                    "Duplicate ip/port/device combination {ip}/{port}/{name} found in builders at \
                     indexes {other} and {i}"
                ));
            }
        }
    }
    problems_or(problems, ())
}

/// Concatenates the builders' devices, shifting their ids, and their rows.
fn put_together(builders: &[RingBuilder]) -> Result<RingData, CompositeError> {
    let parts: Vec<RingData> = builders.iter().map(RingBuilder::ring_data).collect();
    let total: usize = parts.iter().map(|data| data.devs.len()).sum();
    let dev_id_bytes = id_bytes_for(total as u32);
    let (mut devs, mut rows) = (Vec::with_capacity(total), Vec::new());
    for data in &parts {
        let offset = devs.len() as u32;
        for row in &data.rows {
            let ids: Vec<u32> = row.iter().map(|id| id + offset).collect();
            rows.push(Row::new(&ids, dev_id_bytes));
        }
        for device in &data.devs {
            devs.push(device.as_deref().map(|device| {
                let mut device = device.clone();
                device.id += offset;
                Arc::new(device)
            }));
        }
    }
    let data = RingData {
        devs,
        part_power: parts.first().map_or(0, |data| data.part_power),
        next_part_power: None,
        version: None,
        dev_id_bytes,
        rows,
        // Version 1 if its ids are wide enough: every Swift reads it.
        format_version: match dev_id_bytes {
            0..=2 => FormatVersion::V1,
            _ => FormatVersion::V2,
        },
    };
    data.check()?;
    Ok(data)
}
