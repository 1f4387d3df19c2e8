//! Disks and databases as servers and daemons of this process share them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use cairn_disk::{Devices, DevicesConfig, FallocateReserve};
use cairn_formats::ini::{ConfError, Section};
use cairn_index::{IndexConfig, IndexPool};

use crate::backends;
use crate::settings::Place;

/// Disks and databases, one of each per folder of devices: servers of several roles share them.
#[derive(Default)]
pub(crate) struct Storage {
    devices: BTreeMap<PathBuf, Served>,
    pools: BTreeMap<PathBuf, Arc<IndexPool>>,
    unsafe_no_fsync: bool,
}

/// The disks of a folder, and by what options they are served.
struct Served {
    devices: Arc<Devices>,
    options: DiskOptions,
}

/// Options of disks. Threads, locks and what is known of a disk are shared by all sections of a process,
/// so these are, too.
#[derive(Clone, Copy, Debug, PartialEq)]
struct DiskOptions {
    mount_check: bool,
    fallocate_reserve: FallocateReserve,
    disable_fallocate: bool,
}

impl DiskOptions {
    fn read(place: &Place, section: &Section) -> Result<DiskOptions, ConfError> {
        Ok(DiskOptions {
            mount_check: place.mount_check,
            fallocate_reserve: backends::reserve(section)?,
            disable_fallocate: section.bool_or("disable_fallocate", false),
        })
    }

    /// The first option that another section has otherwise.
    fn differs_in(&self, other: &DiskOptions) -> Option<&'static str> {
        let same = [
            ("mount_check", self.mount_check == other.mount_check),
            (
                "fallocate_reserve",
                self.fallocate_reserve == other.fallocate_reserve,
            ),
            (
                "disable_fallocate",
                self.disable_fallocate == other.disable_fallocate,
            ),
        ];
        same.into_iter()
            .find(|(_, same)| !same)
            .map(|(name, _)| name)
    }
}

impl Storage {
    /// `unsafe_no_fsync`: writes are answered before they are on disk.
    pub(crate) fn new(unsafe_no_fsync: bool) -> Storage {
        Storage {
            unsafe_no_fsync,
            ..Storage::default()
        }
    }

    /// The disks of a folder of devices, for an object server. Two servers of a process whose sections
    /// differ in what becomes of a disk's space are refused: neither would know whose word counts.
    pub(crate) fn devices_to_serve(
        &mut self,
        place: &Place,
        section: &Section,
    ) -> Result<Arc<Devices>> {
        let options = DiskOptions::read(place, section)?;
        if let Some(known) = self.devices.get(&place.devices)
            && let Some(name) = known.options.differs_in(&options)
        {
            bail!(
                "{name}: another object server of this process has another value for the same \
                 devices ({}); give both the same, or serve them by processes of their own",
                place.devices.display()
            );
        }
        self.devices(place, section)
    }

    /// The disks of a folder of devices, for a daemon: by the options of the server whose they are, in
    /// a process that has one, else by its own.
    pub(crate) fn devices(&mut self, place: &Place, section: &Section) -> Result<Arc<Devices>> {
        if let Some(known) = self.devices.get(&place.devices) {
            return Ok(known.devices.clone());
        }
        let options = DiskOptions::read(place, section)?;
        let devices = Devices::new(DevicesConfig {
            mount_check: options.mount_check,
            fallocate_reserve: options.fallocate_reserve,
            disable_fallocate: options.disable_fallocate,
            unsafe_no_fsync: self.unsafe_no_fsync,
            ..DevicesConfig::new(&place.devices)
        });
        let served = Served {
            devices: devices.clone(),
            options,
        };
        self.devices.insert(place.devices.clone(), served);
        Ok(devices)
    }

    /// Those that there are so far.
    pub(crate) fn all_devices(&self) -> Vec<Arc<Devices>> {
        let served = self.devices.values();
        served.map(|served| served.devices.clone()).collect()
    }

    /// The databases of a folder of devices.
    pub(crate) fn pool(&mut self, place: &Place) -> Arc<IndexPool> {
        let make = || {
            let mut config = IndexConfig::new(&place.devices);
            config.exclusive = place.exclusive_databases;
            config.unsafe_no_sync = self.unsafe_no_fsync;
            // A device without room set aside has none to give up.
            config.make_room = Arc::new(|device| drop(cairn_disk::room::spend(device)));
            IndexPool::new(config)
        };
        self.pools
            .entry(place.devices.clone())
            .or_insert_with(make)
            .clone()
    }

    /// Finishes what was begun, and joins the threads. Blocks.
    pub(crate) fn close(self) {
        for pool in self.pools.into_values() {
            pool.close_all();
        }
        for served in self.devices.into_values() {
            served.devices.shutdown();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn sections_of_one_folder_do_not_outvote_each_other() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().to_str().unwrap();
        let section = |more: &[(&str, &str)]| {
            let mut pairs = vec![("devices", folder), ("mount_check", "false")];
            pairs.extend(more);
            Section::from_pairs("app:object-server", &pairs)
        };
        let mut storage = Storage::new(false);
        let mut serve = |section: &Section| {
            let place = Place::read(section);
            storage.devices_to_serve(&place, section).map(drop)
        };
        serve(&section(&[("fallocate_reserve", "2%")])).unwrap();
        serve(&section(&[("fallocate_reserve", "2%")])).unwrap();
        for (name, value) in [
            ("fallocate_reserve", "3%"),
            ("disable_fallocate", "true"),
            ("mount_check", "true"),
        ] {
            let mut pairs = vec![("fallocate_reserve", "2%")];
            pairs.retain(|(known, _)| *known != name);
            pairs.push((name, value));
            let refused = serve(&section(&pairs)).unwrap_err().to_string();
            assert!(
                refused.starts_with(name) && refused.contains(folder),
                "{refused}"
            );
        }
        // A daemon has no say in it.
        let daemon = section(&[]);
        let devices = storage.devices(&Place::read(&daemon), &daemon);
        assert!(devices.is_ok());
    }
}
