//! COSBench workload XML: elements with their inheritance and special works, resolved into a plan.
//!
//! `config` is inherited from workload, workflow, stage and work by the operation, and nearer
//! values take precedence; `auth` and `storage` from workload by stage by work. Special works
//! (`init`, `prepare`, `cleanup`, `dispose`) have the single operation of their name, whatever they
//! contain, and access each object or container of their ranges once.

mod element;
mod operation;

use std::time::Duration;

use super::error::{Source, WorkloadError, shown};
use super::names::Unique;
use super::settings::List;
use super::value;
use super::xml::{self, Element};
use super::{Notes, limits};
use element::{expect_attributes, expect_children, expect_name, required};

use crate::plan::{Access, Division, Operation, Plan, Settings, Stage, Trigger, Work, WorkKind};

/// Inherited configs: texts with their offsets, outermost first.
type Configs<'x> = Vec<(&'x str, usize)>;

struct Context<'x> {
    source: &'x Source<'x>,
    /// The workload's store; an equal one elsewhere counts as inherited.
    access: Access,
    operations: usize,
}

pub(super) fn read(source: &Source<'_>, notes: &mut Notes) -> Result<Plan, WorkloadError> {
    let root = xml::parse(source)?;
    expect_name(source, &root, "workload")?;
    let children = &["auth", "storage", "workflow"];
    expect_children(source, &root, children)?;
    let known = &["name", "description", "trigger", "config"];
    expect_attributes(&root, known, notes);
    let workflow = root.child("workflow").ok_or_else(|| {
        source.error(
            root.at,
            "a <workload> without <workflow>",
            "a <workflow> with its stages",
        )
    })?;
    expect_children(source, workflow, &["workstage"])?;
    expect_attributes(workflow, &["config"], notes);
    let mut context = Context {
        source,
        access: access_of(source, &root, notes)?.unwrap_or_default(),
        operations: 0,
    };
    let mut plan = Plan {
        name: required(source, &root, "name")?.to_owned(),
        description: root.text("description").to_owned(),
        access: context.access.clone(),
        ..Plan::default()
    };
    let mut configs = Configs::new();
    push_config(&mut configs, &root);
    push_config(&mut configs, workflow);
    let whole_trigger = trigger(source, &root)?;
    if whole_trigger.is_some() {
        notes.add("the trigger of the workload is run around each of its stages".to_owned());
    }
    let mut names = Unique::default();
    for (element, number) in workflow.named("workstage").zip(1usize..) {
        for mut stage in context.stage(element, number, &configs, notes)? {
            stage.name = names.take(stage.name);
            if stage.trigger.is_none() {
                stage.trigger.clone_from(&whole_trigger);
            }
            plan.stages.push(stage);
        }
        if plan.stages.len() > limits::STAGES {
            return Err(source.error(
                element.at,
                "a workload of more stages",
                format!("at most {}", limits::STAGES),
            ));
        }
    }
    if plan.stages.is_empty() {
        return Err(source.error(workflow.at, "a <workflow> without stages", "a <workstage>"));
    }
    Ok(plan)
}

