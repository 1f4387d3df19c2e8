//! Ranges to be merged, moved or widened: `compact`, `repair`, `analyze`.

use std::collections::BTreeMap;
use std::path::Path as FilePath;

use anyhow::Result;
use cairn_daemons::hash_container_name;
use cairn_formats::shard::{
    Bound, Bounded, Gap, Namespace, Path, ShardRange, State, best_path, compactible_sequences,
    find_gaps, find_overlaps, find_paths, shrink, shrink_sequences,
};
use cairn_index::{DbState, IndexConfig, RangeQuery};
use cairn_types::Timestamp;
use serde_json::{Value, json};

use super::args::{Analyze, Prompt, Repair};
use super::change::parse;
use super::{End, Tool, load, loaded, may_proceed, print_range, say};

const RUN_REPLICATOR: &str = "Run container-replicator to replicate the changes to other nodes.";

fn ranges(tool: &Tool) -> Result<Vec<ShardRange>> {
    tool.read(|broker| broker.list_shard_ranges(&RangeQuery::default()))
}

pub(super) fn compact(tool: &Tool, prompt: &Prompt) -> Result<End> {
    let (is_root, state, own) = tool.read(|broker| {
        Ok((
            broker.is_root()?,
            broker.db_state()?,
            broker.own_shard_range()?,
        ))
    })?;
    if !is_root {
        say("WARNING: Shard containers cannot be compacted.");
        say("This command should be used on a root container.");
        return Ok(End::NotDone);
    }
    if state != DbState::Sharded {
        say("WARNING: Container is not yet sharded so cannot be compacted.");
        return Ok(End::NotDone);
    }
    let ranges = ranges(tool)?;
    let staying: Vec<ShardRange> = ranges
        .iter()
        .filter(|range| !range.is(State::Shrinking))
        .cloned()
        .collect();
    if !find_overlaps(&staying, |_, _| false).is_empty() {
        say("WARNING: Container has overlapping shard ranges so cannot be compacted.");
        return Ok(End::NotDone);
    }
    let mut sequences = compactible_sequences(&ranges, &own, tool.config.shrinking, false);
    if sequences.is_empty() {
        say("No shards identified for compaction.");
        return Ok(End::Done);
    }
    let count = sequences.len();
    for sequence in &sequences {
        if let Some((acceptor, donors)) = sequence.split_last() {
            let rows: i64 = donors.iter().map(ShardRange::row_count).sum();
            say(format!("Donor shard range(s) with total of {rows} rows:"));
            donors.iter().for_each(|donor| print_range(donor, 1));
            say("can be compacted into acceptor shard range:");
            print_range(acceptor, 1);
        }
    }
    say(format!(
        "Total of {count} shard sequences identified for compaction."
    ));
    say("Once applied they are compacted the next time the sharder runs.");
    if !may_proceed(prompt) {
        return Ok(End::NotWanted);
    }
    tool.merge(shrink_sequences(&mut sequences, tool.now()))?;
    say(format!("Updated {count} shard sequences for compaction."));
    say(RUN_REPLICATOR);
    say("Run container-sharder on all nodes to compact shards.");
    Ok(End::Done)
}

pub(super) fn repair(tool: &Tool, what: &Repair) -> Result<End> {
    if !tool.read(|broker| broker.is_root())? {
        say("WARNING: Shard containers cannot be repaired.");
        say("This command should be used on a root container.");
        return Ok(End::NotDone);
    }
    let ranges = ranges(tool)?;
    if what.gaps {
        let gaps = find_gaps(&ranges, &Namespace::default());
        if gaps.is_empty() {
            let count = ranges.len();
            say(format!(
                "Found one complete sequence of {count} shard ranges with no gaps."
            ));
            say("No repairs necessary.");
            return Ok(End::Done);
        }
        return fill_gaps(tool, what, &gaps);
    }
    if ranges.is_empty() {
        say("No shards found, nothing to do.");
        return Ok(End::Done);
    }
    let own = tool.read(|broker| broker.own_shard_range())?;
    let now = tool.now();
    let solved = solve(
        &ranges,
        &own.namespace(),
        what.min_shard_age,
        now,
        tool.verbose,
    );
    let donors = match solved {
        Solved::Not => return Ok(End::NotDone),
        Solved::Whole => return Ok(End::Done),
        Solved::Donors(donors) => donors,
    };
    if !may_proceed(&what.prompt) {
        return Ok(End::NotWanted);
    }
    let count = donors.len();
    let mut donors: Vec<ShardRange> = donors.into_iter().cloned().collect();
    donors.iter_mut().for_each(|donor| shrink(donor, now));
    tool.merge(donors)?;
    say(format!("Updated {count} donor shard ranges."));
    say(RUN_REPLICATOR);
    say("Run container-sharder on all nodes to repair shards.");
    Ok(End::Done)
}

