//! A prediction: a cluster's performance with intervals, the bottleneck, and the assumptions.

use serde::Serialize;

use crate::calibration::Calibration;
use crate::cluster::Cluster;
use crate::conformal::{self, LEVEL};
use crate::degraded::{Degraded, Repair, without_zone};
use crate::error::AdviseError;
use crate::placement::Placement;
use crate::simulate::{Options, Outcome, run};
use crate::workload::Workload;

/// Utilisation above which a station counts as the bottleneck.
const BOTTLENECK_UTILISATION: f64 = 0.85;

/// A number with its 90 % interval; without one if too few cells were held out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    pub value: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<[f64; 2]>,
}

/// The bottleneck of the throughput.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Binding {
    pub what: String,
    /// Its utilisation.
    pub used: f64,
    /// Throughput at full utilisation, assuming proportional growth.
    pub full_at: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Within {
    pub limit_ms: f64,
    pub share: Estimate,
}

/// Prediction for the cluster without a zone.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DegradedPrediction {
    pub zone: String,
    pub throughput: f64,
    pub p95_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rebuilding_throughput: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rebuilding_p95_ms: Option<f64>,
    pub repair: Repair,
    /// Was a cell of this kind measured?
    pub was_measured: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    pub cluster: String,
    pub policy: String,
    pub workload: String,
    pub throughput: Estimate,
    pub p50_ms: Estimate,
    pub p95_ms: Estimate,
    pub p99_ms: Estimate,
    pub within: Vec<Within>,
    pub kept_up: bool,
    pub binding: Binding,
    /// Group syncs per operation, and number of writes that shared one.
    pub syncs_per_operation: f64,
    pub sync_members: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub degraded: Option<DegradedPrediction>,
    /// Reasons why it is outside of what was measured; if there are any, it has no intervals.
    pub outside: Vec<String>,
    pub validated_on: String,
}

/// Options of a prediction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PredictOptions {
    /// Also predict outside of what was measured.
    pub extrapolate: bool,
    /// Region and zone of a lost zone.
    pub lost_zone: Option<(u32, u32)>,
    pub options: Options,
}

/// Predicts a cluster's performance.
///
/// # Errors
/// Something is outside of what was measured, a ring cannot be built, a medium is unknown.
pub fn predict(
    cluster: &Cluster,
    workload: &Workload,
    calibration: &Calibration,
    asked: &PredictOptions,
) -> Result<Prediction, AdviseError> {
    let outside = calibration.scope.outside(cluster, workload);
    if !outside.is_empty() && !asked.extrapolate {
        return Err(AdviseError::Outside { reasons: outside });
    }
    let placement = Placement::new(cluster)?;
    let outcome = run(cluster, workload, calibration, &placement, &asked.options)?;
    let degraded = match asked.lost_zone {
        Some(zone) => {
            let options = &asked.options;
            let it = without_zone(cluster, workload, calibration, &placement, zone, options)?;
            Some(told(&it, calibration))
        }
        None => None,
    };
    Ok(Prediction {
        degraded,
        ..of_outcome(cluster, workload, calibration, &outcome, outside)
    })
}

fn told(degraded: &Degraded, calibration: &Calibration) -> DegradedPrediction {
    let rebuilding = degraded.rebuilding.as_ref();
    DegradedPrediction {
        zone: format!("r{}z{}", degraded.region, degraded.zone),
        throughput: degraded.without.throughput,
        p95_ms: degraded.without.quantile(0.95) * 1e3,
        rebuilding_throughput: rebuilding.map(|r| r.throughput),
        rebuilding_p95_ms: rebuilding.map(|r| r.quantile(0.95) * 1e3),
        repair: degraded.repair.clone(),
        was_measured: calibration.scope.degraded,
    }
}

