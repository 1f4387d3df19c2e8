//! One device of a ring, and its JSON form inside ring and builder files.
//!
//! On disk a device is an object with the keys `device`, `id`, `ip`, `meta`, `port`, `region`,
//! `replication_ip`, `replication_port`, `weight`, `zone`. Old files lack `region`, `meta` or the
//! replication keys; they then mean 1, "" and the plain address.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use cairn_types::json_text::quoted;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "RawDevice")]
pub struct Device {
    pub id: u32,
    pub region: u32,
    pub zone: u32,
    pub weight: f64,
    /// An address or a host name; IPv6 in its short form, without brackets.
    pub ip: String,
    pub port: u16,
    /// The name of the device below `devices`, `sdb1`.
    pub device: String,
    pub replication_ip: String,
    pub replication_port: u16,
    pub meta: String,
}

impl Device {
    /// A device `d<id>` with weight 1, in region 1 and a zone of its own, whose server has one
    /// address for clients and replication.
    pub fn at(id: u32, address: SocketAddr) -> Device {
        let (ip, port) = (address.ip().to_string(), address.port());
        Device {
            id,
            region: 1,
            zone: id,
            weight: 1.0,
            ip: ip.clone(),
            port,
            device: format!("d{id}"),
            replication_ip: ip,
            replication_port: port,
            meta: String::new(),
        }
    }
}

#[derive(Deserialize)]
struct RawDevice {
    id: u32,
    #[serde(default = "first_region")]
    region: u32,
    zone: u32,
    #[serde(default)]
    weight: f64,
    ip: String,
    port: u16,
    #[serde(default)]
    device: String,
    replication_ip: Option<String>,
    replication_port: Option<u16>,
    meta: Option<String>,
}

fn first_region() -> u32 {
    1
}

impl From<RawDevice> for Device {
    fn from(raw: RawDevice) -> Self {
        Device {
            id: raw.id,
            region: raw.region,
            zone: raw.zone,
            weight: raw.weight,
            replication_ip: raw.replication_ip.unwrap_or_else(|| raw.ip.clone()),
            replication_port: raw.replication_port.unwrap_or(raw.port),
            ip: raw.ip,
            port: raw.port,
            device: raw.device,
            meta: raw.meta.unwrap_or_default(),
        }
    }
}

impl Device {
    /// Short name for reports: `r1z2-10.0.0.1/sdb1`.
    pub fn short_name(&self) -> String {
        format!("r{}z{}-{}/{}", self.region, self.zone, self.ip, self.device)
    }

    /// Appends the JSON object, with sorted keys and the spacing of Python's `json.dumps`.
    pub(crate) fn write_json(&self, out: &mut String) {
        out.push_str("{\"device\": ");
        out.push_str(&quoted(&self.device));
        out.push_str(&format!(", \"id\": {}, \"ip\": ", self.id));
        out.push_str(&quoted(&self.ip));
        out.push_str(", \"meta\": ");
        out.push_str(&quoted(&self.meta));
        out.push_str(&format!(
            ", \"port\": {}, \"region\": {}, \"replication_ip\": ",
            self.port, self.region
        ));
        out.push_str(&quoted(&self.replication_ip));
        out.push_str(&format!(
            ", \"replication_port\": {}, \"weight\": {:?}, \"zone\": {}}}",
            self.replication_port, self.weight, self.zone
        ));
    }
}

/// Full form for command output, `d0r1z2-10.0.0.1:6200R10.0.0.1:6200/sdb1_"meta"`, which is also a
/// search value that matches the device.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "d{}r{}z{}-{}:{}R{}:{}/{}_\"{}\"",
            self.id,
            self.region,
            self.zone,
            bracketed(&self.ip),
            self.port,
            bracketed(&self.replication_ip),
            self.replication_port,
            self.device,
            self.meta
        )
    }
}

/// An IPv6 address in brackets; anything else unchanged.
pub fn bracketed(ip: &str) -> String {
    if ip.contains(':') {
        format!("[{ip}]")
    } else {
        ip.to_owned()
    }
}

/// A device to add. Without an id it gets the first free one.
#[derive(Clone, Debug, PartialEq)]
pub struct NewDevice {
    pub id: Option<u32>,
    pub region: u32,
    pub zone: u32,
    pub weight: f64,
    pub ip: String,
    pub port: u16,
    pub device: String,
    /// The same as `ip` if absent.
    pub replication_ip: Option<String>,
    pub replication_port: Option<u16>,
    pub meta: String,
}

impl NewDevice {
    /// A device of weight 1 in region 1 and zone 1, whose server has one address for clients and replication.
    pub fn at(device: impl Into<String>, address: SocketAddr) -> NewDevice {
        NewDevice {
            id: None,
            region: 1,
            zone: 1,
            weight: 1.0,
            ip: address.ip().to_string(),
            port: address.port(),
            device: device.into(),
            replication_ip: None,
            replication_port: None,
            meta: String::new(),
        }
    }
}

/// New values for a device's address, name or meta; `None` keeps the old value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceChange {
    pub ip: Option<String>,
    pub port: Option<u16>,
    pub replication_ip: Option<String>,
    pub replication_port: Option<u16>,
    pub device: Option<String>,
    pub meta: Option<String>,
}

impl DeviceChange {
    pub fn is_empty(&self) -> bool {
        *self == DeviceChange::default()
    }

    pub fn apply(&self, device: &mut Device) {
        fn set<T: Clone>(target: &mut T, new: &Option<T>) {
            if let Some(new) = new {
                *target = new.clone();
            }
        }
        set(&mut device.ip, &self.ip);
        set(&mut device.port, &self.port);
        set(&mut device.replication_ip, &self.replication_ip);
        set(&mut device.replication_port, &self.replication_port);
        set(&mut device.device, &self.device);
        set(&mut device.meta, &self.meta);
    }
}
