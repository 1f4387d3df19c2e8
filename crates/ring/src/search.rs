//! One-word forms of device arguments of commands.
//!
//! | form | example |
//! | --- | --- |
//! | search | `d7`, `r1z2`, `z1-10.0.0.1:6200`, `[::1]:6200`, `R:6300`, `/sdb1`, `_meta` |
//! | add | `r1z2-10.0.0.1:6200R10.1.0.1:6300/sdb1_meta` |
//! | change | `10.0.0.1:6200R10.1.0.1:6300/sdb1_meta` |
//!
//! Every part of a search or change is optional, but their order is fixed.

use crate::address::{AddressError, normalize_address, normalize_ip};
use crate::device::{Device, DeviceChange, NewDevice};

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SearchError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("Invalid {what} {found:?} in {value:?}: a whole number up to {max} expected")]
    Number {
        what: &'static str,
        found: String,
        value: String,
        max: u32,
    },
    #[error(
        "Invalid <search-value>: {value:?}; the form is \
         d<id>r<region>z<zone>-<ip>:<port>R<ip>:<port>/<device>_<meta>, each part optional"
    )]
    Search { value: String },
    #[error(
        "Invalid add value: {value:?}; the form is \
         [r<region>]z<zone>-<ip>:<port>[R<ip>:<port>]/<device>[_<meta>]"
    )]
    Add { value: String },
    #[error("Invalid device name {name:?} in {value:?}: not empty, no space at its ends")]
    DeviceName { name: String, value: String },
    #[error(
        "Invalid set info change value: {value:?}; the form is \
         <ip>:<port>[R<ip>:<port>]/<device>_<meta>, each part optional"
    )]
    Change { value: String },
}

/// Criteria of a device search; `None` matches any.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceSearch {
    pub id: Option<u32>,
    pub region: Option<u32>,
    pub zone: Option<u32>,
    pub ip: Option<String>,
    pub port: Option<u16>,
    pub replication_ip: Option<String>,
    pub replication_port: Option<u16>,
    pub device: Option<String>,
    pub weight: Option<f64>,
    /// A substring of the meta text.
    pub meta: Option<String>,
}

impl DeviceSearch {
    /// Does it match every device?
    pub fn is_empty(&self) -> bool {
        *self == DeviceSearch::default()
    }

    pub fn matches(&self, device: &Device) -> bool {
        fn same<T: PartialEq>(wanted: &Option<T>, found: &T) -> bool {
            wanted.as_ref().is_none_or(|wanted| wanted == found)
        }
        let same_address = |wanted: &Option<String>, found: &str| {
            wanted
                .as_ref()
                .is_none_or(|wanted| normalize_address(found).as_ref() == Ok(wanted))
        };
        let has_meta = |wanted: &String| device.meta.contains(wanted.as_str());
        same(&self.id, &device.id)
            && same(&self.region, &device.region)
            && same(&self.zone, &device.zone)
            && same_address(&self.ip, &device.ip)
            && same(&self.port, &device.port)
            && same_address(&self.replication_ip, &device.replication_ip)
            && same(&self.replication_port, &device.replication_port)
            && same(&self.device, &device.device)
            && same(&self.weight, &device.weight)
            && self.meta.as_ref().is_none_or(has_meta)
    }

    /// Parses a one-word search value: `d7r1z2-10.0.0.1:6200R10.1.0.1:6300/sdb1_meta`, parts
    /// optional.
    ///
    /// # Errors
    /// `Address` for a malformed IP address, `Number` for a number that is missing or too large,
    /// `Search` for any other text.
    pub fn parse(value: &str) -> Result<DeviceSearch, SearchError> {
        let mut rest = Rest::new(value);
        let mut search = DeviceSearch {
            id: rest.number_after('d', "device id")?,
            region: rest.number_after('r', "region")?,
            zone: rest.number_after('z', "zone")?,
            ..DeviceSearch::default()
        };
        rest.eat('-');
        (search.ip, search.port) = rest.ip_and_port()?;
        if rest.eat('R') {
            (search.replication_ip, search.replication_port) = rest.ip_and_port()?;
        }
        search.device = rest.device();
        search.meta = rest.meta();
        if !rest.text.is_empty() {
            return Err(SearchError::Search {
                value: value.to_owned(),
            });
        }
        Ok(search)
    }
}

