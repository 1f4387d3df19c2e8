//! Reader of a `[[stage.work]]`: workers, duration, pacing, and mix.

use std::time::Duration;

use super::super::error::{Source, WorkloadError, shown};
use super::super::limits;
use super::super::value;
use super::access;
use super::fields::{Fields, Table};
use super::operation;
use super::scope::Scope;
use crate::plan::{Arrivals, Division, Knee, Pacing, Steady, Work, WorkKind};

/// Keys that `[defaults]` may set for all works.
pub(super) const DEFAULTS: &[&str] = &[
    "workers",
    "rampup",
    "runtime",
    "rampdown",
    "total_ops",
    "total_bytes",
    "afr",
    "division",
    "interval",
    "driver",
    "rate",
    "arrivals",
    "think",
    "steady",
    "knee",
];
/// Keys of a single work only.
const OWN: &[&str] = &["name", "type", "auth", "storage", "operation"];
const KINDS: &[(&str, WorkKind)] = &[
    ("main", WorkKind::Main),
    ("init", WorkKind::Init),
    ("prepare", WorkKind::Prepare),
    ("cleanup", WorkKind::Cleanup),
    ("dispose", WorkKind::Dispose),
    ("delay", WorkKind::Delay),
];
const DIVISIONS: &[(&str, Division)] = &[
    ("none", Division::None),
    ("container", Division::Container),
    ("object", Division::Object),
];

pub(in super::super) fn kind_text(kind: WorkKind) -> &'static str {
    KINDS
        .iter()
        .find(|(_, known)| *known == kind)
        .map_or("main", |(text, _)| text)
}

pub(in super::super) fn division_text(division: Division) -> &'static str {
    DIVISIONS
        .iter()
        .find(|(_, known)| *known == division)
        .map_or("none", |(text, _)| text)
}

type Checked<T> = Result<T, WorkloadError>;

/// The work, and the number of operations in its mix.
pub(super) fn read<'a>(
    source: &'a Source<'a>,
    scope: &'a Scope,
    table: Table<'a>,
    defaults: Option<Table<'a>>,
) -> Checked<(Work, usize)> {
    let own = Fields::new(source, scope, vec![table]);
    own.known(&[OWN, DEFAULTS, operation::INHERITED])?;
    let kind = own.word("type", KINDS)?.unwrap_or_default();
    let behind = |mut tables: Vec<Table<'a>>| {
        tables.extend(defaults);
        tables
    };
    let fields = Fields::new(source, scope, behind(vec![table]));
    // Special works end when all items are done: durations and pacing do not apply to them.
    let timed = if kind == WorkKind::Main {
        &fields
    } else {
        &own
    };
    let mut work = Work {
        name: own
            .text("name")?
            .unwrap_or_else(|| kind_text(kind).to_owned()),
        kind,
        workers: workers(&fields)?,
        rampup: timed.time("rampup")?.unwrap_or_default(),
        runtime: timed.time("runtime")?.filter(|time| !time.is_zero()),
        rampdown: timed.time("rampdown")?.unwrap_or_default(),
        total_ops: timed
            .whole("total_ops", 0, limits::TOTAL_OPS)?
            .filter(|n| *n > 0),
        total_bytes: timed
            .size("total_bytes", limits::TOTAL_BYTES)?
            .filter(|n| *n > 0),
        afr: afr(timed, kind)?,
        division: match (timed.word("division", DIVISIONS)?, kind) {
            (Some(division), _) => division,
            (None, WorkKind::Init | WorkKind::Dispose) => Division::Container,
            (None, WorkKind::Prepare | WorkKind::Cleanup) => Division::Object,
            (None, WorkKind::Main | WorkKind::Delay) => Division::None,
        },
        interval: interval(&fields)?,
        driver: fields.text("driver")?,
        operations: Vec::new(),
        pacing: pacing(timed)?,
        steady: steady(timed)?,
        knee: knee(timed, &pacing(timed)?)?,
        access: access(&own)?,
    };
    check_end(&own, &work)?;
    let tables = own.tables("operation")?;
    for inner in &tables {
        let fields = Fields::new(source, scope, behind(vec![*inner, table]));
        fields.known(&[operation::OWN, operation::INHERITED])?;
        let own = fields.within(*inner);
        work.operations
            .push(operation::read(&fields, Some(&own), kind)?);
    }
    if tables.is_empty() && kind != WorkKind::Delay {
        if kind == WorkKind::Main {
            return Err(source.error(
                own.start(),
                format!("the work '{}' without operations", shown(&work.name)),
                "a [[stage.work.operation]]",
            ));
        }
        work.operations.push(operation::read(&fields, None, kind)?);
    }
    if !work.operations.is_empty() && work.operations.iter().all(|o| o.ratio <= 0.0) {
        let expected = "a ratio above 0";
        return Err(source.error(own.start(), "operations of ratio 0 only", expected));
    }
    operation::name_apart(&mut work.operations);
    let count = work.operations.len();
    Ok((work, count))
}

