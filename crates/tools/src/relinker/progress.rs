//! Progress of relinking: a state file on each device, and the report to monitoring.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cairn_daemons::recon_cache::ReconCache;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tracing::{debug, warn};

use super::device::{Task, Totals};
use super::{Step, datadir};

/// `relink.objects.json`: `{"part_power", "next_part_power", "state": {partition: done}}`, and
/// `prev_part_power` if a file from before the increase was found.
#[derive(Debug, Default)]
pub(super) struct State {
    path: PathBuf,
    staged: PathBuf,
    part_power: u32,
    next_part_power: u32,
    prev_part_power: Option<u32>,
    done: BTreeMap<u32, bool>,
}

impl State {
    /// Reads the state of an earlier run with the same part powers.
    pub(super) fn read(device: &Path, task: &Task) -> std::io::Result<State> {
        let name = datadir(task.policy);
        let mut state = State {
            path: device.join(format!("relink.{name}.json")),
            staged: device.join(format!(".relink.{name}.json.tmp")),
            part_power: task.part_power,
            next_part_power: task.next_part_power,
            ..State::default()
        };
        let text = match fs::read(&state.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(state),
            other => other?,
        };
        let known: Value = serde_json::from_slice(&text).unwrap_or_default();
        let number = |name: &str| known.get(name).and_then(Value::as_u64);
        let is_next = number("next_part_power") == Some(u64::from(task.next_part_power));
        let power = number("part_power").and_then(|power| u32::try_from(power).ok());
        let done = known.get("state").and_then(Value::as_object);
        match done {
            Some(done) if is_next && power == Some(task.part_power) => {
                let entries = done.iter();
                state.done = entries
                    .filter_map(|(name, done)| Some((name.parse().ok()?, done.as_bool()?)))
                    .collect();
            }
            _ => {
                if is_next {
                    state.prev_part_power = power;
                }
                fs::remove_file(&state.path)?;
            }
        }
        Ok(state)
    }

    /// Partitions to process, of those present: the highest first, so that none created by this run
    /// is processed.
    pub(super) fn partitions(&mut self, mut there: Vec<u32>, task: &Task) -> Vec<u32> {
        let relinking = task.step == Step::Relink;
        let limit = match relinking {
            true => Some(task.part_power),
            false => self.prev_part_power,
        };
        if let Some(power) = limit {
            there.retain(|partition| u64::from(*partition) < 1 << power);
        }
        if self.done.is_empty() {
            self.done = there.iter().map(|partition| (*partition, false)).collect();
        } else {
            // Created after the first run: while relinking, already in place.
            for partition in there {
                self.done.entry(partition).or_insert(relinking);
            }
        }
        let wanted =
            |partition: &u32| task.partitions.is_empty() || task.partitions.contains(partition);
        let left = self.done.iter().rev().filter(|(_, done)| !**done);
        left.map(|(partition, _)| *partition)
            .filter(wanted)
            .collect()
    }

    /// Marks a partition as done, durably.
    pub(super) fn finish(&mut self, partition: u32) -> std::io::Result<()> {
        self.done.insert(partition, true);
        let state: Map<String, Value> = self
            .done
            .iter()
            .map(|(partition, done)| (partition.to_string(), (*done).into()))
            .collect();
        let mut all = json!({
            "part_power": self.part_power,
            "next_part_power": self.next_part_power,
            "state": state,
        });
        if let Some(power) = self.prev_part_power {
            all["prev_part_power"] = power.into();
        }
        let mut file = fs::File::create(&self.staged)?;
        file.write_all(all.to_string().as_bytes())?;
        file.sync_all()?;
        fs::rename(&self.staged, &self.path)
    }

    pub(super) fn counts(&self) -> (usize, usize) {
        let done = self.done.values().filter(|done| **done).count();
        (done, self.done.len())
    }
}

