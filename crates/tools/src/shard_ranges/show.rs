//! Commands that only read: `find`, `show`, `info`.

use std::time::Instant;

use anyhow::Result;
use cairn_formats::shard::ShardRange;
use cairn_http::params::{is_true, unquote};
use cairn_index::{Cut, FoundRange, RangeQuery};
use serde_json::{Value, json};

use super::args::Show;
use super::{End, Tool, as_json, note, pretty, say};

const SHARDING: &str = "X-Container-Sysmeta-Sharding";

/// Searches for all bounds of the container's shards.
pub(super) fn found(tool: &Tool) -> Result<Vec<FoundRange>> {
    let cut = Cut {
        rows_per_shard: tool.config.rows_per_shard,
        minimum_rows: tool.config.minimum_shard_size,
        limit: None,
    };
    let (found, _) = tool.read(move |broker| broker.find_shard_ranges(cut, &[]))?;
    Ok(found)
}

pub(super) fn find(tool: &Tool) -> Result<End> {
    let began = Instant::now();
    let found = found(tool)?;
    let data: Vec<Value> = found
        .iter()
        .map(|range| {
            json!({"index": range.index, "lower": range.lower, "upper": range.upper,
                   "object_count": range.object_count})
        })
        .collect();
    say(pretty(&json!(data)));
    let objects: i64 = found.iter().map(|range| range.object_count).sum();
    let (count, seconds) = (found.len(), began.elapsed().as_secs_f64());
    note(format!(
        "Found {count} ranges in {seconds:.3}s (total object count {objects})"
    ));
    Ok(End::Done)
}

pub(super) fn show(tool: &Tool, what: &Show) -> Result<End> {
    let mut includes = what.includes.clone();
    if let (true, Some(quoted)) = (what.quoted, &includes) {
        let Ok(name) = unquote(quoted) else {
            note(format!(
                "--includes {quoted:?}: expected UTF-8 when decoded"
            ));
            return Ok(End::BadInput);
        };
        includes = Some(name);
    }
    let query = RangeQuery {
        includes,
        include_deleted: what.include_deleted,
        ..RangeQuery::default()
    };
    let ranges = tool.read(move |broker| broker.list_shard_ranges(&query))?;
    if ranges.is_empty() {
        note("No shard data found.");
        return Ok(End::Done);
    }
    note("Existing shard ranges:");
    let shown: Vec<Value> = match what.brief {
        true => ranges.iter().map(|r| json!([r.lower, r.upper])).collect(),
        false => ranges.iter().map(as_json).collect(),
    };
    say(pretty(&json!(shown)));
    Ok(End::Done)
}

pub(super) fn info(tool: &Tool) -> Result<End> {
    let (own, info, metadata, has_shards, source) = tool.read(|broker| {
        let own: Option<ShardRange> = broker.stored_own_shard_range()?;
        let source = broker.with_source(|source| source.id())?;
        Ok((
            own,
            broker.info()?,
            broker.metadata()?,
            broker.has_shards()?,
            source,
        ))
    })?;
    let told = metadata
        .get(SHARDING)
        .is_some_and(|(word, _)| is_true(word));
    let yes = |yes: bool| if yes { "True" } else { "False" };
    say(format!("Sharding enabled = {}", yes(told || has_shards)));
    let own = own.map_or("None".to_owned(), |own| pretty(&as_json(&own)));
    say(format!("Own shard range: {own}"));
    say(format!("db_state = {}", info.db_state));
    say(format!("object_count = {}", info.object_count));
    say(format!("bytes_used = {}", info.bytes_used));
    if info.db_state == cairn_index::DbState::Sharding.name() {
        say(format!("Retiring db id: {source}"));
        let name = format!("X-Container-Sysmeta-Shard-Context-{source}");
        let context = metadata.get(&name).map_or("{}", |(context, _)| context);
        let context = serde_json::from_str(context).unwrap_or(Value::Null);
        say(format!("Cleaving context: {}", pretty(&context)));
    }
    say("Metadata:");
    for (name, value, _) in metadata.iter() {
        say(format!("  {name} = {value}"));
    }
    Ok(End::Done)
}
