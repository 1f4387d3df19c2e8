//! `swift-dispersion-populate` and `swift-dispersion-report`: samples of containers and objects in
//! many partitions, whose copies are counted to measure the cluster's health.

mod cluster;
mod login;
mod populate;
mod report;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cairn_formats::ini::{Conf, Section};
use cairn_types::policy::StoragePolicy;
use clap::Parser;

use crate::locations::SwiftDir;
pub(crate) use populate::run as populate;
pub(crate) use report::run as report;

/// Configuration of both programs.
struct Plan {
    section: Section,
    swift: SwiftDir,
    policy: StoragePolicy,
    retries: u64,
    concurrency: usize,
    /// Certificates are not checked.
    is_insecure: bool,
}

impl Plan {
    fn read(conf: &PathBuf, policy_name: Option<&str>, insecure: bool) -> Result<Plan> {
        let name = conf.display().to_string();
        let text = std::fs::read_to_string(conf)
            .with_context(|| format!("Unable to read config file: {name}"))?;
        let section = Conf::parse(&name, &text)?.section("dispersion")?;
        let swift = SwiftDir::open(section.str_or("swift_dir", "/etc/swift").as_ref())?;
        let policies = &swift.conf.policies;
        let policy = match policy_name {
            None => policies.default_policy(),
            Some(name) => match policies.by_name(name) {
                Some(policy) => policy,
                None => bail!("Unable to find policy: {name}"),
            },
        };
        Ok(Plan {
            policy: policy.clone(),
            retries: section.u64_or("retries", 5)?,
            is_insecure: insecure || section.bool_or("keystone_api_insecure", false),
            concurrency: section.usize_or("concurrency", 25)?.clamp(1, 1024),
            section,
            swift,
        })
    }
}

/// Make containers and objects for dispersion reports
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct PopulateOptions {
    /// Only containers
    #[arg(long, conflicts_with = "object_only")]
    container_only: bool,
    /// Only objects
    #[arg(long)]
    object_only: bool,
    /// First number in containers' names
    #[arg(long, default_value_t = 0)]
    container_suffix_start: u64,
    /// First number in objects' names
    #[arg(long, default_value_t = 0)]
    object_suffix_start: u64,
    /// Do not check certificates
    #[arg(long)]
    insecure: bool,
    /// Take partitions that an earlier run did not
    #[arg(long)]
    no_overlap: bool,
    #[arg(short = 'P', long)]
    policy_name: Option<String>,
    #[arg(value_name = "CONF", default_value = "/etc/swift/dispersion.conf")]
    conf: PathBuf,
}

/// Count the copies of what swift-dispersion-populate made
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct ReportOptions {
    /// In JSON
    #[arg(short = 'j', long)]
    dump_json: bool,
    /// Tell about each 404 on standard error
    #[arg(short, long)]
    debug: bool,
    /// Tell which partitions lack copies, on standard error
    #[arg(short, long)]
    partitions: bool,
    /// Only containers
    #[arg(long, conflicts_with = "object_only")]
    container_only: bool,
    /// Only objects
    #[arg(long)]
    object_only: bool,
    /// Do not check certificates
    #[arg(long)]
    insecure: bool,
    #[arg(short = 'P', long)]
    policy_name: Option<String>,
    #[arg(value_name = "CONF", default_value = "/etc/swift/dispersion.conf")]
    conf: PathBuf,
}

/// Formats a rounded duration: `3s`, `2m`, `1h`.
fn in_units(time: Duration) -> String {
    let mut amount = time.as_secs_f64();
    let mut unit = "s";
    for larger in ["m", "h"] {
        if amount <= 60.0 {
            break;
        }
        amount /= 60.0;
        unit = larger;
    }
    format!("{:.0}{unit}", amount)
}

/// Progress display, with the estimated remaining time.
struct Progress {
    begun: Instant,
    next: Instant,
}

impl Progress {
    fn new() -> Progress {
        let begun = Instant::now();
        Progress {
            begun,
            next: begun + Duration::from_secs(2),
        }
    }

    /// Every five seconds, a line with the remaining time.
    fn due(&mut self, done: usize, all: usize) -> Option<String> {
        let now = Instant::now();
        if now < self.next {
            return None;
        }
        self.next = now + Duration::from_secs(5);
        let share = (done as f64 / all.max(1) as f64).max(0.00001);
        let left = self.begun.elapsed().mul_f64((1.0 / share - 1.0).max(0.0));
        Some(in_units(left))
    }

    fn elapsed(&self) -> String {
        in_units(self.begun.elapsed())
    }
}
