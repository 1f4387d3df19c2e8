//! PUT, GET and DELETE of objects of one size: one run of the lab (`cairn lab run`, a process of its
//! own), with a stage for each verb and a second of warm-up in stages before them, so that what is
//! counted of a stage is all of it. CPU time is read when stages begin and end.
//!
//! GET reads a fixed number of objects, equal for a slow and a fast store, so that neither has more
//! of them in memory. DELETE uses up what was put, in that order, and may end before its time;
//! what is left is removed uncounted.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::load::{Outcome, Verb};
use super::usage;

/// Objects that GET reads.
pub(super) const READ_OBJECTS: u64 = 256;
/// Connections of the stages that are not measured.
const UNMEASURED_CONNECTIONS: usize = 16;
/// Longest wait for an answer: a store under 256 clients may need most of it.
const TIMEOUT_SECONDS: &str = "120";

/// Load of a cell.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub(super) size: u64,
    pub(super) connections: usize,
    pub(super) seconds: u64,
    /// PUT ends after so many objects.
    pub(super) objects_max: u64,
    /// Its objects have names that no other cell of the store has.
    pub(super) number: u64,
}

/// A stage that has ended: its results as the lab prints them, and CPU seconds meanwhile.
struct Stage {
    result: Value,
    server_cpu_seconds: f64,
    generator_cpu_seconds: f64,
}

/// Outcome of a verb, and CPU seconds of the server's processes.
pub(super) type Measured = (Verb, Outcome, f64);

/// Measures a plan on the store at `storage_url`; `roots` are its processes.
pub(super) fn measure(
    lab: &Path,
    storage_url: &str,
    token: &str,
    roots: &[u32],
    plan: Plan,
) -> Result<Vec<Measured>> {
    let stages = run(lab, &workload(storage_url, token, plan), roots)?;
    let stage = |name: &str| {
        let stage = stages.get(name);
        stage.with_context(|| format!("the lab ran no stage {name}"))
    };
    let mut all = Vec::new();
    for (verb, name) in [
        (Verb::Put, "put"),
        (Verb::Get, "get"),
        (Verb::Delete, "delete"),
    ] {
        let measured = stage(name)?;
        all.push((verb, measured.outcome(), measured.server_cpu_seconds));
    }
    // No measurement with failing requests may seem valid.
    for (place, name) in [
        (0, "warm-put"),
        (1, "prepare"),
        (1, "warm-get"),
        (2, "rest"),
    ] {
        let other = stage(name)?.outcome();
        let outcome: &mut Outcome = &mut all[place].1;
        outcome.errors += other.errors;
        outcome.error = outcome.error.take().or(other.error);
    }
    Ok(all)
}

/// Measures GET of a size from a server at `port` that answers with as many bytes as the first part
/// of a path says.
pub(super) fn ceiling(lab: &Path, port: u16, size: u64, seconds: u64) -> Result<Outcome> {
    let text = format!(
        "name = \"ceiling\"\n{}\
         [[stage]]\nname = \"get\"\n[[stage.work]]\nworkers = 64\nruntime = {seconds}\nafr = 1000000\n\
         size_class = \"all\"\ncontainers = \"c(1)\"\nobjects = \"u(1,1000)\"\n\
         operation = [{{ type = \"read\" }}]\n",
        storage(&format!("http://127.0.0.1:{port}/{size}/a"), "none"),
    );
    let stages = run(lab, &text, &[])?;
    let stage = stages.get("get").context("the lab ran no stage get")?;
    Ok(stage.outcome())
}

fn storage(url: &str, token: &str) -> String {
    format!("storage = {{ type = \"swift\", token = \"{token}\", storage_url = \"{url}\" }}\n")
}

/// The run's workload in the lab's own format.
fn workload(storage_url: &str, token: &str, plan: Plan) -> String {
    let Plan {
        size,
        connections,
        seconds,
        objects_max,
        number,
    } = plan;
    let mut text = format!(
        "name = \"bench\"\n{}\
         [defaults]\ncontainer_prefix = \"bench-\"\ncontainers = \"s(0,9)\"\nsizes = {size}\n\
         size_class = \"all\"\nafr = 1000000\n",
        storage(storage_url, token),
    );
    let written =
        format!("pool = \"written\"\nobject_prefix = \"c{number}-o\"\nobject_digits = 10\n");
    let read = format!(
        "pool = \"read\"\nobject_prefix = \"c{number}-r\"\nobject_digits = 10\n\
         objects = \"r(1,{READ_OBJECTS})\"\n"
    );
    let mut stage = |name: &str, workers: usize, lines: &str| {
        text.push_str(&format!(
            "[[stage]]\nname = \"{name}\"\n[[stage.work]]\nworkers = {workers}\n{lines}"
        ));
    };
    let once = |kind: &str, names: &str| format!("type = \"{kind}\"\n{names}");
    let timed = |kind: &str, seconds: u64, names: &str| {
        format!("runtime = {seconds}\n{names}operation = [{{ type = \"{kind}\" }}]\n")
    };
    let few = UNMEASURED_CONNECTIONS;
    stage("init", 1, "type = \"init\"\n");
    let put =
        |seconds, most: u64| format!("total_ops = {most}\n{}", timed("write", seconds, &written));
    stage("warm-put", connections, &put(1, (objects_max / 4).max(1)));
    stage("put", connections, &put(seconds, objects_max));
    stage("prepare", few, &once("prepare", &read));
    stage("warm-get", connections, &timed("read", 1, &read));
    stage("get", connections, &timed("read", seconds, &read));
    let oldest = format!("draw = \"oldest\"\n{written}");
    stage("delete", connections, &timed("delete", seconds, &oldest));
    stage("rest", few, &once("cleanup", &written));
    stage("unread", few, &once("cleanup", &read));
    text
}

