//! `swift-account-info` and `swift-container-info`: the content of a database, and its location by
//! the ring.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use cairn_index::inspect::{self, SyncRow};
use cairn_index::{AccountBroker, ContainerBroker, DbKind, Metadata, ShardRange};
use cairn_types::{PolicyIndex, Timestamp};
use clap::Parser;

use crate::locations::{Item, Places, SwiftDir};

/// Show what an account's or a container's database says
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Options {
    /// Folder of swift.conf and the rings
    #[arg(short = 'd', long, default_value = "/etc/swift")]
    swift_dir: PathBuf,
    /// Show metadata without the prefixes of their names
    #[arg(long)]
    drop_prefixes: bool,
    /// Show all shard ranges instead of their number
    #[arg(short, long)]
    verbose: bool,
    /// Show how far other replicas are
    #[arg(short, long)]
    sync: bool,
    #[arg(value_name = "DB_FILE")]
    file: PathBuf,
}

/// Fields of the database, in display order.
struct Found {
    account: String,
    container: Option<String>,
    deleted: bool,
    /// Titles and times.
    times: Vec<(&'static str, String)>,
    /// Titles and values.
    counts: Vec<(&'static str, String)>,
    reported: Vec<(&'static str, String)>,
    policy: Option<u32>,
    hash: String,
    id: String,
    own: Vec<(&'static str, i64)>,
    metadata: Metadata,
    sharding: Option<Sharding>,
    syncs: [Vec<SyncRow>; 2],
}

struct Sharding {
    root: bool,
    state: &'static str,
    ranges: Vec<ShardRange>,
}

pub(crate) fn run(kind: DbKind, options: &Options, out: &mut dyn Write) -> Result<u8> {
    let swift = SwiftDir::open(&options.swift_dir)?;
    let file = &options.file;
    if !file.exists() || file.extension().is_none_or(|e| e != "db") {
        writeln!(out, "DB file doesn't exist")?;
        return Ok(1);
    }
    let mut pending = file.clone().into_os_string();
    pending.push(".pending");
    if std::fs::metadata(pending).is_ok_and(|pending| pending.len() > 0) {
        // Rows in the pending file are not in the database yet.
        writeln!(out, "WARNING: Possibly Stale Data")?;
    }
    let found = match kind {
        DbKind::Account => inspect::read(file, kind, |broker| {
            read_account(&AccountBroker::of(broker))
        }),
        DbKind::Container => inspect::read(file, kind, |broker| {
            read_container(&ContainerBroker::of(broker))
        }),
    };
    let found = match found {
        Ok(found) => found,
        Err(error) if error.to_string().contains("no such table") => {
            let (kind, file) = (kind.as_str(), file.display());
            writeln!(out, "Does not appear to be a DB of type \"{kind}\": {file}")?;
            return Ok(1);
        }
        Err(error) => bail!("{} info failed: {error}", kind.as_str()),
    };
    print(kind, &found, &swift, options, out)?;
    if options.sync {
        for (incoming, rows) in [("Incoming", &found.syncs[0]), ("Outgoing", &found.syncs[1])] {
            print_syncs(incoming, rows, out)?;
        }
    }
    let Ok(ring) = swift.ring(kind.as_str()) else {
        return Ok(0);
    };
    let places = Places {
        ring: &ring,
        datadir: kind.datadir(),
        item: Item {
            account: Some(&found.account),
            container: found.container.as_deref(),
            object: None,
        },
        partition: None,
        all: false,
        policy: None,
    };
    places.print(&swift, out)?;
    Ok(0)
}

fn read_account(broker: &AccountBroker<'_>) -> cairn_index::Result<Found> {
    let info = broker.info()?;
    Ok(Found {
        deleted: info.is_deleted(),
        account: info.account,
        container: None,
        times: vec![
            ("Created at", info.created_at),
            ("Put Timestamp", info.put_timestamp),
            ("Delete Timestamp", info.delete_timestamp),
            ("Status Timestamp", info.status_changed_at),
        ],
        counts: vec![
            ("Container Count", info.container_count.to_string()),
            ("Object Count", info.object_count.to_string()),
            ("Bytes Used", info.bytes_used.to_string()),
        ],
        reported: Vec::new(),
        policy: None,
        hash: info.hash,
        id: info.id,
        own: Vec::new(),
        metadata: broker.metadata()?,
        sharding: None,
        syncs: [
            inspect::syncs(broker, true)?,
            inspect::syncs(broker, false)?,
        ],
    })
}

fn read_container(broker: &ContainerBroker<'_>) -> cairn_index::Result<Found> {
    let info = broker.info()?;
    Ok(Found {
        deleted: info.is_deleted(),
        account: info.account,
        container: Some(info.container),
        times: vec![
            ("Created at", info.created_at),
            ("Put Timestamp", info.put_timestamp),
            ("Delete Timestamp", info.delete_timestamp),
            ("Status Timestamp", info.status_changed_at),
        ],
        counts: vec![
            ("Object Count", info.object_count.to_string()),
            ("Bytes Used", info.bytes_used.to_string()),
        ],
        reported: vec![
            ("Reported Put Timestamp", info.reported_put_timestamp),
            ("Reported Delete Timestamp", info.reported_delete_timestamp),
            (
                "Reported Object Count",
                info.reported_object_count.to_string(),
            ),
            ("Reported Bytes Used", info.reported_bytes_used.to_string()),
        ],
        policy: Some(u32::try_from(info.storage_policy_index).unwrap_or(u32::MAX)),
        hash: info.hash,
        id: info.id,
        own: vec![
            ("X-Container-Sync-Point1", info.x_container_sync_point1),
            ("X-Container-Sync-Point2", info.x_container_sync_point2),
        ],
        metadata: broker.metadata()?,
        sharding: Some(Sharding {
            root: broker.is_root()?,
            state: info.db_state,
            ranges: inspect::shard_ranges(broker)?,
        }),
        syncs: [
            inspect::syncs(broker, true)?,
            inspect::syncs(broker, false)?,
        ],
    })
}

/// Formats a time: `2014-06-11T05:31:17.041880 (1402464677.04188)`.
fn time(text: &str) -> String {
    let time = Timestamp::parse(text).unwrap_or(Timestamp::ZERO);
    format!("{} ({text})", time.isoformat())
}

fn print(
    kind: DbKind,
    found: &Found,
    swift: &SwiftDir,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let (account, container) = (&found.account, found.container.as_deref());
    let hash = swift.conf.hash_path.hash(account, container, None).hex();
    let deleted = if found.deleted { "True" } else { "False" };
    match container {
        None => {
            writeln!(out, "Path: /{account}\n  Account: {account}")?;
            writeln!(out, "  Deleted: {deleted}\n  Account Hash: {hash}")?;
        }
        Some(container) => {
            writeln!(out, "Path: /{account}/{container}\n  Account: {account}")?;
            writeln!(out, "  Container: {container}\n  Deleted: {deleted}")?;
            writeln!(out, "  Container Hash: {hash}")?;
        }
    }
    writeln!(out, "Metadata:")?;
    for (title, text) in &found.times {
        writeln!(out, "  {title}: {}", time(text))?;
    }
    for (title, text) in &found.counts {
        writeln!(out, "  {title}: {text}")?;
    }
    if let Some(index) = found.policy {
        let policy = swift.conf.policies.by_index(PolicyIndex(index));
        let name = policy.map_or("Unknown", |policy| &policy.name);
        writeln!(out, "  Storage Policy: {name} ({index})")?;
    }
    for (title, text) in &found.reported {
        match title.ends_with("Timestamp") {
            true => writeln!(out, "  {title}: {}", time(text))?,
            false => writeln!(out, "  {title}: {text}")?,
        }
    }
    writeln!(out, "  Chexor: {}\n  UUID: {}", found.hash, found.id)?;
    for (title, value) in &found.own {
        writeln!(out, "  {title}: {value}")?;
    }
    print_metadata(kind, &found.metadata, options.drop_prefixes, out)?;
    match &found.sharding {
        Some(sharding) => print_sharding(sharding, options.verbose, out),
        None => Ok(()),
    }
}

fn print_metadata(
    kind: DbKind,
    metadata: &Metadata,
    drop_prefixes: bool,
    out: &mut dyn Write,
) -> Result<()> {
    let (mut user, mut system) = (Vec::new(), Vec::new());
    let (user_prefix, system_prefix) = (
        format!("x-{}-meta-", kind.as_str()),
        format!("x-{}-sysmeta-", kind.as_str()),
    );
    for (name, value, _) in metadata.iter() {
        let lower = name.to_ascii_lowercase();
        let shown = |prefix: &str| match drop_prefixes {
            true => name.get(prefix.len()..).unwrap_or(name).to_owned(),
            false => name.to_owned(),
        };
        if lower.starts_with(&user_prefix) {
            user.push((shown(&user_prefix), value));
        } else if lower.starts_with(&system_prefix) {
            system.push((shown(&system_prefix), value));
        } else {
            writeln!(out, "  {}: {value}", title(name))?;
        }
    }
    for (items, name, none) in [(system, "System", "system"), (user, "User", "user")] {
        if items.is_empty() {
            writeln!(out, "No {none} metadata found in db file")?;
            continue;
        }
        writeln!(out, "  {name} Metadata:")?;
        for (name, value) in items {
            writeln!(out, "    {name}: {value}")?;
        }
    }
    Ok(())
}

/// Converts `x_container_read` to `X-Container-Read`.
fn title(name: &str) -> String {
    let mut after_letter = false;
    name.chars()
        .map(|c| {
            let c = if c == '_' { '-' } else { c };
            let shown = match after_letter {
                true => c.to_ascii_lowercase(),
                false => c.to_ascii_uppercase(),
            };
            after_letter = c.is_alphabetic();
            shown
        })
        .collect()
}

const STATES: [(i64, &str); 8] = [
    (10, "found"),
    (20, "created"),
    (30, "cleaved"),
    (40, "active"),
    (50, "shrinking"),
    (60, "sharding"),
    (70, "sharded"),
    (80, "shrunk"),
];

fn state_name(state: i64) -> &'static str {
    let known = STATES.iter().find(|(number, _)| *number == state);
    known.map_or("unknown", |(_, name)| name)
}

fn print_sharding(sharding: &Sharding, verbose: bool, out: &mut dyn Write) -> Result<()> {
    let kind = if sharding.root { "root" } else { "shard" };
    writeln!(out, "Sharding Metadata:\n  Type: {kind}")?;
    writeln!(out, "  State: {}", sharding.state)?;
    if sharding.ranges.is_empty() {
        return Ok(());
    }
    writeln!(out, "Shard Ranges ({}):\n  States:", sharding.ranges.len())?;
    let mut counts: BTreeMap<i64, usize> = BTreeMap::new();
    for range in &sharding.ranges {
        *counts.entry(range.state).or_default() += 1;
    }
    for (state, count) in counts {
        writeln!(out, "    {:>9}: {count}", state_name(state))?;
    }
    if !verbose {
        writeln!(out, "(Use -v/--verbose to show more Shard Ranges details)")?;
        return Ok(());
    }
    for range in &sharding.ranges {
        writeln!(out, "  Name: {}", range.name)?;
        let (lower, upper) = (python_text(&range.lower), python_text(&range.upper));
        writeln!(out, "    lower: {lower}, upper: {upper}")?;
        writeln!(
            out,
            "    Object Count: {}, Bytes Used: {}, State: {} ({})",
            range.object_count,
            range.bytes_used,
            state_name(range.state),
            range.state
        )?;
        writeln!(out, "    Created at: {}", time(&range.timestamp))?;
        writeln!(out, "    Meta Timestamp: {}", time(&range.meta_timestamp))?;
    }
    Ok(())
}

/// Quotes a text like Python.
fn python_text(text: &str) -> String {
    let quote = match text.contains('\'') && !text.contains('"') {
        true => '"',
        false => '\'',
    };
    let mut shown = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => shown.push_str("\\\\"),
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            '\r' => shown.push_str("\\r"),
            c if c == quote => shown.extend(['\\', c]),
            c if c.is_control() => shown.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => shown.push(c),
        }
    }
    shown.push(quote);
    shown
}

fn print_syncs(which: &str, rows: &[SyncRow], out: &mut dyn Write) -> Result<()> {
    let widest = |title: &str, of: &dyn Fn(&SyncRow) -> usize| {
        rows.iter().map(of).max().unwrap_or(0).max(title.len())
    };
    let points = widest("Sync Point", &|row| row.sync_point.to_string().len());
    let ids = widest("Remote ID", &|row| row.remote_id.chars().count());
    writeln!(out, "{which} Syncs:")?;
    writeln!(
        out,
        "  {:points$}\t{:ids$}\tUpdated At",
        "Sync Point", "Remote ID"
    )?;
    for row in rows {
        let point = row.sync_point.to_string();
        let updated = time(&row.updated_at);
        writeln!(out, "  {point:points$}\t{:ids$}\t{updated}", row.remote_id)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_swift_shows_them() {
        assert_eq!(title("X-CONTAINER-read"), "X-Container-Read");
        assert_eq!(title("x_container_sync_point1"), "X-Container-Sync-Point1");
        assert_eq!(python_text("it's"), "\"it's\"");
        assert_eq!(python_text("a\u{1}\n\\é"), "'a\\x01\\n\\\\é'");
    }
}
