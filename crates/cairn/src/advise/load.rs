//! Load of a cell: a workload file for `cairn lab run`, run as a child process, and its results.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use cairn_advise::cell::Measured;
use cairn_advise::plan::Planned;
use cairn_advise::workload::{Operation, Workload};
use cairn_lab::latencies::Latencies;
use cairn_lab::plan::WorkKind;
use cairn_lab::record::{StageResult, WorkResult};
use cairn_lab::results::read_folder;

use super::processor::{Used, Watch};
use super::store::{CODED, Store};

/// Seconds of the ramp, and counted seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) ramp: f64,
    pub(super) counted: f64,
}

/// The lab's TOML for a workload.
pub(super) fn workload_file(workload: &Workload, times: Times) -> String {
    let sizes = workload.mean_size().round();
    let containers = workload.containers;
    let objects = workload.objects.round();
    let workers = workload.workers.unwrap_or(1);
    let rate = workload
        .rate
        .map_or(String::new(), |rate| format!("rate = {rate}\n"));
    // An open loop has as many workers as it may need.
    let main_workers = workload.workers.unwrap_or(256);
    let each = (objects / f64::from(containers)).ceil();
    let mut text = format!(
        "name = \"advise\"\n[defaults]\ncontainer_prefix = \"advise-\"\nsizes = {sizes}\npool = \"all\"\n\
         [[stage]]\nname = \"init\"\n[[stage.work]]\ntype = \"init\"\ncontainers = \"r(1,{containers})\"\n\
         [[stage]]\nname = \"prepare\"\n[[stage.work]]\ntype = \"prepare\"\nworkers = 8\n\
         containers = \"r(1,{containers})\"\nobjects = \"r(1,{each})\"\n\
         [[stage]]\nname = \"main\"\n[[stage.work]]\nworkers = {}\nrampup = {}\nruntime = {}\n\
         interval = \"1s\"\n{rate}",
        main_workers.max(workers),
        times.ramp,
        times.counted
    );
    for (operation, share) in workload.mix().into_iter().filter(|(_, share)| *share > 0.0) {
        let kind = match operation {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Delete => "delete",
            Operation::Head => "head",
        };
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "[[stage.work.operation]]\ntype = \"{kind}\"\nratio = {share}\ncontainers = \"u(1,{containers})\"\n"
        );
    }
    text
}

/// Runs a cell's load once against a running store, in a folder of its own.
pub(super) fn run(
    program: &Path,
    folder: &Path,
    store: &Store,
    planned: &Planned,
    times: Times,
) -> Result<Measured> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let (file, out, log) = (
        folder.join("workload.toml"),
        folder.join("run"),
        folder.join("lab.log"),
    );
    fs::write(&file, workload_file(&planned.workload, times)).context("the workload's file")?;
    let output = fs::File::create(&log).with_context(|| log.display().to_string())?;
    let errors = output.try_clone().context("the lab's output")?;
    let mut command = Command::new(program);
    command
        .args(["lab", "run"])
        .arg(&file)
        .args(["--target", &store.url, "--out"])
        .arg(&out);
    command.args(["--no-ceiling", "--resources", "0", "--timeout", "60"]);
    if planned.cluster.erasure.is_some() {
        command.args(["--storage", &format!("policy={CODED}")]);
    }
    command
        .env("CAIRN_LAB_USER", "test:tester")
        .env("CAIRN_LAB_KEY", "testing");
    command.stdin(Stdio::null()).stdout(output).stderr(errors);
    let mut child = command
        .spawn()
        .with_context(|| program.display().to_string())?;
    let mut watched = store.processes();
    watched.push(child.id());
    let watch = Watch::start(watched);
    let status = child.wait().context("cairn lab run")?;
    // Exit code 3: over one percent failed, which the cell records.
    if !status.success() && status.code() != Some(3) {
        let told = fs::read_to_string(&log).unwrap_or_default();
        let last: Vec<&str> = told.lines().rev().take(3).collect();
        bail!(
            "{}: cairn lab run: {status}: {}",
            planned.name,
            last.join("; ")
        );
    }
    read(&out, &planned.workload, watch)
}

