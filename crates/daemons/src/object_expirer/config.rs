//! `[object-expirer]`; names, units and defaults are Swift's.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use cairn_formats::ini::{ConfError, Section};
use cairn_http::params::unquote;

use crate::recon_cache::DEFAULT_RECON_CACHE_PATH;

#[derive(Clone, Debug, PartialEq)]
pub struct ObjectExpirerConfig {
    /// Interval between starts of passes, less a random part of the rest.
    pub interval: Duration,
    /// Maximum concurrent deletions.
    pub concurrency: usize,
    /// Maximum objects started per second; 0 is unlimited.
    pub tasks_per_second: f64,
    /// Time for which an entry without an object is retried.
    pub reclaim_age: Duration,
    /// Interval of log lines about a pass' progress.
    pub report_interval: Duration,
    /// Number of processes that share the queue, and the index of this one; 0 if it works alone.
    pub processes: u64,
    pub process: u64,
    /// Maximum entries cached to interleave containers.
    pub task_cache_size: usize,
    /// Whether this node works on the queue.
    pub dequeue_from_legacy: bool,
    /// The queue's account, without the prefix of internal accounts.
    pub account_name: String,
    pub request_tries: u32,
    pub recon_cache_path: PathBuf,
    /// Delay of expiry by account, or by `account/container`.
    pub delay_reaping: HashMap<String, Duration>,
}

impl ObjectExpirerConfig {
    /// Reads the section; `own_conf` if it is in a conf for the expirer alone, which is always
    /// enabled.
    ///
    /// # Errors
    /// `Value` for a value that is no number or duration, a negative rate, a concurrency outside of
    /// 1 to 1024, a `process` not below `processes`, and a delay whose name is malformed.
    pub fn read(section: &Section, own_conf: bool) -> Result<Self, ConfError> {
        let concurrency = section.usize_or("concurrency", 1)?;
        if !(1..=1024).contains(&concurrency) {
            return Err(section.bad("concurrency", "expected 1 to 1024"));
        }
        let tasks_per_second = section.f64_or("tasks_per_second", 50.0)?;
        if tasks_per_second < 0.0 {
            return Err(section.bad("tasks_per_second", "expected 0 (no limit) or more"));
        }
        let tries = section.u64_or("request_tries", 3)?;
        let config = ObjectExpirerConfig {
            interval: section.seconds_or("interval", 300.0)?,
            concurrency,
            tasks_per_second,
            reclaim_age: section.seconds_or("reclaim_age", 604_800.0)?,
            report_interval: section.seconds_or("report_interval", 300.0)?,
            processes: section.u64_or("processes", 0)?,
            process: section.u64_or("process", 0)?,
            task_cache_size: section
                .usize_or("round_robin_task_cache_size", 100_000)?
                .clamp(1, 10_000_000),
            dequeue_from_legacy: own_conf || section.bool_or("dequeue_from_legacy", false),
            account_name: section
                .str_or("expiring_objects_account_name", "expiring_objects")
                .to_owned(),
            request_tries: u32::try_from(tries.clamp(1, 10)).unwrap_or(3),
            recon_cache_path: section
                .str_or("recon_cache_path", DEFAULT_RECON_CACHE_PATH)
                .into(),
            delay_reaping: delays(section)?,
        };
        config.check_processes(section)?;
        Ok(config)
    }

    /// The same for one of several processes, from a command line.
    ///
    /// # Errors
    /// `Value` if `process` is not below `processes`.
    pub fn shared(
        mut self,
        section: &Section,
        processes: Option<u64>,
        process: Option<u64>,
    ) -> Result<Self, ConfError> {
        self.processes = processes.unwrap_or(self.processes);
        self.process = process.unwrap_or(self.process);
        self.check_processes(section)?;
        Ok(self)
    }

    fn check_processes(&self, section: &Section) -> Result<(), ConfError> {
        if self.processes > 0 && self.process >= self.processes {
            return Err(section.bad("process", "expected less than processes"));
        }
        Ok(())
    }

    /// Delay of expiry of objects in this container.
    pub(super) fn delay(&self, account: &str, container: &str) -> Duration {
        let of = |key: &str| self.delay_reaping.get(key).copied();
        of(&format!("{account}/{container}"))
            .or_else(|| of(account))
            .unwrap_or_default()
    }
}

/// `delay_reaping_ACCOUNT = SECONDS`, `delay_reaping_ACCOUNT/CONTAINER = SECONDS`; names are
/// percent-encoded.
fn delays(section: &Section) -> Result<HashMap<String, Duration>, ConfError> {
    let mut delays = HashMap::new();
    for (option, _) in section.iter() {
        let Some(name) = option.strip_prefix("delay_reaping_") else {
            continue;
        };
        let remedy = "expected delay_reaping_ACCOUNT or delay_reaping_ACCOUNT/CONTAINER";
        let bad = || section.bad(option, remedy);
        let name = unquote(name).map_err(|_| bad())?;
        let parts: Vec<&str> = name.split('/').collect();
        if parts.len() > 2 || parts.iter().any(|part| part.is_empty()) {
            return Err(bad());
        }
        delays.insert(name, section.seconds_or(option, 0.0)?);
    }
    Ok(delays)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<ObjectExpirerConfig, ConfError> {
        ObjectExpirerConfig::read(&Section::from_pairs("object-expirer", pairs), false)
    }

    #[test]
    fn delays_by_account_and_container() {
        let config = read(&[
            ("delay_reaping_AUTH_a", "100"),
            ("delay_reaping_AUTH_a/b%20c", "7"),
        ])
        .unwrap();
        assert_eq!(config.delay("AUTH_a", "other"), Duration::from_secs(100));
        assert_eq!(config.delay("AUTH_a", "b c"), Duration::from_secs(7));
        assert_eq!(config.delay("AUTH_b", "b c"), Duration::ZERO);
        for name in ["delay_reaping_", "delay_reaping_a/b/c", "delay_reaping_/a"] {
            assert!(read(&[(name, "1")]).is_err(), "{name}");
        }
    }

    #[test]
    fn processes_are_counted_from_zero() {
        assert!(read(&[("processes", "2"), ("process", "2")]).is_err());
        let config = read(&[("processes", "2"), ("process", "1")]).unwrap();
        assert!(!config.dequeue_from_legacy);
        let section = Section::from_pairs("object-expirer", &[]);
        assert!(config.shared(&section, None, Some(5)).is_err());
    }
}
