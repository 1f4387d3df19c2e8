//! Comparison of the requests that passed the relay with the workload file, and with the lab's own
//! results.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::chance;
use super::expected::{Amount, Expected, Kind, Names, Operation, Order, Sizes, Stage, Work};
use super::relay::{RecordedRequest, Subject, statuses};
use cairn_testkit::lab::Run;

/// A request, and the operation of its work that it belongs to.
struct Counted<'a> {
    seen: &'a RecordedRequest,
    subject: Subject,
    operation: usize,
}

/// Sizes with which the run has written each object so far.
type Written = HashMap<(String, String), BTreeSet<u64>>;

/// Checks that every request is in the file, with its shares, sizes and numbers, and that the lab
/// has counted each; returns a summary.
pub(super) fn compare(expected: &Expected, run: &Run, seen: &[RecordedRequest]) -> Result<String> {
    let results = &run.stages;
    ensure!(
        results.len() == expected.stages.len(),
        "{} stages, not {}",
        results.len(),
        expected.stages.len()
    );
    let starts: Vec<f64> = results
        .iter()
        .map(|result| {
            result["started"]
                .as_f64()
                .context("a stage without a start")
        })
        .collect::<Result<_>>()?;
    let of_stage = |index: usize| {
        let from = starts[index];
        let to = starts.get(index + 1).copied().unwrap_or(f64::INFINITY);
        seen.iter()
            .filter(move |seen| seen.at >= from && seen.at < to)
    };
    let mut written = Written::new();
    let mut words = Vec::new();
    let mut requests = 0;
    for (index, (stage, result)) in expected.stages.iter().zip(results).enumerate() {
        let name = &stage.name;
        let said = one_stage(stage, result, of_stage(index).collect(), &mut written);
        let (count, said) = said.with_context(|| format!("stage {name}"))?;
        requests += count;
        words.extend(said.map(|said| format!("{name}: {said}")));
    }
    words.insert(0, format!("{requests} requests"));
    Ok(words.join("; "))
}

fn one_stage(
    stage: &Stage,
    result: &Value,
    seen: Vec<&RecordedRequest>,
    written: &mut Written,
) -> Result<(usize, Option<String>)> {
    let [work] = stage.works.as_slice() else {
        bail!(
            "{} works: only stages of one can be told apart",
            stage.works.len()
        );
    };
    let mut counted = Vec::new();
    for seen in seen {
        let Some(subject) = seen.subject() else {
            continue;
        };
        let (method, target) = (&seen.method, &seen.target);
        let operation = operation_of(work, seen, &subject, written)
            .with_context(|| format!("{method} {target} is of no operation of the file"))?;
        remember(written, seen, &subject)?;
        counted.push(Counted {
            seen,
            subject,
            operation,
        });
    }
    told(work, result, &counted)?;
    totals(work, &counted)?;
    let mut words = Vec::new();
    for (index, operation) in work.operations.iter().enumerate() {
        let of: Vec<&Counted<'_>> = counted.iter().filter(|c| c.operation == index).collect();
        let kind = operation.kind;
        amount(operation, &of, counted.len(), written).with_context(|| format!("{kind:?}"))?;
        names(operation, &of).with_context(|| format!("names of {kind:?}"))?;
        if let Some(sizes) = &operation.sizes {
            let sent: Vec<u64> = of.iter().map(|counted| counted.seen.sent).collect();
            sizes_are(sizes, &sent).with_context(|| format!("sizes of {kind:?}"))?;
        }
        if let Amount::Share(share) = operation.amount
            && share > 0.0
            && share < 1.0
        {
            let found = of.len() as f64 / counted.len().max(1) as f64;
            let (what, found, share) = (operation.label(), found * 100.0, share * 100.0);
            words.push(format!("{what} {found:.1}/{share:.1} %"));
        }
    }
    Ok((counted.len(), (!words.is_empty()).then(|| words.join(", "))))
}

/// The operation that matches a request's verb and names.
fn operation_of(
    work: &Work,
    seen: &RecordedRequest,
    subject: &Subject,
    written: &Written,
) -> Option<usize> {
    let known = || written.contains_key(&(subject.container.clone(), subject.object.clone()));
    let fits = |operation: &Operation| {
        let right = match (operation.kind, seen.method.as_str()) {
            (Kind::Make, "PUT") | (Kind::Drop, "DELETE") | (Kind::List, "GET") => {
                return subject.object.is_empty() && in_container(operation, subject);
            }
            (Kind::Read, "GET") | (Kind::Head, "HEAD") | (Kind::Delete, "DELETE") => true,
            (Kind::Write, "PUT") => true,
            (Kind::Create, "PUT") => !known(),
            (Kind::Update, "PUT") => known(),
            _ => false,
        };
        let object = |names: &Names| names.number(&subject.object).is_some();
        right
            && !subject.object.is_empty()
            && in_container(operation, subject)
            && operation.objects.as_ref().is_some_and(object)
    };
    work.operations.iter().position(fits)
}

