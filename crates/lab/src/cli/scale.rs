//! Scaling of a published workload for a smaller machine or less time: multiplies all times,
//! operation counts or sizes by a factor. The mix, the objects and the workers stay unchanged.

use std::time::Duration;

use clap::Args;

use crate::plan::{Plan, RangeRead, Work};
use crate::selector::{Bar, Selector};

#[derive(Debug, Clone, Args)]
pub(super) struct Scale {
    /// Multiply all times (ramp-up, runtime, ramp-down, delays) by this
    #[arg(long, value_name = "FACTOR", default_value = "1", hide_default_value = true,
        value_parser = factor)]
    time_scale: f64,

    /// Multiply all numbers of operations and of bytes after which a work ends by this
    #[arg(long, value_name = "FACTOR", default_value = "1", hide_default_value = true,
        value_parser = factor)]
    ops_scale: f64,

    /// Multiply all object sizes by this
    #[arg(long, value_name = "FACTOR", default_value = "1", hide_default_value = true,
        value_parser = factor)]
    size_scale: f64,
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if factor > 0.0 && factor <= 1000.0 => Ok(factor),
        _ => Err("a number above 0, at most 1000, was expected".into()),
    }
}

impl Scale {
    /// Scales `plan`; returns descriptions of the changes for the run's notes.
    pub(super) fn apply(&self, plan: &mut Plan) -> Vec<String> {
        for stage in &mut plan.stages {
            stage.close_delay = stage.close_delay.mul_f64(self.time_scale);
            for work in &mut stage.works {
                self.times(work);
                self.totals(work);
                self.sizes(work);
            }
        }
        let said = [
            ("times", self.time_scale),
            ("numbers of operations", self.ops_scale),
            ("sizes", self.size_scale),
        ];
        let scaled = said.into_iter().filter(|(_, factor)| *factor != 1.0);
        scaled
            .map(|(what, factor)| format!("all {what} are {factor} of the workload's"))
            .collect()
    }

    fn times(&self, work: &mut Work) {
        let factor = self.time_scale;
        if factor == 1.0 {
            return;
        }
        work.rampup = work.rampup.mul_f64(factor);
        work.rampdown = work.rampdown.mul_f64(factor);
        work.runtime = work.runtime.map(|runtime| runtime.mul_f64(factor));
        let shortest = Duration::from_millis(100);
        work.interval = work.interval.mul_f64(factor.min(1.0)).max(shortest);
    }

    fn totals(&self, work: &mut Work) {
        for total in [&mut work.total_ops, &mut work.total_bytes] {
            *total = total.map(|total| scaled(total, self.ops_scale));
        }
    }

    fn sizes(&self, work: &mut Work) {
        if self.size_scale == 1.0 {
            return;
        }
        let of = |size: u64| scaled(size, self.size_scale);
        for operation in &mut work.operations {
            operation.sizes = operation.sizes.as_ref().map(|sizes| resized(sizes, &of));
            operation.part_bytes = operation.part_bytes.map(of);
            operation.range = operation.range.as_ref().map(|range| RangeRead {
                length: resized(&range.length, &of),
                align: of(range.align),
                object_bytes: of(range.object_bytes),
            });
        }
    }
}

/// Scales a number; zero stays zero, and others stay at least one.
fn scaled(number: u64, factor: f64) -> u64 {
    match number {
        0 => 0,
        _ if factor == 1.0 => number,
        _ => (number as f64 * factor).round().max(1.0) as u64,
    }
}

fn resized(selector: &Selector, of: &impl Fn(u64) -> u64) -> Selector {
    match selector {
        Selector::Constant(n) => Selector::Constant(of(*n)),
        Selector::Uniform { low, high } => Selector::Uniform {
            low: of(*low),
            high: of(*high),
        },
        Selector::Range { low, high } => Selector::Range {
            low: of(*low),
            high: of(*high),
        },
        Selector::Sequential { low, high } => Selector::Sequential {
            low: of(*low),
            high: of(*high),
        },
        Selector::Zipf {
            low,
            high,
            exponent,
        } => Selector::Zipf {
            low: of(*low),
            high: of(*high),
            exponent: *exponent,
        },
        Selector::Histogram(bars) => Selector::Histogram(
            bars.iter()
                .map(|bar| Bar {
                    low: of(bar.low),
                    high: of(bar.high),
                    weight: bar.weight,
                })
                .collect(),
        ),
        Selector::Times { unit, of: inner } => Selector::Times {
            unit: of(*unit),
            of: inner.clone(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Options, read};

    #[test]
    fn times_operations_and_sizes() {
        let text = r#"<workload name="w"><workflow>
            <workstage name="prepare"><work type="prepare" workers="1"
              config="containers=r(1,1);objects=r(1,7);sizes=u(1,3)MB"/></workstage>
            <workstage name="main"><work name="main" workers="4" runtime="300" rampup="100">
              <operation type="read" ratio="100" config="containers=c(1);objects=u(1,7)"/>
            </work></workstage>
            <workstage name="ops"><work name="ops" workers="4" totalOps="20000">
              <operation type="write" ratio="100"
                config="containers=c(1);objects=u(1,7);sizes=c(0)B"/>
            </work></workstage></workflow></workload>"#;
        let mut plan = read("w", text.as_bytes(), &Options::default())
            .unwrap()
            .plan;
        let scale = Scale {
            time_scale: 0.01,
            ops_scale: 0.1,
            size_scale: 0.001,
        };
        assert_eq!(scale.apply(&mut plan).len(), 3);
        let work = |stage: usize| &plan.stages[stage].works[0];
        let bounds = work(0).operations[0].sizes.as_ref().map(Selector::bounds);
        assert_eq!(bounds, Some((1000, 3000)));
        assert_eq!(work(1).runtime, Some(Duration::from_secs(3)));
        assert_eq!(work(1).rampup, Duration::from_secs(1));
        assert_eq!(work(2).total_ops, Some(2000));
        let bounds = work(2).operations[0].sizes.as_ref().map(Selector::bounds);
        assert_eq!(bounds, Some((0, 0)));
    }
}
