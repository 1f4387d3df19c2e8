//! Placement: the hosts, disks and devices of a cluster, and the rings that the real builder makes
//! of them.

use std::collections::HashSet;

use cairn_ring::{NewDevice, RebalanceOptions, Ring, RingBuilder, Seed};

use crate::cluster::{Cluster, Role, Serves};
use crate::error::AdviseError;

/// A single host; a node with `count` gives several.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    pub name: String,
    /// Index of the node in the file.
    pub node: usize,
    pub region: u32,
    pub zone: u32,
    pub is_proxy: bool,
    pub has_load: bool,
}

/// A disk, with one file system on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Disk {
    pub host: usize,
    pub medium: String,
    pub bytes: f64,
}

/// A device of the rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    pub disk: usize,
    pub host: usize,
    pub region: u32,
    pub zone: u32,
}

/// A ring, with device indexes instead of the ring's ids.
#[derive(Clone, Debug)]
pub struct Table {
    builder: RingBuilder,
    ring: Ring,
    devices: Vec<usize>,
}

/// The whole cluster with its rings.
#[derive(Clone, Debug)]
pub struct Placement {
    pub hosts: Vec<Host>,
    pub disks: Vec<Disk>,
    pub devices: Vec<Device>,
    pub objects: Table,
    pub containers: Table,
}

/// Time in seconds since 1970 at which rings are built, and a much later one at which they are
/// changed.
const MADE_AT: u64 = 1_700_000_000;
const CHANGED_AT: u64 = MADE_AT + 1_000_000;
const RING_SEED: u64 = 22;

impl Placement {
    /// Places a cluster.
    ///
    /// # Errors
    /// The ring builder's own, if it cannot place the replicas.
    pub fn new(cluster: &Cluster) -> Result<Placement, AdviseError> {
        let (mut hosts, mut disks, mut devices) = (Vec::new(), Vec::new(), Vec::new());
        let (mut objects, mut containers) = (Vec::new(), Vec::new());
        for (index, node) in cluster.node.iter().enumerate() {
            for copy in 0..node.count {
                let host = hosts.len();
                let zone = node.zone + copy % node.zones;
                let name = match node.count {
                    1 => node.name.clone(),
                    _ => format!("{}-{}", node.name, copy + 1),
                };
                hosts.push(Host {
                    name,
                    node: index,
                    region: node.region,
                    zone,
                    is_proxy: node.roles.contains(&Role::Proxy),
                    has_load: node.roles.contains(&Role::Load),
                });
                if !node.roles.contains(&Role::Storage) {
                    continue;
                }
                for group in &node.disk {
                    for _ in 0..group.count {
                        let disk = disks.len();
                        disks.push(Disk {
                            host,
                            medium: group.medium.clone(),
                            bytes: group.bytes.0,
                        });
                        for _ in 0..group.devices {
                            let device = devices.len();
                            let zone = match group.device_zones {
                                true => device as u32 + 1,
                                false => zone,
                            };
                            let region = node.region;
                            devices.push(Device {
                                disk,
                                host,
                                region,
                                zone,
                            });
                            if group.serves != Serves::Containers {
                                objects.push((device, group.weight));
                            }
                            if group.serves != Serves::Objects {
                                containers.push((device, group.weight));
                            }
                        }
                    }
                }
            }
        }
        let table = |name, members: &[(usize, f64)], rows: u32| {
            Table::new(cluster, name, &devices, members, rows)
        };
        let objects = table("object", &objects, cluster.object_rows())?;
        let containers = table("container", &containers, cluster.replicas)?;
        Ok(Placement {
            hosts,
            disks,
            devices,
            objects,
            containers,
        })
    }

    /// Devices of a zone, whatever its region.
    pub fn zone_devices(&self, zone: Option<u32>) -> HashSet<usize> {
        let in_zone = |d: &usize| Some(self.devices[*d].zone) == zone;
        (0..self.devices.len()).filter(in_zone).collect()
    }

    /// Regions and zones with devices.
    pub fn zones(&self) -> Vec<(u32, u32)> {
        let mut zones: Vec<_> = self.devices.iter().map(|d| (d.region, d.zone)).collect();
        zones.sort_unstable();
        zones.dedup();
        zones
    }
}

impl Table {
    fn new(
        cluster: &Cluster,
        name: &'static str,
        all: &[Device],
        members: &[(usize, f64)],
        rows: u32,
    ) -> Result<Table, AdviseError> {
        let failed = |error: &dyn ToString| AdviseError::Ring {
            ring: name,
            cluster: cluster.name.clone(),
            message: error.to_string(),
        };
        let mut builder = RingBuilder::new(cluster.part_power, f64::from(rows), 1)
            .map_err(|error| failed(&error))?;
        for (device, weight) in members {
            let at = all[*device];
            let new = NewDevice {
                id: None,
                region: at.region,
                zone: at.zone,
                weight: *weight,
                ip: format!(
                    "10.{}.{}.{}",
                    at.host >> 16 & 255,
                    at.host >> 8 & 255,
                    at.host & 255
                ),
                port: 6200,
                device: format!("d{device}"),
                replication_ip: None,
                replication_port: None,
                meta: String::new(),
            };
            builder.add_dev(new).map_err(|error| failed(&error))?;
        }
        let devices = members.iter().map(|(device, _)| *device).collect();
        let ring = Table::rebalance(&mut builder, MADE_AT).map_err(|error| failed(&error))?;
        Ok(Table {
            builder,
            ring,
            devices,
        })
    }

