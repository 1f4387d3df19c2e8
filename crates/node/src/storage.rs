//! Disks and databases shared by the servers and daemons of this process.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use cairn_disk::{Devices, DevicesConfig, Engine, Engines, FallocateReserve};
use cairn_formats::ini::Section;
use cairn_index::{IndexConfig, IndexPool};

use crate::cluster::Cluster;
use crate::engines::{EngineModules, Made, SharedState};
use crate::role::{DaemonKind, Role};
use crate::settings::Folders;
use crate::upkeep::Maintained;

/// Disks and databases, one of each per folder of devices, shared by servers of several roles.
pub(crate) struct Storage {
    folders: BTreeMap<PathBuf, Folder>,
    modules: EngineModules,
    unsafe_no_fsync: bool,
}

/// Disks, databases and engines of one folder of devices.
#[derive(Default)]
struct Folder {
    options: SharedOptions,
    devices: Option<Arc<Devices>>,
    pool: Option<Arc<IndexPool>>,
    /// All engines over these devices, by name.
    engines: BTreeMap<&'static str, Vec<Arc<dyn Engine>>>,
    shared: SharedState,
}

/// Options about a folder of devices that must agree between all sections of a process, as they
/// share the devices.
#[derive(Default)]
struct SharedOptions {
    mount_check: Shared<bool>,
    /// The reserve of object devices; databases use their own section's.
    fallocate_reserve: Shared<FallocateReserve>,
    disable_fallocate: Shared<bool>,
    exclusive_databases: Shared<bool>,
}

/// An option's first value, and the conf files that agree with it.
struct Shared<T> {
    first: Option<Given<T>>,
    files: BTreeSet<String>,
}

struct Given<T> {
    value: T,
    /// The value as written, with file and section.
    text: String,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Shared {
            first: None,
            files: BTreeSet::new(),
        }
    }
}

impl<T: Copy + PartialEq> Shared<T> {
    /// Adds a section's value, or its default. A section without the option follows earlier ones of
    /// the same conf.
    fn take(&mut self, name: &str, value: T, folders: &Folders, section: &Section) -> Result<()> {
        let written = section.get(name);
        let is_known = !self.files.insert(section.file().to_owned());
        if is_known && written.is_none() {
            return Ok(());
        }
        let written = written.unwrap_or("<default>");
        let (file, of) = (section.file(), section.name());
        let text = format!("{name} = {written} in {file} [{of}]");
        match &self.first {
            Some(first) if first.value != value => bail!(
                "{}, and {text}: one process serves the devices in {} in one way; give both the \
                 same, or serve them by processes of their own",
                first.text,
                folders.devices.display()
            ),
            Some(_) => {}
            None => self.first = Some(Given { value, text }),
        }
        Ok(())
    }

    fn or(&self, default: T) -> T {
        self.first.as_ref().map_or(default, |given| given.value)
    }
}

/// The part of a folder of devices that a section uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Uses {
    Disks,
    Databases,
}

impl Uses {
    /// `None` for a server without devices.
    pub(crate) fn of_server(role: Role) -> Option<Uses> {
        match role {
            Role::Proxy => None,
            Role::Account | Role::Container => Some(Uses::Databases),
            Role::Object => Some(Uses::Disks),
        }
    }

    /// `None` for a daemon that uses requests only.
    pub(crate) fn of_daemon(kind: DaemonKind) -> Option<Uses> {
        match kind {
            DaemonKind::ContainerReconciler | DaemonKind::ObjectExpirer => None,
            kind => Uses::of_server(Role::beside(kind)),
        }
    }
}

impl Storage {
    /// With `unsafe_no_fsync` writes are acknowledged before they are durable.
    pub(crate) fn new(modules: EngineModules, unsafe_no_fsync: bool) -> Storage {
        Storage {
            folders: BTreeMap::new(),
            modules,
            unsafe_no_fsync,
        }
    }

    /// Adds a section's options about its folder of devices. To be called for all sections of a
    /// process before the first of them gets its disks or databases.
    ///
    /// # Errors
    /// Another section has another value for the same devices.
    pub(crate) fn declare(
        &mut self,
        folders: &Folders,
        section: &Section,
        uses: Uses,
    ) -> Result<()> {
        let options = &mut self.folder(folders).options;
        let mount_check = folders.mount_check;
        options
            .mount_check
            .take("mount_check", mount_check, folders, section)?;
        match uses {
            Uses::Disks => {
                let reserve = cairn_assembly::fallocate_reserve(section)?;
                options
                    .fallocate_reserve
                    .take("fallocate_reserve", reserve, folders, section)?;
                let disabled = section.bool_or("disable_fallocate", false);
                options
                    .disable_fallocate
                    .take("disable_fallocate", disabled, folders, section)
            }
            Uses::Databases => options.exclusive_databases.take(
                "exclusive_databases",
                folders.exclusive_databases,
                folders,
                section,
            ),
        }
    }

    fn folder(&mut self, folders: &Folders) -> &mut Folder {
        let path = &folders.devices;
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        self.folders.entry(path).or_default()
    }

    /// The disks of a folder of devices.
    pub(crate) fn devices(&mut self, folders: &Folders, section: &Section) -> Result<Arc<Devices>> {
        self.declare(folders, section, Uses::Disks)?;
        let unsafe_no_fsync = self.unsafe_no_fsync;
        let Folder {
            options, devices, ..
        } = self.folder(folders);
        let make = || {
            let defaults = DevicesConfig::new(&folders.devices);
            Devices::new(DevicesConfig {
                mount_check: options.mount_check.or(defaults.mount_check),
                fallocate_reserve: options.fallocate_reserve.or(defaults.fallocate_reserve),
                disable_fallocate: options.disable_fallocate.or(defaults.disable_fallocate),
                unsafe_no_fsync,
                ..defaults
            })
        };
        Ok(devices.get_or_insert_with(make).clone())
    }