impl Context<'_> {
    /// A stage, preceded by one that creates containers for its prepare works (or followed by one
    /// that deletes those of its cleanup works), if a config requests that.
    fn stage(
        &mut self,
        element: &Element,
        number: usize,
        inherited: &Configs<'_>,
        notes: &mut Notes,
    ) -> Result<Vec<Stage>, WorkloadError> {
        expect_children(self.source, element, &["auth", "storage", "work"])?;
        let known = &["name", "closuredelay", "trigger", "config"];
        expect_attributes(element, known, notes);
        let name = required(self.source, element, "name")?;
        let mut configs = inherited.clone();
        push_config(&mut configs, element);
        let access = access_of(self.source, element, notes)?;
        let mut stage = Stage {
            name: format!("s{number}-{name}"),
            close_delay: seconds(self.source, element, "closuredelay")?,
            trigger: trigger(self.source, element)?,
            ..Stage::default()
        };
        let (mut before, mut after) = (Vec::new(), Vec::new());
        let mut works = 0;
        for work in element.named("work") {
            works += 1;
            let Some(work) = self.work(work, &configs, access.as_ref(), notes)? else {
                continue;
            };
            if work.makes_containers {
                before.push(containers_only(&work.work, WorkKind::Init));
            }
            if work.deletes_containers {
                after.push(containers_only(&work.work, WorkKind::Dispose));
            }
            if !work.work.operations.is_empty() {
                stage.works.push(work.work);
            }
        }
        if works == 0 {
            return Err(self.source.error(
                element.at,
                format!("the stage '{}' without works", shown(name)),
                "a <work>, or <work type=\"delay\"/> to wait",
            ));
        }
        let mut stages = Vec::new();
        if !before.is_empty() {
            stages.push(Stage {
                name: format!("{}-containers", stage.name),
                works: before,
                ..Stage::default()
            });
        }
        let name = stage.name.clone();
        stages.push(stage);
        if !after.is_empty() {
            stages.push(Stage {
                name: format!("{name}-containers"),
                works: after,
                ..Stage::default()
            });
        }
        Ok(stages)
    }

    /// A work; `None` for a delay, whose duration is part of the stage.
    fn work(
        &mut self,
        element: &Element,
        inherited: &Configs<'_>,
        of_stage: Option<&Access>,
        notes: &mut Notes,
    ) -> Result<Option<ReadWork>, WorkloadError> {
        let source = self.source;
        expect_children(source, element, &["auth", "storage", "operation"])?;
        expect_attributes(element, WORK_ATTRIBUTES, notes);
        let Some(kind) = work_kind(source, element)? else {
            return Ok(None);
        };
        let mut configs = inherited.clone();
        push_config(&mut configs, element);
        let workers = element.attribute("workers").ok_or_else(|| {
            source.error(
                element.at,
                "a <work> without 'workers'",
                "workers=\"…\", 1 or more",
            )
        })?;
        let workers = value::whole(&workers.value, 1, limits::WORKERS)
            .map_err(|wrong| source.wrong(workers.at, wrong))?;
        let own = access_of(source, element, notes)?;
        let mut work = Work {
            kind,
            name: match (element.text("name"), kind) {
                ("", WorkKind::Main) => required(source, element, "name")?.to_owned(),
                ("", kind) => special_name(kind).to_owned(),
                (name, _) => name.to_owned(),
            },
            workers: u32::try_from(workers).unwrap_or(u32::MAX),
            afr: afr(source, element, kind)?,
            interval: interval(source, element)?,
            driver: Some(element.text("driver"))
                .filter(|driver| !driver.is_empty())
                .map(str::to_owned),
            access: self.own_access(own, of_stage),
            division: match kind {
                WorkKind::Main => division(source, element)?.unwrap_or_default(),
                WorkKind::Init | WorkKind::Dispose => Division::Container,
                _ => Division::Object,
            },
            ..Work::default()
        };
        if kind != WorkKind::Main {
            let mut list = list_of(source, &configs, element.at, notes)?;
            if element.text("config").is_empty() {
                // In files written by COSBench itself the operation has the config too.
                for operation in element.named("operation") {
                    extend(source, &mut list, operation, notes)?;
                }
            }
            self.count(element)?;
            return operation::special(source, work, &list, notes).map(Some);
        }
        limit_work(source, element, &mut work)?;
        self.operations(element, &configs, &mut work, notes)?;
        Ok(Some(ReadWork::plain(work)))
    }

    fn operations(
        &mut self,
        element: &Element,
        configs: &Configs<'_>,
        work: &mut Work,
        notes: &mut Notes,
    ) -> Result<(), WorkloadError> {
        let source = self.source;
        let mut sum = 0.0;
        let mut divisions = Vec::new();
        for (child, number) in element.named("operation").zip(1usize..) {
            expect_children(source, child, &[])?;
            expect_attributes(child, &["type", "ratio", "division", "config", "id"], notes);
            let mut configs = configs.clone();
            push_config(&mut configs, child);
            let list = list_of(source, &configs, child.at, notes)?;
            let ratio = child.attribute("ratio").map_or(Ok(100), |ratio| {
                value::whole(&ratio.value, 0, 100).map_err(|w| source.wrong(ratio.at, w))
            })?;
            if ratio == 0 {
                continue;
            }
            self.count(child)?;
            sum += ratio as f64;
            if sum > 100.0 {
                break;
            }
            divisions.push(division(source, child)?.unwrap_or(work.division));
            let mut read = operation::main(source, child, &list, notes)?;
            read.ratio = ratio as f64;
            if read.name.is_empty() {
                let taken = |o: &Operation| o.name == read.kind.as_str();
                read.name = match child.text("id") {
                    _ if !work.operations.iter().any(taken) => read.kind.as_str().to_owned(),
                    "" | "none" => format!("op{number}"),
                    id => id.to_owned(),
                };
            }
            work.operations.push(read);
        }
        if work.operations.is_empty() {
            return Err(source.error(
                element.at,
                format!("the work '{}' without operations", shown(&work.name)),
                "an <operation> whose ratio is not 0",
            ));
        }
        if sum != 100.0 {
            return Err(source.error(
                element.at,
                format!("ratios that sum to {sum}"),
                "ratios that sum to 100",
            ));
        }
        work.division = divisions[0];
        if divisions.iter().any(|other| *other != divisions[0]) {
            notes.add(format!(
                "the operations of '{}' are divided in different ways: all are divided as the first",
                shown(&work.name)
            ));
        }
        Ok(())
    }

    fn count(&mut self, element: &Element) -> Result<(), WorkloadError> {
        self.operations += 1;
        if self.operations > limits::OPERATIONS {
            return Err(self.source.error(
                element.at,
                "a workload of more operations",
                format!("at most {}", limits::OPERATIONS),
            ));
        }
        Ok(())
    }

    /// The store of a work or its stage, if it differs from the workload's.
    fn own_access(&self, own: Option<Access>, of_stage: Option<&Access>) -> Option<Access> {
        let part = |get: fn(&Access) -> &Settings| {
            let said = |access: Option<&Access>| {
                access
                    .map(get)
                    .filter(|settings| !settings.kind.is_empty())
                    .cloned()
            };
            said(own.as_ref())
                .or_else(|| said(of_stage))
                .filter(|settings| settings != get(&self.access))
                .unwrap_or_default()
        };
        let access = Access {
            auth: part(|access| &access.auth),
            storage: part(|access| &access.storage),
        };
        (access != Access::default()).then_some(access)
    }
}

