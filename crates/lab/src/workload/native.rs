//! The lab's own workload format: TOML that can express every plan, with sweeps, parameters and
//! scales. `docs/lab-workloads.md` describes it in full.
//!
//! Read in one pass over the parsed document: a stage with `for` is created once per combination,
//! with `${name}` in its texts replaced before they are parsed; so a parameter may be used
//! anywhere, for a number too.

mod fields;
mod operation;
mod scope;
mod work;

/// Keywords of the format, shared with the writer.
pub(super) mod words {
    pub(in super::super) use super::work::{division_text as division, kind_text as work_kind};
}

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::cosbench::parse_trigger;
use super::error::{Source, WorkloadError, shown};
use super::names::Unique;
use super::{Notes, Options, limits, value};
use crate::plan::{Access, Plan, Settings, Stage};
use fields::{Fields, Table, sorted};
use scope::Scope;

const TOP: &[&str] = &[
    "name",
    "description",
    "seed",
    "read_from",
    "scale",
    "auth",
    "storage",
    "parameters",
    "scales",
    "defaults",
    "stage",
];
const STAGE: &[&str] = &[
    "name",
    "for",
    "repeat",
    "work",
    "stage",
    "close_delay",
    "trigger",
    "swept",
];

type Checked<T> = Result<T, WorkloadError>;

/// Reader state for the whole document.
struct Reader<'a> {
    source: &'a Source<'a>,
    defaults: Option<Table<'a>>,
    stages: Vec<Stage>,
    names: Unique,
    operations: usize,
    points: usize,
}

pub(super) fn read(source: &Source<'_>, options: &Options, notes: &mut Notes) -> Checked<Plan> {
    let document = DeTable::parse(source.text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        source.error(at, error.message(), "a workload in TOML")
    })?;
    let top = Table::new(&document);
    let scope = parameters(source, &top, options, notes)?;
    let fields = Fields::new(source, &scope, vec![top]);
    fields.known(&[TOP])?;
    let defaults = fields.table("defaults")?;
    if let Some(defaults) = defaults {
        let known: &[&[&str]] = &[work::DEFAULTS, operation::INHERITED];
        Fields::new(source, &scope, vec![defaults]).known(known)?;
    }
    let mut reader = Reader {
        source,
        defaults,
        stages: Vec::new(),
        names: Unique::default(),
        operations: 0,
        points: 0,
    };
    let stages = fields.tables("stage")?;
    reader.stages(&stages, &scope, 0)?;
    if reader.stages.is_empty() {
        return Err(source.error(0, "a workload without stages", "a [[stage]]"));
    }
    let plan = Plan {
        name: fields
            .text("name")?
            .unwrap_or_else(|| "workload".to_owned()),
        description: fields.text("description")?.unwrap_or_default(),
        format: fields.text("read_from")?.unwrap_or_default(),
        seed: fields.whole("seed", 0, u64::MAX)?.unwrap_or(0),
        access: access(&fields)?.unwrap_or_default(),
        stages: reader.stages,
    };
    Ok(plan)
}

