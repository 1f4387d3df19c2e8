//! Conditions of `--fail-if`: a measure of a run with a limit, `p99>50ms`, `read p99>50ms`,
//! `main/write throughput<1000/s`, `failed>1%`. The condition applies to every measured operation
//! in its scope.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use crate::plot::Unit;
use crate::results::model::{Operation, Run};
use crate::workload;

/// Exit code of a completed run or comparison in which a condition holds.
pub const EXIT_CODE: u8 = 3;

/// Fraction of operations that may fail before a run's exit code reports it, if no condition on
/// failures was given. COSBench itself accepts a fifth.
pub const FAILED_DEFAULT: f64 = 0.01;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    Above,
    Below,
}

impl Bound {
    pub fn words(self) -> &'static str {
        match self {
            Self::Above => "more than",
            Self::Below => "less than",
        }
    }
}

/// The left side of a condition: a measure and a scope of operations and stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The stage; `None`: all.
    pub stage: Option<String>,
    pub operation: Option<String>,
    pub measure: String,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum ScopeError {
    #[error(
        "{0:?} is no condition: expected [[STAGE/]OPERATION ]MEASURE and > or < and a limit, as in \
         p99>50ms or 'read throughput<1000/s'"
    )]
    Form(String),
}

impl Scope {
    /// Splits `main/read p99>50ms` into scope, bound and limit.
    ///
    /// # Errors
    /// `Form` if the bound, the measure or the limit is missing.
    pub fn parse(text: &str) -> Result<(Self, Bound, &str), ScopeError> {
        let wrong = || ScopeError::Form(text.to_owned());
        let at = text.find(['<', '>']).ok_or_else(wrong)?;
        let (left, right) = text.split_at(at);
        let bound = match right.starts_with('>') {
            true => Bound::Above,
            false => Bound::Below,
        };
        let limit = right[1..].trim();
        let left = left.trim();
        let (names, measure) = left.rsplit_once(char::is_whitespace).unwrap_or(("", left));
        if measure.is_empty() || limit.is_empty() {
            return Err(wrong());
        }
        let some = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let (stage, operation) = match names.rsplit_once('/') {
            Some((stage, operation)) => (some(stage), some(operation)),
            None => (None, some(names)),
        };
        let scope = Self {
            stage,
            operation,
            measure: measure.to_ascii_lowercase(),
        };
        Ok((scope, bound, limit))
    }

    /// Is this operation in the scope? `stage` may have its number or not.
    pub fn holds(&self, stage: &str, operation: &str) -> bool {
        let unnumbered = crate::results::unnumbered(stage);
        let is_stage = |named: &String| named == stage || named == unnumbered;
        self.stage.as_ref().is_none_or(is_stage)
            && self.operation.as_deref().is_none_or(|o| o == operation)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(stage) = &self.stage {
            write!(f, "{stage}/")?;
        }
        if let Some(operation) = &self.operation {
            write!(f, "{operation} ")?;
        }
        f.write_str(&self.measure)
    }
}

/// A condition on a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    pub scope: Scope,
    measure: Measure,
    bound: Bound,
    /// Limit in the unit of the measure: microseconds, operations or bytes per second, a share.
    limit: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Measure {
    Throughput,
    Bandwidth,
    Mean,
    Max,
    /// A quantile, 0 to 1.
    Quantile(f64),
    Failed,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConditionError {
    #[error(transparent)]
    Scope(#[from] ScopeError),
    #[error(
        "{0:?} is no measure; it is throughput, bandwidth, mean, a percentile (p50, p99, p99.9), \
         max or failed"
    )]
    Measure(String),
    #[error("the limit {value:?} of {measure}: {expected} was expected")]
    Limit {
        measure: String,
        value: String,
        expected: &'static str,
    },
}

impl FromStr for Condition {
    type Err = ConditionError;

