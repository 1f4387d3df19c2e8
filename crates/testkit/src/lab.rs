//! The folder that a run of the lab (`cairn lab run`) leaves, as JSON.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Results of a run.
pub struct Run {
    /// Content of `run.json`.
    pub meta: Value,
    /// The stages that ended, in their order: content of `stages.json`.
    pub stages: Vec<Value>,
    /// The lab's output.
    pub shown: String,
}

impl Run {
    /// Reads a run's folder. `shown` is what the lab printed, for messages.
    ///
    /// # Errors
    /// `run.json` or `stages.json` cannot be read, or is no JSON. Without a `stages.json` the run
    /// has no stages, and that is no error.
    pub fn read(folder: &Path, shown: String) -> Result<Run> {
        let read = |name: &str| -> Result<Value> {
            let path = folder.join(name);
            let words = || format!("{}:\n{shown}", path.display());
            Ok(serde_json::from_slice(
                &std::fs::read(&path).with_context(words)?,
            )?)
        };
        // A run that reached no store has ended no stage.
        let stages = match folder.join("stages.json").is_file() {
            true => read("stages.json")?,
            false => Value::Array(Vec::new()),
        };
        Ok(Run {
            meta: read("run.json")?,
            stages: stages.as_array().cloned().unwrap_or_default(),
            shown,
        })
    }

    /// Checks that the run completed without a failed operation.
    ///
    /// # Errors
    /// The run ended in another state than `completed`, or an operation counts errors.
    pub fn is_clean(&self) -> Result<()> {
        ensure!(
            self.meta["state"] == "completed",
            "it ended as {}:\n{}",
            self.meta["state"],
            self.shown
        );
        for operation in self.operations("") {
            let errors = operation["errors"].as_object();
            ensure!(
                errors.is_none_or(serde_json::Map::is_empty),
                "{}: {}",
                operation["name"],
                operation["errors"]
            );
        }
        Ok(())
    }

    /// Works of the stages whose names contain `stage`.
    pub fn works(&self, stage: &str) -> impl Iterator<Item = &Value> {
        let of = move |value: &Value| value["name"].as_str().is_some_and(|n| n.contains(stage));
        let stages = self.stages.iter().filter(move |value| of(value));
        stages
            .filter_map(|stage| stage["works"].as_array())
            .flatten()
    }

    /// Results by operation and size class of the stages whose names contain `stage`.
    pub fn operations(&self, stage: &str) -> impl Iterator<Item = &Value> {
        let works = self.works(stage);
        works
            .filter_map(|work| work["operations"].as_array())
            .flatten()
    }

    /// Number of successful operations of the stages whose names contain `stage`.
    pub fn count(&self, stage: &str) -> u64 {
        let counts = self.operations(stage).filter_map(|o| o["ops"].as_u64());
        counts.sum()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_folder_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, value: Value| {
            std::fs::write(folder.path().join(name), value.to_string()).unwrap();
        };
        let told = "cannot reach the store".to_owned();
        let error = Run::read(folder.path(), told.clone()).err().unwrap();
        assert!(format!("{error:#}").contains(&told), "{error:#}");
        write("run.json", json!({ "state": "completed" }));
        assert_eq!(Run::read(folder.path(), told.clone()).unwrap().count(""), 0);
        let works = |ops: u64, errors: Value| json!([{ "operations": [{ "name": "read", "ops": ops, "errors": errors }] }]);
        write(
            "stages.json",
            json!([
                { "name": "prepare", "works": works(7, json!({})) },
                { "name": "main", "works": works(5, json!({})) },
            ]),
        );
        let run = Run::read(folder.path(), told.clone()).unwrap();
        assert_eq!((run.count("main"), run.count("")), (5, 12));
        run.is_clean().unwrap();
        write(
            "stages.json",
            json!([{ "name": "main", "works": works(5, json!({ "timeout": 1 })) }]),
        );
        assert!(Run::read(folder.path(), told).unwrap().is_clean().is_err());
    }
}