/// A prediction from the outcome of a simulation.
pub fn of_outcome(
    cluster: &Cluster,
    workload: &Workload,
    calibration: &Calibration,
    outcome: &Outcome,
    outside: Vec<String>,
) -> Prediction {
    let errors = &calibration.residuals;
    let is_inside = outside.is_empty();
    let estimate = |value: f64, errors: &[f64]| Estimate {
        value,
        interval: conformal::around(value, errors).filter(|_| is_inside),
    };
    let quantile = |part, errors: &[f64]| estimate(outcome.quantile(part) * 1e3, errors);
    let within = workload.limits_ms.iter().map(|limit| {
        let value = outcome.within(limit / 1e3);
        let reach = conformal::reach(&errors.share, LEVEL).filter(|_| is_inside);
        let interval = reach.map(|r| [(value - r).max(0.0), (value + r).min(1.0)]);
        Within {
            limit_ms: *limit,
            share: Estimate { value, interval },
        }
    });
    Prediction {
        cluster: cluster.name.clone(),
        policy: cluster.policy(),
        workload: workload.name.clone(),
        throughput: estimate(outcome.throughput, &errors.throughput),
        p50_ms: quantile(0.5, &errors.p50),
        p95_ms: quantile(0.95, &errors.p95),
        p99_ms: quantile(0.99, &errors.p99),
        within: within.collect(),
        kept_up: outcome.kept_up,
        binding: binding(workload, outcome),
        syncs_per_operation: outcome.groups,
        sync_members: outcome.members,
        degraded: None,
        outside,
        validated_on: validated_on(calibration),
    }
}

fn binding(workload: &Workload, outcome: &Outcome) -> Binding {
    let busiest = outcome.busiest();
    let used = busiest.map_or(0.0, |b| b.utilisation);
    let full_at = outcome.throughput / used.max(1e-9);
    let station = busiest.map_or(String::new(), |b| format!("{} of {}", b.kind, b.of));
    let what = match (workload.rate, workload.workers) {
        _ if used >= BOTTLENECK_UTILISATION => station,
        (Some(rate), _) => format!("the offered rate, {rate}/s; next would be {station}"),
        (None, workers) => format!(
            "the {} workers, which wait for answers; next would be {station}",
            workers.unwrap_or(1)
        ),
    };
    Binding {
        what,
        used,
        full_at,
    }
}

fn validated_on(calibration: &Calibration) -> String {
    let cells = calibration.residuals.throughput.len();
    let kind = match calibration.residuals.emulated {
        true => "emulated",
        false => "real",
    };
    match cells {
        0 => format!(
            "nothing yet: calibrated on {}, and no cell was held out",
            calibration.made_on
        ),
        _ => format!(
            "{cells} {kind} cells that the calibration had not seen ({})",
            calibration.made_on
        ),
    }
}

impl Prediction {
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// The prediction as text.
    pub fn to_text(&self) -> String {
        let mut lines = vec![format!(
            "{} ({}), {}",
            self.cluster, self.policy, self.workload
        )];
        let mut line = |name: &str, estimate: &Estimate, unit: &str| {
            let interval = match estimate.interval {
                Some([low, high]) => format!("   90 %: {} to {}", short(low), short(high)),
                None => String::new(),
            };
            lines.push(format!(
                "  {name:<12} {:>9}{unit}{interval}",
                short(estimate.value)
            ));
        };
        line("throughput", &self.throughput, "/s");
        line("p50", &self.p50_ms, " ms");
        line("p95", &self.p95_ms, " ms");
        line("p99", &self.p99_ms, " ms");
        for within in &self.within {
            let name = format!("≤ {} ms", within.limit_ms);
            let percent = Estimate {
                value: within.share.value * 100.0,
                interval: within.share.interval.map(|i| i.map(|end| end * 100.0)),
            };
            line(&name, &percent, " %");
        }
        if !self.kept_up {
            lines.push("  could not keep up: the rate is beyond what the cluster does".into());
        }
        lines.push(format!(
            "  limit: {}, {:.0} % used; full at {}/s",
            self.binding.what,
            self.binding.used * 100.0,
            short(self.binding.full_at)
        ));
        if self.syncs_per_operation > 0.0 {
            lines.push(format!(
                "  {:.2} syncs an operation, each shared by {:.1}",
                self.syncs_per_operation, self.sync_members
            ));
        }
        if let Some(degraded) = &self.degraded {
            lines.extend(degraded.lines());
        }
        lines.push(format!("  validated on {}", self.validated_on));
        if self.throughput.interval.is_none() && self.outside.is_empty() {
            lines.push("  no intervals: fewer than 9 cells were held out".into());
        }
        for reason in &self.outside {
            lines.push(format!("  outside of what was measured: {reason}"));
        }
        lines.join("\n") + "\n"
    }
}

