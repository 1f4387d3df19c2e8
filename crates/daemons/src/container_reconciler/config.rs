//! `[container-reconciler]`; names, units and defaults are Swift's.

use std::time::Duration;

use cairn_formats::ini::{ConfError, Section};

#[derive(Clone, Debug, PartialEq)]
pub struct ContainerReconcilerConfig {
    /// Interval between two passes.
    pub interval: Duration,
    /// Time for which an entry without a source object is retried.
    pub reclaim_age: Duration,
    /// Maximum concurrent moves.
    pub concurrency: usize,
    /// Number of processes that share the queue, and the index of this one; 0 if it works alone.
    pub processes: u64,
    pub process: u64,
    pub request_tries: u32,
}

impl ContainerReconcilerConfig {
    /// Reads the section.
    ///
    /// # Errors
    /// `Value` for a value that is no number or duration, a concurrency outside of 1 to 1024, and a
    /// `process` not below `processes`.
    pub fn read(section: &Section) -> Result<Self, ConfError> {
        let concurrency = section.usize_or("concurrency", 1)?;
        if !(1..=1024).contains(&concurrency) {
            return Err(section.bad("concurrency", "expected 1 to 1024"));
        }
        let tries = section.u64_or("request_tries", 3)?;
        let config = ContainerReconcilerConfig {
            interval: section.seconds_or("interval", 30.0)?,
            reclaim_age: section.seconds_or("reclaim_age", 604_800.0)?,
            concurrency,
            processes: section.u64_or("processes", 0)?,
            process: section.u64_or("process", 0)?,
            request_tries: u32::try_from(tries.clamp(1, 10)).unwrap_or(3),
        };
        config.shared(section, None, None)
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
        if self.processes > 0 && self.process >= self.processes {
            return Err(section.bad("process", "expected less than processes"));
        }
        Ok(self)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn values_are_swifts() {
        let read = |pairs: &[(&str, &str)]| {
            ContainerReconcilerConfig::read(&Section::from_pairs("container-reconciler", pairs))
        };
        let config = read(&[("interval", "5")]).unwrap();
        assert_eq!(config.interval, Duration::from_secs(5));
        assert_eq!((config.concurrency, config.request_tries), (1, 3));
        assert!(read(&[("concurrency", "0")]).is_err());
        assert!(read(&[("processes", "2"), ("process", "2")]).is_err());
    }
}
