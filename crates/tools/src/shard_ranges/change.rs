//! Changes of ranges: `delete`, `merge`, `replace`, `find_and_replace`, `enable`.

use anyhow::{Result, anyhow};
use cairn_daemons::hash_container_name;
use cairn_formats::shard::{
    Bounded, Namespace, ShardName, ShardRange, State, combine, find_gaps, find_overlaps,
    sort_ranges,
};
use cairn_index::{DbState, FoundRange, RangeQuery};
use serde_json::{Value, json};

use super::args::{Force, Merge, Replace, Replacing, Show};
use super::show::{found, show};
use super::{End, Tool, ask, load, loaded, may_proceed, pretty, say};

fn ranges(tool: &Tool) -> Result<Vec<ShardRange>> {
    tool.read(|broker| broker.list_shard_ranges(&RangeQuery::default()))
}

pub(super) fn delete(tool: &Tool, force: &Force) -> Result<End> {
    let mut ranges = ranges(tool)?;
    let count = ranges.len();
    if ranges.is_empty() {
        say("No shard ranges found to delete.");
        return Ok(End::Done);
    }
    if !force.force && !may_delete(tool, &ranges)? {
        return Ok(End::NotWanted);
    }
    let now = tool.now().normal();
    for range in &mut ranges {
        range.deleted = 1;
        range.timestamp.clone_from(&now);
    }
    tool.merge(ranges)?;
    say(format!("Deleted {count} existing shard ranges."));
    Ok(End::Done)
}

/// Asks until the answer is valid.
fn may_delete(tool: &Tool, ranges: &[ShardRange]) -> Result<bool> {
    loop {
        let count = ranges.len();
        say(format!("This will delete existing {count} shard ranges."));
        let state = tool.read(|broker| broker.db_state())?;
        if state != DbState::Unsharded {
            let begun = ranges.iter().filter(|r| !r.is(State::Found)).count();
            say("WARNING: Deleting ranges here does not delete them in all replicas.");
            say(format!("  - this db is in state {}", state.name()));
            say(format!(
                "  - {begun} existing shard ranges have started sharding"
            ));
        }
        let question = "Do you want to show the existing ranges [s], delete the existing ranges \
                        [yes] or quit without deleting [q]? ";
        match ask(question).as_str() {
            "s" => {
                show(tool, &Show::default())?;
            }
            "yes" => return Ok(true),
            "q" | "" => return Ok(false),
            _ => say("Please make a valid choice.\n"),
        }
    }
}

pub(super) fn merge(tool: &Tool, merge: &Merge) -> Result<End> {
    if own_range(tool, &merge.prefix.shards_account_prefix)?.is_none() {
        return Ok(End::BadInput);
    }
    let data = loaded(load(&merge.input, &["lower", "upper", "object_count"]).and_then(parse));
    let mut new = match data {
        Ok(new) => new,
        Err(end) => return Ok(end),
    };
    sort_ranges(&mut new);
    let existing = tool.read(|broker| {
        broker.list_shard_ranges(&RangeQuery {
            include_deleted: true,
            ..RangeQuery::default()
        })
    })?;
    let outcome = combine(&new, &existing);
    if tool.verbose {
        say("This change will result in the following shard ranges:");
        say(pretty(&json!(outcome)));
    }
    if !find_overlaps(&outcome, |_, _| false).is_empty() {
        say("WARNING: this change will result in shard ranges overlaps!");
    }
    let span = Namespace {
        lower: existing
            .first()
            .map(|r| r.lower.clone())
            .unwrap_or_default(),
        upper: existing.last().map(|r| r.upper.clone()).unwrap_or_default(),
        ..Namespace::default()
    };
    let is_within = |gap: &cairn_formats::shard::Gap<'_>| {
        !existing.is_empty() && span.lower() <= gap.lower && gap.upper <= span.upper()
    };
    if find_gaps(&outcome, &Namespace::default())
        .iter()
        .any(is_within)
    {
        say("WARNING: this change will result in shard ranges gaps!");
    }
    if !may_proceed(&merge.prompt) {
        return Ok(End::NotWanted);
    }
    let count = new.len();
    tool.merge(new)?;
    say(format!("Injected {count} shard ranges."));
    say("Run container-replicator to replicate them to other nodes.");
    Ok(End::Done)
}

pub(super) fn parse(data: Vec<Value>) -> Result<Vec<ShardRange>> {
    let ranges = data.iter().enumerate().map(|(at, range)| {
        ShardRange::from_json(range).map_err(|error| anyhow!("range number {at}: {error}"))
    });
    ranges.collect()
}

pub(super) fn replace(tool: &Tool, replace: &Replace) -> Result<End> {
    let keys = ["lower", "upper", "object_count", "index"];
    let read = load(&replace.input, &keys).and_then(|data| {
        let number = |range: &Value, name: &str| range.get(name).and_then(Value::as_i64);
        let text = |range: &Value, name: &str| Some(range.get(name)?.as_str()?.to_owned());
        let found = data.iter().map(|range| {
            Some(FoundRange {
                index: usize::try_from(number(range, "index")?).ok()?,
                lower: text(range, "lower")?,
                upper: text(range, "upper")?,
                object_count: number(range, "object_count")?,
            })
        });
        found.collect::<Option<Vec<_>>>().ok_or_else(|| {
            anyhow!("Failed to load valid shard range data: bounds are text, counts are numbers")
        })
    });
    match loaded(read) {
        Ok(found) => put_in_place(tool, &replace.replacing, found),
        Err(end) => Ok(end),
    }
}