    /// The engine of each policy of a cluster, over a folder of devices, with this section's
    /// options.
    pub(crate) fn engines(
        &mut self,
        folders: &Folders,
        section: &Section,
        cluster: &Cluster,
    ) -> Result<Engines> {
        let devices = self.devices(folders, section)?;
        let modules = self.modules.clone();
        let folder = self.folder(folders);
        let Made { engines, by_name } =
            modules.make(cluster, section, &devices, &mut folder.shared)?;
        for (name, engine) in by_name {
            folder.engines.entry(name).or_default().push(engine);
        }
        Ok(engines)
    }

    /// Devices with the engines that maintain them: one of each kind, which shares its state with
    /// the others.
    pub(crate) fn maintained(&self) -> Maintained {
        let mut maintained = Maintained::new();
        for folder in self.folders.values() {
            let Some(devices) = &folder.devices else {
                continue;
            };
            let engines = folder.engines.values().filter_map(|made| made.first());
            let engines = engines.filter(|engine| engine.is_maintained());
            maintained.extend(engines.map(|engine| (devices.clone(), engine.clone())));
        }
        maintained
    }

    /// All disks so far.
    pub(crate) fn all_devices(&self) -> Vec<Arc<Devices>> {
        let folders = self.folders.values();
        folders
            .filter_map(|folder| folder.devices.clone())
            .collect()
    }

    /// The databases of a folder of devices.
    pub(crate) fn pool(&mut self, folders: &Folders, section: &Section) -> Result<Arc<IndexPool>> {
        self.declare(folders, section, Uses::Databases)?;
        let unsafe_no_fsync = self.unsafe_no_fsync;
        let Folder { options, pool, .. } = self.folder(folders);
        let make = || {
            let mut config = IndexConfig::new(&folders.devices);
            config.exclusive = options.exclusive_databases.or(config.exclusive);
            config.unsafe_no_sync = unsafe_no_fsync;
            // A device may have no reserve.
            config.make_room = Arc::new(|device| drop(cairn_disk::room::spend(device)));
            IndexPool::new(config)
        };
        Ok(pool.get_or_insert_with(make).clone())
    }

    /// Completes started work, and joins the threads. Blocks.
    pub(crate) fn close(self) {
        for folder in self.folders.into_values() {
            if let Some(pool) = folder.pool {
                pool.close_all();
            }
            for engine in folder.engines.into_values().flatten() {
                engine.shutdown();
            }
            if let Some(devices) = folder.devices {
                devices.shutdown();
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn section(file: &str, folder: &str, more: &[(&str, &str)]) -> Section {
        let mut text = format!("[app:object-server]\ndevices = {folder}\n");
        for (name, value) in more {
            text.push_str(&format!("{name} = {value}\n"));
        }
        let conf = cairn_formats::ini::Conf::parse(file, &text).unwrap();
        conf.section("app:object-server").unwrap()
    }

    #[test]
    fn sections_of_one_folder_do_not_outvote_each_other() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().to_str().unwrap();
        for (uses, name, one, other) in [
            (Uses::Disks, "fallocate_reserve", "2%", "3%"),
            (Uses::Disks, "fallocate_reserve", "2%", "1%"),
            (Uses::Disks, "disable_fallocate", "false", "true"),
            (Uses::Disks, "mount_check", "false", "true"),
            (Uses::Databases, "mount_check", "true", "no"),
            (Uses::Databases, "exclusive_databases", "true", "false"),
        ] {
            let mut storage = Storage::new(EngineModules::all(), false);
            let mut declare = |file: &str, uses: Uses, more: &[(&str, &str)]| {
                let section = section(file, folder, more);
                storage.declare(&Folders::read(&section), &section, uses)
            };
            declare("one.conf", uses, &[(name, one)]).unwrap();
            // Another section of that conf.
            declare("one.conf", uses, &[]).unwrap();
            declare("third.conf", uses, &[(name, one)]).unwrap();
            let refused = declare("other.conf", uses, &[(name, other)]);
            let refused = refused.unwrap_err().to_string();
            for part in [name, one, other, "one.conf", "other.conf", folder] {
                assert!(refused.contains(part), "{part}: {refused}");
            }
        }
    }

    #[test]
    fn a_default_counts_between_confs() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().to_str().unwrap();
        let mut storage = Storage::new(EngineModules::all(), false);
        let given = [("mount_check", "false"), ("fallocate_reserve", "7")];
        let given = section("given.conf", folder, &given);
        let devices = storage.devices(&Folders::read(&given), &given).unwrap();
        assert!(!devices.config().mount_check);
        let reserve = devices.config().fallocate_reserve;
        assert_eq!(reserve, FallocateReserve::Bytes(7));
        let silent = section("silent.conf", folder, &[]);
        let refused = storage.devices(&Folders::read(&silent), &silent);
        let refused = refused.err().unwrap().to_string();
        assert!(
            refused.contains("mount_check = <default> in silent.conf"),
            "{refused}"
        );
        // The same folder by another path.
        let link = root.path().join("link");
        std::os::unix::fs::symlink(root.path(), &link).unwrap();
        let linked = section("linked.conf", link.to_str().unwrap(), &[]);
        assert!(storage.devices(&Folders::read(&linked), &linked).is_err());
    }
}