/// The device described by a one-word `add` value; `region` is `None` if omitted.
pub struct AddValue {
    pub has_region: bool,
    pub device: NewDevice,
}

/// Parses a one-word `add` value: `r1z1-10.0.0.1:6200R10.1.0.1:6300/sda_meta`.
///
/// # Errors
/// The value has another form, or a number in it is too large.
pub fn parse_add_value(value: &str, weight: f64) -> Result<AddValue, SearchError> {
    let malformed = || SearchError::Add {
        value: value.to_owned(),
    };
    let mut rest = Rest::new(value);
    let region = rest.number_after('r', "region")?;
    let zone = rest.number_after('z', "zone")?.ok_or_else(malformed)?;
    if !rest.eat('-') {
        return Err(malformed());
    }
    let (ip, port) = rest.full_address()?;
    let replication = rest.eat('R').then(|| rest.full_address()).transpose()?;
    let device = rest.device().ok_or_else(malformed)?;
    check_device_name(&device, value)?;
    let meta = rest.meta().unwrap_or_default();
    if !rest.text.is_empty() {
        return Err(malformed());
    }
    let (replication_ip, replication_port) = replication.unzip();
    Ok(AddValue {
        has_region: region.is_some(),
        device: NewDevice {
            id: None,
            region: region.unwrap_or(1),
            zone,
            weight,
            ip,
            port,
            device,
            replication_ip,
            replication_port,
            meta,
        },
    })
}

/// Refuses a device's name that begins or ends with a space, or is empty; `value` is for the error.
///
/// # Errors
/// The name is refused.
pub fn check_device_name(name: &str, value: &str) -> Result<(), SearchError> {
    if name.is_empty() || name.starts_with(' ') || name.ends_with(' ') {
        return Err(SearchError::DeviceName {
            name: name.to_owned(),
            value: value.to_owned(),
        });
    }
    Ok(())
}

/// Parses a one-word `set_info` value: `10.0.0.1:6200R10.1.0.1:6300/sda_meta`, in parts.
///
/// # Errors
/// The value has another form, or changes nothing.
pub fn parse_change_value(value: &str) -> Result<DeviceChange, SearchError> {
    let mut rest = Rest::new(value);
    let mut change = DeviceChange::default();
    (change.ip, change.port) = rest.ip_and_port()?;
    if rest.eat('R') {
        (change.replication_ip, change.replication_port) = rest.ip_and_port()?;
    }
    change.device = rest.device();
    change.meta = rest.meta();
    if let Some(device) = &change.device {
        check_device_name(device, value)?;
    }
    if !rest.text.is_empty() || change.is_empty() {
        return Err(SearchError::Change {
            value: value.to_owned(),
        });
    }
    Ok(change)
}

/// The unparsed rest of a value.
struct Rest<'v> {
    value: &'v str,
    text: &'v str,
}

impl<'v> Rest<'v> {
    fn new(value: &'v str) -> Self {
        Rest { value, text: value }
    }

    fn eat(&mut self, c: char) -> bool {
        let rest = self.text.strip_prefix(c);
        self.text = rest.unwrap_or(self.text);
        rest.is_some()
    }

