//! CPU and memory limits for the processes of one emulated node, by the kernel's control groups,
//! version 1 or 2, whichever the host has mounted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::names;

const ROOT: &str = "/sys/fs/cgroup";
/// Period of a CPU quota; shorter ones cost more overhead, longer ones stall longer.
const PERIOD_US: u64 = 20_000;

/// Limits of one node, in this host's units.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupSpec {
    pub name: String,
    pub cpu_cores: Option<f64>,
    /// Memory limit, page cache included.
    pub memory_bytes: Option<u64>,
}

#[derive(Debug, Error)]
pub enum GroupError {
    #[error("limits of node {name}: no control group for {controller} below {ROOT}")]
    Absent {
        name: String,
        controller: &'static str,
    },
    #[error("limits of node {name}: {}: {source}", path.display())]
    Io {
        name: String,
        path: PathBuf,
        source: io::Error,
    },
}

/// An existing group, removed when dropped, once its processes have ended.
pub struct Group {
    folders: Vec<PathBuf>,
}

impl Group {
    /// Creates the group, and sets its limits.
    ///
    /// # Errors
    /// `Absent` if the host has no control group for a limit; `Io` if one cannot be created or set.
    pub fn create(spec: &GroupSpec) -> Result<Group, GroupError> {
        let folder = format!("{}-{}", names::tag(), spec.name);
        let mut group = Group {
            folders: Vec::new(),
        };
        let quota = spec
            .cpu_cores
            .map(|cores| (cores * PERIOD_US as f64).max(1000.0) as u64);
        if let Some(at) = unified(&["cpu", "memory"]) {
            let at = at.join(&folder);
            let cpu = quota.map(|quota| ("cpu.max", format!("{quota} {PERIOD_US}")));
            let memory = spec
                .memory_bytes
                .map(|bytes| ("memory.max", bytes.to_string()));
            group.fill(spec, at, cpu.into_iter().chain(memory).collect())?;
            return Ok(group);
        }
        let absent = |controller| GroupError::Absent {
            name: spec.name.clone(),
            controller,
        };
        if let Some(quota) = quota {
            let at = of_controller("cpu")
                .ok_or_else(|| absent("cpu"))?
                .join(&folder);
            let files = vec![
                ("cpu.cfs_period_us", PERIOD_US.to_string()),
                ("cpu.cfs_quota_us", quota.to_string()),
            ];
            group.fill(spec, at, files)?;
        }
        if let Some(bytes) = spec.memory_bytes {
            let at = of_controller("memory").ok_or_else(|| absent("memory"))?;
            let files = vec![("memory.limit_in_bytes", bytes.to_string())];
            group.fill(spec, at.join(&folder), files)?;
        }
        Ok(group)
    }

    fn fill(
        &mut self,
        spec: &GroupSpec,
        at: PathBuf,
        files: Vec<(&str, String)>,
    ) -> Result<(), GroupError> {
        let failed = |path: &Path, source| GroupError::Io {
            name: spec.name.clone(),
            path: path.to_owned(),
            source,
        };
        match fs::create_dir(&at) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(&at, error));
            }
            _ => self.folders.push(at.clone()),
        }
        for (name, value) in files {
            let path = at.join(name);
            fs::write(&path, value).map_err(|error| failed(&path, error))?;
        }
        Ok(())
    }

    /// Files by which a process enters the group: it writes its id to them.
    pub fn entrances(&self) -> Vec<PathBuf> {
        self.folders
            .iter()
            .map(|at| at.join("cgroup.procs"))
            .collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for folder in &self.folders {
            for _ in 0..40 {
                match fs::remove_dir(folder) {
                    Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                        std::thread::sleep(Duration::from_millis(50));
                    }
                    _ => break,
                }
            }
        }
    }
}

/// The root of version 2, if it has these controllers.
fn unified(controllers: &[&str]) -> Option<PathBuf> {
    [ROOT, "/sys/fs/cgroup/unified"]
        .iter()
        .map(PathBuf::from)
        .find(|at| {
            let there = fs::read_to_string(at.join("cgroup.controllers")).unwrap_or_default();
            let has_all = controllers
                .iter()
                .all(|c| there.split_whitespace().any(|w| w == *c));
            let enable: Vec<String> = controllers.iter().map(|c| format!("+{c}")).collect();
            has_all && fs::write(at.join("cgroup.subtree_control"), enable.join(" ")).is_ok()
        })
}

/// The root of a controller of version 1.
fn of_controller(name: &str) -> Option<PathBuf> {
    let at = Path::new(ROOT).join(name);
    at.join("cgroup.procs").exists().then_some(at)
}

/// Removes groups of emulators that have ended.
pub(crate) fn sweep() {
    for root in [
        ROOT,
        "/sys/fs/cgroup/unified",
        "/sys/fs/cgroup/cpu",
        "/sys/fs/cgroup/memory",
    ] {
        for entry in fs::read_dir(root).into_iter().flatten().flatten() {
            if names::is_dead(&entry.file_name().to_string_lossy()) {
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}
