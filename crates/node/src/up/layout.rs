//! Layout of a data folder, and its parameters at creation.
//!
//! ```text
//! DATA/lock                 held while a cairn runs on it
//! DATA/etc/swift.conf       and the other files of OpenStack Swift: confs, builders, rings
//! DATA/etc/cairn-up.conf    [up] devices, replicas, part_power; written last: with it the folder
//!                           is complete, and no device is ever made again
//! DATA/etc/console-password of the console, made when it is first served
//! DATA/dev/d1 …             the devices
//! DATA/lab                  the console's runs
//! DATA/cache                reports of daemons to monitoring (recon)
//! ```
//!
//! A device whose folder is missing later is a failed device: recreating it, empty, would hide the
//! loss.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cairn_formats::ini::Conf;

/// Mode of folders, for their owner only: confs and databases have keys.
const PRIVATE_MODE: u32 = 0o700;

/// The paths of a data folder.
#[derive(Clone, Debug)]
pub struct Layout {
    pub data: PathBuf,
    pub etc: PathBuf,
    pub devices: PathBuf,
    pub cache: PathBuf,
}

/// Parameters fixed when the folder was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub devices: u32,
    pub replicas: u32,
    pub part_power: u32,
}

impl Layout {
    /// Removes others' permissions on folders of an earlier release.
    pub fn make_private(&self) {
        for folder in [&self.etc, &self.devices, &self.cache] {
            let is_open = fs::metadata(folder).is_ok_and(|meta| meta.mode() & 0o077 != 0);
            let private = || fs::set_permissions(folder, fs::Permissions::from_mode(PRIVATE_MODE));
            if is_open && let Err(error) = private() {
                tracing::warn!(
                    folder = %folder.display(), %error,
                    "other users of this computer may look into this folder"
                );
            }
        }
    }

    /// Absolute, so that the conf files do not depend on the working directory.
    ///
    /// # Errors
    /// The path cannot be made absolute, is not UTF-8, or contains a line end or `%(`.
    pub fn new(data: &Path) -> Result<Layout> {
        let data = std::path::absolute(data)
            .with_context(|| format!("--data {}: no usable path", data.display()))?;
        let text = data.to_str().unwrap_or("\n");
        if text.contains(['\n', '\r']) || text.contains("%(") {
            bail!(
                "--data {}: this path cannot be written into a conf file; choose one without line \
                 ends and '%('",
                data.display()
            );
        }
        let (etc, devices, cache) = (data.join("etc"), data.join("dev"), data.join("cache"));
        Ok(Layout {
            data,
            etc,
            devices,
            cache,
        })
    }

    /// `$XDG_DATA_HOME/cairn`, or `~/.local/share/cairn`.
    ///
    /// # Errors
    /// Neither `XDG_DATA_HOME` nor `HOME` is an absolute path.
    pub fn default_data() -> Result<PathBuf> {
        let folder = |name: &str| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        let home = folder("XDG_DATA_HOME").or_else(|| Some(folder("HOME")?.join(".local/share")));
        match home {
            Some(home) => Ok(home.join("cairn")),
            None => bail!("--data is missing, and neither XDG_DATA_HOME nor HOME is set: give it"),
        }
    }

    pub fn conf(&self, server: &str) -> PathBuf {
        self.etc.join(format!("{server}.conf"))
    }

    fn marker(&self) -> PathBuf {
        self.etc.join("cairn-up.conf")
    }

    pub fn device_names(devices: u32) -> impl Iterator<Item = String> {
        (1..=devices).map(|n| format!("d{n}"))
    }

    /// The folder's parameters; `None` if it is missing or incomplete.
    ///
    /// # Errors
    /// `cairn-up.conf` cannot be read, or lacks a number.
    pub fn shape(&self) -> Result<Option<Shape>> {
        let path = self.marker();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let conf = Conf::parse(&path.display().to_string(), &text)?;
        let section = conf.section("up")?;
        let number = |option: &str| -> Result<u32> {
            section.required(option, "restore this file from where it was backed up")?;
            Ok(u32::try_from(section.u64_or(option, 0)?)
                .map_err(|_| section.bad(option, "too large"))?)
        };
        Ok(Some(Shape {
            devices: number("devices")?,
            replicas: number("replicas")?,
            part_power: number("part_power")?,
        }))
    }

    /// Marks the folder as complete.
    ///
    /// # Errors
    /// `cairn-up.conf` cannot be written.
    pub fn finish(&self, shape: Shape) -> Result<()> {
        let text = format!(
            "# Written by cairn up when it made this folder; it says that the devices exist.\n\
             [up]\n\
             devices = {}\n\
             replicas = {}\n\
             part_power = {}\n",
            shape.devices, shape.replicas, shape.part_power
        );
        write_file(&self.marker(), text.as_bytes())
    }

    /// A device folder with content, if any.
    pub fn first_used_device(&self) -> Option<PathBuf> {
        let devices = fs::read_dir(&self.devices)
            .ok()?
            .flatten()
            .map(|entry| entry.path());
        devices
            .filter(|path| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()))
            .min()
    }
}

/// Creates a folder and its missing parents with owner-only permissions.
pub(crate) fn make_private_folder(path: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(PRIVATE_MODE)
        .create(path)
}

/// Replaces a file atomically and durably: writes a temporary file, syncs it, renames it and syncs
/// the folder. Readable by its owner only, as it may have keys.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut staged_name = path.file_name().unwrap_or_default().to_os_string();
    staged_name.push(".new");
    let staged = path.with_file_name(staged_name);
    let write = || -> std::io::Result<()> {
        let mut options = fs::OpenOptions::new();
        let mut file = options
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(&staged)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&staged, path)?;
        fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_is_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::new(folder.path()).unwrap();
        fs::create_dir(&layout.etc).unwrap();
        assert_eq!(layout.shape().unwrap(), None);
        let shape = Shape {
            devices: 4,
            replicas: 3,
            part_power: 10,
        };
        layout.finish(shape).unwrap();
        assert_eq!(layout.shape().unwrap(), Some(shape));
        assert_eq!(layout.first_used_device(), None);
        fs::create_dir_all(layout.devices.join("d2/objects")).unwrap();
        assert_eq!(layout.first_used_device(), Some(layout.devices.join("d2")));
    }

    #[test]
    fn paths_that_a_conf_cannot_hold() {
        assert!(Layout::new(Path::new("/a\nb")).is_err());
        assert!(Layout::new(Path::new("/a%(here)s")).is_err());
    }
}
