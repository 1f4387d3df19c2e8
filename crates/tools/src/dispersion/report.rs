//! Counting of copies: each sample is requested from all primaries of its partition.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::Arc;

use anyhow::{Result, bail};
use cairn_ring::{Device, Ring};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use super::cluster::{Cluster, Copy};
use super::{Plan, Progress, ReportOptions};

pub(crate) fn run(options: ReportOptions, out: &mut dyn Write) -> Result<u8> {
    let plan = Plan::read(
        &options.conf,
        options.policy_name.as_deref(),
        options.insecure,
    )?;
    let is_set = |option: &str, default| plan.section.bool_or(option, default);
    let wants_containers = is_set("container_report", true) && !options.object_only;
    let wants_objects = is_set("object_report", true) && !options.container_only;
    let as_json = options.dump_json || is_set("dump_json", false);
    if !as_json {
        writeln!(out, "Using storage policy: {} ", plan.policy.name)?;
    }
    if !wants_containers && !wants_objects {
        bail!("Neither container or object report is set to run");
    }
    let told = Arc::new(Messages {
        debug: options.debug,
        unmounted: Mutex::default(),
        not_found: Mutex::default(),
    });
    let mut report = Report {
        plan: &plan,
        as_json,
        partitions: options.partitions || is_set("partitions", false),
        told,
        out,
    };
    crate::block_on(async {
        let cluster = Cluster::open(&plan).await?;
        let mut all = Map::new();
        if wants_containers {
            let prefix = format!("dispersion_{}", plan.policy.index);
            let names = cluster.names(None, &prefix).await?;
            let ring = plan.swift.ring("container")?;
            let found = report.count(&cluster, "container", None, names, ring);
            all.insert("container".into(), found.await?);
        }
        if wants_objects {
            let container = format!("dispersion_objects_{}", plan.policy.index);
            let names = cluster.names(Some(&container), "dispersion_").await?;
            let ring = plan.swift.ring(&plan.policy.index.ring_name())?;
            let found = report.count(&cluster, "object", Some(container), names, ring);
            all.insert("object".into(), found.await?);
        }
        if as_json {
            writeln!(report.out, "{}", Value::Object(all))?;
        }
        Ok(0)
    })
}

/// Messages about devices, each printed once.
struct Messages {
    debug: bool,
    unmounted: Mutex<BTreeSet<String>>,
    not_found: Mutex<BTreeSet<String>>,
}

impl Messages {
    fn failed(&self, device: &Device, copy: &Copy) {
        let name = format!("{}:{}/{}", device.ip, device.port, device.device);
        let new = |set: &Mutex<BTreeSet<String>>| set.lock().insert(name.clone());
        match copy {
            Copy::Missing(status) => {
                if status.as_u16() == 507 && new(&self.unmounted) {
                    say(&format!(
                        "ERROR: {name} is unmounted -- This will cause replicas designated for \
                         that device to be considered missing until resolved or the ring is \
                         updated."
                    ));
                }
                if self.debug && new(&self.not_found) {
                    say(&format!("ERROR: {name} returned a 404"));
                }
            }
            Copy::Failed(error) => say(&format!("ERROR: {name}: {error}")),
            Copy::Found => {}
        }
    }
}

fn say(line: &str) {
    // If standard error is closed, the report itself still has the result.
    let _ = writeln!(std::io::stderr(), "{line}");
}

struct Report<'a> {
    plan: &'a Plan,
    as_json: bool,
    /// Report the partitions that lack copies.
    partitions: bool,
    told: Arc<Messages>,
    out: &'a mut dyn Write,
}

/// Copies found of one sample.
struct Counted {
    partition: u32,
    expected: usize,
    found: usize,
}