    fn from_str(text: &str) -> Result<Self, ConditionError> {
        let (scope, bound, value) = Scope::parse(text)?;
        let measure = match scope.measure.as_str() {
            "throughput" => Measure::Throughput,
            "bandwidth" => Measure::Bandwidth,
            "mean" => Measure::Mean,
            "max" => Measure::Max,
            "failed" => Measure::Failed,
            name => {
                let percent = name.strip_prefix('p').and_then(|p| p.parse::<f64>().ok());
                let percent = percent.filter(|percent| *percent > 0.0 && *percent <= 100.0);
                let percent = percent.ok_or_else(|| ConditionError::Measure(name.to_owned()))?;
                Measure::Quantile(percent / 100.0)
            }
        };
        let (limit, expected) = measure.limit(value);
        let limit = limit.filter(|limit| limit.is_finite() && *limit >= 0.0);
        let limit = limit.ok_or_else(|| ConditionError::Limit {
            measure: scope.measure.clone(),
            value: value.to_owned(),
            expected,
        })?;
        Ok(Self {
            scope,
            measure,
            bound,
            limit,
        })
    }
}

impl Measure {
    fn limit(self, text: &str) -> (Option<f64>, &'static str) {
        let per_second = text.strip_suffix("/s").unwrap_or(text).trim();
        match self {
            Self::Throughput => (per_second.parse().ok(), "operations a second, as 1000/s,"),
            Self::Bandwidth => (
                workload::bytes(per_second).map(|bytes| bytes as f64),
                "bytes a second, as 100MB/s,",
            ),
            Self::Failed => (
                text.strip_suffix('%')
                    .and_then(|number| number.trim().parse::<f64>().ok())
                    .map(|percent| percent / 100.0),
                "a percentage, as 1%,",
            ),
            _ => (time_us(text), "a time, as 50ms or 2s,"),
        }
    }

    fn unit(self) -> Unit {
        match self {
            Self::Throughput => Unit::PerSecond,
            Self::Bandwidth => Unit::BytesPerSecond,
            Self::Failed => Unit::Share,
            _ => Unit::Time,
        }
    }

    fn of(self, operation: &Operation) -> Option<f64> {
        match self {
            Self::Throughput => operation.rate,
            Self::Bandwidth => operation.bandwidth,
            Self::Mean => operation.latency.mean_us,
            Self::Max => operation.latency.max_us,
            Self::Quantile(quantile) => match &operation.latency.histogram {
                Some(all) => Some(all.percentile(quantile * 100.0) as f64 / 1e3),
                None => operation.latency.at(quantile),
            },
            Self::Failed => {
                let (done, failed) = (operation.done?, operation.failed.count()?);
                let all = done + failed;
                (all > 0).then(|| failed as f64 / all as f64)
            }
        }
    }
}

/// Parses `50ms`, `2s`, `1.5s`, `300us` or `300µs`; a unit is required.
fn time_us(text: &str) -> Option<f64> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let number: f64 = text[..end].parse().ok()?;
    let unit = match text[end..].trim() {
        "ns" => Duration::from_nanos(1),
        "us" | "µs" | "μs" => Duration::from_micros(1),
        "ms" => Duration::from_millis(1),
        "s" => Duration::from_secs(1),
        "m" | "min" => Duration::from_secs(60),
        _ => return None,
    };
    Some(number * unit.as_nanos() as f64 / 1e3)
}

impl Condition {
    /// At most [`FAILED_DEFAULT`] of the operations failed.
    pub fn few_failures() -> Self {
        Self {
            scope: Scope {
                stage: None,
                operation: None,
                measure: "failed".to_owned(),
            },
            measure: Measure::Failed,
            bound: Bound::Above,
            limit: FAILED_DEFAULT,
        }
    }

    pub fn is_of_failures(&self) -> bool {
        self.measure == Measure::Failed
    }

