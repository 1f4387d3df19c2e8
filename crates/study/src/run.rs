//! Execution of a study: blocks of all cells, each block in an order of its own, until each figure
//! is precise enough or the repetitions are used up. A cell's folder is renamed into place when
//! complete, so a study that was killed resumes with the missing cells.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use cairn_types::{SplitMix, hex};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::cell::{self, Cell, Folder, Outcome, Pair, State};
use crate::cluster;
use crate::figures;
use crate::file::Study;
use crate::measure::{self, Bench};
use crate::page;
use crate::summary;

/// Name prefix of the folder of a cell in progress.
const UNFINISHED: &str = ".unfinished-";
/// Name prefix of scratch folders, followed by the process id.
const SCRATCH: &str = "cairn-study-";

/// Content of `study.json`: facts of the host that belong to no cell.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Record {
    /// The generator's operations per second without a store.
    ceiling: Option<f64>,
}

/// Options of one call.
pub struct Options {
    pub out: PathBuf,
    pub program: PathBuf,
    pub scratch: Option<PathBuf>,
    /// Seconds after which no further cell is started.
    pub at_most_s: Option<f64>,
}

/// Measures missing cells and writes the report. False if `at_most_s` ended it with cells missing.
///
/// # Errors
/// This host cannot emulate a cluster, another process uses the folder, a workload is invalid, a
/// cell cannot be measured (see [`measure::measure`]), or a file cannot be written.
pub fn run(study: &Study, options: &Options) -> Result<bool> {
    for cluster in &study.clusters {
        if let Some(words) = cluster::impossible(cluster) {
            bail!("{}: {words}", cluster.name);
        }
    }
    let pairs = cell::pairs(study)?;
    let folder = Folder {
        root: options.out.clone(),
    };
    fs::create_dir_all(folder.cells()).with_context(|| options.out.display().to_string())?;
    let _lock = lock(&folder)?;
    remove_unfinished(&folder)?;
    let scratch = scratch(options.scratch.as_deref())?;
    let binary = digest(&options.program)?;
    let bench = Bench {
        study,
        pairs: &pairs,
        program: &options.program,
        binary: &binary,
        scratch: &scratch.0,
    };
    ceiling(&folder)?;
    let runner = Runner {
        bench,
        folder: &folder,
        began: std::time::Instant::now(),
        at_most_s: options.at_most_s,
    };
    let is_complete = runner.blocks()?;
    drop(scratch);
    report(study, &options.out)?;
    Ok(is_complete)
}

/// Provisions one cluster, and removes it when `use_it` returns.
///
/// # Errors
/// No cluster has this name, or it cannot be provisioned: see [`cluster::Provisioned::create`].
pub fn up(
    study: &Study,
    name: &str,
    options: &Options,
    use_it: impl FnOnce(&[String]),
) -> Result<()> {
    let Some(cluster) = study.clusters.iter().find(|c| c.name == name) else {
        let known: Vec<&str> = study.clusters.iter().map(|c| c.name.as_str()).collect();
        bail!(
            "no cluster is called {name:?}: there are {}",
            known.join(", ")
        );
    };
    let scratch = scratch(options.scratch.as_deref())?;
    let order = cluster::ClusterSpec {
        cluster,
        dilation: study.dilation,
        seed: study.seed,
        program: &options.program,
        folder: &options.out.join("up").join(name),
        scratch: &scratch.0,
    };
    let provisioned = cluster::Provisioned::create(&order)?;
    use_it(&provisioned.proxies);
    provisioned.tear_down();
    Ok(())
}

/// Writes the page and the plots for the existing cells.
///
/// # Errors
/// An outcome cannot be read (see [`of_study`]), or the page or a plot cannot be written.
pub fn report(study: &Study, out: &Path) -> Result<PathBuf> {
    let folder = Folder {
        root: out.to_owned(),
    };
    let outcomes = of_study(study, &folder)?;
    let rejected = fs::read_dir(out.join("rejected"))
        .into_iter()
        .flatten()
        .count();
    let facts = page::Facts {
        ceiling: record(&folder).ceiling,
        rejected,
        notes: Vec::new(),
    };
    let plots = out.join("plots");
    fs::create_dir_all(&plots)?;
    for (name, svg) in page::plots(study, &outcomes) {
        fs::write(plots.join(name), svg)?;
    }
    let text = summary::markdown(study, &outcomes, &facts, "plots");
    fs::write(out.join("report.md"), text)?;
    let path = out.join("report.html");
    fs::write(&path, page::page(study, &outcomes, &facts))?;
    Ok(path)
}

