//! Comparison of two sides by the lab's statistics, as JSON. Each chosen run is one repetition; the
//! page offers runs of the same name, plan and target.

use std::sync::Arc;

use cairn_http::Request;
use cairn_lab::compare::{self, Better, Comparison, Repetitions, Row, Verdict};
use cairn_lab::report::Input;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::history::History;
use crate::json_body::read_json;
use crate::status::{Answer, Refusal, json};

/// Maximum repetitions of each side.
const REPETITIONS_MAX: usize = 50;
const BODY_MAX_BYTES: u64 = 64 * 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sides {
    a: Vec<String>,
    b: Vec<String>,
}

pub(crate) async fn answer(history: Arc<History>, request: Request) -> Answer {
    let sides: Sides = read_json(request, BODY_MAX_BYTES).await?;
    for (field, ids) in [("a", &sides.a), ("b", &sides.b)] {
        let good =
            (1..=REPETITIONS_MAX).contains(&ids.len()) && ids.iter().all(|id| History::is_id(id));
        if !good {
            let words = format!("{field}: expected 1 to {REPETITIONS_MAX} runs");
            return Err(Refusal::field(field, words));
        }
    }
    let compared = tokio::task::spawn_blocking(move || {
        let (a, b) = (
            side(&history, "A", &sides.a)?,
            side(&history, "B", &sides.b)?,
        );
        compare::compare(&a, &b, compare::MARGIN).map_err(Refusal::not_comparable)
    });
    match compared.await {
        Ok(compared) => Ok(json(&told(&compared?))),
        Err(error) => Err(Refusal::internal(&error.into())),
    }
}

/// Loads the runs of one side. Blocks.
fn side(history: &History, name: &str, ids: &[String]) -> Result<Repetitions, Refusal> {
    let mut side = Repetitions {
        name: name.into(),
        runs: Vec::new(),
    };
    for id in ids {
        let input = Input {
            label: None,
            path: history.folder(id),
        };
        side.runs.extend(
            compare::repetitions(&input)
                .map_err(Refusal::not_comparable)?
                .runs,
        );
    }
    Ok(side)
}

fn told(comparison: &Comparison) -> Value {
    json!({
        "repetitions": comparison.repetitions,
        "better": comparison.better(),
        "headline": compare::headline(comparison),
        "warnings": comparison.warnings,
        "notes": comparison.notes,
        "rows": comparison.rows.iter().map(|told| row(told, comparison.margin)).collect::<Vec<_>>(),
    })
}

fn row(row: &Row, margin: f64) -> Value {
    let (a, b) = row.middles();
    let (verdict, repetitions) = match row.verdict {
        Verdict::Better => ("better", None),
        Verdict::Worse => ("worse", None),
        Verdict::Equivalent => ("equivalent", None),
        Verdict::Open { repetitions } => ("open", repetitions),
        Verdict::TooFew { least } => ("too_few", Some(least)),
        Verdict::NotRanked(_) => ("not_ranked", None),
    };
    let base = row.base();
    let part = |value: f64| base.map(|base| value / base);
    json!({
        "stage": row.stage,
        "operation": row.operation,
        "measure": row.measure.name,
        "more_is_better": row.measure.better == Better::More,
        "a": a,
        "b": b,
        "change": part(b - a),
        "low": row.interval.and_then(|interval| part(interval.low)),
        "high": row.interval.and_then(|interval| part(interval.high)),
        "verdict": verdict,
        "repetitions": repetitions,
        "words": compare::verdict_words(row, margin),
    })
}
