//! Arguments of swift-object-relinker.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use super::{Called, Step};

/// Give objects their names in a ring's new partitions, and take the old ones away
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Arguments {
    /// Before the ring has more partitions: relink; after it has: cleanup
    #[arg(value_enum)]
    action: Action,

    /// The conf file with a section [object-relinker]
    #[arg(value_name = "CONFIG")]
    config: Option<PathBuf>,

    /// The folder of swift.conf and the rings
    #[arg(long, value_name = "DIR")]
    swift_dir: Option<PathBuf>,

    /// Only this policy, by name or index; give it again for more
    #[arg(long = "policy", value_name = "POLICY")]
    policies: Vec<String>,

    /// The folder of devices
    #[arg(long, value_name = "DIR")]
    devices: Option<PathBuf>,

    /// Become this user first
    #[arg(long)]
    user: Option<String>,

    /// Only this device; give it again for more
    #[arg(long = "device", value_name = "NAME")]
    device_list: Vec<String>,

    /// Only this partition; give it again for more
    #[arg(short, long = "partition", value_name = "NUMBER")]
    partitions: Vec<u32>,

    /// Take devices that are not mounted, too
    #[arg(long)]
    skip_mount_check: bool,

    /// Objects a second on each device; 0: no limit
    #[arg(long, value_name = "N")]
    files_per_second: Option<f64>,

    /// Tell recon so often, in seconds
    #[arg(long, value_name = "N")]
    stats_interval: Option<f64>,

    /// Devices worked on at once: a number, or auto for all
    #[arg(long, value_parser = parse_workers)]
    workers: Option<usize>,

    #[arg(long)]
    debug: bool,

    /// Different files of one name in both partitions: quarantine the new one (relink), or let the old
    /// one go (cleanup)
    #[arg(long)]
    clobber_hardlink_collisions: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Action {
    Relink,
    Cleanup,
}

impl Arguments {
    pub(crate) fn called(self) -> Called {
        Called {
            step: match self.action {
                Action::Relink => Step::Relink,
                Action::Cleanup => Step::Cleanup,
            },
            conf: self.config,
            swift_dir: self.swift_dir,
            policies: self.policies,
            devices: self.devices,
            user: self.user,
            device_list: self.device_list,
            partitions: self.partitions,
            skip_mount_check: self.skip_mount_check,
            files_per_second: self.files_per_second,
            stats_interval: self.stats_interval,
            workers: self.workers,
            debug: self.debug,
            clobber_hardlink_collisions: self.clobber_hardlink_collisions,
        }
    }
}

/// A number; 0 is all devices.
fn parse_workers(text: &str) -> Result<usize, String> {
    match text {
        "auto" => Ok(0),
        text => text
            .parse()
            .map_err(|_| "expected a number or auto".to_owned()),
    }
}