    fn rebalance(builder: &mut RingBuilder, now: u64) -> Result<Ring, String> {
        let options = RebalanceOptions {
            seed: Some(Seed::Number(RING_SEED)),
            now,
            log: None,
        };
        builder
            .rebalance(options)
            .map_err(|error| error.to_string())?;
        Ring::from_data(builder.ring_data()).map_err(|error| error.to_string())
    }

    pub fn partitions(&self) -> usize {
        self.ring.partition_count() as usize
    }

    /// Devices with a replica or fragment of a partition, in the order of the ring's rows.
    pub fn primaries(&self, partition: usize) -> Vec<usize> {
        let nodes = self.ring.primaries(partition as u32);
        nodes
            .iter()
            .filter_map(|n| self.devices.get(n.device.id as usize).copied())
            .collect()
    }

    /// The first handoffs for lost primaries, in ring order.
    pub fn handoffs(
        &self,
        partition: usize,
        count: usize,
        is_lost: impl Fn(usize) -> bool,
    ) -> Vec<usize> {
        let all = self.ring.handoffs(partition as u32);
        let known = all.filter_map(|n| self.devices.get(n.device.id as usize).copied());
        known
            .filter(|device| !is_lost(*device))
            .take(count)
            .collect()
    }

    /// Number of partitions on each device.
    pub fn held(&self, devices: usize) -> Vec<usize> {
        let mut held = vec![0; devices];
        for partition in 0..self.partitions() {
            for device in self.primaries(partition) {
                held[device] += 1;
            }
        }
        held
    }

    /// Copies after removing lost devices from the ring and rebalancing: (partition, source,
    /// target) each. Empty if no device is left for them.
    pub fn moves_without(&self, lost: &HashSet<usize>) -> Vec<(usize, usize, usize)> {
        let mut builder = self.builder.clone();
        builder.pretend_min_part_hours_passed();
        for (id, _) in self
            .devices
            .iter()
            .enumerate()
            .filter(|(_, d)| lost.contains(d))
        {
            if builder.remove_dev(id as u32).is_err() {
                return Vec::new();
            }
        }
        let Ok(ring) = Table::rebalance(&mut builder, CHANGED_AT) else {
            return Vec::new();
        };
        let after = Table {
            builder,
            ring,
            devices: self.devices.clone(),
        };
        let mut moves = Vec::new();
        for partition in 0..self.partitions() {
            let before = self.primaries(partition);
            let left: Vec<usize> = before
                .iter()
                .copied()
                .filter(|d| !lost.contains(d))
                .collect();
            let new = after.primaries(partition);
            let new = new.into_iter().filter(|d| !before.contains(d));
            for (nth, target) in new.enumerate().take(before.len() - left.len()) {
                if let Some(source) = left.get(nth % left.len().max(1)) {
                    moves.push((partition, *source, target));
                }
            }
        }
        moves
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const FIVE_ZONES: &str = r#"
        replicas = 3
        part_power = 8
        [[node]]
        name = "storage"
        roles = ["proxy", "storage"]
        count = 10
        zones = 5
        cores = 8
        [[node.disk]]
        medium = "disk"
        count = 2
        bytes = "1TB"
    "#;

    #[test]
    fn replicas_are_in_zones_of_their_own_and_move_when_one_is_lost() {
        let cluster = Cluster::parse(FIVE_ZONES).unwrap();
        let placement = Placement::new(&cluster).unwrap();
        assert_eq!((placement.hosts.len(), placement.devices.len()), (10, 20));
        assert_eq!(placement.zones().len(), 5);
        for partition in 0..placement.objects.partitions() {
            let zones: HashSet<u32> = (placement.objects.primaries(partition).iter())
                .map(|d| placement.devices[*d].zone)
                .collect();
            assert_eq!(zones.len(), 3, "partition {partition}");
        }
        let lost: HashSet<usize> = (0..20)
            .filter(|d| placement.devices[*d].zone == 2)
            .collect();
        assert_eq!(lost.len(), 4);
        let held = placement.objects.held(20);
        let to_copy: usize = lost.iter().map(|d| held[*d]).sum();
        let moves = placement.objects.moves_without(&lost);
        assert_eq!(moves.len(), to_copy);
        assert!(
            moves
                .iter()
                .all(|(_, from, to)| !lost.contains(from) && !lost.contains(to))
        );
        let handoffs = placement.objects.handoffs(0, 2, |d| lost.contains(&d));
        let primaries = placement.objects.primaries(0);
        assert!(
            handoffs
                .iter()
                .all(|d| !primaries.contains(d) && !lost.contains(d))
        );
    }
}
