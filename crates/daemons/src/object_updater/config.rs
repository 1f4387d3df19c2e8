//! `[object-updater]`.

use std::path::PathBuf;
use std::time::Duration;

use cairn_formats::ini::{ConfError, Section};

use crate::recon_cache::DEFAULT_RECON_CACHE_PATH;

/// `[object-updater]`; names, units and defaults are Swift's.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdaterConfig {
    /// Interval from one sweep's start to the next one's.
    pub interval: Duration,
    /// Maximum concurrent updates.
    pub concurrency: usize,
    /// Maximum updates started per second; 0 is unlimited.
    pub objects_per_second: f64,
    pub per_container: PerContainer,
    /// Timeout of a container server's response.
    pub node_timeout: Duration,
    /// Interval of log lines about a sweep's progress.
    pub report_interval: Duration,
    /// Maximum containers with failed updates that are tracked, and that are shown to monitoring.
    pub tracked_max: usize,
    pub shown: usize,
    pub recon_cache_path: PathBuf,
}

impl UpdaterConfig {
    /// Reads the section.
    ///
    /// # Errors
    /// `Value` for a value that is no number or duration, a negative rate, and a count out of its
    /// range.
    pub fn read(section: &Section) -> Result<Self, ConfError> {
        let objects_per_second = rate(section, "objects_per_second", 50.0)?;
        let concurrency = section.usize_or("concurrency", 8)?;
        if !(1..=1024).contains(&concurrency) {
            return Err(section.bad("concurrency", "expected 1 to 1024"));
        }
        Ok(UpdaterConfig {
            interval: section.seconds_or("interval", 300.0)?,
            concurrency,
            objects_per_second,
            per_container: PerContainer::read(section)?,
            node_timeout: section.seconds_or("node_timeout", 10.0)?,
            report_interval: section.seconds_or("report_interval", 300.0)?,
            tracked_max: section
                .usize_or("async_tracker_max_entries", 100)?
                .clamp(1, 100_000),
            shown: section
                .usize_or("async_tracker_dump_count", 5)?
                .clamp(1, 1000),
            recon_cache_path: section
                .str_or("recon_cache_path", DEFAULT_RECON_CACHE_PATH)
                .into(),
        })
    }
}

/// Rate limit per container.
#[derive(Clone, Debug, PartialEq)]
pub struct PerContainer {
    /// `max_objects_per_container_per_second`, per device; 0 is unlimited.
    pub per_second: f64,
    /// `per_container_ratelimit_buckets`, which containers share.
    pub buckets: usize,
    /// `max_deferred_updates`, per device.
    pub deferred_max: usize,
}

impl PerContainer {
    fn read(section: &Section) -> Result<Self, ConfError> {
        let buckets = section.usize_or("per_container_ratelimit_buckets", 1000)?;
        if !(1..=1_000_000).contains(&buckets) {
            return Err(section.bad("per_container_ratelimit_buckets", "expected 1 to 1000000"));
        }
        Ok(PerContainer {
            per_second: rate(section, "max_objects_per_container_per_second", 0.0)?,
            buckets,
            deferred_max: section.usize_or("max_deferred_updates", 10_000)?,
        })
    }
}

fn rate(section: &Section, name: &str, default: f64) -> Result<f64, ConfError> {
    let rate = section.f64_or(name, default)?;
    if rate < 0.0 {
        return Err(section.bad(name, "expected 0 (no limit) or more"));
    }
    Ok(rate)
}
