//! Records of a resumed run: when it went on, and the pools that it needs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{RunFolder, RunMeta, State};

/// One time that a run was resumed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resumption {
    pub at: f64,
    /// When the part before ended: by its own word, or by the last line that it wrote.
    pub ended: f64,
    /// How that part ended: `Cancelled`, or `Running` if its process was killed.
    pub before: State,
    /// Name of the first stage that was run again, or for the first time.
    pub stage: String,
    /// The command line, without secrets.
    pub command: Vec<String>,
}

impl RunMeta {
    /// Seconds during which the run was under way: pauses before it was resumed do not count.
    pub fn seconds(&self) -> f64 {
        let pauses: f64 = self.resumed.iter().map(|part| part.at - part.ended).sum();
        self.ended.unwrap_or(self.started) - self.started - pauses
    }
}

impl RunFolder {
    pub fn pools(&self) -> PathBuf {
        self.root.join("pools.json")
    }
}

/// Content of `pools.json`: the objects that a run has written and not deleted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedPools {
    /// Number of the stage after which that was so.
    pub stage: u32,
    pub pools: BTreeMap<String, SavedPool>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedPool {
    /// Lower bound of the next new number.
    pub next: u64,
    /// Numbers of containers and objects, the least recently used first.
    pub live: Vec<(u64, u64)>,
}
