//! Links to containers that are synced to other clusters, so that container sync need not visit
//! all.
//!
//! A link at `<device>/sync_containers/<partition>/<suffix>/<hash>/<file>.db` to the database, as
//! in OpenStack Swift. The database's own metadata decides; readers skip a link without a database,
//! or to one that is not synced.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use crate::{ContainerBroker, Metadata, files};

/// Folder on each device.
pub const SYNC_STORE: &str = "sync_containers";
const TO: &str = "X-Container-Sync-To";
const KEY: &str = "X-Container-Sync-Key";

impl ContainerBroker<'_> {
    /// Target and key of the container's sync.
    pub fn sync_target(metadata: &Metadata) -> Option<(&str, &str)> {
        let value = |name: &str| {
            let item = metadata
                .iter()
                .find(|(item, ..)| item.eq_ignore_ascii_case(name))?;
            Some(item.1).filter(|value| !value.is_empty())
        };
        Some((value(TO)?, value(KEY)?))
    }

    /// Creates the link of a synced container, or removes that of one no longer synced.
    ///
    /// # Errors
    /// The queries' errors, as of kind `Other`, and those of creating or removing the link.
    pub fn update_sync_store(&self) -> io::Result<()> {
        let metadata = self.metadata().map_err(io::Error::other)?;
        if metadata.get(TO).is_none() && metadata.get(KEY).is_none() {
            return Ok(());
        }
        let Some((link, file)) = self.sync_link() else {
            return Ok(());
        };
        let is_deleted = self.is_deleted().map_err(io::Error::other)?;
        let wanted = !is_deleted && Self::sync_target(&metadata).is_some();
        let is_there = fs::symlink_metadata(&link).is_ok();
        match (wanted, is_there) {
            (true, false) => {
                if let Some(folder) = link.parent() {
                    files::make_private_folders(folder)?;
                }
                match symlink(file, &link) {
                    Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
                    _ => Ok(()),
                }
            }
            (false, true) => remove(&link),
            _ => Ok(()),
        }
    }

    /// Path of the link and its target.
    fn sync_link(&self) -> Option<(PathBuf, PathBuf)> {
        let file = PathBuf::from(self.0.conn.path()?);
        let key = self.0.key;
        let mut link = self.0.config.devices.join(&*key.device);
        link.push(SYNC_STORE);
        link.push(&*key.partition);
        link.push(key.hash.suffix());
        link.push(key.hash.hex());
        link.push(file.file_name()?);
        Some((link, file))
    }
}

/// Removes a link, and folders that become empty.
///
/// # Errors
/// That of removing the link. A missing link, or a folder that stays, is no error.
pub fn remove(link: &std::path::Path) -> io::Result<()> {
    match fs::remove_file(link) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // Up to the device's folder of links.
    for folder in link.ancestors().skip(1).take(3) {
        if fs::remove_dir(folder).is_err() {
            break;
        }
    }
    Ok(())
}
