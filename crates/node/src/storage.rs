//! Disks and databases as servers and daemons of this process share them.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use cairn_disk::group_sync::GroupSync;
use cairn_disk::{Devices, DevicesConfig};
use cairn_formats::ini::Section;
use cairn_index::{IndexConfig, IndexPool, SyncWeight};

use crate::backends;
use crate::settings::Place;

/// Disks and databases, one of each per folder of devices: servers of several roles share them.
#[derive(Default)]
pub(crate) struct Storage {
    devices: BTreeMap<PathBuf, Arc<Devices>>,
    pools: BTreeMap<PathBuf, Arc<IndexPool>>,
    unsafe_no_fsync: bool,
}

impl Storage {
    /// `unsafe_no_fsync`: writes are answered before they are on disk.
    pub(crate) fn new(unsafe_no_fsync: bool) -> Storage {
        Storage {
            unsafe_no_fsync,
            ..Storage::default()
        }
    }

    /// The disks of a folder of devices, for objects.
    pub(crate) fn devices(&mut self, place: &Place, section: &Section) -> Result<Arc<Devices>> {
        if let Some(known) = self.devices.get(&place.devices) {
            return Ok(known.clone());
        }
        let devices = Devices::new(DevicesConfig {
            mount_check: place.mount_check,
            fallocate_reserve: backends::reserve(section)?,
            disable_fallocate: section.bool_or("disable_fallocate", false),
            unsafe_no_fsync: self.unsafe_no_fsync,
            ..DevicesConfig::new(&place.devices)
        });
        self.devices.insert(place.devices.clone(), devices.clone());
        Ok(devices)
    }

    /// Those that there are so far.
    pub(crate) fn all_devices(&self) -> Vec<Arc<Devices>> {
        self.devices.values().cloned().collect()
    }

    /// The databases of a folder of devices.
    pub(crate) fn pool(&mut self, place: &Place) -> Arc<IndexPool> {
        let make = || {
            let mut config = IndexConfig::new(&place.devices);
            config.exclusive = place.exclusive_databases;
            config.unsafe_no_sync = self.unsafe_no_fsync;
            // A device without room set aside has none to give up.
            config.make_room = Arc::new(|device| drop(cairn_disk::room::spend(device)));
            // Rows and objects on one file system share their syncs.
            if self.unsafe_no_fsync {
                config.commit_sync = Arc::new(|_, _, _| Ok(()));
            } else {
                config.hold_syncs = Arc::new(|folder| Ok(GroupSync::of(folder.as_fd())?));
                config.commit_sync = Arc::new(|on, weight, own| match weight {
                    SyncWeight::Unawaited => own(),
                    SyncWeight::Of(syncs) => GroupSync::of(on.as_fd())?.sync(syncs, own),
                });
            }
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
        for devices in self.devices.into_values() {
            devices.shutdown();
        }
    }
}