    /// Why the condition holds, one sentence for each operation; empty if it does not. A condition
    /// that applies to no measured operation is reported too: a gate must not open without
    /// evidence.
    pub fn broken(&self, run: &Run) -> Vec<String> {
        let unit = self.measure.unit();
        let mut seen = 0;
        let mut broken = Vec::new();
        for stage in &run.stages {
            let operations = stage.whole_operations().filter(|o| !o.is_special());
            for operation in operations.filter(|o| self.scope.holds(&stage.id, &o.name)) {
                let Some(value) = self.measure.of(operation) else {
                    continue;
                };
                seen += 1;
                let is_broken = match self.bound {
                    Bound::Above => value > self.limit,
                    Bound::Below => value < self.limit,
                };
                if is_broken {
                    broken.push(format!(
                        "{}, {}: {} {}, {} {}",
                        stage.id,
                        operation.name,
                        self.scope.measure,
                        words(unit, value),
                        self.bound.words(),
                        words(unit, self.limit)
                    ));
                }
            }
        }
        if seen == 0 {
            broken.push(format!("{}: nothing was measured", self.scope));
        }
        broken
    }
}

fn words(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Share => {
            let percent = format!("{:.2}", value * 100.0);
            format!("{} %", percent.trim_end_matches('0').trim_end_matches('.'))
        }
        unit => unit.words(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latencies::Latencies;
    use crate::results::model::{Failures, Stage, State, Tool};

    fn run() -> Run {
        let mut latencies = Latencies::new();
        (1..=1000).for_each(|ms| latencies.record(ms * 1_000_000));
        let mut read = Operation::new("read", "read");
        read.done = Some(990);
        read.failed = Failures::Counted(10);
        read.rate = Some(99.0);
        read.bandwidth = Some(1e6);
        read.latency.histogram = Some(latencies);
        let mut prepare = Operation::new("prepare-write", "prepare");
        prepare.rate = Some(1.0);
        let mut stages = vec![Stage::new("s1-prepare", State::Completed)];
        stages[0].operations.push(prepare);
        stages.push(Stage::new("s2-main", State::Completed));
        stages[1].operations.push(read);
        Run {
            name: "a".into(),
            tool: Tool::Lab,
            tool_version: None,
            target: None,
            started: None,
            state: State::Completed,
            broken: Vec::new(),
            plan: None,
            facts: Vec::new(),
            notes: Vec::new(),
            stages,
        }
    }

    fn broken(text: &str) -> Vec<String> {
        text.parse::<Condition>().unwrap().broken(&run())
    }

    #[test]
    fn limits_of_every_measure() {
        for held in [
            "p99>50ms",
            "read p99 > 989ms",
            "main/read p99.9>0.9s",
            "throughput<100/s",
            "bandwidth<2MB/s",
            "failed>0.5%",
        ] {
            assert_eq!(broken(held).len(), 1, "{held}: {:?}", broken(held));
        }
        for open in ["p99>1s", "throughput<99/s", "failed>1%", "bandwidth<1MB/s"] {
            let seen = broken(open);
            assert!(seen.is_empty(), "{open}: {seen:?}");
        }
        assert_eq!(
            broken("failed>0.5%"),
            ["s2-main, read: failed 1 %, more than 0.5 %"]
        );
    }

    #[test]
    fn nothing_measured_is_no_success() {
        assert_eq!(broken("write p99>1s"), ["write p99: nothing was measured"]);
        assert_eq!(broken("prepare/read p99>1s").len(), 1);
    }

    #[test]
    fn wrong_conditions_say_what_is_right() {
        for (text, part) in [
            ("p99", "no condition"),
            ("p99>", "no condition"),
            ("speed>5", "no measure"),
            ("p101>5ms", "no measure"),
            ("p99>50", "a time"),
            ("failed>1", "a percentage"),
            ("throughput<NaN", "operations a second"),
            ("bandwidth<fast", "bytes a second"),
        ] {
            let error = text.parse::<Condition>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