fn workers(fields: &Fields<'_>) -> Checked<u32> {
    let workers = fields.whole("workers", 1, limits::WORKERS)?.unwrap_or(1);
    Ok(u32::try_from(workers).unwrap_or(u32::MAX))
}

/// Accepted failures in millionths.
fn afr(fields: &Fields<'_>, kind: WorkKind) -> Checked<u32> {
    let default = if kind == WorkKind::Main { 200_000 } else { 0 };
    let afr = fields.whole("afr", 0, 1_000_000)?;
    Ok(afr
        .and_then(|afr| u32::try_from(afr).ok())
        .unwrap_or(default))
}

fn interval(fields: &Fields<'_>) -> Checked<Duration> {
    fields
        .parsed("interval", |text| match value::time(text)? {
            time if time < Duration::from_millis(100) => Err(super::super::error::Wrong::new(
                format!("'{}'", shown(text)),
                "100 milliseconds or more",
            )),
            time => Ok(time),
        })
        .map(|time| time.unwrap_or(Duration::from_secs(5)))
}

fn pacing(fields: &Fields<'_>) -> Checked<Pacing> {
    let think = fields.parsed("think", value::think)?;
    let arrivals = &[
        ("poisson", Arrivals::Poisson),
        ("constant", Arrivals::Constant),
    ];
    let arrivals = fields.word("arrivals", arrivals)?;
    match fields.real("rate", 1e-6, limits::RATE)? {
        Some(rate) if think.is_none() => Ok(Pacing::Open {
            rate,
            arrivals: arrivals.unwrap_or_default(),
        }),
        Some(_) => Err(fields.source.error(
            fields.place("think").unwrap_or_else(|| fields.start()),
            "'think' beside 'rate'",
            "one of them: an open loop's operations are due whatever workers think",
        )),
        None if arrivals.is_some() => Err(fields.source.error(
            fields.place("arrivals").unwrap_or_else(|| fields.start()),
            "'arrivals' without 'rate'",
            "rate = operations a second",
        )),
        None => Ok(Pacing::Closed { think }),
    }
}

fn steady(fields: &Fields<'_>) -> Checked<Option<Steady>> {
    let Some(table) = fields.table("steady")? else {
        return Ok(None);
    };
    let inner = fields.within(table);
    inner.known(&[&["window", "tolerance"]])?;
    Ok(Some(Steady {
        window: inner.time("window")?.unwrap_or(Duration::from_secs(60)),
        tolerance: inner.real("tolerance", 0.0, 10.0)?.unwrap_or(0.05),
    }))
}

/// A search raises the workers of a closed loop, or the rate of an open one.
fn knee(fields: &Fields<'_>, pacing: &Pacing) -> Checked<Option<Knee>> {
    let Some(table) = fields.table("knee")? else {
        return Ok(None);
    };
    let inner = fields.within(table);
    inner.known(&[&["factor", "max_workers", "min_gain", "p99_limit", "max_rate"]])?;
    let most = inner.whole("max_workers", 1, limits::WORKERS)?;
    let max_rate = inner.real("max_rate", 1e-6, limits::RATE)?;
    let most = match (max_rate, most, pacing) {
        (None, most, _) => inner.required("max_workers", most, "512, or max_rate")?,
        // Not used.
        (Some(_), None, Pacing::Open { .. }) => 1,
        (Some(_), ..) => {
            return Err(fields.source.error(
                inner.place("max_rate").unwrap_or_else(|| inner.start()),
                "'max_rate' beside 'max_workers', or of a work without 'rate'",
                "'rate' at the work, and one of both here",
            ));
        }
    };
    Ok(Some(Knee {
        factor: inner.real("factor", 1.01, 1000.0)?.unwrap_or(2.0),
        max_workers: u32::try_from(most).unwrap_or(u32::MAX),
        min_gain: inner.real("min_gain", 0.0, 100.0)?.unwrap_or(0.05),
        p99_limit: inner.time("p99_limit")?,
        max_rate,
    }))
}

/// Checks that a normal work ends by time or totals; a knee and a delay need a time.
fn check_end(own: &Fields<'_>, work: &Work) -> Checked<()> {
    let limited = work.runtime.is_some() || work.total_ops.is_some() || work.total_bytes.is_some();
    let missing = match work.kind {
        WorkKind::Main if !limited => "runtime, total_ops or total_bytes",
        WorkKind::Delay if work.runtime.is_none() => "runtime",
        WorkKind::Main if work.knee.is_some() && work.runtime.is_none() => {
            "runtime: each step of a knee search takes it"
        }
        WorkKind::Main if work.steady.is_some() && work.runtime.is_none() => {
            "runtime: the longest to wait until it is steady"
        }
        _ => return Ok(()),
    };
    let found = format!("the work '{}' without an end", shown(&work.name));
    Err(own.source.error(own.start(), found, missing))
}