/// Entries of `/recon/relinker`: devices with their policies, and the run as a worker.
pub(super) struct Recon {
    cache: ReconCache,
    interval: Duration,
    facts: Mutex<Facts>,
}

struct Facts {
    written: Instant,
    names: Vec<String>,
    /// By device and policy.
    devices: BTreeMap<String, BTreeMap<String, Value>>,
}

pub(super) fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}

impl Recon {
    /// Starts a run; removes an earlier run's entries.
    pub(super) fn begin(cache: ReconCache, names: &[String], interval: f64) -> Recon {
        let recon = Recon {
            cache,
            interval: Duration::try_from_secs_f64(interval).unwrap_or_default(),
            facts: Mutex::new(Facts {
                written: Instant::now(),
                names: names.to_vec(),
                devices: BTreeMap::new(),
            }),
        };
        let mut entries = Map::new();
        entries.insert("devices".into(), json!({}));
        entries.insert("workers".into(), json!({}));
        recon.merge(&entries);
        recon.write(Value::Null);
        recon
    }

    /// Records a device's progress with a policy; written to the file at once with `force`, else at
    /// intervals.
    pub(super) fn record(
        &self,
        task: &Task,
        device: &str,
        state: &State,
        began: f64,
        totals: &Totals,
        force: bool,
    ) {
        let (done, all) = state.counts();
        let now = now();
        let of_policy = json!({
            "step": task.step.name(), "part_power": task.part_power,
            "next_part_power": task.next_part_power, "start_time": began, "timestamp": now,
            "total_time": now - began, "parts_done": done, "total_parts": all,
            "stats": totals.to_json(),
        });
        let due = {
            let mut facts = self.facts.lock();
            let of_device = facts.devices.entry(device.to_owned()).or_default();
            of_device.insert(task.policy.to_string(), of_policy);
            force || facts.written.elapsed() >= self.interval
        };
        if due {
            self.write(Value::Null);
        }
    }

    pub(super) fn end(&self, code: u8) {
        self.write(code.into());
    }

    fn write(&self, code: Value) {
        let mut entries = Map::new();
        {
            let mut facts = self.facts.lock();
            facts.written = Instant::now();
            let worker = json!({
                "devices": facts.names, "timestamp": now(), "return_code": code,
            });
            let own = std::process::id().to_string();
            entries.insert("workers".into(), json!({ own: worker }));
            let devices: Map<String, Value> = facts
                .devices
                .iter()
                .map(|(name, policies)| (name.clone(), of_device(policies)))
                .collect();
            if !devices.is_empty() {
                entries.insert("devices".into(), devices.into());
            }
        }
        self.merge(&entries);
    }

    fn merge(&self, entries: &Map<String, Value>) {
        if let Err(error) = self.cache.merge(entries) {
            // The folder does not exist, so this file is not wanted.
            let is_there = self.cache.path().parent().is_some_and(Path::exists);
            match is_there {
                true => warn!(%error, "recon cache not written"),
                false => debug!(%error, "no recon cache"),
            }
        }
    }
}

/// A device's policies, and their sum.
fn of_device(policies: &BTreeMap<String, Value>) -> Value {
    let sum = |name: &str| {
        policies
            .values()
            .filter_map(|p| p[name].as_u64())
            .sum::<u64>()
    };
    let most = |name: &str| {
        let times = policies.values().filter_map(|p| p[name].as_f64());
        times.fold(0.0, f64::max)
    };
    let stats = ["hash_dirs", "files", "linked", "removed", "errors"].map(|name| {
        let of = policies.values().filter_map(|p| p["stats"][name].as_u64());
        (name.to_owned(), Value::from(of.sum::<u64>()))
    });
    json!({
        "parts_done": sum("parts_done"), "total_parts": sum("total_parts"),
        "total_time": most("total_time"), "timestamp": most("timestamp"),
        "stats": Map::from_iter(stats), "policies": policies,
    })
}