fn in_container(operation: &Operation, subject: &Subject) -> bool {
    operation.containers.number(&subject.container).is_some()
}

/// Records writes; a read must return the size of one of them.
fn remember(written: &mut Written, seen: &RecordedRequest, subject: &Subject) -> Result<()> {
    if subject.object.is_empty() || !seen.succeeded() {
        return Ok(());
    }
    let of = (subject.container.clone(), subject.object.clone());
    match seen.method.as_str() {
        "PUT" => {
            written.entry(of).or_default().insert(seen.sent);
        }
        "GET" => {
            let right = written.get(&of).is_some_and(|s| s.contains(&seen.received));
            ensure!(right, "{} gave {} bytes", seen.target, seen.received);
        }
        _ => {}
    }
    Ok(())
}

/// The verb of a request, as both sides count it: listings apart from reads.
fn verb(kind: Kind) -> &'static str {
    match kind {
        Kind::Make => "PUT container",
        Kind::Drop => "DELETE container",
        Kind::List => "GET container",
        Kind::Read => "GET",
        Kind::Head => "HEAD",
        Kind::Write | Kind::Create | Kind::Update => "PUT",
        Kind::Delete => "DELETE",
    }
}

#[derive(Debug, Default, PartialEq)]
struct Tally {
    count: u64,
    bytes: u64,
    /// Numbers of error responses by status.
    errors: BTreeMap<String, u64>,
}

