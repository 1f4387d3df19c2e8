//! `[object-replicator]`; names, units and defaults are Swift's.

use std::path::PathBuf;
use std::time::Duration;

use cairn_formats::ini::{ConfError, Section};

use crate::object_pass::PassConfig;
use crate::recon_cache::DEFAULT_RECON_CACHE_PATH;

/// Transport to other servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMethod {
    /// The `rsync` program, to the rsync daemons beside the object servers.
    Rsync,
    /// SSYNC, to the object servers.
    Ssync,
}

/// Condition for removing a misplaced partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoffDelete {
    /// Every primary has it.
    Auto,
    /// At least this many primaries have it.
    After(usize),
}

/// Options of the section, with defaults from `[DEFAULT]`.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicatorConfig {
    pub pass: PassConfig,
    pub sync_method: SyncMethod,
    /// Handoffs first; primaries only when no handoffs are left.
    pub handoffs_first: bool,
    pub handoff_delete: HandoffDelete,
    /// Time after which a run of `rsync` is killed.
    pub rsync_timeout: Duration,
    /// `--timeout` and `--contimeout` of rsync, in seconds.
    pub rsync_io_timeout: String,
    /// `--bwlimit` of rsync, in KiB per second or with a suffix; 0 is unlimited.
    pub rsync_bwlimit: String,
    /// Compresses transfers to other regions.
    pub rsync_compress: bool,
    /// `{replication_ip}::object`, with names of a device's properties in braces.
    pub rsync_module: String,
    /// Maximum characters logged of a line of rsync's; 0 is unlimited.
    pub rsync_error_log_line_length: usize,
    pub log_rsync_transfers: bool,
    pub recon_cache_path: PathBuf,
}

impl ReplicatorConfig {
    /// Reads the section.
    ///
    /// # Errors
    /// `Value` for a value that is no number or duration, a port or count out of range, and an
    /// unknown `sync_method` or `handoff_delete`.
    pub fn read(section: &Section) -> Result<Self, ConfError> {
        let number = |option: &str, default: &str| -> Result<String, ConfError> {
            let text = section.str_or(option, default).trim();
            match text.starts_with(|c: char| c.is_ascii_digit()) {
                true => Ok(text.to_owned()),
                false => Err(section.bad(option, "expected a number")),
            }
        };
        let module = section.str_or("rsync_module", "").trim_end_matches('/');
        let module = if module.is_empty() {
            "{replication_ip}::object"
        } else {
            module
        };
        Ok(ReplicatorConfig {
            pass: PassConfig::read(section)?,
            sync_method: sync_method(section)?,
            handoffs_first: section.bool_or("handoffs_first", false),
            handoff_delete: handoff_delete(section)?,
            rsync_timeout: section.seconds_or("rsync_timeout", 900.0)?,
            rsync_io_timeout: number("rsync_io_timeout", "30")?,
            rsync_bwlimit: number("rsync_bwlimit", "0")?,
            rsync_compress: section.bool_or("rsync_compress", false),
            rsync_module: module.to_owned(),
            rsync_error_log_line_length: section.usize_or("rsync_error_log_line_length", 0)?,
            log_rsync_transfers: section.bool_or("log_rsync_transfers", true),
            recon_cache_path: section
                .str_or("recon_cache_path", DEFAULT_RECON_CACHE_PATH)
                .into(),
        })
    }
}

fn sync_method(section: &Section) -> Result<SyncMethod, ConfError> {
    match section.str_or("sync_method", "rsync").trim() {
        "" | "rsync" => Ok(SyncMethod::Rsync),
        "ssync" => Ok(SyncMethod::Ssync),
        _ => Err(section.bad("sync_method", "expected rsync or ssync")),
    }
}

fn handoff_delete(section: &Section) -> Result<HandoffDelete, ConfError> {
    match section.str_or("handoff_delete", "auto").trim() {
        text if text.eq_ignore_ascii_case("auto") => Ok(HandoffDelete::Auto),
        text => match text.parse() {
            Ok(0) => Ok(HandoffDelete::Auto),
            Ok(copies) => Ok(HandoffDelete::After(copies)),
            Err(_) => Err(section.bad("handoff_delete", "expected auto or a number of copies")),
        },
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<ReplicatorConfig, ConfError> {
        ReplicatorConfig::read(&Section::from_pairs("object-replicator", pairs))
    }

    #[test]
    fn defaults_are_swifts() {
        let config = read(&[]).unwrap();
        assert_eq!(config.sync_method, SyncMethod::Rsync);
        assert_eq!(config.rsync_module, "{replication_ip}::object");
        assert_eq!(config.handoff_delete, HandoffDelete::Auto);
    }

    #[test]
    fn values_are_taken() {
        let config = read(&[
            ("handoff_delete", "2"),
            ("sync_method", "ssync"),
            ("rsync_module", "{ip}::object_{device}/"),
        ])
        .unwrap();
        assert_eq!(config.handoff_delete, HandoffDelete::After(2));
        assert_eq!(config.sync_method, SyncMethod::Ssync);
        assert_eq!(config.rsync_module, "{ip}::object_{device}");
    }

    #[test]
    fn refusals_name_the_option() {
        for (option, value) in [
            ("sync_method", "scp"),
            ("handoff_delete", "many"),
            ("concurrency", "0"),
            ("rsync_bwlimit", "; rm"),
        ] {
            let error = read(&[(option, value)]).unwrap_err().to_string();
            assert!(error.contains(option), "{error}");
        }
    }
}
