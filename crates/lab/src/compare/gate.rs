//! Conditions under which `cairn lab compare --fail-if` exits with a failure, for scripts: `worse`,
//! `not-equivalent`, `plans-differ`, or a significant change: `p99>10%`, `throughput<-5%`, `read
//! p99>10%`, `main/read failed>1%`.

use std::str::FromStr;

use thiserror::Error;

use super::measures::measures;
use super::{Comparison, Row, Verdict};
use crate::fail_if::{Bound, Scope, ScopeError};

#[derive(Clone, Debug, PartialEq)]
pub enum Gate {
    /// B is worse by throughput.
    Worse,
    /// A throughput is not shown to be within the margin.
    NotEquivalent,
    PlansDiffer,
    /// B differs from A by more than this, as a fraction of A (for a share: in points).
    Change {
        scope: Scope,
        bound: Bound,
        limit: f64,
    },
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum GateError {
    #[error(transparent)]
    Scope(#[from] ScopeError),
    #[error(
        "{0:?} is no measure of a comparison; it is one of throughput, bandwidth, mean, p50, p95, \
         p99, failed"
    )]
    Measure(String),
    #[error("{0:?} is no change: a percentage was expected, as in p99>10% or throughput<-5%")]
    Percent(String),
}

impl FromStr for Gate {
    type Err = GateError;

    fn from_str(text: &str) -> Result<Self, GateError> {
        match text.trim() {
            "worse" => return Ok(Self::Worse),
            "not-equivalent" => return Ok(Self::NotEquivalent),
            "plans-differ" => return Ok(Self::PlansDiffer),
            _ => {}
        }
        let (scope, bound, value) = Scope::parse(text)?;
        if !measures().iter().any(|known| known.name == scope.measure) {
            return Err(GateError::Measure(scope.measure));
        }
        let percent = value
            .strip_suffix('%')
            .and_then(|number| number.trim().parse::<f64>().ok())
            .filter(|number| number.is_finite())
            .ok_or_else(|| GateError::Percent(value.to_owned()))?;
        Ok(Self::Change {
            scope,
            bound,
            limit: percent / 100.0,
        })
    }
}

impl Gate {
    /// Why the condition holds, one sentence each; empty if it does not. A condition that cannot be
    /// evaluated for lack of repetitions counts as holding: a gate must not open without evidence.
    pub fn broken(&self, comparison: &Comparison) -> Vec<String> {
        match self {
            Self::Worse => throughput(comparison)
                .filter_map(|row| match row.verdict {
                    Verdict::Worse => Some(said(row, "B is worse")),
                    Verdict::TooFew { least } => Some(too_few(row, least)),
                    _ => None,
                })
                .collect(),
            Self::NotEquivalent => throughput(comparison)
                .filter(|row| !matches!(row.verdict, Verdict::NotRanked(_)))
                .filter(|row| !row.is_within)
                .map(|row| {
                    let margin = comparison.margin * 100.0;
                    said(row, &format!("not shown to be within ±{margin} %"))
                })
                .collect(),
            Self::PlansDiffer => comparison.warnings.clone(),
            Self::Change {
                scope,
                bound,
                limit,
            } => change(comparison, scope, *bound, *limit),
        }
    }
}

fn throughput(comparison: &Comparison) -> impl Iterator<Item = &Row> {
    let rows = comparison.rows.iter();
    rows.filter(|row| row.measure.name == "throughput")
}

fn said(row: &Row, what: &str) -> String {
    format!(
        "{}, {} {}: {what} ({})",
        row.stage,
        row.operation,
        row.measure.name,
        super::words::difference(row)
    )
}

fn too_few(row: &Row, least: u32) -> String {
    said(
        row,
        &format!("too few repetitions to tell, {least} of each are the least"),
    )
}

fn change(comparison: &Comparison, scope: &Scope, bound: Bound, limit: f64) -> Vec<String> {
    let in_scope = |row: &&Row| scope.holds(&row.stage, &row.operation);
    let mut scoped = comparison.rows.iter().filter(in_scope).peekable();
    if scoped.peek().is_none() {
        return vec![format!("{scope}: there is no such stage and operation")];
    }
    // There is no row for failures if neither side had any.
    let rows = scoped.filter(|row| row.measure.name == scope.measure);
    rows.filter_map(|row| {
        let (interval, base) = match (row.interval, row.base()) {
            (Some(interval), Some(base)) => (interval, base.abs()),
            (None, _) => {
                let Verdict::TooFew { least } = row.verdict else {
                    return None;
                };
                return Some(too_few(row, least));
            }
            (_, None) => return Some(said(row, "cannot be told, since A is zero")),
        };
        let beyond = match bound {
            Bound::Above => interval.low / base > limit,
            Bound::Below => interval.high / base < limit,
        };
        beyond.then(|| said(row, &format!("{} {:+} %", bound.words(), limit * 100.0)))
    })
    .collect()
}