/// Compares the lab's own results with the relay: by verb the number, the bytes of successes, and
/// the errors by status. A work that ended by time may have begun one more request per worker.
fn told(work: &Work, result: &Value, counted: &[Counted<'_>]) -> Result<()> {
    let special = work
        .operations
        .iter()
        .any(|o| !matches!(o.amount, Amount::Share(_)));
    let mut passed: BTreeMap<&str, Tally> = BTreeMap::new();
    for counted in counted {
        let kind = work.operations[counted.operation].kind;
        let tally = passed.entry(verb(kind)).or_default();
        tally.count += 1;
        let seen = counted.seen;
        // Special works may find things already created or already deleted.
        let forgiven = match kind {
            Kind::Make => seen.status == 409,
            Kind::Delete | Kind::Drop => special && seen.status == 404,
            _ => false,
        };
        if !seen.succeeded() && !forgiven {
            let status = format!("http {}", seen.status);
            *tally.errors.entry(status).or_default() += 1;
            continue;
        }
        // The store's response body to a deletion does not count as load.
        tally.bytes += match seen.method.as_str() {
            "PUT" => seen.sent,
            "GET" => seen.received,
            _ => 0,
        };
    }
    let (said, workers) = said(result)?;
    let late = if work.runtime.is_some() { workers } else { 0 };
    for verb in passed.keys().chain(said.keys()) {
        let none = Tally::default();
        let (passed, said) = (
            passed.get(verb).unwrap_or(&none),
            said.get(*verb).unwrap_or(&none),
        );
        let more = passed.count.checked_sub(said.count);
        ensure!(
            passed == said || more.is_some_and(|more| more > 0 && more <= late),
            "{verb}: the lab says {said:?}, passed {passed:?}"
        );
    }
    Ok(())
}

/// The lab's results of a stage by verb, and its number of workers.
fn said(result: &Value) -> Result<(BTreeMap<&'static str, Tally>, u64)> {
    let mut said: BTreeMap<&str, Tally> = BTreeMap::new();
    let mut workers = 0;
    for work in result["works"].as_array().context("no works")? {
        workers += work["workers"].as_u64().unwrap_or(0);
        for operation in work["operations"].as_array().into_iter().flatten() {
            let verb = match operation["kind"].as_str().unwrap_or_default() {
                "init" => "PUT container",
                "dispose" => "DELETE container",
                "list" => "GET container",
                "read" => "GET",
                "head" => "HEAD",
                "write" | "update" | "prepare" => "PUT",
                "delete" | "cleanup" => "DELETE",
                other => bail!("operations of kind {other}"),
            };
            let tally = said.entry(verb).or_default();
            let number = |value: &Value| value.as_u64().unwrap_or(0);
            tally.count += number(&operation["ops"]);
            tally.bytes += number(&operation["bytes"]);
            for (kind, count) in operation["errors"].as_object().into_iter().flatten() {
                tally.count += number(count);
                *tally.errors.entry(kind.clone()).or_default() += number(count);
            }
        }
    }
    Ok((said, workers))
}

/// Checks the number of operations, or the duration.
fn totals(work: &Work, counted: &[Counted<'_>]) -> Result<()> {
    let count = counted.len() as u64;
    match (work.runtime, work.total) {
        (None, Some(total)) => ensure!(count == total, "{count} operations, not {total}"),
        (Some(_), Some(total)) => ensure!(count <= total, "{count} operations, above {total}"),
        _ => {}
    }
    if let (Some(runtime), None, [first, .., last]) = (work.runtime, work.total, counted) {
        let lasted = last.seen.at - first.seen.at;
        ensure!(
            lasted < runtime + 1.0 && lasted > runtime * 0.8 - 1.0,
            "it lasted {lasted:.1} s, not {runtime}"
        );
    }
    Ok(())
}

fn amount(operation: &Operation, of: &[&Counted<'_>], all: usize, written: &Written) -> Result<()> {
    let count = of.len() as u64;
    match operation.amount {
        Amount::Share(share) => ensure!(
            chance::is_likely(count, all as u64, share),
            "{count} of {all}, not {:.2} %",
            share * 100.0
        ),
        Amount::Each(each) => {
            let distinct: HashSet<(&str, &str)> = of.iter().map(|c| place(c)).collect();
            ensure!(
                count == each && distinct.len() as u64 == each,
                "{count} requests, {} names, not {each} of each",
                distinct.len()
            );
            let seen: Vec<&RecordedRequest> = of.iter().map(|counted| counted.seen).collect();
            let allowed: &[u16] = match operation.kind {
                Kind::Delete | Kind::Drop => &[404],
                _ => &[],
            };
            let failed = statuses(&seen);
            ensure!(
                failed.iter().all(|status| allowed.contains(status)),
                "answers {failed:?}"
            );
        }
        Amount::Rest => {
            let mine = operation.objects.as_ref().context("no objects")?;
            let left = written
                .keys()
                .filter(|(_, object)| mine.number(object).is_some());
            ensure!(
                count <= left.count() as u64 && of.iter().all(|c| c.seen.succeeded()),
                "{count} deletions of what was written"
            );
        }
    }
    Ok(())
}

fn place<'a>(counted: &'a Counted<'_>) -> (&'a str, &'a str) {
    (&counted.subject.container, &counted.subject.object)
}

/// Checks that numbers are distributed as their selectors demand.
fn names(operation: &Operation, of: &[&Counted<'_>]) -> Result<()> {
    if !matches!(operation.amount, Amount::Share(_)) {
        return Ok(());
    }
    let pool = operation
        .objects
        .as_ref()
        .is_some_and(|o| o.order == Order::Pool);
    // An object of a pool is in the container to which it was written.
    if !pool || operation.kind == Kind::Create {
        let containers = of
            .iter()
            .filter_map(|c| operation.containers.number(&c.subject.container));
        drawn(&operation.containers, containers.collect()).context("containers")?;
    }
    if let Some(objects) = operation.objects.as_ref().filter(|_| !pool) {
        let numbers = of.iter().filter_map(|c| objects.number(&c.subject.object));
        drawn(objects, numbers.collect()).context("objects")?;
    }
    Ok(())
}

fn drawn(names: &Names, numbers: Vec<u64>) -> Result<()> {
    let (count, span) = (numbers.len(), names.span());
    let distinct = numbers.iter().collect::<HashSet<_>>().len() as u64;
    if names.order == Order::Turn {
        let most = span.min(count as u64);
        ensure!(distinct == most, "{distinct} of {most} numbers, in turn");
        return Ok(());
    }
    if count == 0 {
        return Ok(());
    }
    let mean = numbers.iter().sum::<u64>() as f64 / count as f64;
    let middle = (names.low + names.high) as f64 / 2.0;
    let deviation = ((span * span - 1) as f64 / 12.0).sqrt();
    ensure!(
        chance::is_mean(mean, count, middle, deviation),
        "their mean is {mean}, not {middle}"
    );
    // With twenty draws per number, one is missing with probability e^-20 times the span.
    ensure!(
        (count as u64) < span.saturating_mul(20) || distinct == span,
        "{distinct} of {span} numbers"
    );
    Ok(())
}

/// Checks sizes: exact for a constant, bounds and mean for a range, and the frequency of each bar
/// of a histogram.
fn sizes_are(sizes: &Sizes, sent: &[u64]) -> Result<()> {
    let weight: u64 = sizes.bars.iter().map(|bar| bar.2).sum();
    let mut in_bars = vec![Vec::new(); sizes.bars.len()];
    for size in sent {
        let bar = sizes.bars.iter().position(|(low, high, _)| {
            size.is_multiple_of(sizes.unit) && (low * sizes.unit..=high * sizes.unit).contains(size)
        });
        in_bars[bar.with_context(|| format!("{size} bytes"))?].push(*size);
    }
    for ((low, high, weighs), sizes_of) in sizes.bars.iter().zip(&in_bars) {
        let count = sizes_of.len();
        let share = *weighs as f64 / weight.max(1) as f64;
        ensure!(
            chance::is_likely(count as u64, sent.len() as u64, share),
            "{count} of {} are of {low} to {high} × {}",
            sent.len(),
            sizes.unit
        );
        if count > 0 {
            let unit = sizes.unit as f64;
            let mean = sizes_of.iter().sum::<u64>() as f64 / count as f64 / unit;
            let middle = (low + high) as f64 / 2.0;
            let span = (high - low + 1) as f64;
            let deviation = ((span * span - 1.0) / 12.0).sqrt();
            ensure!(
                chance::is_mean(mean, count, middle, deviation),
                "their mean is {mean}, not {middle} × {unit}"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