/// Outcomes of the study's own cells, in the order of its clusters and workloads; cells of an
/// earlier version of the file are ignored.
///
/// # Errors
/// A workload's file is invalid, or a cell's outcome cannot be read.
pub fn of_study(study: &Study, folder: &Folder) -> Result<Vec<Outcome>> {
    let pairs = cell::pairs(study)?;
    let mut outcomes = Vec::new();
    for pair in 0..pairs.len() {
        for repetition in 1..=study.repetitions.most {
            let cell = cell::cell(study, &pairs, pair, repetition)?;
            outcomes.extend(folder.outcome(&cell.id)?);
        }
    }
    Ok(outcomes)
}

struct Runner<'a> {
    bench: Bench<'a>,
    folder: &'a Folder,
    began: std::time::Instant,
    at_most_s: Option<f64>,
}

impl Runner<'_> {
    /// Measures block by block; returns false if the time ran out.
    fn blocks(&self) -> Result<bool> {
        let study = self.bench.study;
        for block in 1..=study.repetitions.most {
            let outcomes = of_study(study, self.folder)?;
            let mut order: Vec<usize> = (0..self.bench.pairs.len())
                .filter(|pair| block <= study.repetitions.least || self.is_wide(*pair, &outcomes))
                .collect();
            shuffle(&mut order, study.seed.wrapping_add(u64::from(block)));
            for (number, pair) in order.iter().enumerate() {
                let cell = cell::cell(study, self.bench.pairs, *pair, block)?;
                let there = self.folder.outcome(&cell.id)?;
                // A rejected one is not valid: a further call tries again.
                if there.is_some_and(|outcome| outcome.state != State::Rejected) {
                    continue;
                }
                let elapsed = self.began.elapsed().as_secs_f64();
                if self.at_most_s.is_some_and(|most| elapsed > most) {
                    println!("the time is over: what is missing is measured by another call");
                    return Ok(false);
                }
                print!("block {block}, {} of {}: ", number + 1, order.len());
                self.measure(&cell)?;
            }
        }
        Ok(true)
    }

    fn is_wide(&self, pair: usize, outcomes: &[Outcome]) -> bool {
        let Pair { cluster, load } = &self.bench.pairs[pair];
        let mut swept: BTreeMap<String, String> = cluster.swept.clone();
        swept.extend(load.workload.swept.clone());
        let study = self.bench.study;
        let of_pair: Vec<Outcome> = outcomes
            .iter()
            .filter(|o| o.cluster.name == cluster.name && o.workload.name == load.workload.name)
            .cloned()
            .collect();
        let is_failed = !of_pair.is_empty() && of_pair.iter().all(|o| o.state == State::Failed);
        let until = study.repetitions.until;
        !is_failed && !figures::is_narrow(&study.figures, &of_pair, &swept, until)
    }

    /// Measures until the cell is accepted or the attempts are used up; the last one is kept.
    fn measure(&self, cell: &Cell) -> Result<()> {
        use std::io::Write;
        let Pair { cluster, load } = &self.bench.pairs[cell.pair];
        print!("{} × {} … ", cluster.name, load.workload.name);
        let _ = std::io::stdout().flush();
        let attempts = self.bench.study.gate.attempts.max(1);
        for attempt in 1..=attempts {
            let unfinished = self.folder.cells().join(format!("{UNFINISHED}{}", cell.id));
            if unfinished.exists() {
                fs::remove_dir_all(&unfinished)?;
            }
            fs::create_dir_all(&unfinished)?;
            let outcome = measure::measure(&self.bench, cell, attempt, &unfinished)
                .with_context(|| format!("cell {} ({})", cell.id, cluster.name))?;
            let text = serde_json::to_vec_pretty(&outcome)?;
            fs::write(Folder::result(&unfinished), text)?;
            let again = outcome.state == State::Rejected && attempt < attempts;
            let place = match again {
                true => self.folder.rejected(&cell.id, attempt),
                false => self.folder.cell(&cell.id),
            };
            if let Some(around) = place.parent() {
                fs::create_dir_all(around)?;
            }
            if place.exists() {
                fs::remove_dir_all(&place)?;
            }
            fs::rename(&unfinished, &place)?;
            println!("{}", told(&outcome));
            if !again {
                break;
            }
            print!("    again … ");
        }
        Ok(())
    }
}

