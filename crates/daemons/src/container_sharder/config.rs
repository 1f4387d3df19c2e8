//! `[container-sharder]`; names, units and defaults are Swift's.

use std::path::PathBuf;
use std::time::Duration;

use cairn_formats::ini::{ConfError, Section};
use cairn_formats::shard::Limits;
use cairn_index::{Cut, DbKind};

use crate::db_replicator::DbReplicatorConfig;
use crate::recon_cache::DEFAULT_RECON_CACHE_PATH;

#[derive(Clone, Debug, PartialEq)]
pub struct ContainerSharderConfig {
    /// Options for replicating cleaved shards.
    pub replication: DbReplicatorConfig,
    pub interval: Duration,
    /// Whether large containers are sharded, and small shards merged, automatically.
    pub auto_shard: bool,
    /// Objects from which a container is sharded.
    pub shard_container_threshold: i64,
    pub rows_per_shard: i64,
    pub minimum_shard_size: i64,
    pub shrinking: Limits,
    /// Ranges found per visit, and ranges cleaved per visit.
    pub scanner_batch: usize,
    pub cleave_batch: usize,
    /// Rows per transaction when moving.
    pub row_batch: usize,
    /// Replicas that must have a new shard, and an existing one; without a value, a quorum of them.
    pub shard_quorum: Option<usize>,
    pub existing_shard_quorum: Option<usize>,
    /// Timeout of a container server's response.
    pub call_timeout: Duration,
    pub request_tries: u32,
    /// Candidates reported to monitoring; negative for all.
    pub recon_candidates: i64,
    /// Time for which a sharded container is reported to monitoring.
    pub recon_sharded_timeout: Duration,
    /// Duration of sharding from which it is logged.
    pub sharding_timeout: Duration,
    pub stats_interval: Duration,
    pub recon_cache_path: PathBuf,
}

impl ContainerSharderConfig {
    /// Reads the section, and checks options against each other.
    ///
    /// # Errors
    /// As [`ContainerSharderConfig::read_to_cut`]; `Value` also for limits of shrinking or rows
    /// that contradict each other.
    pub fn read(section: &Section) -> Result<Self, ConfError> {
        let config = Self::read_unchecked(section)?;
        config.check_cut(section)?;
        config.check_together(section)?;
        Ok(config)
    }

    /// For tools that only split: options of shrinking are not checked.
    ///
    /// # Errors
    /// As [`ContainerSharderConfig::read_unchecked`]; `Value` also if `minimum_shard_size` is over
    /// `rows_per_shard`.
    pub fn read_to_cut(section: &Section) -> Result<Self, ConfError> {
        let config = Self::read_unchecked(section)?;
        config.check_cut(section).map(|()| config)
    }

    /// Checks each option alone.
    ///
    /// # Errors
    /// As [`DbReplicatorConfig::read`]; `Value` for other numbers that are none or out of range.
    pub fn read_unchecked(section: &Section) -> Result<Self, ConfError> {
        let positive = |option: &str, default: i64| -> Result<i64, ConfError> {
            let number = section.u64_or(option, default.max(1) as u64)?;
            i64::try_from(number)
                .ok()
                .filter(|number| *number > 0)
                .ok_or_else(|| section.bad(option, "expected 1 or more"))
        };
        let whole = |option: &str, default: i64| -> Result<i64, ConfError> {
            match section.get(option) {
                None => Ok(default),
                Some(text) => text
                    .trim()
                    .parse()
                    .map_err(|_| section.bad(option, "expected a whole number")),
            }
        };
        let threshold = positive("shard_container_threshold", 1_000_000)?;
        let percent = |option: &str, default: f64| -> Result<i64, ConfError> {
            let percent = section.f64_or(option, default)?;
            if !(0.0..=100.0).contains(&percent) {
                return Err(section.bad(option, "expected 0 to 100"));
            }
            Ok((percent / 100.0 * threshold as f64) as i64)
        };
        let rows_per_shard = positive("rows_per_shard", threshold / 2)?;
        Ok(ContainerSharderConfig {
            replication: DbReplicatorConfig::read(section, DbKind::Container)?,
            interval: section.seconds_or("interval", 30.0)?,
            auto_shard: section.bool_or("auto_shard", false),
            shard_container_threshold: threshold,
            rows_per_shard,
            minimum_shard_size: positive("minimum_shard_size", rows_per_shard / 5)?,
            shrinking: Limits {
                shrink_threshold: whole("shrink_threshold", percent("shard_shrink_point", 10.0)?)?,
                expansion_limit: whole(
                    "expansion_limit",
                    percent("shard_shrink_merge_point", 75.0)?,
                )?,
                max_shrinking: whole("max_shrinking", 1)?,
                max_expanding: whole("max_expanding", -1)?,
            },
            scanner_batch: positive("shard_scanner_batch_size", 10)? as usize,
            cleave_batch: positive("cleave_batch_size", 2)? as usize,
            row_batch: positive("cleave_row_batch_size", 10_000)? as usize,
            shard_quorum: quorum(section, "shard_replication_quorum")?,
            existing_shard_quorum: quorum(section, "existing_shard_replication_quorum")?,
            call_timeout: section.seconds_or("conn_timeout", 5.0)?
                + section.seconds_or("node_timeout", 10.0)?,
            request_tries: section.u64_or("request_tries", 3)?.clamp(1, 100) as u32,
            recon_candidates: whole("recon_candidates_limit", 5)?,
            recon_sharded_timeout: section.seconds_or("recon_sharded_timeout", 43_200.0)?,
            sharding_timeout: section.seconds_or("container_sharding_timeout", 172_800.0)?,
            stats_interval: section.seconds_or("stats_interval", 3600.0)?,
            recon_cache_path: section
                .str_or("recon_cache_path", DEFAULT_RECON_CACHE_PATH)
                .into(),
        })
    }