impl Report<'_> {
    async fn count(
        &mut self,
        cluster: &Arc<Cluster>,
        what: &str,
        container: Option<String>,
        names: Option<Vec<String>>,
        ring: Ring,
    ) -> Result<Value> {
        let names = names.unwrap_or_default();
        if names.is_empty() {
            say(&format!(
                "No {what}s to query. Has swift-dispersion-populate been run?"
            ));
            return Ok(Value::Null);
        }
        let samples = self.samples(cluster, container.as_deref(), &names, &ring);
        let distinct = samples.len();
        let policy = container.is_some().then_some(self.plan.policy.index.0);
        let mut progress = Progress::new();
        let mut under_way = JoinSet::new();
        let mut totals = Totals::default();
        cluster.count_anew();
        for (partition, path, devices) in samples {
            while under_way.len() >= self.plan.concurrency {
                self.take(what, &mut under_way, &mut totals).await?;
                self.tell(what, cluster, &mut progress, totals.queried, names.len())?;
            }
            let (cluster, told) = (cluster.clone(), self.told.clone());
            under_way.spawn(async move {
                let mut found = 0;
                for device in &devices {
                    let told = |copy: &Copy| told.failed(device, copy);
                    let copy = cluster.head(device, partition, &path, policy, told).await;
                    found += usize::from(matches!(copy, Copy::Found));
                }
                Counted {
                    partition,
                    expected: devices.len(),
                    found,
                }
            });
        }
        while !under_way.is_empty() {
            self.take(what, &mut under_way, &mut totals).await?;
            self.tell(what, cluster, &mut progress, totals.queried, names.len())?;
        }
        if container.is_none() {
            totals.missing.remove(&0);
        }
        let retries = cluster.retried();
        let overlapping = names.len() - distinct;
        let (found, expected) = (totals.found, totals.expected);
        let share = 100.0 * found as f64 / expected.max(1) as f64;
        if self.as_json {
            let mut result = json!({
                "retries": retries, "overlapping": overlapping, "pct_found": share,
                "copies_found": found, "copies_expected": expected,
            });
            for (missing, partitions) in totals.missing {
                result[format!("missing_{missing}")] = partitions.into();
            }
            return Ok(result);
        }
        let (listed, elapsed) = (names.len(), progress.elapsed());
        writeln!(
            self.out,
            "\r\x1B[KQueried {listed} {what}s for dispersion reporting, {elapsed}, {retries} \
             retries"
        )?;
        if overlapping > 0 {
            writeln!(self.out, "There were {overlapping} overlapping partitions")?;
        }
        for (missing, partitions) in totals.missing {
            let line = missing_line(partitions, missing, ring.replica_count());
            writeln!(self.out, "{line}")?;
        }
        writeln!(
            self.out,
            "{share:.02}% of {what} copies found ({found} of {expected})"
        )?;
        let share = 100.0 * distinct as f64 / f64::from(ring.partition_count());
        writeln!(
            self.out,
            "Sample represents {share:.02}% of the {what} partition space"
        )?;
        Ok(Value::Null)
    }

    /// One sample for each partition: its path and its primaries.
    fn samples(
        &self,
        cluster: &Cluster,
        container: Option<&str>,
        names: &[String],
        ring: &Ring,
    ) -> Vec<(u32, String, Vec<Arc<Device>>)> {
        let (hash_path, account) = (&self.plan.swift.conf.hash_path, &cluster.account);
        let mut seen = BTreeSet::new();
        let mut samples = Vec::new();
        for name in names {
            let (hash, path) = match container {
                None => (
                    hash_path.hash(account, Some(name), None),
                    format!("{account}/{name}"),
                ),
                Some(container) => (
                    hash_path.hash(account, Some(container), Some(name)),
                    format!("{account}/{container}/{name}"),
                ),
            };
            let partition = ring.partition(hash);
            if seen.insert(partition) {
                let primaries = ring.primaries(partition).into_iter();
                samples.push((partition, path, primaries.map(|p| p.device).collect()));
            }
        }
        samples
    }

    async fn take(
        &mut self,
        what: &str,
        under_way: &mut JoinSet<Counted>,
        totals: &mut Totals,
    ) -> Result<()> {
        let Some(counted) = under_way.join_next().await else {
            return Ok(());
        };
        let counted = counted?;
        let missing = counted.expected - counted.found;
        totals.queried += 1;
        totals.found += counted.found;
        totals.expected += counted.expected;
        *totals.missing.entry(missing).or_default() += 1;
        if self.partitions && missing > 0 {
            write!(self.out, "\r\x1B[K")?;
            self.out.flush()?;
            let mut kind = what.to_owned();
            kind[..1].make_ascii_uppercase();
            let copies = if missing == 1 { "copy" } else { "copies" };
            let partition = counted.partition;
            say(&format!(
                "# {kind} partition {partition} missing {missing} {copies}"
            ));
        }
        Ok(())
    }

    fn tell(
        &mut self,
        what: &str,
        cluster: &Cluster,
        progress: &mut Progress,
        done: usize,
        all: usize,
    ) -> Result<()> {
        let due = progress.due(done, all);
        if let (Some(left), false) = (due, self.as_json) {
            let retries = cluster.retried();
            write!(
                self.out,
                "\r\x1B[KQuerying {what}s: {done} of {all}, {left} left, {retries} retries"
            )?;
            self.out.flush()?;
        }
        Ok(())
    }
}

#[derive(Default)]
struct Totals {
    queried: usize,
    found: usize,
    expected: usize,
    /// Number of partitions by the number of missing copies.
    missing: BTreeMap<usize, usize>,
}

fn missing_line(partitions: usize, missing: usize, copies: f64) -> String {
    let left = copies - missing as f64;
    let (mark, how_many) = match left {
        0.0 => ("!!! ", "all".to_owned()),
        1.0 => ("! ", missing.to_string()),
        _ => ("", missing.to_string()),
    };
    let (verb, noun) = match partitions {
        0 | 1 => ("was", "partition"),
        _ => ("were", "partitions"),
    };
    let copies = if missing == 1 { "copy" } else { "copies" };
    format!("{mark}There {verb} {partitions} {noun} missing {how_many} {copies}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_in_words() {
        for (partitions, missing, line) in [
            (1, 1, "There was 1 partition missing 1 copy."),
            (2, 2, "! There were 2 partitions missing 2 copies."),
            (9, 3, "!!! There were 9 partitions missing all copies."),
        ] {
            assert_eq!(missing_line(partitions, missing, 3.0), line);
        }
    }
}
