//! `[account-replicator]` and `[container-replicator]`: names, units and defaults are Swift's.

use std::path::PathBuf;
use std::time::Duration;

use cairn_formats::ini::{ConfError, Section};
use cairn_index::DbKind;
use tracing::warn;

use crate::local::OwnAddress;
use crate::recon_cache::DEFAULT_RECON_CACHE_PATH;

/// Transfer of a database to a node that lacks it or is far behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WholeDatabases {
    /// Small ones as rows, large ones by rsync; the other way on failure.
    Auto,
    /// The file by rsync, as in Swift.
    Rsync,
    /// Creation by an ordinary PUT, followed by rows.
    Rows,
}

/// Options of a replicator's section.
#[derive(Clone, Debug, PartialEq)]
pub struct DbReplicatorConfig {
    pub kind: DbKind,
    /// Address of this node in the ring; databases on its devices are replicated.
    pub own: OwnAddress,
    pub mount_check: bool,
    /// Interval from one pass's start to the next one's.
    pub interval: Duration,
    /// Maximum concurrent databases.
    pub concurrency: usize,
    /// Maximum databases started per second; 0 is unlimited.
    pub databases_per_second: f64,
    /// Rows per request.
    pub per_diff: usize,
    /// Maximum requests of rows to one node per pass.
    pub max_diffs: usize,
    pub node_timeout: Duration,
    pub conn_timeout: Duration,
    pub rsync_compress: bool,
    /// The rsync module of a device's tmp folder: `{replication_ip}::container`, with any of a
    /// device's properties in braces.
    pub rsync_module: String,
    /// Cairn's own: `whole_databases = auto | rsync | rows`.
    pub whole_databases: WholeDatabases,
    /// Age at which tombstones and deleted databases are removed.
    pub reclaim_age: Duration,
    /// Replicates misplaced databases only.
    pub handoffs_only: bool,
    /// Number of nodes with a misplaced database for its removal; none requires all.
    pub handoff_delete: Option<usize>,
    pub recon_cache_path: PathBuf,
}

impl DbReplicatorConfig {
    /// Reads the section.
    ///
    /// # Errors
    /// `Value` for a value that is no number or duration, a negative rate, a count out of its
    /// range, an unknown word, and an address that is none.
    pub fn read(section: &Section, kind: DbKind) -> Result<Self, ConfError> {
        let concurrency = section.usize_or("concurrency", 8)?;
        if !(1..=1024).contains(&concurrency) {
            return Err(section.bad("concurrency", "expected 1 to 1024"));
        }
        let per_diff = section.usize_or("per_diff", 1000)?;
        if !(1..=100_000).contains(&per_diff) {
            return Err(section.bad("per_diff", "expected 1 to 100000"));
        }
        let databases_per_second = section.f64_or("databases_per_second", 50.0)?;
        if databases_per_second < 0.0 {
            return Err(section.bad("databases_per_second", "expected 0 (no limit) or more"));
        }
        let module = section.str_or("rsync_module", "").trim_end_matches('/');
        let rsync_module = match module {
            "" => format!("{{replication_ip}}::{}", kind.as_str()),
            module => module.to_owned(),
        };
        Ok(DbReplicatorConfig {
            kind,
            own: own_address(section, default_port(kind))?,
            mount_check: section.bool_or("mount_check", true),
            interval: interval(section)?,
            concurrency,
            databases_per_second,
            per_diff,
            max_diffs: section.usize_or("max_diffs", 100)?.max(1),
            node_timeout: section.seconds_or("node_timeout", 10.0)?,
            conn_timeout: section.seconds_or("conn_timeout", 0.5)?,
            rsync_compress: section.bool_or("rsync_compress", false),
            rsync_module,
            whole_databases: whole_databases(section)?,
            reclaim_age: section.seconds_or("reclaim_age", 604_800.0)?,
            handoffs_only: section.bool_or("handoffs_only", false),
            handoff_delete: handoff_delete(section)?,
            recon_cache_path: section
                .str_or("recon_cache_path", DEFAULT_RECON_CACHE_PATH)
                .into(),
        })
    }
}

