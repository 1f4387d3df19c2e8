//! Equality of measured plans. Runs of one plan are repetitions of each other; names are free text
//! that many plans share, and are ignored.

use cairn_types::hex;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{CompareError, Repetitions};
use crate::plan::Plan;

/// Maximum number of differences shown; the rest is counted.
const DIFFERENCES_MAX: usize = 4;
/// Maximum characters of a value in a message.
const VALUE_CHARS_MAX: usize = 40;

/// The measured part of a plan: all except its name, description, format, seed and store. Stores
/// are the object of a comparison, and another seed draws from the same distributions.
fn measured(plan: &Plan) -> Value {
    let mut value = serde_json::to_value(plan).unwrap_or_default();
    if let Some(plan) = value.as_object_mut() {
        for key in ["name", "description", "format", "seed", "access"] {
            plan.remove(key);
        }
    }
    let stages = value.get_mut("stages").and_then(Value::as_array_mut);
    for stage in stages.into_iter().flatten() {
        let works = stage.get_mut("works").and_then(Value::as_array_mut);
        for work in works.into_iter().flatten().filter_map(Value::as_object_mut) {
            work.remove("access");
        }
    }
    value
}

/// A digest that is equal for plans that measure the same.
pub fn plan_digest(plan: &Plan) -> String {
    let digest = Sha256::digest(measured(plan).to_string());
    hex::encode(&digest[..8])
}

/// Descriptions of the fields in which the measured parts differ: `stage main, workers: 8 against
/// 16`.
pub fn plan_differences(a: &Plan, b: &Plan) -> Vec<String> {
    let mut found = Vec::new();
    walk(&measured(a), &measured(b), &mut Vec::new(), &mut found);
    found
}

fn walk(a: &Value, b: &Value, path: &mut Vec<String>, found: &mut Vec<String>) {
    match (a, b) {
        (a, b) if a == b => {}
        (Value::Object(of_a), Value::Object(of_b)) => {
            let mut keys: Vec<&String> = of_a.keys().chain(of_b.keys()).collect();
            keys.sort_unstable();
            keys.dedup();
            for key in keys {
                let of = |value: &Value| value.get(key).cloned().unwrap_or_default();
                path.push(key.replace('_', " "));
                walk(&of(a), &of(b), path, found);
                path.pop();
            }
        }
        (Value::Array(of_a), Value::Array(of_b)) if of_a.len() == of_b.len() => {
            let list = path.pop().unwrap_or_default();
            for (index, (a, b)) in of_a.iter().zip(of_b).enumerate() {
                path.push(element(&list, index, of_a.len(), a));
                walk(a, b, path, found);
                path.pop();
            }
            path.push(list);
        }
        (Value::Array(of_a), Value::Array(of_b)) => {
            let (a, b) = (of_a.len(), of_b.len());
            found.push(format!("number of {}: {a} against {b}", path.join(", ")));
        }
        (a, b) => found.push(format!(
            "{}: {} against {}",
            path.join(", "),
            shown(a),
            shown(b)
        )),
    }
}

/// Designation of an element: its name, or its position if it has none; for a single element only
/// its kind.
fn element(list: &str, index: usize, of: usize, value: &Value) -> String {
    let kind = list.strip_suffix('s').unwrap_or(list);
    let name = value.get("name").and_then(Value::as_str).unwrap_or("");
    match (name, of) {
        ("", 1) => kind.to_owned(),
        ("", _) => format!("{kind} {}", index + 1),
        (name, _) => format!("{kind} {name}"),
    }
}

fn shown(value: &Value) -> String {
    let text = match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => format!("{text:?}"),
        value => value.to_string(),
    };
    match text.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn few(differences: &[String]) -> String {
    let named = differences.iter().take(DIFFERENCES_MAX).cloned();
    let named: Vec<String> = named.collect();
    match differences.len().saturating_sub(DIFFERENCES_MAX) {
        0 => named.join("; "),
        more => format!("{}; and {more} more", named.join("; ")),
    }
}

/// Refuses a side whose runs have different plans: they are not samples of one quantity.
pub(super) fn check_side(side: &Repetitions) -> Result<(), CompareError> {
    let mut known = side.runs.iter().enumerate().filter_map(|(index, run)| {
        let plan = run.plan.as_deref()?;
        Some((index, plan))
    });
    let Some((_, first)) = known.next() else {
        return Ok(());
    };
    for (index, plan) in known {
        let differences = plan_differences(first, plan);
        if !differences.is_empty() {
            return Err(CompareError::NoRepetitions {
                side: side.name.clone(),
                run: index + 1,
                differences: few(&differences),
            });
        }
    }
    Ok(())
}

/// Warnings that the sides measured different things, or that this is unknown.
pub(super) fn warnings(a: &Repetitions, b: &Repetitions) -> Vec<String> {
    let plan = |side: &Repetitions| side.runs.iter().find_map(|run| run.plan.clone());
    if let (Some(of_a), Some(of_b)) = (plan(a), plan(b)) {
        let differences = plan_differences(&of_a, &of_b);
        if !differences.is_empty() {
            return vec![format!(
                "The plans differ, A against B: {}. A difference in the results may come from \
                 that.",
                few(&differences)
            )];
        }
    }
    let mut warnings = Vec::new();
    for side in [a, b] {
        let unknown = side.runs.iter().filter(|run| run.plan.is_none()).count();
        if unknown > 0 {
            warnings.push(format!(
                "{}: {unknown} of {} results name no plan; that they measured the same is not \
                 checked.",
                side.name,
                side.runs.len()
            ));
        }
    }
    warnings
}