impl DegradedPrediction {
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "  without {}: {}/s, p95 {} ms",
            self.zone,
            short(self.throughput),
            short(self.p95_ms)
        )];
        if let (Some(rate), Some(p95)) = (self.rebuilding_throughput, self.rebuilding_p95_ms) {
            lines.push(format!(
                "  rebuilding: {}/s, p95 {} ms",
                short(rate),
                short(p95)
            ));
        }
        lines.push(match &self.repair {
            Repair::Takes {
                bytes,
                rate,
                seconds,
            } => format!(
                "  rebuilt: {} at {}/s in {}",
                crate::Bytes(*bytes),
                crate::Bytes(*rate),
                hours(*seconds)
            ),
            Repair::Impossible { why } => format!("  rebuilt: not, for {why}"),
        });
        if !self.was_measured {
            lines.push(
                "  the loss of a zone was not measured: these figures are the model's alone".into(),
            );
        }
        lines
    }
}

fn hours(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// Formats with three significant digits.
pub(crate) fn short(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::calibration::tests::example;
    use crate::cluster::tests::HOST;
    use crate::workload::tests::SMALL;

    fn asked() -> PredictOptions {
        let mut asked = PredictOptions::default();
        asked.options.operations = 2000;
        asked
    }

    #[test]
    fn outside_is_refused_or_said() {
        let (cluster, workload) = (
            Cluster::parse(HOST).unwrap(),
            Workload::parse(SMALL).unwrap(),
        );
        let mut calibration = example();
        calibration.residuals.throughput = vec![0.1; 20];
        let error = predict(&cluster, &workload, &calibration, &asked())
            .unwrap_err()
            .to_string();
        assert!(error.contains("--extrapolate"), "{error}");
        let extrapolate = PredictOptions {
            extrapolate: true,
            ..asked()
        };
        let it = predict(&cluster, &workload, &calibration, &extrapolate).unwrap();
        assert_eq!(it.throughput.interval, None);
        assert!(it.to_text().contains("outside of what was measured"));
        calibration.scope.add(&cluster, &workload);
        let it = predict(&cluster, &workload, &calibration, &asked()).unwrap();
        let [low, high] = it.throughput.interval.unwrap();
        assert!((low / it.throughput.value - 0.905).abs() < 0.001 && high > it.throughput.value);
        assert!(it.p95_ms.interval.is_none());
        assert!(
            it.to_text().contains("validated on 20 real cells"),
            "{}",
            it.to_text()
        );
    }

    #[test]
    fn the_limit_that_binds() {
        let mut cluster = Cluster::parse(HOST).unwrap();
        let mut workload = Workload::parse(SMALL).unwrap();
        let mut calibration = example();
        calibration.scope.add(&cluster, &workload);
        calibration.scope.workers = [1, 1000];
        let what = |cluster: &Cluster, workload: &Workload| {
            predict(cluster, workload, &calibration, &asked())
                .unwrap()
                .binding
        };
        workload.workers = Some(1);
        assert!(what(&cluster, &workload).what.starts_with("the 1 workers"));
        workload.workers = Some(64);
        let short = what(&cluster, &workload);
        assert!(
            short.what.starts_with("processors of host") && short.used > 0.85,
            "{short:?}"
        );
        cluster.node[0].cores = 64;
        (workload.read, workload.write) = (0.0, 1.0);
        workload.workers = Some(400);
        let short = what(&cluster, &workload);
        assert!(short.what.starts_with("syncs of host"), "{short:?}");
    }
}