pub(crate) const fn default_port(kind: DbKind) -> u16 {
    match kind {
        DbKind::Account => 6202,
        DbKind::Container => 6201,
    }
}

/// `bind_ip` and `bind_port` of the section, or of `[DEFAULT]`.
pub(crate) fn own_address(section: &Section, default_port: u16) -> Result<OwnAddress, ConfError> {
    let port = section.u64_or("bind_port", default_port.into())?;
    let port = u16::try_from(port).map_err(|_| section.bad("bind_port", "expected 1 to 65535"))?;
    let port = Some(port).filter(|port| *port != 0);
    let own = OwnAddress::of(section.str_or("bind_ip", "0.0.0.0"), port);
    own.ok_or_else(|| {
        section.bad(
            "bind_ip",
            "expected an address of this machine, or a name that has one",
        )
    })
}

fn interval(section: &Section) -> Result<Duration, ConfError> {
    if section.get("run_pause").is_some() {
        warn!(
            section = section.name(),
            "run_pause is deprecated in favor of interval"
        );
        if section.get("interval").is_none() {
            return section.seconds_or("run_pause", 30.0);
        }
    }
    section.seconds_or("interval", 30.0)
}

fn whole_databases(section: &Section) -> Result<WholeDatabases, ConfError> {
    match section.str_or("whole_databases", "auto") {
        "auto" | "" => Ok(WholeDatabases::Auto),
        "rsync" => Ok(WholeDatabases::Rsync),
        "rows" => Ok(WholeDatabases::Rows),
        _ => Err(section.bad("whole_databases", "expected auto, rsync or rows")),
    }
}

fn handoff_delete(section: &Section) -> Result<Option<usize>, ConfError> {
    match section.str_or("handoff_delete", "auto") {
        text if text.eq_ignore_ascii_case("auto") => Ok(None),
        text => match text.trim().parse::<usize>() {
            Ok(count) => Ok(Some(count).filter(|count| *count > 0)),
            Err(_) => Err(section.bad("handoff_delete", "expected auto or a number of nodes")),
        },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<DbReplicatorConfig, String> {
        let section = Section::from_pairs("container-replicator", pairs);
        DbReplicatorConfig::read(&section, DbKind::Container).map_err(|error| error.to_string())
    }

    #[test]
    fn options() {
        let defaults = read(&[]).unwrap();
        assert_eq!(Some(defaults.own), OwnAddress::of("0.0.0.0", Some(6201)));
        assert_eq!(defaults.rsync_module, "{replication_ip}::container");
        assert_eq!(defaults.handoff_delete, None);
        let set = read(&[
            ("bind_ip", "127.0.0.1"),
            ("bind_port", "6011"),
            ("run_pause", "7"),
            ("handoff_delete", "2"),
            ("rsync_module", "{ip}::container_{device}/"),
            ("whole_databases", "rows"),
        ]);
        let set = set.unwrap();
        assert_eq!(Some(set.own), OwnAddress::of("127.0.0.1", Some(6011)));
        assert_eq!(set.interval, Duration::from_secs(7));
        assert_eq!(set.handoff_delete, Some(2));
        assert_eq!(set.rsync_module, "{ip}::container_{device}");
        assert_eq!(set.whole_databases, WholeDatabases::Rows);
        for (option, value) in [
            ("per_diff", "0"),
            ("concurrency", "0"),
            ("whole_databases", "ftp"),
            ("handoff_delete", "some"),
            ("bind_port", "70000"),
            ("bind_ip", "here"),
        ] {
            let error = read(&[(option, value)]).unwrap_err();
            assert!(error.contains(option), "{error}");
        }
    }
}