pub(super) fn find_and_replace(tool: &Tool, replacing: &Replacing) -> Result<End> {
    let found = found(tool)?;
    put_in_place(tool, replacing, found)
}

fn put_in_place(tool: &Tool, replacing: &Replacing, found: Vec<FoundRange>) -> Result<End> {
    let prefix = &replacing.prefix.shards_account_prefix;
    let Some(own) = own_range(tool, prefix)? else {
        return Ok(End::BadInput);
    };
    let (root, name) = tool.read(|broker| Ok((broker.root_name()?, broker.own_name()?)))?;
    let (root_account, root) = root.split_once('/').unwrap_or((&root, ""));
    let parent = hash_container_name(name.split_once('/').map_or("", |(_, container)| container));
    let (account, now) = (format!("{prefix}{root_account}"), tool.now());
    let new: Vec<ShardRange> = found
        .iter()
        .map(|found| {
            let name = ShardName::make(&account, root, &parent, now, found.index);
            let mut range = ShardRange::new(name, now, &found.lower, &found.upper);
            range.object_count = found.object_count;
            range
        })
        .collect();
    if !is_complete(&own, &new) {
        return Ok(End::NotDone);
    }
    if tool.verbose {
        say("New shard ranges to be injected:");
        say(pretty(&json!(new)));
    }
    let deleted = delete(tool, &replacing.force)?;
    if deleted != End::Done {
        return Ok(deleted);
    }
    let count = new.len();
    tool.merge(new)?;
    say(format!("Injected {count} shard ranges."));
    say("Run container-replicator to replicate them to other nodes.");
    if replacing.enable {
        return enable(tool, prefix);
    }
    say("Use the enable sub-command to enable sharding.");
    Ok(End::Done)
}

/// The own range; a shard must have one already, else prints an error and returns none.
fn own_range(tool: &Tool, prefix: &str) -> Result<Option<ShardRange>> {
    let (name, stored, own) = tool.read(|broker| {
        let stored = broker.stored_own_shard_range()?.is_some();
        Ok((broker.own_name()?, stored, broker.own_shard_range()?))
    })?;
    if name.starts_with(prefix) && !stored {
        say("WARNING: shard container missing own shard range.");
        say("Aborting.");
        return Ok(None);
    }
    Ok(Some(own))
}

/// Whether the ranges cover the container's own, without gaps or overlaps.
fn is_complete(own: &ShardRange, ranges: &[ShardRange]) -> bool {
    let mut reasons = Vec::new();
    let mut same = |x: &str, y: &str| {
        if x != y {
            reasons.push(format!("{x:?} != {y:?}"));
        }
    };
    match (ranges.first(), ranges.last()) {
        (Some(first), Some(last)) => {
            same(&own.lower, &first.lower);
            same(&own.upper, &last.upper);
            for pair in ranges.windows(2) {
                same(&pair[0].upper, &pair[1].lower);
            }
        }
        _ => reasons.push("No shard ranges.".into()),
    }
    if !reasons.is_empty() {
        say(format!(
            "WARNING: invalid shard ranges: {}.",
            reasons.join(", ")
        ));
        say("Aborting.");
    }
    reasons.is_empty()
}

pub(super) fn enable(tool: &Tool, prefix: &str) -> Result<End> {
    let Some(own) = own_range(tool, prefix)? else {
        return Ok(End::BadInput);
    };
    if !is_complete(&own, &ranges(tool)?) {
        return Ok(End::NotDone);
    }
    let epoch = |own: &ShardRange| own.epoch.clone().unwrap_or_default();
    let state = own.state_text();
    if own.is(State::Active) {
        let own = begin(tool, own)?;
        say(format!(
            "Container moved to state 'sharding' with epoch {}.",
            epoch(&own)
        ));
    } else if own.is(State::Sharding) && own.epoch.is_some() {
        say(format!(
            "Container already in state {state:?} with epoch {}.",
            epoch(&own)
        ));
        say("No action required.");
    } else if own.is(State::Sharding) {
        say(format!(
            "Container already in state {state:?} but missing epoch."
        ));
        let own = begin(tool, own)?;
        say(format!(
            "Container in state {state:?} given epoch {}.",
            epoch(&own)
        ));
    } else {
        say(format!(
            "WARNING: container in state {state} (should be active or sharding)."
        ));
        say("Aborting.");
        return Ok(End::NotDone);
    }
    say("Run container-sharder on all nodes to shard the container.");
    Ok(End::Done)
}

fn begin(tool: &Tool, mut own: ShardRange) -> Result<ShardRange> {
    let now = tool.now();
    own.set_state_at(State::Sharding, now);
    own.epoch = Some(now.normal());
    let begun = own.clone();
    tool.write(move |broker| {
        let info = broker.info()?;
        own.set_counts(info.object_count, info.bytes_used, now);
        broker.merge_shard_ranges(vec![own])?;
        let time = now.normal();
        broker.update_metadata([("X-Container-Sysmeta-Sharding", "True", &*time)], false)
    })?;
    Ok(begun)
}