    fn check_cut(&self, section: &Section) -> Result<(), ConfError> {
        let (rows, least) = (self.rows_per_shard, self.minimum_shard_size);
        at_most(section, "minimum_shard_size", least, "rows_per_shard", rows)
    }

    fn check_together(&self, section: &Section) -> Result<(), ConfError> {
        let (shrink, least) = (self.shrinking.shrink_threshold, self.minimum_shard_size);
        at_most(
            section,
            "shrink_threshold",
            shrink,
            "minimum_shard_size",
            least,
        )?;
        let (rows, threshold) = (self.rows_per_shard, self.shard_container_threshold);
        let name = "shard_container_threshold";
        at_most(section, "rows_per_shard", rows + 1, name, threshold)?;
        let limit = self.shrinking.expansion_limit;
        at_most(section, "expansion_limit", limit + 1, name, threshold)
    }

    pub(super) fn cut(&self) -> Cut {
        Cut {
            rows_per_shard: self.rows_per_shard,
            minimum_rows: self.minimum_shard_size,
            limit: Some(self.scanner_batch),
        }
    }
}

fn at_most(
    section: &Section,
    option: &str,
    value: i64,
    other: &str,
    most: i64,
) -> Result<(), ConfError> {
    if value <= most {
        return Ok(());
    }
    Err(section.bad(
        option,
        format!("it would be {value}: expected at most {other} ({most})"),
    ))
}

fn quorum(section: &Section, option: &str) -> Result<Option<usize>, ConfError> {
    match section.str_or(option, "auto").trim() {
        text if text.eq_ignore_ascii_case("auto") => Ok(None),
        text => text
            .parse()
            .map(Some)
            .map_err(|_| section.bad(option, "expected auto or a number of replicas")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn options() {
        let read = |pairs: &[(&str, &str)]| {
            let section = Section::from_pairs("container-sharder", pairs);
            ContainerSharderConfig::read(&section).map_err(|error| error.to_string())
        };
        let defaults = read(&[]).unwrap();
        assert_eq!(defaults.rows_per_shard, 500_000);
        assert_eq!(defaults.minimum_shard_size, 100_000);
        assert_eq!(defaults.shrinking.shrink_threshold, 100_000);
        assert_eq!(defaults.shrinking.expansion_limit, 750_000);
        assert!(!defaults.auto_shard);
        let small = read(&[("shard_container_threshold", "100")]).unwrap();
        assert_eq!((small.rows_per_shard, small.minimum_shard_size), (50, 10));
        for (option, value) in [
            ("shard_container_threshold", "0"),
            ("rows_per_shard", "1000000"),
            ("shrink_threshold", "200000"),
            ("expansion_limit", "1000000"),
            ("minimum_shard_size", "500001"),
            ("shard_replication_quorum", "most"),
        ] {
            let error = read(&[(option, value)]).unwrap_err();
            assert!(error.contains(option), "{error}");
        }
    }
}
