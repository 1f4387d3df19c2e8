//! Names and texts of runs, stages and numbers, common to all charts and tables.

use crate::plot::Unit;
use crate::results::model::{Failures, Operation, Run, Stage, State};

/// State of a completed run in which conditions hold.
pub(super) const OVER_LIMITS: &str = "completed, over limits";

/// Facts by which runs of one name are told apart, before their stores.
const DISTINCT: [&str; 3] = ["tags", "scale", "workload file"];

/// Each run's name with those of its [`DISTINCT`] facts that are not the same for all.
fn with_facts(runs: &[Run]) -> Vec<String> {
    let value = |run: &Run, name: &str| {
        let mut facts = run.facts.iter().filter(|fact| fact.name == name);
        facts
            .next()
            .map(|fact| fact.value.clone())
            .unwrap_or_default()
    };
    let differs = |name: &&&str| {
        runs.iter()
            .any(|run| value(run, name) != value(&runs[0], name))
    };
    let names: Vec<&str> = DISTINCT.iter().filter(differs).copied().collect();
    let words = |run: &Run| -> Vec<String> {
        let values = names.iter().map(|name| value(run, name));
        values.filter(|value| !value.is_empty()).collect()
    };
    let label = |run: &Run| match words(run).join(", ").as_str() {
        "" => run.name.clone(),
        words => format!("{} ({words})", run.name),
    };
    runs.iter().map(label).collect()
}

/// A unique name for each run: its own, then with its tags, scale and file, then with its store or
/// tool, then with its number.
pub(super) fn labels(runs: &[Run]) -> Vec<String> {
    let names: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
    let with_facts = with_facts(runs);
    let with_target: Vec<String> = runs
        .iter()
        .zip(&with_facts)
        .map(|(run, name)| match &run.target {
            Some(target) => format!("{name}, {target}"),
            None => format!("{name}, {}", run.tool.title()),
        })
        .collect();
    for candidates in [&names, &with_facts, &with_target] {
        let unique = candidates
            .iter()
            .all(|name| candidates.iter().filter(|n| *n == name).count() == 1);
        if unique {
            return candidates.clone();
        }
    }
    with_target
        .into_iter()
        .enumerate()
        .map(|(index, name)| format!("{name} #{}", index + 1))
        .collect()
}

/// A stage's name without its number, by which stages of different runs are matched.
pub(super) fn stage_key(stage: &Stage) -> &str {
    crate::results::unnumbered(&stage.id)
}

/// An operation's name in a legend: with its work's name if its stage has several.
pub(super) fn operation_label(stage: &Stage, operation: &Operation) -> String {
    let same = stage
        .whole_operations()
        .filter(|o| o.name == operation.name)
        .count();
    match &operation.work {
        Some(work) if same > 1 => format!("{work}: {}", operation.name),
        _ => operation.name.clone(),
    }
}

pub(super) fn time(us: Option<f64>) -> String {
    us.map_or_else(|| "–".to_owned(), |us| Unit::Time.words(us))
}

pub(super) fn count(count: Option<u64>) -> String {
    count.map_or_else(|| "–".to_owned(), |n| Unit::Plain.words(n as f64))
}

pub(super) fn rate(rate: Option<f64>) -> String {
    rate.map_or_else(|| "–".to_owned(), |r| Unit::PerSecond.words(r))
}

pub(super) fn bandwidth(bandwidth: Option<f64>) -> String {
    bandwidth.map_or_else(|| "–".to_owned(), |b| Unit::BytesPerSecond.words(b))
}

pub(super) fn failures(failed: Failures) -> String {
    match failed {
        Failures::Counted(count) => Unit::Plain.words(count as f64),
        Failures::Estimated(count) => format!("≈ {}", Unit::Plain.words(count as f64)),
        Failures::Unknown => "not known".to_owned(),
    }
}

pub(super) fn success(operation: &Operation) -> String {
    match operation.success() {
        // 100 % is shown only without any failure.
        Some(share) if share < 1.0 => {
            let percent = (share * 100.0 * 100.0).floor() / 100.0;
            format!("{percent:.2}%")
        }
        Some(_) => "100%".to_owned(),
        None => "–".to_owned(),
    }
}

/// A sentence about how a run ended that did not do what was asked of it, and why.
pub(super) fn trouble(run: &Run) -> Option<String> {
    let why = match (run.state, run.broken.is_empty()) {
        (State::Completed, true) | (State::Waiting | State::Running, _) => return None,
        (State::Completed, false) => {
            return Some(format!("{OVER_LIMITS}: {}.", run.broken.join("; ")));
        }
        _ => run.notes.first(),
    };
    Some(match why {
        Some(why) => format!("{}: {why}", run.state.name()),
        None => format!("{}.", run.state.name()),
    })
}

/// A sentence about a run's fastest stage and its operations, of those that did what was asked of
/// them if there is one. `None` if nothing was measured.
pub(super) fn fastest(run: &Run) -> Option<String> {
    let measured = run
        .stages
        .iter()
        .filter(|s| !s.is_special() && s.rate() > 0.0);
    let count = measured.clone().count();
    let best = measured.max_by(|a, b| {
        let is_whole = |s: &Stage| s.state == State::Completed && !s.is_overloaded();
        let by_state = is_whole(a).cmp(&is_whole(b));
        by_state.then_with(|| a.rate().total_cmp(&b.rate()))
    })?;
    let stage = match count {
        1 => stage_key(best).to_owned(),
        _ => format!("The fastest of {count} stages, {}", stage_key(best)),
    };
    let state = match (best.state, best.is_overloaded()) {
        (State::Completed, false) => String::new(),
        (State::Completed, true) => "could not keep up, ".to_owned(),
        (state, _) => format!("{}, ", state.name()),
    };
    let mut words = format!("{stage}: {state}{}", rate(Some(best.rate())));
    if best.bandwidth() > 0.0 {
        words.push_str(&format!(", {}", bandwidth(Some(best.bandwidth()))));
    }
    for operation in best.whole_operations() {
        let (p50, p99) = (operation.latency.at(0.5), operation.latency.at(0.99));
        let times = [("p50", p50), ("p99", p99)]
            .into_iter()
            .filter_map(|(name, us)| Some(format!(" {name} {}", time(Some(us?)))));
        let times: String = times.collect();
        if !times.is_empty() {
            words.push_str(&format!("; {}{times}", operation_label(best, operation)));
        }
    }
    Some(words + ".")
}

/// Part of a file's name or an anchor.
pub(super) fn slug(text: &str) -> String {
    let mut slug = String::new();
    for character in text.chars() {
        if character.is_ascii_alphanumeric() {
            slug.push(character.to_ascii_lowercase());
        } else if !slug.ends_with('-') && !slug.is_empty() {
            slug.push('-');
        }
        if slug.len() >= 60 {
            break;
        }
    }
    slug.trim_end_matches('-').to_owned()
}
