//! Writer of a plan as a workload in the lab's own format, which [`super::read`] parses to the same
//! plan.
//!
//! Sweeps are written as their stages. Keys with default values are omitted, except for names,
//! which are always complete.

use std::fmt::{self, Write};

use super::native::words;
use super::value::{selector_text, think_text, time_text};
use crate::plan::{
    Access, Arrivals, Content, Draw, Names, Objects, Operation, OperationKind, Pacing, Plan,
    Settings, Stage, Work, WorkKind,
};

/// Writes the whole plan, including its secrets.
pub fn to_toml(plan: &Plan) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = whole(&mut out, plan);
    out
}

/// A TOML string without parameters.
fn quoted(text: &str) -> String {
    toml::Value::String(text.replace("${", "$${")).to_string()
}

/// A key, in which nothing is replaced.
fn key_text(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn inline<'a>(entries: impl IntoIterator<Item = (&'a String, &'a String)>) -> String {
    let entries: Vec<String> = entries
        .into_iter()
        .map(|(key, value)| format!("{} = {}", key_text(key), quoted(value)))
        .collect();
    format!("{{ {} }}", entries.join(", "))
}

fn whole(out: &mut String, plan: &Plan) -> fmt::Result {
    writeln!(out, "name = {}", quoted(&plan.name))?;
    if !plan.description.is_empty() {
        writeln!(out, "description = {}", quoted(&plan.description))?;
    }
    if !plan.format.is_empty() {
        writeln!(out, "read_from = {}", quoted(&plan.format))?;
    }
    // TOML's integers end at 2^63; a text can represent any seed.
    writeln!(out, "seed = \"{}\"", plan.seed)?;
    access(out, &plan.access)?;
    for one in &plan.stages {
        stage(out, one)?;
    }
    Ok(())
}

fn access(out: &mut String, access: &Access) -> fmt::Result {
    for (key, settings) in [("auth", &access.auth), ("storage", &access.storage)] {
        if *settings != Settings::default() {
            let mut entries = settings.config.clone();
            if let Some(setting) = entries.remove("type") {
                entries.insert("=type".to_owned(), setting);
            }
            entries.insert("type".to_owned(), settings.kind.clone());
            writeln!(out, "{key} = {}", inline(&entries))?;
        }
    }
    Ok(())
}

fn stage(out: &mut String, stage: &Stage) -> fmt::Result {
    writeln!(out, "\n[[stage]]\nname = {}", quoted(&stage.name))?;
    if !stage.close_delay.is_zero() || stage.works.is_empty() {
        writeln!(out, "close_delay = \"{}\"", time_text(stage.close_delay))?;
    }
    if let Some(trigger) = &stage.trigger {
        let call = format!("{}({})", trigger.command, trigger.arguments.join(","));
        writeln!(out, "trigger = {}", quoted(&call))?;
    }
    if !stage.swept.is_empty() {
        writeln!(out, "swept = {}", inline(&stage.swept))?;
    }
    for one in &stage.works {
        work(out, one)?;
    }
    Ok(())
}

fn work(out: &mut String, work: &Work) -> fmt::Result {
    writeln!(out, "\n[[stage.work]]\nname = {}", quoted(&work.name))?;
    writeln!(out, "type = \"{}\"", words::work_kind(work.kind))?;
    writeln!(out, "workers = {}", work.workers)?;
    for (key, time) in [("rampup", work.rampup), ("rampdown", work.rampdown)] {
        if !time.is_zero() {
            writeln!(out, "{key} = \"{}\"", time_text(time))?;
        }
    }
    if let Some(runtime) = work.runtime {
        writeln!(out, "runtime = \"{}\"", time_text(runtime))?;
    }
    if let Some(total) = work.total_ops {
        writeln!(out, "total_ops = {total}")?;
    }
    if let Some(total) = work.total_bytes {
        writeln!(out, "total_bytes = {total}")?;
    }
    writeln!(out, "afr = {}", work.afr)?;
    writeln!(out, "division = \"{}\"", words::division(work.division))?;
    writeln!(out, "interval = \"{}\"", time_text(work.interval))?;
    if let Some(driver) = &work.driver {
        writeln!(out, "driver = {}", quoted(driver))?;
    }
    pacing(out, &work.pacing)?;
    if let Some(steady) = &work.steady {
        let window = time_text(steady.window);
        writeln!(
            out,
            "steady = {{ window = \"{window}\", tolerance = \"{}\" }}",
            steady.tolerance
        )?;
    }
    if let Some(knee) = &work.knee {
        write!(
            out,
            "knee = {{ factor = \"{}\", {}",
            knee.factor,
            match knee.max_rate {
                Some(rate) => format!("max_rate = \"{rate}\""),
                None => format!("max_workers = {}", knee.max_workers),
            }
        )?;
        write!(out, ", min_gain = \"{}\"", knee.min_gain)?;
        if let Some(limit) = knee.p99_limit {
            write!(out, ", p99_limit = \"{}\"", time_text(limit))?;
        }
        writeln!(out, " }}")?;
    }
    if let Some(own) = &work.access {
        access(out, own)?;
    }
    for one in &work.operations {
        operation(out, one, work.kind)?;
    }
    Ok(())
}