const WORK_ATTRIBUTES: &[&str] = &[
    "name",
    "type",
    "workers",
    "interval",
    "division",
    "runtime",
    "rampup",
    "rampdown",
    "afr",
    "totalOps",
    "totalBytes",
    "driver",
    "config",
];

/// A work, and whether its containers must be created before or deleted after it.
pub(super) struct ReadWork {
    work: Work,
    makes_containers: bool,
    deletes_containers: bool,
}

impl ReadWork {
    fn plain(work: Work) -> Self {
        Self {
            work,
            makes_containers: false,
            deletes_containers: false,
        }
    }
}

/// The work that creates or deletes the containers of a prepare or cleanup work.
fn containers_only(of: &Work, kind: WorkKind) -> Work {
    let mut work = of.clone();
    work.name = format!("{}-containers", of.name);
    work.kind = kind;
    work.division = Division::Container;
    work.operations = operation::containers_only(&of.operations, kind);
    work
}

fn special_name(kind: WorkKind) -> &'static str {
    match kind {
        WorkKind::Init => "init",
        WorkKind::Prepare => "prepare",
        WorkKind::Main => "main",
        WorkKind::Cleanup => "cleanup",
        WorkKind::Dispose => "dispose",
        WorkKind::Delay => "delay",
    }
}

/// The work's kind; `None` for a delay.
fn work_kind(source: &Source<'_>, element: &Element) -> Result<Option<WorkKind>, WorkloadError> {
    let Some(attribute) = element.attribute("type") else {
        return Ok(Some(WorkKind::Main));
    };
    match attribute.value.as_str() {
        "normal" => Ok(Some(WorkKind::Main)),
        "init" => Ok(Some(WorkKind::Init)),
        "prepare" => Ok(Some(WorkKind::Prepare)),
        "cleanup" => Ok(Some(WorkKind::Cleanup)),
        "dispose" => Ok(Some(WorkKind::Dispose)),
        "delay" => Ok(None),
        other => Err(source.error(
            attribute.at,
            format!("the work type '{}'", shown(other)),
            "normal, init, prepare, cleanup, dispose or delay",
        )),
    }
}

/// Sets the end of a normal work: at least one of runtime, totalOps and totalBytes.
fn limit_work(
    source: &Source<'_>,
    element: &Element,
    work: &mut Work,
) -> Result<(), WorkloadError> {
    let total = |name: &str, high: u64| {
        let Some(attribute) = element.attribute(name) else {
            return Ok(None);
        };
        value::whole(&attribute.value, 0, high)
            .map(|total| (total > 0).then_some(total))
            .map_err(|wrong| source.wrong(attribute.at, wrong))
    };
    work.total_ops = total("totalOps", limits::TOTAL_OPS)?;
    work.total_bytes = total("totalBytes", limits::TOTAL_BYTES)?;
    let runtime = seconds(source, element, "runtime")?;
    let (rampup, rampdown) = (
        seconds(source, element, "rampup")?,
        seconds(source, element, "rampdown")?,
    );
    if runtime > Duration::ZERO {
        // Without a runtime COSBench has no ramps either: the work ends with its totals.
        work.runtime = Some(runtime);
        (work.rampup, work.rampdown) = (rampup, rampdown);
    }
    if work.runtime.is_none() && work.total_ops.is_none() && work.total_bytes.is_none() {
        return Err(source.error(
            element.at,
            format!("the work '{}' without an end", shown(&work.name)),
            "runtime, totalOps or totalBytes above 0",
        ));
    }
    Ok(())
}

