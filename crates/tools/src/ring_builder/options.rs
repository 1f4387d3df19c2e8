//! Parser of command-line options in the forms of Swift's tool: anywhere among the arguments, `-s
//! X`, `-sX`, `--seed X`, `--seed=X`, long names abbreviated while unambiguous, `--` before plain
//! arguments.

use std::collections::BTreeMap;
use std::str::FromStr;

use cairn_ring::search::{DeviceSearch, check_device_name};
use cairn_ring::{DeviceChange, NewDevice, normalize_address};

use super::Stop;

/// An option of a verb: short letter, long name, and whether a value follows.
pub(super) type Spec = (char, &'static str, bool);

/// Letter of options with a long name only; no argument can contain it.
pub(super) const NO_LETTER: char = '\0';

/// The options that describe a device, for searching, adding and changing.
pub(super) const DEVICE: &[Spec] = &[
    ('u', "id", true),
    ('r', "region", true),
    ('z', "zone", true),
    ('i', "ip", true),
    ('p', "port", true),
    ('j', "replication-ip", true),
    ('q', "replication-port", true),
    ('d', "device", true),
    ('w', "weight", true),
    ('m', "meta", true),
    ('I', "change-ip", true),
    ('P', "change-port", true),
    ('J', "change-replication-ip", true),
    ('Q', "change-replication-port", true),
    ('D', "change-device", true),
    ('M', "change-meta", true),
    ('y', "yes", false),
];

/// The options of [`DEVICE`] that select devices.
const SEARCHING: &[&str] = &[
    "id",
    "region",
    "zone",
    "ip",
    "port",
    "replication-ip",
    "replication-port",
    "device",
    "weight",
    "meta",
];

#[derive(Debug, Default)]
pub(super) struct Options {
    given: BTreeMap<&'static str, String>,
    pub(super) positional: Vec<String>,
}

impl Options {
    pub(super) fn parse(specs: &[Spec], args: &[String]) -> Result<Options, Stop> {
        let mut options = Options::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let (spec, mut value) = if arg == "--" {
                options.positional.extend(args.cloned());
                break;
            } else if let Some(long) = arg.strip_prefix("--") {
                let (name, value) = match long.split_once('=') {
                    Some((name, value)) => (name, Some(value.to_owned())),
                    None => (long, None),
                };
                (long_option(specs, name)?, value)
            } else if arg.len() > 1 && arg.starts_with('-') {
                let mut letters = arg[1..].chars();
                let letter = letters.next().unwrap_or_default();
                let rest = letters.as_str();
                let spec = specs.iter().find(|(short, ..)| *short == letter);
                let spec = spec.ok_or_else(|| no_such(&format!("-{letter}")))?;
                if !spec.2 && !rest.is_empty() {
                    return Err(Stop::error(format!("error: -{letter} takes no value")));
                }
                (spec, (!rest.is_empty()).then(|| rest.to_owned()))
            } else {
                options.positional.push(arg.clone());
                continue;
            };
            let (_, name, takes_value) = *spec;
            if !takes_value && value.is_some() {
                return Err(Stop::error(format!("error: --{name} takes no value")));
            }
            if takes_value && value.is_none() {
                let next = args.next().cloned();
                value = Some(next.ok_or_else(|| {
                    Stop::error(format!("error: --{name} needs a value after it"))
                })?);
            }
            options.given.insert(name, value.unwrap_or_default());
        }
        Ok(options)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.given.get(name).map(String::as_str)
    }

    /// An option's value, which must parse; `expected` describes the type in the error.
    pub(super) fn value<T: FromStr>(&self, name: &str, expected: &str) -> Result<Option<T>, Stop> {
        let parsed = self.text(name).map(|text| {
            text.parse().map_err(|_| {
                Stop::error(format!("error: --{name} is {text:?}: {expected} expected"))
            })
        });
        parsed.transpose()
    }

    fn number(&self, name: &str) -> Result<Option<u32>, Stop> {
        self.value(name, "a whole number of at least 0")
    }

    fn port(&self, name: &str) -> Result<Option<u16>, Stop> {
        self.value(name, "a port, 0 to 65535,")
    }

    /// The option's text, if it is not empty.
    fn filled(&self, name: &str) -> Option<String> {
        self.text(name)
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
    }

    fn address(&self, name: &str) -> Result<Option<String>, Stop> {
        let address = self.filled(name).map(|text| normalize_address(&text));
        Ok(address.transpose()?)
    }

    /// Are devices selected by options rather than by one-word values?
    pub(super) fn names_devices(&self) -> bool {
        SEARCHING.iter().any(|name| self.has(name))
    }

    pub(super) fn search(&self) -> Result<DeviceSearch, Stop> {
        Ok(DeviceSearch {
            id: self.number("id")?,
            region: self.number("region")?,
            zone: self.number("zone")?,
            ip: self.address("ip")?,
            port: self.port("port")?,
            replication_ip: self.address("replication-ip")?,
            replication_port: self.port("replication-port")?,
            device: self.filled("device"),
            weight: self.value("weight", "a number")?,
            meta: self.filled("meta"),
        })
    }

    pub(super) fn change(&self) -> Result<DeviceChange, Stop> {
        let device = self.filled("change-device");
        if let Some(device) = &device {
            check_device_name(device, device)?;
        }
        Ok(DeviceChange {
            ip: self.address("change-ip")?,
            port: self.port("change-port")?,
            replication_ip: self.address("change-replication-ip")?,
            replication_port: self.port("change-replication-port")?,
            device,
            meta: self.filled("change-meta"),
        })
    }

    pub(super) fn new_device(&self) -> Result<NewDevice, Stop> {
        let missing = |short: char, name: &str| {
            Stop::error(format!(
                "Required argument -{short}/--{name} not specified."
            ))
        };
        let device = self.text("device").unwrap_or_default().to_owned();
        let new = NewDevice {
            id: None,
            region: self
                .number("region")?
                .ok_or_else(|| missing('r', "region"))?,
            zone: self.number("zone")?.ok_or_else(|| missing('z', "zone"))?,
            ip: self.address("ip")?.ok_or_else(|| missing('i', "ip"))?,
            port: self.port("port")?.ok_or_else(|| missing('p', "port"))?,
            weight: self
                .value("weight", "a number")?
                .ok_or_else(|| missing('w', "weight"))?,
            replication_ip: self.address("replication-ip")?,
            replication_port: self.port("replication-port")?.filter(|port| *port != 0),
            device,
            meta: self.text("meta").unwrap_or_default().to_owned(),
        };
        if !self.has("device") {
            return Err(missing('d', "device"));
        }
        check_device_name(&new.device, &new.device)?;
        Ok(new)
    }
}

fn long_option<'s>(specs: &'s [Spec], name: &str) -> Result<&'s Spec, Stop> {
    if let Some(exact) = specs.iter().find(|(_, long, _)| *long == name) {
        return Ok(exact);
    }
    let mut starting = specs
        .iter()
        .filter(|(_, long, _)| !name.is_empty() && long.starts_with(name));
    match (starting.next(), starting.next()) {
        (Some(only), None) => Ok(only),
        (Some((_, a, _)), Some((_, b, _))) => Err(Stop::error(format!(
            "error: ambiguous option: --{name} (--{a}, --{b}, …?)"
        ))),
        _ => Err(no_such(&format!("--{name}"))),
    }
}

fn no_such(option: &str) -> Stop {
    Stop::error(format!("error: no such option: {option}"))
}
