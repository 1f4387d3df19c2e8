//! The verbs that change devices: add, `set_weight`, `set_region`, `set_zone`, `set_info`, remove.
//!
//! All of a command's changes are made in memory first; the builder is saved once, at the end, so a
//! command that fails midway changes nothing.

use cairn_ring::search::{self, DeviceSearch};
use cairn_ring::{BuilderDevice, Device, DeviceChange, NewDevice, RingBuilder};

use super::options::{DEVICE, Options};
use super::{Outcome, Session, Stop, usage};

impl Session<'_> {
    pub(super) fn add(&mut self, builder: &mut RingBuilder, args: &[String]) -> Outcome {
        if args.len() < 2 {
            return Err(usage::stop("add"));
        }
        if builder.next_part_power().is_some() {
            return Err(Stop::error(
                "Partition power increase in progress. You need\n\
                 to finish the increase first before adding devices.",
            ));
        }
        let unchanged = |stop: Stop| {
            Stop::error(format!(
                "{}\nThe on-disk ring builder is unchanged.",
                stop.message
            ))
        };
        for new in self.devices_to_add(args).map_err(unchanged)? {
            if let Some(taken) = using_address(builder, None, &new.ip, new.port, &new.device) {
                return Err(unchanged(already_uses(taken)));
            }
            let id = builder.add_dev(new).map_err(|e| unchanged(e.into()))?;
            let Some(added) = builder.device(id) else {
                continue;
            };
            let device = &added.device;
            let weight = device.weight;
            writeln!(
                self.out,
                "Device {device} with {weight:?} weight got id {id}"
            )?;
        }
        self.save_builder(builder)
    }

    fn devices_to_add(&mut self, args: &[String]) -> Result<Vec<NewDevice>, Stop> {
        let options = Options::parse(DEVICE, args)?;
        if options.positional.is_empty() {
            return Ok(vec![options.new_device()?]);
        }
        if options.names_devices() || options.positional.len() % 2 != 0 {
            return Err(usage::stop("add"));
        }
        let mut devices = Vec::new();
        for pair in options.positional.chunks_exact(2) {
            let added = search::parse_add_value(&pair[0], weight(&pair[1])?)?;
            if !added.has_region {
                writeln!(
                    self.err,
                    "WARNING: No region specified for {}. Defaulting to region 1.\n",
                    pair[0]
                )?;
            }
            devices.push(added.device);
        }
        Ok(devices)
    }

    pub(super) fn set_weight(&mut self, builder: &mut RingBuilder, args: &[String]) -> Outcome {
        for change in self.changes("set_weight", args)? {
            let weight = weight(&change.value)?;
            for id in self.matched(builder, &change, "update the weight for")? {
                builder.set_dev_weight(id, weight)?;
                self.say_set(builder, id, "weight", &format!("{weight:?}"))?;
            }
        }
        self.save_builder(builder)
    }

    pub(super) fn set_region(&mut self, builder: &mut RingBuilder, args: &[String]) -> Outcome {
        for change in self.changes("set_region", args)? {
            let region = number("region", &change.value)?;
            for id in self.matched(builder, &change, "update the region for")? {
                builder.set_dev_region(id, region)?;
                self.say_set(builder, id, "region", &change.value)?;
            }
        }
        self.save_builder(builder)
    }

    pub(super) fn set_zone(&mut self, builder: &mut RingBuilder, args: &[String]) -> Outcome {
        for change in self.changes("set_zone", args)? {
            let zone = number("zone", &change.value)?;
            for id in self.matched(builder, &change, "update the zone for")? {
                builder.set_dev_zone(id, zone)?;
                self.say_set(builder, id, "zone", &change.value)?;
            }
        }
        self.save_builder(builder)
    }

    fn say_set(
        &mut self,
        builder: &RingBuilder,
        id: u32,
        what: &str,
        value: &str,
    ) -> Result<(), Stop> {
        if let Some(dev) = builder.device(id) {
            writeln!(self.out, "{} {what} set to {value}", dev.device)?;
        }
        Ok(())
    }

    pub(super) fn set_info(&mut self, builder: &mut RingBuilder, args: &[String]) -> Outcome {
        if args.len() < 2 {
            return Err(usage::stop("set_info"));
        }
        let options = Options::parse(DEVICE, args)?;
        let yes = options.has("yes");
        let mut changes = Vec::new();
        if options.names_devices() {
            changes.push((options.search()?, options.change()?));
        } else if options.positional.len() % 2 != 0 {
            return Err(usage::stop("set_info"));
        }
        for pair in options.positional.chunks_exact(2) {
            let change = search::parse_change_value(&pair[1])?;
            changes.push((DeviceSearch::parse(&pair[0])?, change));
        }
        if changes.is_empty() {
            return Err(usage::stop("set_info"));
        }
        for (search, change) in changes {
            if change.is_empty() {
                return Err(Stop::error("Nothing to change was given.".to_owned()));
            }
            let wanted = Change {
                search,
                value: String::new(),
                yes,
            };
            for id in self.matched(builder, &wanted, "update the info for")? {
                self.change_info(builder, id, &change)?;
            }
        }
        self.save_builder(builder)
    }

    fn change_info(
        &mut self,
        builder: &mut RingBuilder,
        id: u32,
        change: &DeviceChange,
    ) -> Result<(), Stop> {
        let Some(before) = builder.device(id).map(|dev| dev.device.clone()) else {
            return Ok(());
        };
        let mut after = before.clone();
        change.apply(&mut after);
        let taken = using_address(builder, Some(id), &after.ip, after.port, &after.device);
        if let Some(taken) = taken {
            return Err(already_uses(taken));
        }
        builder.set_dev_info(id, change)?;
        writeln!(self.out, "Device {before} is now {after}")?;
        Ok(())
    }

    pub(super) fn remove(&mut self, builder: &mut RingBuilder, args: &[String]) -> Outcome {
        if args.is_empty() {
            return Err(usage::stop("remove"));
        }
        if builder.next_part_power().is_some() {
            return Err(Stop::error(
                "Partition power increase in progress. You need\n\
                 to finish the increase first before removing devices.",
            ));
        }
        let (searches, options) = searches("remove", args)?;
        let mut ids = Vec::new();
        for search in &searches {
            refuse_everything(search)?;
            for dev in builder.search_devs(search) {
                if !ids.contains(&dev.device.id) {
                    ids.push(dev.device.id);
                }
            }
        }
        self.check_matched(
            builder,
            &ids,
            options.has("yes"),
            "remove",
            "Aborting device removals",
        )?;
        for id in ids {
            builder.remove_dev(id)?;
            if let Some(dev) = builder.device(id) {
                writeln!(
                    self.out,
                    "{} marked for removal and will be removed next rebalance.",
                    dev.device
                )?;
            }
        }
        self.save_builder(builder)
    }

    /// Parses `SEARCH VALUE [SEARCH VALUE …]`, or options and one value.
    fn changes(&self, verb: &'static str, args: &[String]) -> Result<Vec<Change>, Stop> {
        if args.len() < 2 {
            return Err(usage::stop(verb));
        }
        let options = Options::parse(DEVICE, args)?;
        let yes = options.has("yes");
        if options.names_devices() {
            let [value] = options.positional.as_slice() else {
                return Err(usage::stop(verb));
            };
            return Ok(vec![Change {
                search: options.search()?,
                value: value.clone(),
                yes,
            }]);
        }
        if options.positional.is_empty() || options.positional.len() % 2 != 0 {
            return Err(usage::stop(verb));
        }
        let pairs = options.positional.chunks_exact(2).map(|pair| {
            Ok(Change {
                search: DeviceSearch::parse(&pair[0])?,
                value: pair[1].clone(),
                yes,
            })
        });
        pairs.collect()
    }

    fn matched(
        &mut self,
        builder: &RingBuilder,
        change: &Change,
        action: &str,
    ) -> Result<Vec<u32>, Stop> {
        refuse_everything(&change.search)?;
        let found = builder.search_devs(&change.search);
        let ids: Vec<u32> = found.iter().map(|dev| dev.device.id).collect();
        let aborting = "Aborting device modifications";
        self.check_matched(builder, &ids, change.yes, action, aborting)?;
        Ok(ids)
    }

    /// No match is an error; several need confirmation.
    fn check_matched(
        &mut self,
        builder: &RingBuilder,
        ids: &[u32],
        yes: bool,
        action: &str,
        aborting: &str,
    ) -> Result<(), Stop> {
        if ids.is_empty() {
            return Err(Stop::error(
                "Search value matched 0 devices.\nThe on-disk ring builder is unchanged.",
            ));
        }
        if ids.len() == 1 {
            return Ok(());
        }
        writeln!(self.out, "Matched more than one device:")?;
        for dev in ids.iter().filter_map(|id| builder.device(*id)) {
            writeln!(self.out, "    {}", dev.device)?;
        }
        let count = ids.len();
        let question = format!("Are you sure you want to {action} these {count} devices? (y/N) ");
        if yes || self.confirm(&question)? {
            return Ok(());
        }
        Err(Stop::error(aborting))
    }
}

