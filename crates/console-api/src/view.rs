//! A store as a console of the same process sees it: its proxy, its metrics, and its state (rings,
//! devices, recon), which is read when a page shows it.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_http::Handler;
use cairn_http::metrics::Metrics;
use serde::Serialize;

/// Access to a store in the same process.
pub struct StoreView {
    /// The proxy with its pipeline.
    pub swift: Handler,
    /// URL of the store, `http://127.0.0.1:8080`.
    pub endpoint: String,
    pub metrics: Arc<Metrics>,
    /// Reads rings and devices. Blocks.
    pub state: Arc<dyn Fn() -> StoreState + Send + Sync>,
    pub recon: Vec<ReconSource>,
}

/// A server that handles `GET /recon/…`.
pub struct ReconSource {
    pub server: &'static str,
    pub handler: Handler,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct StoreState {
    pub policies: Vec<PolicyState>,
    pub rings: Vec<RingState>,
    pub devices: Vec<DeviceState>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct PolicyState {
    pub index: u32,
    pub name: String,
    pub default: bool,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct RingState {
    /// Name of the ring: `account`, `container`, `object`, `object-1`, …
    pub name: String,
    pub partitions: u32,
    pub replicas: f64,
    pub devices: usize,
    pub version: Option<u64>,
}

/// A device that a ring contains.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DeviceState {
    pub name: String,
    pub region: u32,
    pub zone: u32,
    /// Address of its server, `127.0.0.1:6200`.
    pub address: String,
    /// For each ring its weight, and the number of partitions of which it holds a replica.
    pub rings: BTreeMap<String, DeviceShare>,
    /// Space of the device, if it is a folder of this machine.
    pub space: Option<Space>,
    /// It belongs to this machine and is missing.
    pub missing: bool,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct DeviceShare {
    pub weight: f64,
    pub partitions: u64,
}

/// Space of the file system with the device; devices on the same file system have the same id.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Space {
    pub file_system: u64,
    pub total: u64,
    pub used: u64,
    pub free: u64,
}
