//! `swift-manage-shard-ranges`: shows and changes the shard ranges in a container's database, as
//! used by the sharder.
//!
//! Exit codes: 0 done; 1 not done; 2 invalid arguments or input; 3 declined by the user.

mod args;
mod change;
mod repair;
mod show;

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cairn_daemons::ContainerSharderConfig;
use cairn_formats::ini::Section;
use cairn_formats::shard::ShardRange;
use cairn_index::{ContainerBroker, ContainerDb, DbKey, DbKind, IndexConfig, IndexPool};
use cairn_node::conf::read_conf;
use cairn_types::{ObjectHash, Timestamp};
use serde_json::{Value, json};

use args::{Command, Prompt};

pub(crate) use args::Arguments;

/// Result of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    NotDone,
    BadInput,
    NotWanted,
}

impl From<End> for ExitCode {
    fn from(end: End) -> ExitCode {
        ExitCode::from(match end {
            End::Done => 0,
            End::NotDone => 1,
            End::BadInput => 2,
            End::NotWanted => 3,
        })
    }
}

/// Prints a line; errors of a closed output are ignored.
fn say(text: impl AsRef<str>) {
    let _ = writeln!(std::io::stdout(), "{}", text.as_ref());
}

fn note(text: impl AsRef<str>) {
    let _ = writeln!(std::io::stderr(), "{}", text.as_ref());
}

/// A database, with the options of the conf and the command line.
struct Tool {
    db: ContainerDb,
    runtime: tokio::runtime::Runtime,
    pool: Arc<IndexPool>,
    config: ContainerSharderConfig,
    verbose: bool,
}

impl Tool {
    fn read<T: Send + 'static>(
        &self,
        f: impl FnOnce(&ContainerBroker<'_>) -> cairn_index::Result<T> + Send + 'static,
    ) -> Result<T> {
        Ok(self.runtime.block_on(self.db.read(f))?)
    }

    fn write<T: Send + 'static>(
        &self,
        f: impl FnOnce(&ContainerBroker<'_>) -> cairn_index::Result<T> + Send + 'static,
    ) -> Result<T> {
        Ok(self.runtime.block_on(self.db.write(None, f))?)
    }

    fn merge(&self, ranges: Vec<ShardRange>) -> Result<()> {
        self.write(move |broker| broker.merge_shard_ranges(ranges))
    }

    fn now(&self) -> Timestamp {
        (self.pool.config().clock)()
    }
}

/// Runs the program.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    match run_command(arguments) {
        Ok(end) => end.into(),
        Err(error) => {
            note(format!("{error:#}"));
            End::NotDone.into()
        }
    }
}

fn run_command(arguments: Arguments) -> Result<End> {
    let config = match config(&arguments) {
        Ok(config) => config,
        Err(error) => {
            note(format!("Invalid config: {error:#}"));
            return Ok(End::BadInput);
        }
    };
    if let Command::Analyze(analyze) = &arguments.command {
        return repair::analyze(&arguments.file, analyze, arguments.verbose > 0);
    }
    let tool = open(&arguments, config)?;
    let end = command(&tool, arguments.command);
    tool.pool.close_all();
    end
}

fn command(tool: &Tool, command: Command) -> Result<End> {
    match command {
        Command::Find(_) => show::find(tool),
        Command::Show(what) => show::show(tool, &what),
        Command::Info => show::info(tool),
        Command::Delete(force) => change::delete(tool, &force),
        Command::Merge(merge) => change::merge(tool, &merge),
        Command::Replace(replace) => change::replace(tool, &replace),
        Command::FindAndReplace(replace) => change::find_and_replace(tool, &replace.replacing),
        Command::Enable(enable) => {
            change::enable(tool, &enable.replacing.prefix.shards_account_prefix)
        }
        Command::Compact(compact) => repair::compact(tool, &compact.prompt),
        Command::Repair(what) => repair::repair(tool, &what),
        Command::Analyze(_) => Ok(End::Done),
    }
}

/// Options of the conf's section, overridden by the command line.
fn config(arguments: &Arguments) -> Result<ContainerSharderConfig> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    if let Some(path) = &arguments.config {
        let conf = read_conf(path)?;
        let section = conf.section("container-sharder")?;
        pairs.extend(
            section
                .iter()
                .map(|(name, value)| (name.into(), value.into())),
        );
    }
    let mut set = |name: &str, value: Option<i64>| {
        if let Some(value) = value {
            pairs.retain(|(set, _)| set != name);
            pairs.push((name.to_owned(), value.to_string()));
        }
    };
    let find = match &arguments.command {
        Command::Find(find) => Some(find),
        Command::FindAndReplace(replace) => Some(&replace.find),
        _ => None,
    };
    if let Some(find) = find {
        set("rows_per_shard", find.rows_per_shard);
        set("minimum_shard_size", find.minimum_shard_size);
    }
    if let Command::Compact(compact) = &arguments.command {
        set("shrink_threshold", compact.shrink_threshold);
        set("expansion_limit", compact.expansion_limit);
        set("max_shrinking", compact.max_shrinking);
        set("max_expanding", compact.max_expanding);
    }
    if let Command::Repair(repair) = &arguments.command {
        set("max_expanding", repair.max_expanding);
    }
    let pairs: Vec<(&str, &str)> = pairs
        .iter()
        .map(|(n, v)| (n.as_str(), v.as_str()))
        .collect();
    let section = Section::from_pairs("container-sharder", &pairs);
    // Only options used by the command must be consistent.
    Ok(match arguments.command {
        Command::Find(_) | Command::FindAndReplace(_) => {
            ContainerSharderConfig::read_to_cut(&section)?
        }
        _ => ContainerSharderConfig::read_unchecked(&section)?,
    })
}