fn seconds(source: &Source<'_>, element: &Element, name: &str) -> Result<Duration, WorkloadError> {
    let Some(attribute) = element.attribute(name) else {
        return Ok(Duration::ZERO);
    };
    value::whole(&attribute.value, 0, limits::TIME.as_secs())
        .map(Duration::from_secs)
        .map_err(|wrong| source.wrong(attribute.at, wrong))
}

fn interval(source: &Source<'_>, element: &Element) -> Result<Duration, WorkloadError> {
    let Some(attribute) = element.attribute("interval") else {
        return Ok(Duration::from_secs(5));
    };
    value::whole(&attribute.value, 1, 86_400)
        .map(Duration::from_secs)
        .map_err(|wrong| source.wrong(attribute.at, wrong))
}

/// Accepted failures in millionths: a fifth for normal works, none for special ones.
fn afr(source: &Source<'_>, element: &Element, kind: WorkKind) -> Result<u32, WorkloadError> {
    let default = if kind == WorkKind::Main { 200_000 } else { 0 };
    let Some(attribute) = element.attribute("afr") else {
        return Ok(default);
    };
    value::whole(&attribute.value, 0, 1_000_000)
        .map(|afr| u32::try_from(afr).unwrap_or(default))
        .map_err(|wrong| source.wrong(attribute.at, wrong))
}

fn division(source: &Source<'_>, element: &Element) -> Result<Option<Division>, WorkloadError> {
    let Some(attribute) = element.attribute("division") else {
        return Ok(None);
    };
    match attribute.value.as_str() {
        "none" => Ok(Some(Division::None)),
        "container" => Ok(Some(Division::Container)),
        "object" => Ok(Some(Division::Object)),
        other => Err(source.error(
            attribute.at,
            format!("the division '{}'", shown(other)),
            "none, container or object",
        )),
    }
}

/// Parses `name.sh(argument, argument)`.
fn trigger(source: &Source<'_>, element: &Element) -> Result<Option<Trigger>, WorkloadError> {
    let Some(attribute) = element.attribute("trigger") else {
        return Ok(None);
    };
    if attribute.value.trim().is_empty() {
        return Ok(None);
    }
    parse_trigger(&attribute.value).map(Some).ok_or_else(|| {
        source.error(
            attribute.at,
            format!("the trigger '{}'", shown(&attribute.value)),
            "'script.sh(argument, argument)'",
        )
    })
}

/// Parses a trigger; shared with the TOML reader.
pub(super) fn parse_trigger(text: &str) -> Option<Trigger> {
    let (command, arguments) = text.trim().strip_suffix(')')?.split_once('(')?;
    let command = command.trim();
    if command.is_empty() || arguments.contains(['(', ')']) {
        return None;
    }
    let arguments = arguments.split(',').map(str::trim);
    Some(Trigger {
        command: command.to_owned(),
        arguments: arguments
            .filter(|a| !a.is_empty())
            .map(str::to_owned)
            .collect(),
    })
}

/// An element's own `<auth>` and `<storage>`.
fn access_of(
    source: &Source<'_>,
    element: &Element,
    notes: &mut Notes,
) -> Result<Option<Access>, WorkloadError> {
    let mut settings = |name: &str| -> Result<Option<Settings>, WorkloadError> {
        let Some(child) = element.child(name) else {
            return Ok(None);
        };
        expect_children(source, child, &[])?;
        let mut list = List::default();
        extend(source, &mut list, child, notes)?;
        let kind = child.text("type");
        Ok(Some(list.into_settings(
            if kind.is_empty() { "none" } else { kind },
            notes,
        )))
    };
    let (auth, storage) = (settings("auth")?, settings("storage")?);
    Ok((auth.is_some() || storage.is_some()).then(|| Access {
        auth: auth.unwrap_or_default(),
        storage: storage.unwrap_or_default(),
    }))
}

fn push_config<'x>(configs: &mut Configs<'x>, element: &'x Element) {
    if let Some(config) = element.attribute("config") {
        configs.push((config.value.as_str(), config.at));
    }
}

fn list_of(
    source: &Source<'_>,
    configs: &Configs<'_>,
    at: usize,
    notes: &mut Notes,
) -> Result<List, WorkloadError> {
    let mut list = List::default();
    list.extend(source, "", at, notes)?;
    for (text, at) in configs {
        list.extend(source, text, *at, notes)?;
    }
    Ok(list)
}

fn extend(
    source: &Source<'_>,
    list: &mut List,
    element: &Element,
    notes: &mut Notes,
) -> Result<(), WorkloadError> {
    match element.attribute("config") {
        Some(config) => list.extend(source, &config.value, config.at, notes),
        None => list.extend(source, "", element.at, notes),
    }
}
