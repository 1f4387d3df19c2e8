//! `[object-auditor]`; names, units and defaults are Swift's.

use std::path::PathBuf;
use std::time::Duration;

use cairn_formats::ini::{ConfError, Section};

use super::DarkDataConfig;
use crate::recon_cache::DEFAULT_RECON_CACHE_PATH;

/// Options of the section, with defaults from `[DEFAULT]`.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditorConfig {
    /// Maximum objects per second of the walk that reads content; 0 is unlimited.
    pub files_per_second: f64,
    /// Maximum bytes read per second; 0 is unlimited.
    pub bytes_per_second: f64,
    /// Maximum objects opened per second by the zero-byte walk; 0 disables it.
    pub zero_byte_files_per_second: f64,
    /// Devices whose content is read concurrently; with 1, one after the other.
    pub concurrency: usize,
    /// Interval between two walks.
    pub interval: Duration,
    /// Interval of log lines about a walk's progress, and of entries for monitoring.
    pub log_time: Duration,
    /// Age at which temporary files of rsync are removed.
    pub rsync_tempfile_timeout: Duration,
    /// Sizes in bytes of the histogram of objects, ascending.
    pub object_size_stats: Vec<u64>,
    pub recon_cache_path: PathBuf,
    /// Section of the watcher, if there is one.
    pub watcher_section: Option<String>,
}

/// Default: the replicator's maximum duration of rsync, plus a quarter of an hour. In seconds.
const RSYNC_TEMPFILE_TIMEOUT_SECS: f64 = 1800.0;

impl AuditorConfig {
    /// Reads the section.
    ///
    /// # Errors
    /// `Value` for a value that is no number or duration, a negative rate, a concurrency outside of
    /// 1 to 1024, a list that is none of sizes, and an unknown watcher.
    pub fn read(section: &Section) -> Result<Self, ConfError> {
        let rate = |option: &str, default: f64| match section.f64_or(option, default)? {
            rate if rate >= 0.0 => Ok(rate),
            _ => Err(section.bad(option, "expected 0 (no limit) or more")),
        };
        let concurrency = section.usize_or("concurrency", 1)?;
        if !(1..=1024).contains(&concurrency) {
            return Err(section.bad("concurrency", "expected 1 to 1024"));
        }
        let sizes = section.list_or("object_size_stats", "");
        let sizes: Result<Vec<u64>, _> = sizes.iter().map(|size| size.parse()).collect();
        let mut sizes =
            sizes.map_err(|_| section.bad("object_size_stats", "expected sizes between commas"))?;
        sizes.sort_unstable();
        sizes.dedup();
        let tempfile = section.str_or("rsync_tempfile_timeout", "auto").trim();
        let rsync_tempfile_timeout = match tempfile {
            text if text.eq_ignore_ascii_case("auto") => {
                Duration::from_secs_f64(RSYNC_TEMPFILE_TIMEOUT_SECS)
            }
            _ => section.seconds_or("rsync_tempfile_timeout", RSYNC_TEMPFILE_TIMEOUT_SECS)?,
        };
        let mut watcher_section = None;
        for name in section.list_or("watchers", "") {
            if !DarkDataConfig::is_its_name(&name) {
                let remedy = format!(
                    "{name:?} is a plug-in in Python, which Cairn does not run; \
                     swift#dark_data is built in"
                );
                return Err(section.bad("watchers", remedy));
            }
            watcher_section = Some(format!("object-auditor:watcher:{name}"));
        }
        Ok(AuditorConfig {
            files_per_second: rate("files_per_second", 20.0)?,
            bytes_per_second: rate("bytes_per_second", 10_000_000.0)?,
            zero_byte_files_per_second: rate("zero_byte_files_per_second", 50.0)?,
            concurrency,
            interval: section.seconds_or("interval", 30.0)?,
            log_time: section.seconds_or("log_time", 3600.0)?,
            rsync_tempfile_timeout,
            object_size_stats: sizes,
            recon_cache_path: section
                .str_or("recon_cache_path", DEFAULT_RECON_CACHE_PATH)
                .into(),
            watcher_section,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<AuditorConfig, ConfError> {
        AuditorConfig::read(&Section::from_pairs("object-auditor", pairs))
    }

    #[test]
    fn defaults_are_swifts() {
        let config = read(&[]).unwrap();
        assert_eq!(config.files_per_second, 20.0);
        assert_eq!(config.bytes_per_second, 10_000_000.0);
        assert_eq!(config.zero_byte_files_per_second, 50.0);
        assert_eq!(config.rsync_tempfile_timeout, Duration::from_secs(1800));
        assert!(config.object_size_stats.is_empty());
        assert_eq!(config.watcher_section, None);
        let watched = read(&[("watchers", "swift#dark_data")]).unwrap();
        let section = watched.watcher_section.unwrap();
        assert_eq!(section, "object-auditor:watcher:swift#dark_data");
    }

    #[test]
    fn values_are_taken_and_refusals_name_the_option() {
        let config = read(&[
            ("object_size_stats", "100, 10"),
            ("rsync_tempfile_timeout", "7"),
        ]);
        let config = config.unwrap();
        assert_eq!(config.object_size_stats, [10, 100]);
        assert_eq!(config.rsync_tempfile_timeout, Duration::from_secs(7));
        for (option, value) in [
            ("files_per_second", "-1"),
            ("concurrency", "0"),
            ("object_size_stats", "big"),
            ("watchers", "mine#watcher"),
        ] {
            let error = read(&[(option, value)]).unwrap_err().to_string();
            assert!(error.contains(option), "{error}");
        }
    }
}
