//! The verbs that display a builder: the default listing, `search`, `list_parts`, `validate`.

use std::collections::BTreeSet;

use cairn_ring::{BuilderDevice, BuilderError, Ring, RingBuilder, bracketed};

use super::edit::searches;
use super::{EXIT_SUCCESS, Outcome, Session, Stop, usage};

impl Session<'_> {
    pub(super) fn show(&mut self, builder: &RingBuilder) -> Outcome {
        let path = self.files.builder.display().to_string();
        let id = builder.id().unwrap_or("(not assigned)");
        let version = builder.version();
        writeln!(self.out, "{path}, build version {version}, id {id}")?;

        let balances = match builder.balance_per_device() {
            Ok(balances) => Some(balances),
            Err(BuilderError::EmptyRing) => None,
            Err(other) => return Err(other.into()),
        };
        self.show_summary(builder, balances.as_deref().unwrap_or_default())?;
        let ring_is_current = self.show_ring_state(builder)?;
        self.show_devices(builder, balances.as_deref().unwrap_or_default())?;
        self.show_power_increase(builder, ring_is_current)?;
        if balances.is_none() {
            writeln!(self.out, "{}", BuilderError::EmptyRing)?;
        }
        Ok(EXIT_SUCCESS)
    }

    fn show_summary(&mut self, builder: &RingBuilder, balances: &[f64]) -> Result<(), Stop> {
        let devices = || builder.devices().map(|dev| &dev.device);
        let regions: BTreeSet<_> = devices().map(|d| d.region).collect();
        let zones: BTreeSet<_> = devices().map(|d| (d.region, d.zone)).collect();
        let balance = balances.iter().map(|b| b.abs()).fold(0.0, f64::max);
        let dispersion = builder
            .dispersion()
            .map_or(String::new(), |d| format!(", {d:.2} dispersion"));
        writeln!(
            self.out,
            "{} partitions, {:.6} replicas, {} regions, {} zones, {} devices, {}-byte IDs, \
             {balance:.2} balance{dispersion}",
            builder.parts(),
            builder.replicas(),
            regions.len(),
            zones.len(),
            devices().count(),
            builder.dev_id_bytes(),
        )?;
        writeln!(
            self.out,
            "The minimum number of hours before a partition can be reassigned is {} ({} remaining)",
            builder.min_part_hours(),
            time_left(builder.min_part_seconds_left(self.now)),
        )?;
        let overload = builder.overload();
        let percent = overload * 100.0;
        writeln!(
            self.out,
            "The overload factor is {percent:.2}% ({overload:.6})"
        )?;
        Ok(())
    }

    /// Prints whether the ring file is this builder's; returns true if so.
    fn show_ring_state(&mut self, builder: &RingBuilder) -> Result<bool, Stop> {
        let ring_file = self.files.ring.display().to_string();
        if !self.files.ring.exists() {
            writeln!(
                self.out,
                "Ring file {ring_file} not found, probably it hasn't been written yet"
            )?;
            return Ok(false);
        }
        match Ring::load(&self.files.ring) {
            Ok(ring) if ring.data().same_ring(&builder.ring_data()) => {
                writeln!(self.out, "Ring file {ring_file} is up-to-date")?;
                Ok(true)
            }
            Ok(_) => {
                writeln!(self.out, "Ring file {ring_file} is obsolete")?;
                Ok(false)
            }
            Err(error) => {
                writeln!(self.out, "Ring file {ring_file} is invalid: {error}")?;
                Ok(false)
            }
        }
    }

    fn show_devices(&mut self, builder: &RingBuilder, balances: &[f64]) -> Result<(), Stop> {
        let mut devices: Vec<&BuilderDevice> = builder.devices().collect();
        devices.sort_by(|a, b| {
            let key = |dev: &BuilderDevice| (dev.device.region, dev.device.zone);
            (key(a), &a.device.ip, &a.device.device).cmp(&(key(b), &b.device.ip, &b.device.device))
        });
        let columns = Columns::fitting(&devices);
        writeln!(self.out, "{}", columns.header())?;
        for dev in devices {
            let balance = balances.get(dev.device.id as usize).copied();
            writeln!(self.out, "{}", columns.line(dev, balance.unwrap_or(0.0)))?;
        }
        Ok(())
    }

    fn show_power_increase(
        &mut self,
        builder: &RingBuilder,
        ring_is_current: bool,
    ) -> Result<(), Stop> {
        let (now, Some(next)) = (builder.part_power(), builder.next_part_power()) else {
            return Ok(());
        };
        if next == now + 1 {
            writeln!(
                self.out,
                "\nPreparing increase of partition power ({now} -> {next})\n\
                 Run \"swift-object-relinker relink\" on all nodes before moving on to \
                 increase_partition_power."
            )?;
        } else if next == now {
            writeln!(self.out, "\nIncreased partition power ({now} -> {next})")?;
            if !ring_is_current {
                writeln!(
                    self.out,
                    "First run \"swift-ring-builder <builderfile> write_ring\" now and copy the \
                     updated .ring.gz file to all nodes."
                )?;
            }
            writeln!(
                self.out,
                "Run \"swift-object-relinker cleanup\" on all nodes before moving on to \
                 finish_increase_partition_power."
            )?;
        }
        Ok(())
    }

    pub(super) fn search(&mut self, builder: &RingBuilder, args: &[String]) -> Outcome {
        if args.is_empty() {
            return Err(usage::stop("search"));
        }
        let (searches, _) = searches("search", args)?;
        let [search] = searches.as_slice() else {
            return Err(usage::stop("search"));
        };
        let found = builder.search_devs(search);
        if found.is_empty() {
            return Err(Stop::error("No matching devices found"));
        }
        let balances = builder.balance_per_device().unwrap_or_default();
        let columns = Columns::fitting(&found);
        writeln!(self.out, "{}", columns.header())?;
        for dev in found {
            let balance = balances.get(dev.device.id as usize).copied();
            writeln!(self.out, "{}", columns.line(dev, balance.unwrap_or(0.0)))?;
        }
        Ok(EXIT_SUCCESS)
    }

    pub(super) fn list_parts(&mut self, builder: &RingBuilder, args: &[String]) -> Outcome {
        if args.is_empty() {
            return Err(usage::stop("list_parts"));
        }
        self.require_balanced(builder)?;
        let (searches, _) = searches("list_parts", args)?;
        let found = searches.iter().flat_map(|s| builder.search_devs(s));
        let ids: Vec<u32> = found.map(|dev| dev.device.id).collect();
        let parts = builder.list_parts(&ids);
        if parts.is_empty() {
            return Err(Stop::error("No matching devices found"));
        }
        writeln!(self.out, "Partition   Matches")?;
        for (part, count) in parts {
            writeln!(self.out, "{part:>9}   {count:>7}")?;
        }
        Ok(EXIT_SUCCESS)
    }

    pub(super) fn require_balanced(&self, builder: &RingBuilder) -> Result<(), Stop> {
        if builder.ever_rebalanced() {
            return Ok(());
        }
        let path = self.files.builder.display();
        Err(Stop::error(format!(
            "Specified builder file \"{path}\" is not rebalanced yet. Please rebalance first."
        )))
    }

    pub(super) fn validate(&mut self, builder: &RingBuilder) -> Outcome {
        builder.validate()?;
        Ok(EXIT_SUCCESS)
    }
}