fn fill_gaps(tool: &Tool, what: &Repair, gaps: &[Gap<'_>]) -> Result<End> {
    say(format!("Found {} gaps:", gaps.len()));
    let mut solutions: Vec<(&Gap<'_>, ShardRange)> = Vec::new();
    for gap in gaps {
        let active = |range: Option<&&ShardRange>| {
            range
                .filter(|range| range.is(State::Active))
                .map(|range| (*range).clone())
        };
        let neighbour = active(gap.after.ranges.first()).or(active(gap.before.ranges.last()));
        say(format!(
            "  gap: {:?} - {:?}",
            gap.lower.text(),
            gap.upper.text()
        ));
        say("    apparent gap contents:");
        let query = RangeQuery {
            marker: gap.lower.text().to_owned(),
            end_marker: gap.upper.text().to_owned(),
            include_deleted: true,
            ..RangeQuery::default()
        };
        for range in tool.read(move |broker| broker.list_shard_ranges(&query))? {
            print_range(&range, 3);
        }
        match neighbour {
            Some(neighbour) => {
                say("    gap can be fixed by expanding neighbor range:");
                print_range(&neighbour, 3);
                solutions.push((gap, neighbour));
            }
            None => say("WARNING: cannot fix gap: non-ACTIVE neighbors"),
        }
    }
    if let Ok(most) = usize::try_from(tool.config.shrinking.max_expanding) {
        solutions.truncate(most);
    }
    let now = tool.now().normal();
    // One range may fill the gaps on both its sides.
    let mut expanded: BTreeMap<String, ShardRange> = BTreeMap::new();
    for (gap, neighbour) in solutions {
        let filling = ShardRange {
            lower: gap.lower.text().to_owned(),
            upper: gap.upper.text().to_owned(),
            ..ShardRange::default()
        };
        let range = expanded.entry(neighbour.name.clone()).or_insert(neighbour);
        range.expand([&filling]);
        range.timestamp.clone_from(&now);
    }
    let mut expanded: Vec<ShardRange> = expanded.into_values().collect();
    expanded.sort_by(|a, b| a.lower.cmp(&b.lower));
    say("\nRepairs necessary to fill gaps.");
    say("The following expanded shard range(s) will be applied to the DB:");
    expanded.iter().for_each(|range| print_range(range, 2));
    say("\nNothing else should change the shard ranges meanwhile: stop auto-sharding first.\n");
    if !may_proceed(&what.prompt) {
        return Ok(End::NotWanted);
    }
    tool.merge(expanded)?;
    say(RUN_REPLICATOR);
    say("Run container-sharder on all nodes to fill gaps.");
    Ok(End::Done)
}

pub(super) fn analyze(file: &FilePath, what: &Analyze, verbose: bool) -> Result<End> {
    let data = load(file, &["lower", "upper", "object_count"]).and_then(|mut data| {
        for range in &mut data {
            if let Value::Object(range) = range {
                range.entry("epoch").or_insert(json!(null));
            }
        }
        parse(data)
    });
    let ranges = match loaded(data) {
        Ok(ranges) => ranges,
        Err(end) => return Ok(end),
    };
    let now = (IndexConfig::new("/").clock)();
    let solved = solve(
        &ranges,
        &Namespace::default(),
        what.min_shard_age,
        now,
        verbose,
    );
    Ok(match solved {
        Solved::Not => End::NotDone,
        _ => End::Done,
    })
}

/// Result of resolving overlaps.
enum Solved<'r> {
    /// Not possible; the reason was printed.
    Not,
    /// There are none.
    Whole,
    /// Ranges to be merged into the others.
    Donors(Vec<&'r ShardRange>),
}

/// Chooses the best path through the ranges; all others become donors.
fn solve<'r>(
    ranges: &'r [ShardRange],
    span: &Namespace,
    min_age: u64,
    now: Timestamp,
    verbose: bool,
) -> Solved<'r> {
    for (state, name) in [
        (State::Sharding, "sharding"),
        (State::Shrinking, "shrinking"),
    ] {
        if ranges.iter().any(|range| range.is(state)) {
            say(format!("WARNING: Found shard ranges in {name} state"));
            say("No repairs performed.");
            return Solved::Not;
        }
    }
    let best = best_path(find_paths(ranges), span);
    let Some((path, _)) =
        best.filter(|(path, _)| path.lower <= span.lower() && path.upper >= span.upper())
    else {
        say("Found no complete sequence of shard ranges.");
        say("Repairs necessary to fill gaps.");
        say("Gap filling not supported by this tool. No repairs performed.");
        return Solved::Not;
    };
    let is_chosen = |range: &ShardRange| path.ranges.iter().any(|r| r.name == range.name);
    let donors: Vec<&ShardRange> = ranges.iter().filter(|range| !is_chosen(range)).collect();
    if let Some(what) = isolated(&path, &donors) {
        say(format!(
            "ERROR: Isolated cleaved and/or active shard ranges in {what}"
        ));
        print_solution(&path, &donors);
        say("No repairs performed.");
        return Solved::Not;
    }
    let donors = eligible(&path, donors, min_age, now);
    if donors.is_empty() {
        let count = path.ranges.len();
        say(format!(
            "Found one complete sequence of {count} shard ranges and no overlapping shard ranges."
        ));
        say("No repairs necessary.");
        return Solved::Whole;
    }
    let moved: i64 = donors.iter().map(|donor| donor.object_count).sum();
    say("Repairs necessary to remove overlapping shard ranges.");
    say(format!(
        "Chosen a complete sequence of {} shard ranges with current total of {} object records to \
         accept object records from {} overlapping donor shard ranges.",
        path.ranges.len(),
        path.object_count(),
        donors.len()
    ));
    if verbose {
        print_solution(&path, &donors);
    }
    say("Once applied to the broker these changes will result in:");
    say(format!("    {} shard ranges being removed.", donors.len()));
    say(format!(
        "    {moved} object records being moved to the chosen shard ranges."
    ));
    Solved::Donors(donors)
}