/// Runs the lab; returns its stages by name.
fn run(lab: &Path, workload: &str, roots: &[u32]) -> Result<BTreeMap<String, Stage>> {
    let dir = cairn_testkit::workspace::scratch("bench-cell")?;
    let file = dir.path().join("workload.toml");
    std::fs::write(&file, workload)?;
    let log = dir.path().join("lab.log");
    let mut child = Command::new(lab)
        .args(["lab", "run", "--json", "--no-ceiling", "--resources", "0"])
        .args(["--timeout", TIMEOUT_SECONDS, "--out"])
        .arg(dir.path().join("run"))
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&log)?)
        .spawn()
        .with_context(|| format!("starting {}", lab.display()))?;
    let stages = follow(&mut child, roots);
    if stages.is_err() {
        // It goes on otherwise, with nobody to read what it prints.
        let _ = child.kill();
    }
    let status = child.wait()?;
    let (stages, message) = stages?;
    ensure!(
        status.code() == Some(0) || message.is_empty(),
        "the lab ended with {status}: {message}\n{}",
        std::fs::read_to_string(&log)?
    );
    Ok(stages)
}

/// Reads the lab's events to its end; returns the stages, and why the run failed.
fn follow(child: &mut Child, roots: &[u32]) -> Result<(BTreeMap<String, Stage>, String)> {
    let generator = [child.id()];
    let output = child.stdout.take().context("no stdout")?;
    let cpu = || (usage::cpu_seconds(roots), usage::cpu_seconds(&generator));
    let (mut stages, mut message) = (BTreeMap::new(), String::new());
    let mut before = cpu();
    for line in BufReader::new(output).lines() {
        let event: Value = serde_json::from_str(&line?).context("an event of the lab")?;
        if !event["stage_started"].is_null() {
            before = cpu();
        }
        if let Some(result) = event.get("stage_ended") {
            let (server, own) = cpu();
            let stage = Stage {
                result: result.clone(),
                server_cpu_seconds: server - before.0,
                generator_cpu_seconds: own - before.1,
            };
            let name = result["name"].as_str().context("a stage without a name")?;
            stages.insert(name.to_owned(), stage);
        }
        if let Some(text) = event["finished"]["message"].as_str() {
            message = text.to_owned();
        }
    }
    Ok((stages, message))
}

impl Stage {
    /// Results of its one operation; zeros where nothing was done.
    fn outcome(&self) -> Outcome {
        let work = &self.result["works"][0];
        let operation = &work["operations"][0];
        let number = |of: &Value, name: &str| of[name].as_f64().unwrap_or(0.0);
        let errors = operation["errors"].as_object();
        let error_count = |errors: &serde_json::Map<String, Value>| {
            errors.values().filter_map(Value::as_u64).sum::<u64>()
        };
        let done = operation["ops"].as_u64().unwrap_or(0);
        let failed = errors.map_or(0, error_count);
        let started = done + failed;
        Outcome {
            started,
            done,
            errors: failed,
            error: errors.and_then(|errors| errors.keys().next().cloned()),
            seconds: number(work, "seconds"),
            p50_ms: number(operation, "p50_ms"),
            p99_ms: number(operation, "p99_ms"),
            max_ms: number(operation, "max_ms"),
            generator_cpu_us: self.generator_cpu_seconds * 1e6 / started.max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_workload_has_every_stage_that_is_read() {
        let plan = Plan {
            size: 4000,
            connections: 64,
            seconds: 8,
            objects_max: 100,
            number: 3,
        };
        let text = workload("http://127.0.0.1:1/v1/AUTH_test", "t", plan);
        let names: Vec<&str> = text
            .lines()
            .skip(1)
            .filter_map(|line| line.strip_prefix("name = "))
            .collect();
        assert_eq!(
            names.join(" ").replace('"', ""),
            "init warm-put put prepare warm-get get delete rest unread"
        );
        let put = text.split("[[stage]]").nth(3).unwrap_or_default();
        for line in ["workers = 64", "total_ops = 100", "runtime = 8", "c3-o"] {
            assert!(put.contains(line), "{line} in {put}");
        }
    }

    #[test]
    fn a_stage_is_read_as_the_lab_prints_it() {
        let stage = Stage {
            result: json!({ "name": "put", "works": [{ "seconds": 2.0, "operations": [{
                "ops": 98, "errors": { "http 503": 2 },
                "p50_ms": 1.5, "p99_ms": 9.0, "max_ms": 10.0,
            }]}]}),
            server_cpu_seconds: 0.5,
            generator_cpu_seconds: 0.001,
        };
        let outcome = stage.outcome();
        assert_eq!(
            (outcome.started, outcome.done, outcome.errors),
            (100, 98, 2)
        );
        assert_eq!(outcome.error.as_deref(), Some("http 503"));
        assert_eq!((outcome.per_second(), outcome.p99_ms), (49.0, 9.0));
        assert!((outcome.generator_cpu_us - 10.0).abs() < 1e-9);
        let nothing = Stage {
            result: json!({ "works": [{ "seconds": 2.0, "operations": [] }] }),
            ..stage
        };
        let outcome = nothing.outcome();
        assert_eq!((outcome.done, outcome.p50_ms), (0, 0.0));
    }
}