fn read(out: &Path, workload: &Workload, watch: Watch) -> Result<Measured> {
    let measured = read_run(out, workload, 1.0)?;
    let recorded = read_folder(out)?;
    let (stage, work) = main_work(&recorded.stages).context("no main stage")?;
    let used = watch.used(stage.ended - work.seconds, stage.ended);
    let Spent {
        store,
        load,
        storage,
        others,
    } = spent(used.as_ref());
    let each = |seconds: Option<f64>| seconds.map(|s| s / measured.throughput);
    Ok(Measured {
        store_cpu: each(store),
        load_cpu: each(load),
        storage_cpu: each(storage),
        others,
        ..measured
    })
}

fn main_work(stages: &[StageResult]) -> Option<(&StageResult, &WorkResult)> {
    stages.iter().find_map(|stage| {
        let work = stage
            .works
            .iter()
            .find(|work| work.kind == WorkKind::Main)?;
        Some((stage, work))
    })
}

/// The lab's record in a folder; a second of the cluster lasted `dilation` seconds of the host.
pub(super) fn read_run(out: &Path, workload: &Workload, dilation: f64) -> Result<Measured> {
    let recorded = read_folder(out)?;
    let main = main_work(&recorded.stages);
    let (_, work) = main.with_context(|| format!("{}: no main stage", out.display()))?;
    let mut latencies = Latencies::new();
    let (mut ended, mut failed) = (0u64, 0u64);
    for operation in &work.operations {
        latencies.merge(&operation.last_byte);
        ended += operation.ended.unwrap_or(operation.ops);
        failed += operation.errors.values().sum::<u64>();
    }
    if latencies.is_empty() || work.seconds <= 0.0 {
        bail!("{}: nothing was counted", out.display());
    }
    let throughput = ended as f64 / work.seconds * dilation;
    let ms = |percent: f64| latencies.percentile(percent) as f64 / 1e6 / dilation;
    let within = workload.limits_ms.iter().map(|limit| {
        let bound = (limit * 1e6 * dilation) as u64;
        let count = latencies.histogram().count_between(0, bound);
        (*limit, count as f64 / latencies.count() as f64)
    });
    Ok(Measured {
        throughput,
        p50_ms: ms(50.0),
        p95_ms: ms(95.0),
        p99_ms: ms(99.0),
        within: within.collect(),
        failed,
        ..Measured::default()
    })
}

/// Processor seconds per second.
#[derive(Debug, Default, PartialEq)]
struct Spent {
    store: Option<f64>,
    load: Option<f64>,
    storage: Option<f64>,
    /// Share of the host.
    others: Option<f64>,
}

/// Splits processor time; the last watched process is the load's, the first the proxy's.
fn spent(used: Option<&Used>) -> Spent {
    let Some((used, (load, store))) = used.and_then(|u| Some((u, u.each.split_last()?))) else {
        return Spent::default();
    };
    let all: f64 = store.iter().sum();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Spent {
        store: Some(all),
        load: Some(*load),
        storage: (store.len() > 1).then(|| store[1..].iter().sum()),
        others: Some(((used.host - all - load) / cores as f64).max(0.0)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use cairn_lab::workload::{Options, read};

    #[test]
    fn the_lab_understands_every_planned_workload() {
        let times = Times {
            ramp: 0.5,
            counted: 2.0,
        };
        let mut planned = cairn_advise::plan::validation_cells("disk", 2, 1, 40);
        planned[0].workload.rate = Some(12.5);
        planned[0].workload.workers = None;
        for cell in planned {
            let text = workload_file(&cell.workload, times);
            let plan = read("w.toml", text.as_bytes(), &Options::default());
            let plan = plan.unwrap_or_else(|error| panic!("{error}\n{text}")).plan;
            let main = &plan.stages[2].works[0];
            let mix = cell.workload.mix();
            assert_eq!(
                main.operations.len(),
                mix.iter().filter(|(_, s)| *s > 0.0).count()
            );
            if let Some(workers) = cell.workload.workers {
                assert_eq!(main.workers, workers);
            }
        }
    }

    #[test]
    fn time_is_parted() {
        let used = Used {
            each: vec![0.25, 0.5, 0.125],
            host: 1.0,
        };
        let it = spent(Some(&used));
        assert_eq!(
            (it.store, it.load, it.storage),
            (Some(0.75), Some(0.125), Some(0.5))
        );
        assert!(it.others.unwrap() > 0.0);
        assert_eq!(spent(None), Spent::default());
    }
}