/// The ranges, of the path or the donors, that have rows beyond the first range of the best path
/// without: there should have been a better path.
fn isolated(path: &Path<'_>, donors: &[&ShardRange]) -> Option<&'static str> {
    let has_rows = |range: &ShardRange| range.is_any(&[State::Cleaved, State::Active]);
    let waiting = path.ranges.iter().find(|range| !has_rows(range));
    let reached = waiting.map_or(path.upper, |range| range.lower());
    let beyond = |range: &&&ShardRange| {
        let is_beyond = match reached {
            Bound::Max => false,
            Bound::Min => true,
            at => range.upper() > at,
        };
        is_beyond && has_rows(range)
    };
    if path.ranges.iter().any(|range| beyond(&range)) {
        return Some("acceptor path");
    }
    donors
        .iter()
        .any(|range| beyond(&range))
        .then_some("donor ranges")
}

/// Donors that may be merged: not parents or children of their acceptors, and not young, as an
/// overlap of those may resolve itself.
fn eligible<'r>(
    path: &Path<'_>,
    donors: Vec<&'r ShardRange>,
    min_age: u64,
    now: Timestamp,
) -> Vec<&'r ShardRange> {
    let is_family = |donor: &ShardRange| {
        path.ranges.iter().any(|acceptor| {
            acceptor.is_child_of(donor, hash_container_name)
                || donor.is_child_of(acceptor, hash_container_name)
        })
    };
    let count = donors.len();
    let donors: Vec<_> = donors
        .into_iter()
        .filter(|donor| !is_family(donor))
        .collect();
    if donors.len() < count {
        say(format!(
            "{} donor shards ignored due to parent-child relationship checks",
            count - donors.len()
        ));
    }
    if min_age == 0 {
        return donors;
    }
    let is_old = |range: &ShardRange| {
        let time = Timestamp::parse(&range.timestamp).map_or(0.0, Timestamp::as_f64);
        time + (min_age as f64) < now.as_f64()
    };
    let count = donors.len();
    let donors: Vec<_> = donors.into_iter().filter(|donor| is_old(donor)).collect();
    if donors.len() < count {
        let young = count - donors.len();
        say(format!(
            "{young} overlapping donor shards ignored due to minimum age limit"
        ));
    }
    let count = donors.len();
    let meets_young = |donor: &ShardRange| {
        path.ranges
            .iter()
            .any(|acceptor| !is_old(acceptor) && acceptor.overlaps(donor))
    };
    let donors: Vec<_> = donors
        .into_iter()
        .filter(|donor| !meets_young(donor))
        .collect();
    if donors.len() < count {
        say(format!(
            "{} donor shards ignored due to existence of overlapping young acceptors",
            count - donors.len()
        ));
    }
    donors
}

fn print_solution(path: &Path<'_>, donors: &[&ShardRange]) {
    say("Donors:");
    donors.iter().for_each(|donor| print_range(donor, 1));
    say("Acceptors:");
    path.ranges
        .iter()
        .for_each(|acceptor| print_range(acceptor, 1));
}
