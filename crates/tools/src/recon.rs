//! `swift-recon`: collects monitoring data from all servers of the rings and shows summaries.

mod checks;
mod scout;
mod stats;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Parser;

use crate::locations::SwiftDir;
use scout::{Host, Scout};

/// Gather facts from the servers of the rings
///
/// SERVER_TYPE is account, container or object; more may be given. Default: object.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
pub(crate) struct Options {
    #[arg(value_name = "SERVER_TYPE")]
    server_types: Vec<String>,
    /// Show each answer
    #[arg(short, long)]
    verbose: bool,
    /// Say nothing about servers that do not answer
    #[arg(long)]
    suppress: bool,
    /// Container updates that wait to be delivered
    #[arg(short = 'a', long = "async")]
    async_check: bool,
    #[arg(short, long)]
    replication: bool,
    #[arg(short = 'R', long)]
    reconstruction: bool,
    #[arg(long)]
    auditor: bool,
    #[arg(long)]
    updater: bool,
    #[arg(long)]
    expirer: bool,
    #[arg(long)]
    sharding: bool,
    /// Devices that are not mounted
    #[arg(short, long)]
    unmounted: bool,
    #[arg(short, long)]
    diskusage: bool,
    /// Disk usage in larger units
    #[arg(long)]
    human_readable: bool,
    #[arg(short, long)]
    loadstats: bool,
    #[arg(short, long)]
    quarantined: bool,
    /// Are the servers what the rings take them for?
    #[arg(long)]
    validate_servers: bool,
    /// Compare rings and swift.conf with those here
    #[arg(long)]
    md5: bool,
    #[arg(long)]
    sockstat: bool,
    #[arg(long)]
    driveaudit: bool,
    /// Compare clocks
    #[arg(short = 'T', long)]
    time: bool,
    /// Maximum difference of clocks, in seconds
    #[arg(long, default_value_t = 0.0)]
    jitter: f64,
    #[arg(long)]
    swift_versions: bool,
    /// Also show so many of the fullest devices
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    top: usize,
    /// Also show so many of the emptiest devices
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    lowest: usize,
    /// All of it
    #[arg(long)]
    all: bool,
    /// Only servers of this region
    #[arg(long)]
    region: Option<u32>,
    /// Only servers of this zone
    #[arg(short, long)]
    zone: Option<u32>,
    /// For an answer
    #[arg(short, long, value_name = "SECONDS", default_value_t = 5.0)]
    timeout: f64,
    #[arg(long, default_value = "/etc/swift")]
    swiftdir: PathBuf,
    /// Only object servers of this policy, by name or index
    #[arg(short, long)]
    policy: Option<String>,
}

const TYPES: [&str; 3] = ["account", "container", "object"];

pub(crate) fn run(options: Options, out: &mut dyn Write) -> Result<u8> {
    writeln!(out, "{}", stats::LINE)?;
    let types: BTreeSet<&str> = match &options.server_types[..] {
        [] => BTreeSet::from(["object"]),
        types => types.iter().map(String::as_str).collect(),
    };
    if !types.iter().all(|name| TYPES.contains(name)) {
        bail!("Invalid Server Type: expected account, container or object");
    }
    let swift = SwiftDir::open(&options.swiftdir)?;
    for kind in types {
        let rings = ring_names(&swift, kind, options.policy.as_deref());
        if rings.is_empty() {
            let policy = options.policy.as_deref().unwrap_or_default();
            bail!("Invalid Storage Policy: {policy}");
        }
        let hosts = hosts(&swift, &rings, &options)?;
        writeln!(
            out,
            "--> Starting reconnaissance on {} hosts ({kind})\n{}",
            hosts.len(),
            stats::LINE
        )?;
        let scout = Scout {
            kind,
            hosts,
            verbose: options.verbose,
            suppress: options.suppress,
            timeout: Duration::try_from_secs_f64(options.timeout)?,
        };
        let checks = checks::Checks {
            scout,
            swift: &swift,
            out,
        };
        crate::block_on(checks.run(&options))?;
    }
    Ok(0)
}

fn ring_names(swift: &SwiftDir, kind: &str, policy: Option<&str>) -> Vec<String> {
    if kind != "object" {
        return vec![kind.to_owned()];
    }
    let wanted = |p: &&cairn_types::policy::StoragePolicy| {
        policy.is_none_or(|wanted| {
            p.name.eq_ignore_ascii_case(wanted)
                || p.aliases.iter().any(|a| a == wanted)
                || wanted.parse() == Ok(p.index.0)
        })
    };
    let policies = swift.conf.policies.iter().filter(wanted);
    policies.map(|p| p.index.ring_name()).collect()
}

fn hosts(swift: &SwiftDir, rings: &[String], options: &Options) -> Result<Vec<Host>> {
    let mut hosts = BTreeSet::new();
    for name in rings {
        for device in swift.ring(name)?.devices() {
            let region = options.region.is_none_or(|r| r == device.region);
            let zone = options.zone.is_none_or(|z| z == device.zone);
            if region && zone {
                hosts.insert(Host {
                    ip: device.ip.clone(),
                    port: device.port,
                });
            }
        }
    }
    Ok(hosts.into_iter().collect())
}