fn told(outcome: &Outcome) -> String {
    let state = match outcome.state {
        State::Accepted => "accepted",
        State::Rejected => "rejected",
        State::Failed => "failed",
    };
    let rates: Vec<String> = outcome
        .stages
        .iter()
        .take(4)
        .map(|s| {
            format!(
                "{} {:.1}/s",
                s.name,
                s.operations.iter().map(|o| o.per_s).sum::<f64>()
            )
        })
        .collect();
    let why = match outcome.why.is_empty() {
        true => String::new(),
        false => format!(": {}", outcome.why.join("; ")),
    };
    format!(
        "{state} in {:.0} s ({}; late {:.2} %, CPU wait {:.1} %){why}",
        outcome.host.total_s,
        rates.join(", "),
        outcome
            .fidelity
            .device_lateness
            .values()
            .copied()
            .fold(outcome.fidelity.network_lateness, f64::max)
            * 100.0,
        outcome.fidelity.cpu_wait * 100.0
    )
}

fn shuffle(order: &mut [usize], seed: u64) {
    let mut random = SplitMix::new(seed);
    for at in (1..order.len()).rev() {
        order.swap(at, (random.number() % (at as u64 + 1)) as usize);
    }
}

/// Lock held while a study runs: two would remove each other's cells.
fn lock(folder: &Folder) -> Result<fs::File> {
    let path = folder.root.join("lock");
    let file = fs::File::create(&path).with_context(|| path.display().to_string())?;
    let operation = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    let is_ours = rustix::fs::flock(&file, operation).is_ok();
    ensure!(
        is_ours,
        "{} is in use by another cairn study",
        folder.root.display()
    );
    Ok(file)
}

fn remove_unfinished(folder: &Folder) -> Result<()> {
    for entry in fs::read_dir(folder.cells())? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// A folder that is removed when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The scratch folder, in memory if there is room, so that this host's own disk does not influence
/// the measurement.
///
/// # Errors
/// The folder cannot be made, or the one above it cannot be read.
pub fn scratch(base: Option<&Path>) -> Result<Scratch> {
    let memory = Path::new("/dev/shm");
    let base = match base {
        Some(base) => base.to_owned(),
        None if memory.is_dir() => memory.to_owned(),
        None => std::env::temp_dir(),
    };
    for entry in fs::read_dir(&base).with_context(|| base.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let dead = name.strip_prefix(SCRATCH).is_some_and(|pid| {
            pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists()
        });
        if dead {
            unmount_below(&entry.path());
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let folder = base.join(format!("{SCRATCH}{}", std::process::id()));
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(Scratch(folder))
}

/// Unmounts file systems below a folder that a killed study left.
fn unmount_below(folder: &Path) {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    for at in places.filter(|at| Path::new(at).starts_with(folder)) {
        let _ = cairn_emulate::host::run("umount", &["--lazy", at]);
    }
}

fn digest(program: &Path) -> Result<String> {
    let bytes = fs::read(program).with_context(|| program.display().to_string())?;
    Ok(hex::encode(Sha256::digest(&bytes)))
}

fn record(folder: &Folder) -> Record {
    let bytes = fs::read(folder.root.join("study.json")).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// Measures the ceiling once, before the first cell.
fn ceiling(folder: &Folder) -> Result<()> {
    if record(folder).ceiling.is_some() {
        return Ok(());
    }
    let measured = cairn_lab::ceiling::of_this_machine();
    let record = Record {
        ceiling: Some(measured.ops_per_second),
    };
    fs::write(
        folder.root.join("study.json"),
        serde_json::to_vec_pretty(&record)?,
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_a_permutation_that_the_seed_determines() {
        let order = |seed| {
            let mut order: Vec<usize> = (0..20).collect();
            shuffle(&mut order, seed);
            order
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        let mut sorted = order(3);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20).collect::<Vec<_>>());
    }
}