/// Formats a duration: `0:59:13`, `1 day, 0:00:00`.
pub(super) fn time_left(seconds: u64) -> String {
    let (days, rest) = (seconds / 86400, seconds % 86400);
    let clock = format!("{}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    match days {
        0 => clock,
        1 => format!("1 day, {clock}"),
        days => format!("{days} days, {clock}"),
    }
}

/// Column widths of the device table, wide enough for its longest values.
struct Columns {
    ip: usize,
    port: usize,
    replication_ip: usize,
    replication_port: usize,
    weight: usize,
}

impl Columns {
    fn fitting(devices: &[&BuilderDevice]) -> Columns {
        let widest = |least: usize, width: &dyn Fn(&BuilderDevice) -> usize| {
            devices.iter().map(|dev| width(dev)).fold(least, usize::max)
        };
        // One IPv6 address widens the column by its brackets, as in Swift's listing.
        let brackets = |ip: &dyn Fn(&BuilderDevice) -> bool| {
            if devices.iter().any(|dev| ip(dev)) {
                2
            } else {
                0
            }
        };
        Columns {
            ip: widest(10, &|dev| dev.device.ip.len())
                + brackets(&|dev| dev.device.ip.contains(':')),
            port: widest(4, &|dev| dev.device.port.to_string().len()),
            replication_ip: widest(14, &|dev| dev.device.replication_ip.len())
                + brackets(&|dev| dev.device.replication_ip.contains(':')),
            replication_port: widest(4, &|dev| dev.device.replication_port.to_string().len()),
            weight: widest(6, &|dev| format!("{:.2}", dev.device.weight).len()),
        }
    }

    fn header(&self) -> String {
        format!(
            "Devices:{:>5} {:>6} {:>4} {:>ip$}:{:<port$} {:>rip$}:{:<rport$} {:>5} {:>weight$} \
             {:>10} {:>7} {:>5} {}",
            "id",
            "region",
            "zone",
            "ip address",
            "port",
            "replication ip",
            "port",
            "name",
            "weight",
            "partitions",
            "balance",
            "flags",
            "meta",
            ip = self.ip,
            port = self.port,
            rip = self.replication_ip,
            rport = self.replication_port,
            weight = self.weight,
        )
    }

    fn line(&self, dev: &BuilderDevice, balance: f64) -> String {
        let device = &dev.device;
        format!(
            "{:>13} {:>6} {:>4} {:>ip$}:{:<port$} {:>rip$}:{:<rport$} {:>5} {:>weight$.2} {:>10} \
             {:>7.2} {:>5} {}",
            device.id,
            device.region,
            device.zone,
            bracketed(&device.ip),
            device.port,
            bracketed(&device.replication_ip),
            device.replication_port,
            device.device,
            device.weight,
            dev.parts,
            balance,
            if dev.removing { "DEL" } else { "" },
            device.meta,
            ip = self.ip,
            port = self.port,
            rip = self.replication_ip,
            rport = self.replication_port,
            weight = self.weight,
        )
    }
}