/// `[parameters]`, overridden by the scale's, overridden by the caller's.
fn parameters(
    source: &Source<'_>,
    top: &Table<'_>,
    options: &Options,
    notes: &mut Notes,
) -> Checked<Scope> {
    let mut scope = Scope::default();
    let empty = Scope::default();
    let fields = Fields::new(source, &empty, vec![*top]);
    let parameters = fields.table("parameters")?;
    let scales = fields.table("scales")?;
    let said = fields.text("scale")?;
    let chosen = options.scale.clone().or(said);
    let names = scales.map(|table| sorted(table.keys)).unwrap_or_default();
    let mut scale = None;
    for (name, entry) in names {
        let DeValue::Table(table) = entry.get_ref() else {
            return Err(source.error(
                entry.span().start,
                format!("the scale '{}' that is no table", shown(name)),
                "parameters and their values",
            ));
        };
        if chosen.as_deref() == Some(name) {
            scale = Some(Table::at(table, entry.span().start));
        }
    }
    if let Some(chosen) = chosen.as_deref().filter(|_| scale.is_none()) {
        let at = fields.place("scale").unwrap_or(0);
        let known: Vec<&str> = scales
            .map(|table| {
                sorted(table.keys)
                    .into_iter()
                    .map(|(name, _)| name)
                    .collect()
            })
            .unwrap_or_default();
        let known = if known.is_empty() {
            "no scale: there is no [scales.NAME]".to_owned()
        } else {
            format!("one of: {}", known.join(", "))
        };
        return Err(source.error(at, format!("the scale '{}'", shown(chosen)), known));
    }
    // In document order, so that one may refer to earlier ones.
    let mut entries: Vec<(&str, &Spanned<DeValue<'_>>)> = Vec::new();
    for table in [parameters, scale].into_iter().flatten() {
        for (name, entry) in sorted(table.keys) {
            match entries.iter_mut().find(|(known, _)| *known == name) {
                Some(known) => known.1 = entry,
                None => entries.push((name, entry)),
            }
            if entries.len() > limits::BARS {
                let found = "more parameters";
                let expected = format!("at most {}", limits::BARS);
                return Err(source.error(entry.span().start, found, expected));
            }
        }
    }
    for name in options.parameters.keys() {
        if !entries.iter().any(|(known, _)| known == name) {
            notes.add(format!(
                "the parameter '{}' is none of this workload",
                shown(name)
            ));
        }
    }
    for (name, entry) in entries {
        match options.parameters.get(name) {
            Some(text) => scope.set(name, text.clone()),
            None => scope.bind(source, name, entry)?,
        }
    }
    Ok(scope)
}

/// `auth` and `storage`: a `type`, and the settings of that type.
fn access(fields: &Fields<'_>) -> Checked<Option<Access>> {
    let settings = |key: &str| -> Checked<Option<Settings>> {
        let Some(table) = fields.table(key)? else {
            return Ok(None);
        };
        let mut config = fields.texts_of(&table)?;
        let kind = config.remove("type").unwrap_or_default();
        // A setting that is itself called `type`, as CDMI has one.
        if let Some(setting) = config.remove("=type") {
            config.insert("type".to_owned(), setting);
        }
        Ok(Some(Settings { kind, config }))
    };
    let access = Access {
        auth: settings("auth")?.unwrap_or_default(),
        storage: settings("storage")?.unwrap_or_default(),
    };
    Ok((access != Access::default()).then_some(access))
}

impl Reader<'_> {
    fn stages(&mut self, tables: &[Table<'_>], scope: &Scope, depth: usize) -> Checked<()> {
        for table in tables {
            if depth >= limits::DEPTH {
                let found = format!("stages within stages {depth} deep");
                let expected = format!("at most {}", limits::DEPTH);
                return Err(self.source.error(table.at, found, expected));
            }
            let fields = Fields::new(self.source, scope, vec![*table]);
            fields.known(&[STAGE])?;
            let mut dimensions = Vec::new();
            let repeat = fields.whole("repeat", 1, limits::STAGES as u64)?;
            if let Some(swept) = fields.table("for")? {
                for (name, values) in sorted(swept.keys) {
                    let DeValue::Array(values) = values.get_ref() else {
                        return Err(self.source.error(
                            values.span().start,
                            format!("a sweep of '{}' that is no list", shown(name)),
                            "a list of values: [1, 2, 4]",
                        ));
                    };
                    dimensions.push((name, values.iter().collect::<Vec<_>>()));
                }
            }
            match repeat {
                None => self.sweep(table, scope, &dimensions, depth)?,
                Some(times) => {
                    for repetition in 1..=times {
                        let mut scope = scope.clone();
                        scope.set_swept("repetition", repetition.to_string());
                        self.sweep(table, &scope, &dimensions, depth)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The first dimension varies slowest.
    fn sweep(
        &mut self,
        table: &Table<'_>,
        scope: &Scope,
        dimensions: &[(&str, Vec<&Spanned<DeValue<'_>>>)],
        depth: usize,
    ) -> Checked<()> {
        self.points += 1;
        if self.points > limits::POINTS {
            let found = "sweeps of more points";
            let expected = format!("at most {} together", limits::POINTS);
            return Err(self.source.error(table.at, found, expected));
        }
        let Some(((name, values), rest)) = dimensions.split_first() else {
            return self.stage(table, scope, depth);
        };
        for value in values {
            let mut scope = scope.clone();
            scope.bind_swept(self.source, name, value)?;
            self.sweep(table, &scope, rest, depth)?;
        }
        Ok(())
    }

    fn stage(&mut self, table: &Table<'_>, scope: &Scope, depth: usize) -> Checked<()> {
        let source = self.source;
        let fields = Fields::new(source, scope, vec![*table]);
        let inner = fields.tables("stage")?;
        if !inner.is_empty() {
            for key in ["work", "close_delay", "trigger", "swept"] {
                if let Some(at) = fields.place(key) {
                    return Err(source.error(
                        at,
                        format!("'{key}' of a stage that holds stages"),
                        "only 'name', 'for' and 'repeat' beside [[stage.stage]]",
                    ));
                }
            }
            return self.stages(&inner, scope, depth + 1);
        }
        let mut stage = Stage {
            name: self.name(&fields, scope)?,
            close_delay: fields.time("close_delay")?.unwrap_or_default(),
            swept: scope.swept().clone(),
            ..Stage::default()
        };
        if let Some(swept) = fields.table("swept")? {
            stage.swept.extend(fields.texts_of(&swept)?);
        }
        if let Some((text, at)) = fields.scalar("trigger")? {
            stage.trigger = Some(parse_trigger(&text).ok_or_else(|| {
                let found = format!("the trigger '{}'", shown(&text));
                source.error(at, found, "'script.sh(argument, argument)'")
            })?);
        }
        for table in fields.tables("work")? {
            let (work, operations) = work::read(source, scope, table, self.defaults)?;
            self.operations += operations;
            if self.operations > limits::OPERATIONS {
                let expected = format!("at most {}, sweeps expanded", limits::OPERATIONS);
                return Err(source.error(table.at, "more operations", expected));
            }
            stage.works.push(work);
        }
        if stage.works.is_empty() && fields.place("close_delay").is_none() {
            return Err(source.error(
                table.at,
                "a stage that does nothing",
                "a [[stage.work]], or a 'close_delay' to wait",
            ));
        }
        if self.stages.len() >= limits::STAGES {
            let expected = format!("at most {}, sweeps expanded", limits::STAGES);
            return Err(source.error(table.at, "more stages", expected));
        }
        self.stages.push(stage);
        Ok(())
    }

    /// Names of a sweep's stages are distinguished by its values, unless the name contains them.
    fn name(&mut self, fields: &Fields<'_>, scope: &Scope) -> Checked<String> {
        let number = self.stages.len() + 1;
        let name = fields.text("name")?;
        let says_itself = fields.raw("name").is_some_and(|raw| raw.contains("${"));
        let mut name = name.unwrap_or_else(|| format!("stage{number}"));
        if !says_itself {
            for value in scope.swept().values() {
                name.push('-');
                name.push_str(value);
            }
        }
        let name = value::plain(&name)
            .map_err(|wrong| self.source.wrong(fields.place("name").unwrap_or(0), wrong))?;
        Ok(self.names.take(name))
    }
}

/// Headers, swept values and settings: texts by name.
type Texts = BTreeMap<String, String>;
