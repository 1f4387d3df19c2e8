//! Changes of devices and settings. No partition moves until the next rebalance.

use crate::builder::{
    BuilderDevice, BuilderError, DEVICE_ID_MAX, RingBuilder, check_replicas, id_bytes_for,
};
use crate::device::{Device, DeviceChange, NewDevice};
use crate::search::DeviceSearch;

impl RingBuilder {
    /// Adds a device and returns its id.
    ///
    /// # Errors
    /// `Invalid` for a weight that is negative or not finite, or an id above 2^24;
    /// `DuplicateDevice` for an id in use.
    pub fn add_dev(&mut self, new: NewDevice) -> Result<u32, BuilderError> {
        check_weight(new.weight)?;
        let id = match new.id {
            Some(id) => id,
            None => self.first_free_id(),
        };
        if id > DEVICE_ID_MAX {
            return Err(BuilderError::invalid(
                "id",
                id,
                "a device id of at most 2^24",
            ));
        }
        if self.device(id).is_some() {
            return Err(BuilderError::DuplicateDevice { id });
        }
        self.table_id_bytes = self.dev_id_bytes().max(id_bytes_for(id));
        let slots = self.devs.len().max(id as usize + 1);
        self.devs.resize(slots, None);
        self.devs[id as usize] = Some(BuilderDevice {
            device: Device {
                id,
                region: new.region,
                zone: new.zone,
                weight: new.weight,
                replication_ip: new.replication_ip.unwrap_or_else(|| new.ip.clone()),
                replication_port: new.replication_port.unwrap_or(new.port),
                ip: new.ip,
                port: new.port,
                device: new.device,
                meta: new.meta,
            },
            parts: 0,
            removing: false,
        });
        self.touch();
        Ok(id)
    }

    fn first_free_id(&self) -> u32 {
        let hole = self.devs.iter().position(Option::is_none);
        hole.unwrap_or(self.devs.len()) as u32
    }

    fn touch(&mut self) {
        self.devs_changed = true;
        self.version += 1;
    }

    fn device_mut(&mut self, id: u32) -> Result<&mut BuilderDevice, BuilderError> {
        let slot = self.devs.get_mut(id as usize).and_then(Option::as_mut);
        slot.ok_or(BuilderError::UnknownDevice { id })
    }

    fn staying_device(&mut self, id: u32, what: &'static str) -> Result<&mut Device, BuilderError> {
        let dev = self.device_mut(id)?;
        if dev.removing {
            return Err(BuilderError::MarkedForRemoval { what, id });
        }
        Ok(&mut dev.device)
    }

    /// Sets a device's weight.
    ///
    /// # Errors
    /// `Invalid` for a weight that is negative or not finite; `UnknownDevice`; `MarkedForRemoval`.
    pub fn set_dev_weight(&mut self, id: u32, weight: f64) -> Result<(), BuilderError> {
        check_weight(weight)?;
        self.staying_device(id, "weight")?.weight = weight;
        self.touch();
        Ok(())
    }

    /// Moves a device to another region.
    ///
    /// # Errors
    /// `UnknownDevice`, or `MarkedForRemoval` for one that the next rebalance drops.
    pub fn set_dev_region(&mut self, id: u32, region: u32) -> Result<(), BuilderError> {
        self.staying_device(id, "region")?.region = region;
        self.touch();
        Ok(())
    }

    /// Moves a device to another zone.
    ///
    /// # Errors
    /// `UnknownDevice`, or `MarkedForRemoval` for one that the next rebalance drops.
    pub fn set_dev_zone(&mut self, id: u32, zone: u32) -> Result<(), BuilderError> {
        self.staying_device(id, "zone")?.zone = zone;
        self.touch();
        Ok(())
    }

    /// Changes fields without influence on placement; the ring can be written without a rebalance.
    ///
    /// # Errors
    /// `UnknownDevice` if no device has this id.
    pub fn set_dev_info(&mut self, id: u32, change: &DeviceChange) -> Result<(), BuilderError> {
        change.apply(&mut self.device_mut(id)?.device);
        Ok(())
    }

    /// Marks a device for removal. The next rebalance moves its partitions regardless of
    /// `min_part_hours`: a removed device is assumed to have failed.
    ///
    /// # Errors
    /// `UnknownDevice` if no device has this id.
    pub fn remove_dev(&mut self, id: u32) -> Result<(), BuilderError> {
        let dev = self.device_mut(id)?;
        dev.device.weight = 0.0;
        dev.removing = true;
        self.touch();
        Ok(())
    }

    /// Sets the replica count, which may be fractional.
    ///
    /// # Errors
    /// `Invalid` if it is not within 1 to 65536.
    pub fn set_replicas(&mut self, replicas: f64) -> Result<(), BuilderError> {
        check_replicas(replicas)?;
        let slots = |replicas: f64| (self.parts() as f64 * replicas) as u64;
        if slots(self.replicas) != slots(replicas) {
            self.devs_changed = true;
        }
        self.replicas = replicas;
        Ok(())
    }

    /// Sets the fraction by which a device may be filled beyond its weight for better dispersion;
    /// 0.1 is 10 %.
    ///
    /// # Errors
    /// `Invalid` if it is negative or not finite.
    pub fn set_overload(&mut self, overload: f64) -> Result<(), BuilderError> {
        if !overload.is_finite() || overload < 0.0 {
            return Err(BuilderError::invalid(
                "overload",
                overload,
                "a number of at least 0",
            ));
        }
        self.overload = overload;
        Ok(())
    }

    pub fn set_min_part_hours(&mut self, hours: u32) {
        self.min_part_hours = hours;
    }

    /// Lets every partition move in the next rebalance.
    pub fn pretend_min_part_hours_passed(&mut self) {
        self.last_part_moves_epoch = 0;
        self.last_part_moves.fill(u8::MAX);
    }

    /// The matching devices, in order of their ids.
    pub fn search_devs(&self, search: &DeviceSearch) -> Vec<&BuilderDevice> {
        self.devices()
            .filter(|dev| search.matches(&dev.device))
            .collect()
    }

    /// Partitions with replicas on any of the devices, each with their number; largest number
    /// first.
    pub fn list_parts(&self, ids: &[u32]) -> Vec<(usize, usize)> {
        // Swift lists partitions with equal counts in the order of the replica rows.
        let mut order: Vec<usize> = Vec::new();
        let mut counts: std::collections::HashMap<usize, usize> = Default::default();
        for row in self.table.iter().flatten() {
            for (part, id) in row.iter().enumerate() {
                if ids.contains(id) {
                    let count = counts.entry(part).or_insert(0);
                    if *count == 0 {
                        order.push(part);
                    }
                    *count += 1;
                }
            }
        }
        let mut found: Vec<_> = order.iter().map(|part| (*part, counts[part])).collect();
        found.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        found
    }
}

fn check_weight(weight: f64) -> Result<(), BuilderError> {
    if !weight.is_finite() || weight < 0.0 {
        return Err(BuilderError::invalid(
            "weight",
            weight,
            "a number of at least 0",
        ));
    }
    Ok(())
}