fn pacing(out: &mut String, pacing: &Pacing) -> fmt::Result {
    match pacing {
        Pacing::Closed { think: None } => Ok(()),
        Pacing::Closed { think: Some(think) } => writeln!(out, "think = \"{}\"", think_text(think)),
        Pacing::Open { rate, arrivals } => {
            let arrivals = match arrivals {
                Arrivals::Poisson => "poisson",
                Arrivals::Constant => "constant",
            };
            writeln!(out, "rate = \"{rate}\"\narrivals = \"{arrivals}\"")
        }
    }
}

fn operation(out: &mut String, operation: &Operation, work: WorkKind) -> fmt::Result {
    writeln!(out, "\n[[stage.work.operation]]")?;
    writeln!(out, "type = \"{}\"", operation.kind.as_str())?;
    if work == WorkKind::Main || operation.ratio != 1.0 {
        writeln!(out, "ratio = \"{}\"", operation.ratio)?;
    }
    if !operation.name.is_empty() {
        writeln!(out, "name = {}", quoted(&operation.name))?;
    }
    if let Some(class) = &operation.size_class {
        writeln!(out, "size_class = {}", quoted(class))?;
    }
    names(out, "container", &operation.containers)?;
    objects(out, operation)?;
    if let Some(sizes) = &operation.sizes {
        writeln!(out, "sizes = \"{}\"", selector_text(sizes))?;
    }
    if operation.content == Content::Zero {
        writeln!(out, "content = \"zero\"")?;
    }
    for (key, said) in [
        ("hashcheck", operation.hashcheck),
        ("chunked", operation.chunked),
    ] {
        if said {
            writeln!(out, "{key} = true")?;
        }
    }
    if let Some(range) = &operation.range {
        writeln!(
            out,
            "range = {{ length = \"{}\", align = {}, object = {} }}",
            selector_text(&range.length),
            range.align,
            range.object_bytes
        )?;
    }
    if let Some(bytes) = operation.part_bytes {
        writeln!(out, "part_size = {bytes}")?;
    }
    if let Some(files) = &operation.files {
        writeln!(out, "files = {}", quoted(files))?;
    }
    if !operation.headers.is_empty() {
        writeln!(out, "headers = {}", inline(&operation.headers))?;
    }
    for (key, suffix) in [
        ("copy_container_suffix", &operation.copy_container_suffix),
        ("copy_suffix", &operation.copy_suffix),
    ] {
        if operation.kind == OperationKind::Copy {
            writeln!(out, "{key} = {}", quoted(suffix))?;
        }
    }
    if operation.batch > 0 {
        writeln!(out, "batch = {}", operation.batch)?;
    }
    if operation.versioned {
        writeln!(out, "versioned = true")?;
    }
    Ok(())
}

fn names(out: &mut String, what: &str, names: &Names) -> fmt::Result {
    writeln!(out, "{what}s = \"{}\"", selector_text(&names.numbers))?;
    writeln!(out, "{what}_prefix = {}", quoted(&names.prefix))?;
    if !names.suffix.is_empty() {
        writeln!(out, "{what}_suffix = {}", quoted(&names.suffix))?;
    }
    if names.digits > 0 {
        writeln!(out, "{what}_digits = {}", names.digits)?;
    }
    Ok(())
}

fn objects(out: &mut String, operation: &Operation) -> fmt::Result {
    match &operation.objects {
        unsaid if *unsaid == Objects::default() && needs_none(operation.kind) => Ok(()),
        Objects::Numbered(numbered) => names(out, "object", numbered),
        Objects::Pool {
            pool,
            names: numbered,
            draw,
        } => {
            names(out, "object", numbered)?;
            writeln!(out, "pool = {}", quoted(pool))?;
            if *draw == Draw::Oldest {
                writeln!(out, "draw = \"oldest\"")?;
            }
            Ok(())
        }
    }
}

fn needs_none(kind: OperationKind) -> bool {
    matches!(
        kind,
        OperationKind::Init
            | OperationKind::Dispose
            | OperationKind::List
            | OperationKind::Versions
    )
}