    fn take_while(&mut self, belongs: impl Fn(char) -> bool) -> &'v str {
        let end = self.text.find(|c| !belongs(c)).unwrap_or(self.text.len());
        let (taken, rest) = self.text.split_at(end);
        self.text = rest;
        taken
    }

    fn number(&self, digits: &str, what: &'static str, max: u32) -> Result<u32, SearchError> {
        let number = digits.parse().ok().filter(|number| *number <= max);
        number.ok_or_else(|| SearchError::Number {
            what,
            found: digits.to_owned(),
            value: self.value.to_owned(),
            max,
        })
    }

    fn port(&self, digits: &str) -> Result<u16, SearchError> {
        self.number(digits, "port", u32::from(u16::MAX))
            .map(|port| port as u16)
    }

    fn number_after(&mut self, c: char, what: &'static str) -> Result<Option<u32>, SearchError> {
        if !self.eat(c) {
            return Ok(None);
        }
        let digits = self.take_while(|c| c.is_ascii_digit());
        self.number(digits, what, u32::MAX).map(Some)
    }

    /// Parses `10.0.0.1:6200` or `[::1]:6200`, both parts optional.
    fn ip_and_port(&mut self) -> Result<(Option<String>, Option<u16>), SearchError> {
        let mut ip = None;
        if self.text.starts_with(|c: char| c.is_ascii_digit()) {
            let text = self.take_while(|c| c.is_ascii_digit() || c == '.');
            ip = Some(normalize_ip(text)?);
        } else if self.eat('[') {
            let text = self.take_while(|c| c != ']');
            self.eat(']');
            ip = Some(normalize_ip(text)?);
        }
        let mut port = None;
        if self.eat(':') {
            let digits = self.take_while(|c| c.is_ascii_digit());
            port = Some(self.port(digits)?);
        }
        Ok((ip, port))
    }

    /// Parses an address with both parts required; IPv6 may be without brackets, and then ends at
    /// the last colon.
    fn full_address(&mut self) -> Result<(String, u16), SearchError> {
        let address = self.take_while(|c| c != 'R' && c != '/');
        let (ip, port) = address
            .rsplit_once(':')
            .ok_or_else(|| SearchError::Number {
                what: "port",
                found: String::new(),
                value: self.value.to_owned(),
                max: u32::from(u16::MAX),
            })?;
        let bare = ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']'));
        Ok((normalize_ip(bare.unwrap_or(ip))?, self.port(port)?))
    }

    fn device(&mut self) -> Option<String> {
        self.eat('/')
            .then(|| self.take_while(|c| c != '_').to_owned())
    }

    fn meta(&mut self) -> Option<String> {
        self.eat('_').then(|| self.take_while(|_| true).to_owned())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn full_search_value() {
        let search =
            DeviceSearch::parse("d74r4z1-1.2.3.4:5678R[FE80::2]:9/sdb1_snet: 5.6.7.8").unwrap();
        let expected = DeviceSearch {
            id: Some(74),
            region: Some(4),
            zone: Some(1),
            ip: Some("1.2.3.4".into()),
            port: Some(5678),
            replication_ip: Some("fe80::2".into()),
            replication_port: Some(9),
            device: Some("sdb1".into()),
            weight: None,
            meta: Some("snet: 5.6.7.8".into()),
        };
        assert_eq!(search, expected);
    }

    #[test]
    fn partial_search_values() {
        let parse = |value| DeviceSearch::parse(value).unwrap();
        assert_eq!(parse("z1").zone, Some(1));
        assert_eq!(parse("1.2.3.4").ip.as_deref(), Some("1.2.3.4"));
        assert_eq!(parse(":5678").port, Some(5678));
        assert_eq!(parse("R:5678").replication_port, Some(5678));
        assert_eq!(parse("/sdb1").device.as_deref(), Some("sdb1"));
        assert_eq!(parse("[::1]").ip.as_deref(), Some("::1"));
        assert!(parse("").is_empty());
        for bad in ["d", "x", "z1-1.2.3", ":99999", "[::1", "rfoo"] {
            let wrong = DeviceSearch::parse(bad);
            assert!(wrong.is_err() || bad == "[::1", "{bad}: {wrong:?}");
        }
    }

    #[test]
    fn add_values() {
        let add = parse_add_value("r1z2-[::1]:6200R10.0.0.9:6300/sd b_some meta", 1.0).unwrap();
        assert!(add.has_region);
        assert_eq!((add.device.ip.as_str(), add.device.port), ("::1", 6200));
        assert_eq!(add.device.replication_ip.as_deref(), Some("10.0.0.9"));
        assert_eq!(add.device.device, "sd b");
        assert_eq!(add.device.meta, "some meta");
        assert!(!parse_add_value("z2-10.0.0.1:1/d", 1.0).unwrap().has_region);
        for bad in [
            "r1-1.2.3.4:1/d",
            "z1-1.2.3.4/d",
            "z1-1.2.3.4:1",
            "z1-1.2.3.4:1/",
            "z1-h:1/d",
        ] {
            assert!(parse_add_value(bad, 1.0).is_err(), "{bad}");
        }
    }

    #[test]
    fn change_values() {
        let change = parse_change_value("R10.0.0.3/sdz").unwrap();
        assert_eq!(change.replication_ip.as_deref(), Some("10.0.0.3"));
        assert_eq!(change.device.as_deref(), Some("sdz"));
        assert!(parse_change_value("").is_err());
        assert!(parse_change_value("what").is_err());
    }
}
