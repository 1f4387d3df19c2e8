//! The arguments of `swift-manage-shard-ranges`: names, order and defaults are Swift's.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Show and change the shard ranges of a container's database
#[derive(Debug, Parser)]
#[command(name = "swift-manage-shard-ranges", version)]
pub(crate) struct Arguments {
    /// A conf with a section [container-sharder], for what is not said here
    #[arg(long, value_name = "CONFIG")]
    pub(super) config: Option<PathBuf>,

    /// Say more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(super) verbose: u8,

    /// Updates that Swift's servers left pending are always taken in
    #[arg(long, hide = true)]
    pub(super) skip_commits: bool,
    #[arg(long, hide = true)]
    pub(super) force_commits: bool,

    /// The database's file; for analyze, a file of shard ranges
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,

    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
#[command(rename_all = "snake_case")]
pub(super) enum Command {
    /// Find where to cut, and show it
    Find(Find),
    /// Delete all shard ranges
    Delete(Force),
    /// Show shard ranges
    Show(Show),
    /// Show what the database says of itself
    Info,
    /// Merge shard ranges of a file into those there are
    Merge(Merge),
    /// Put shard ranges of a file in the place of those there are
    Replace(Replace),
    /// Find where to cut, and put the ranges in the place of those there are
    FindAndReplace(FindAndReplace),
    /// Let the sharder begin
    Enable(Enable),
    /// Let small shards be merged; for roots
    Compact(Compact),
    /// Let overlapping shards be merged, or gaps be filled; for roots
    Repair(Repair),
    /// Look at shard ranges of a file
    Analyze(Analyze),
}

#[derive(Debug, Args)]
pub(super) struct Find {
    /// Objects of a shard [default: half of shard_container_threshold]
    pub(super) rows_per_shard: Option<i64>,
    /// The last shard has no fewer objects [default: a fifth of rows_per_shard]
    #[arg(long)]
    pub(super) minimum_shard_size: Option<i64>,
}

#[derive(Debug, Args)]
pub(super) struct Force {
    /// Ask nothing
    #[arg(short, long)]
    pub(super) force: bool,
}

#[derive(Debug, Default, Args)]
pub(super) struct Show {
    /// Deleted ranges too
    #[arg(short = 'd', long = "include_deleted")]
    pub(super) include_deleted: bool,
    /// Only bounds
    #[arg(short, long)]
    pub(super) brief: bool,
    /// Only the range of this name
    #[arg(long, value_name = "NAME")]
    pub(super) includes: Option<String>,
    /// The name is percent-encoded
    #[arg(short = 'Q', long)]
    pub(super) quoted: bool,
}

#[derive(Debug, Args)]
pub(super) struct Prefix {
    /// Prefix of the accounts of shards
    #[arg(long = "shards_account_prefix", default_value = ".shards_")]
    pub(super) shards_account_prefix: String,
    /// Seconds for which a locked database is waited for
    #[arg(long, default_value_t = 600)]
    pub(super) replace_timeout: u64,
}

#[derive(Debug, Args)]
pub(super) struct Prompt {
    /// Ask nothing, change it
    #[arg(short, long, conflicts_with = "dry_run")]
    pub(super) yes: bool,
    /// Ask nothing, change nothing
    #[arg(short = 'n', long)]
    pub(super) dry_run: bool,
}

#[derive(Debug, Args)]
pub(super) struct Merge {
    /// A file of shard ranges; -: standard input
    pub(super) input: PathBuf,
    #[command(flatten)]
    pub(super) prefix: Prefix,
    #[command(flatten)]
    pub(super) prompt: Prompt,
}

#[derive(Debug, Args)]
pub(super) struct Replacing {
    #[command(flatten)]
    pub(super) prefix: Prefix,
    #[command(flatten)]
    pub(super) force: Force,
    /// Let the sharder begin, too
    #[arg(long)]
    pub(super) enable: bool,
}

#[derive(Debug, Args)]
pub(super) struct Replace {
    /// A file of shard ranges; -: standard input
    pub(super) input: PathBuf,
    #[command(flatten)]
    pub(super) replacing: Replacing,
}

#[derive(Debug, Args)]
pub(super) struct FindAndReplace {
    #[command(flatten)]
    pub(super) find: Find,
    #[command(flatten)]
    pub(super) replacing: Replacing,
    /// Seconds for which a locked database is waited for
    #[arg(long, default_value_t = 300)]
    pub(super) enable_timeout: u64,
}

#[derive(Debug, Args)]
pub(super) struct Enable {
    /// Seconds for which a locked database is waited for
    #[arg(long, default_value_t = 300)]
    pub(super) enable_timeout: u64,
    #[command(flatten)]
    pub(super) replacing: Replacing,
}

#[derive(Debug, Args)]
pub(super) struct Compact {
    #[command(flatten)]
    pub(super) prompt: Prompt,
    /// Shards of fewer rows are merged into others
    #[arg(long)]
    pub(super) shrink_threshold: Option<i64>,
    /// Rows that a shard may have after others were merged into it
    #[arg(long)]
    pub(super) expansion_limit: Option<i64>,
    /// Shards merged into one [default: 1]
    #[arg(long)]
    pub(super) max_shrinking: Option<i64>,
    /// Shards that others are merged into [default: any number]
    #[arg(long)]
    pub(super) max_expanding: Option<i64>,
}

#[derive(Debug, Args)]
pub(super) struct Repair {
    #[command(flatten)]
    pub(super) prompt: Prompt,
    /// Seconds: younger shards are left alone
    #[arg(long, default_value_t = 4 * 3600)]
    pub(super) min_shard_age: u64,
    /// Fill gaps
    #[arg(long)]
    pub(super) gaps: bool,
    /// Gaps filled at once [default: any number]
    #[arg(long)]
    pub(super) max_expanding: Option<i64>,
}

#[derive(Debug, Args)]
pub(super) struct Analyze {
    /// Seconds: younger shards are left alone
    #[arg(long, default_value_t = 0)]
    pub(super) min_shard_age: u64,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn swifts_arguments() {
        Arguments::command().debug_assert();
        let parse = |text: &str| Arguments::try_parse_from(text.split_whitespace());
        let found = parse("x -v /d/h.db find_and_replace 50 --enable --minimum-shard-size 40");
        let Command::FindAndReplace(found) = found.unwrap().command else {
            panic!("find_and_replace");
        };
        assert_eq!(found.find.rows_per_shard, Some(50));
        assert!(found.replacing.enable && !found.replacing.force.force);
        assert!(parse("x /d/h.db repair --gaps --yes --min-shard-age 0").is_ok());
        assert!(parse("x /d/h.db compact --yes --max-shrinking 1 --max-expanding 2").is_ok());
        assert!(parse("x /d/h.db show --includes a -Q -d").is_ok());
        assert!(parse("x /d/h.db repair -y -n").is_err());
        assert!(parse("x /d/h.db merge -").is_ok());
    }
}