/// Devices and the new value for them.
struct Change {
    search: DeviceSearch,
    value: String,
    yes: bool,
}

/// Refuses an empty search. Swift's tool takes it for "all devices", so that a lone `--yes` empties
/// a ring.
fn refuse_everything(search: &DeviceSearch) -> Result<(), Stop> {
    if search.is_empty() {
        return Err(Stop::error(
            "The search value is empty and would match every device; name at least one part of \
             it.\nThe on-disk ring builder is unchanged.",
        ));
    }
    Ok(())
}

/// Parses one-word search values, or options.
pub(super) fn searches(
    verb: &'static str,
    args: &[String],
) -> Result<(Vec<DeviceSearch>, Options), Stop> {
    let options = Options::parse(DEVICE, args)?;
    if options.positional.is_empty() {
        return Ok((vec![options.search()?], options));
    }
    if options.names_devices() {
        return Err(usage::stop(verb));
    }
    let values = options.positional.iter();
    let searches = values.map(|value| DeviceSearch::parse(value));
    Ok((searches.collect::<Result<_, _>>()?, options))
}

fn using_address<'b>(
    builder: &'b RingBuilder,
    except: Option<u32>,
    ip: &str,
    port: u16,
    name: &str,
) -> Option<&'b Device> {
    let uses = |dev: &&BuilderDevice| {
        let device = &dev.device;
        Some(device.id) != except && device.ip == ip && device.port == port && device.device == name
    };
    builder.devices().find(uses).map(|dev| &dev.device)
}

fn already_uses(taken: &Device) -> Stop {
    Stop::error(format!(
        "Device {} already uses {}:{}/{}.",
        taken.id, taken.ip, taken.port, taken.device
    ))
}

fn weight(text: &str) -> Result<f64, Stop> {
    let weight = text
        .parse()
        .ok()
        .filter(|w: &f64| w.is_finite() && *w >= 0.0);
    weight.ok_or_else(|| {
        Stop::error(format!(
            "Invalid weight value: {text:?}: a number of at least 0 expected"
        ))
    })
}

fn number(what: &str, text: &str) -> Result<u32, Stop> {
    text.parse().map_err(|_| {
        Stop::error(format!(
            "Invalid {what} value: {text:?}: a whole number of at least 0 expected"
        ))
    })
}