fn open(arguments: &Arguments, config: ContainerSharderConfig) -> Result<Tool> {
    let file = &arguments.file;
    // The folder must exist; the file's epoch may have changed.
    let folder = file.parent().unwrap_or(file);
    let real = std::fs::canonicalize(folder)
        .with_context(|| format!("Error opening container DB {}", file.display()))?;
    let (devices, key) = locate_db(&real).with_context(|| {
        format!(
            "{}: expected DEVICES/DEVICE/containers/PARTITION/SUFFIX/HASH/HASH.db",
            file.display()
        )
    })?;
    let mut index = IndexConfig::new(devices);
    index.lock_timeout = lock_timeout(&arguments.command);
    let pool = IndexPool::new(index);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    let tool = Tool {
        db: pool.container_by_key(key),
        runtime,
        pool,
        config,
        verbose: arguments.verbose > 0,
    };
    let name = tool
        .read(|broker| broker.own_name())
        .with_context(|| format!("Error opening container DB {}", file.display()))?;
    note(format!("Loaded db broker for {name}"));
    Ok(tool)
}

/// Timeout of a locked database.
fn lock_timeout(command: &Command) -> Duration {
    Duration::from_secs(match command {
        Command::Merge(merge) => merge.prefix.replace_timeout,
        Command::Replace(replace) => replace.replacing.prefix.replace_timeout,
        Command::FindAndReplace(replace) => replace
            .enable_timeout
            .max(replace.replacing.prefix.replace_timeout),
        Command::Enable(enable) => enable.enable_timeout,
        _ => 25,
    })
}

/// The folder of devices, and the key of a folder's database.
fn locate_db(hash_dir: &Path) -> Option<(PathBuf, DbKey)> {
    let name = |path: &Path| Some(path.file_name()?.to_str()?.to_owned());
    let hash = ObjectHash::from_hex(&name(hash_dir)?)?;
    let partition_dir = hash_dir.parent()?.parent()?;
    let datadir = partition_dir.parent()?;
    let device_dir = datadir.parent()?;
    if name(datadir)? != DbKind::Container.datadir() {
        return None;
    }
    let (device, partition) = (name(device_dir)?, name(partition_dir)?);
    let key = DbKey::new(&device, &partition, DbKind::Container, hash);
    Some((device_dir.parent()?.to_owned(), key))
}

fn ask(question: &str) -> String {
    let mut out = std::io::stdout();
    let _ = write!(out, "{question}");
    let _ = out.flush();
    let mut answer = String::new();
    // End of input is an empty answer.
    let _ = std::io::stdin().lock().read_line(&mut answer);
    answer.trim().to_owned()
}

fn may_proceed(prompt: &Prompt) -> bool {
    let question = "Do you want to apply these changes to the container DB? [yes/N]";
    let yes = !prompt.dry_run && (prompt.yes || ask(question) == "yes");
    if !yes {
        say("No changes applied");
    }
    yes
}

fn print_range(range: &ShardRange, level: usize) {
    let indent = "  ".repeat(level);
    say(format!("{indent}{:?}", range.name));
    say(format!(
        "{indent}  objects: {:9}, tombstones: {:9}, lower: {:?}",
        range.object_count, range.tombstones, range.lower
    ));
    say(format!(
        "{indent}    state: {:>9}, deleted: {}             upper: {:?}",
        range.state_text(),
        range.deleted,
        range.upper
    ));
}

fn as_json(range: &ShardRange) -> Value {
    let mut value = json!(range);
    value["state"] = json!(range.state_text());
    value
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// A file of JSON objects that have these keys.
fn load(input: &Path, keys: &[&str]) -> Result<Vec<Value>> {
    let text = match input == Path::new("-") {
        true => std::io::read_to_string(std::io::stdin()),
        false => std::fs::read_to_string(input),
    };
    let text = text.with_context(|| format!("Failed to open file {}", input.display()))?;
    let data: Value =
        serde_json::from_str(&text).context("Failed to load valid shard range data")?;
    let Value::Array(data) = data else {
        bail!("Failed to load valid shard range data: expected a list of objects");
    };
    for (at, range) in data.iter().enumerate() {
        if let Some(key) = keys.iter().find(|key| range.get(key).is_none()) {
            bail!("Failed to load valid shard range data: number {at} has no {key}");
        }
    }
    Ok(data)
}

/// Ends as for bad input if it cannot be loaded.
fn loaded<T>(data: Result<T>) -> std::result::Result<T, End> {
    data.map_err(|error| {
        note(format!("{error:#}"));
        End::BadInput
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn which_database_a_file_is_of() {
        let hash = "0123456789abcdef0123456789abcabc";
        let folder = format!("/srv/node/sda/containers/7/abc/{hash}");
        let (devices, key) = locate_db(Path::new(&folder)).unwrap();
        assert_eq!(devices, Path::new("/srv/node"));
        assert_eq!((&*key.device, &*key.partition), ("sda", "7"));
        assert!(locate_db(Path::new("/srv/x.db")).is_none());
        assert!(locate_db(Path::new(&folder.replace("containers", "accounts"))).is_none());
    }
}
