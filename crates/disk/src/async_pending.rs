//! Async pendings: container updates that could not be delivered, stored for the updater.
//!
//! ```text
//! <device>/async_pending[-N]/<suffix>/<hash>-<timestamp>
//! ```
//!
//! The file is a pickled dictionary with the keys `op`, `account`, `container`, `obj`, `headers` (a
//! dictionary of text to text, latin-1), `db_state`, and where they apply `container_path` (the
//! shard of a redirected update) and `successes` (nodes that have taken it, maintained by the
//! updater). Swift writes protocol 0 and a dictionary class of its own for the headers; both are
//! read.

use bytes::Bytes;
use cairn_formats::pickle::{self, Value};
use cairn_types::{ObjectHash, PolicyIndex, Timestamp};

use crate::device_pool::Disk;
use crate::diskfile::suffix_hashes::{is_suffix, list, read_small_file};
use crate::error::DiskError;
use crate::staged_file::{Reserve, StagedFile, just_link, open_dir, remove_dir, remove_file};

/// A container update.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AsyncUpdate {
    /// `PUT` or `DELETE`.
    pub op: String,
    pub account: String,
    pub container: String,
    pub object: String,
    /// Capitalised names (`X-Size`) and values as sent.
    pub headers: Vec<(String, Vec<u8>)>,
    /// State of the container's database according to the proxy: `unsharded`, `sharded`, …
    pub db_state: Option<String>,
    /// `account/container` of the shard to update instead.
    pub container_path: Option<String>,
    /// Ring ids of nodes that have taken the update.
    pub successes: Vec<i64>,
}

/// Location of a pending update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingFile {
    pub policy: PolicyIndex,
    pub suffix: String,
    pub name: String,
    pub hash: ObjectHash,
    pub timestamp: Timestamp,
}

impl AsyncUpdate {
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        let header = self
            .headers
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name));
        header.map(|(_, value)| value.as_slice())
    }

    pub fn to_pickle(&self) -> Vec<u8> {
        let text = |t: &String| Value::str(t);
        let headers = self.headers.iter().map(|(name, value)| {
            let value: String = value.iter().map(|b| char::from(*b)).collect();
            (Value::str(name), Value::Str(value))
        });
        let mut pairs = vec![
            (Value::str("op"), text(&self.op)),
            (Value::str("account"), text(&self.account)),
            (Value::str("container"), text(&self.container)),
            (Value::str("obj"), text(&self.object)),
            (Value::str("headers"), Value::Dict(headers.collect())),
            (
                Value::str("db_state"),
                self.db_state.as_ref().map_or(Value::None, text),
            ),
        ];
        if let Some(path) = &self.container_path {
            pairs.push((Value::str("container_path"), text(path)));
        }
        if !self.successes.is_empty() {
            let ids = self.successes.iter().map(|id| Value::Int(*id)).collect();
            pairs.push((Value::str("successes"), Value::List(ids)));
        }
        pickle::dumps(&Value::Dict(pairs))
    }

    /// Parses an update; `None` if it is invalid.
    pub fn from_pickle(bytes: &[u8]) -> Option<Self> {
        let value = pickle::loads(bytes).ok()?;
        let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        let headers = value.get("headers")?.as_dict()?;
        let headers = headers.iter().filter_map(|(name, value)| {
            let value = match value {
                Value::Str(text) => latin1(text),
                Value::Bytes(bytes) => bytes.clone(),
                Value::Int(number) => number.to_string().into_bytes(),
                _ => return None,
            };
            Some((name.as_str()?.to_owned(), value))
        });
        let successes = value.get("successes").and_then(Value::items);
        Some(AsyncUpdate {
            op: text("op")?,
            account: text("account")?,
            container: text("container")?,
            object: text("obj")?,
            headers: headers.collect(),
            db_state: text("db_state"),
            container_path: text("container_path"),
            successes: successes
                .unwrap_or_default()
                .iter()
                .filter_map(Value::as_int)
                .collect(),
        })
    }
}

/// Bytes of a latin-1 text; any other text as UTF-8.
fn latin1(text: &str) -> Vec<u8> {
    let bytes: Result<Vec<u8>, _> = text.chars().map(|c| u8::try_from(u32::from(c))).collect();
    bytes.unwrap_or_else(|_| text.as_bytes().to_vec())
}

/// Writes an update durably. `hash` is that of the object's path. Replaces an update with the same
/// object and time.
///
/// # Errors
/// `NoSpace` if the disk is full even after the reserve was spent; `ReadOnly` or `Io` if the file
/// cannot be written, named or synced.
pub fn write_async_update(
    disk: &Disk,
    policy: PolicyIndex,
    hash: ObjectHash,
    timestamp: Timestamp,
    update: &AsyncUpdate,
) -> Result<(), DiskError> {
    let hex = hash.hex();
    let dir = format!("{}/{}", policy.dir("async_pending"), &hex[29..]);
    let content = Bytes::from(update.to_pickle());
    disk.with_room(|| {
        let mut staged = StagedFile::create(disk, &policy.dir("tmp"), Reserve::Ignore)?;
        staged.write(std::slice::from_ref(&content))?;
        staged.publish(&dir, &format!("{hex}-{}", timestamp.internal()), just_link)?;
        Ok(())
    })
}

/// Removes an update written by [`write_async_update`], if it still exists.
///
/// # Errors
/// As [`PendingFile::remove`].
pub fn remove_async_update(
    disk: &Disk,
    policy: PolicyIndex,
    hash: ObjectHash,
    timestamp: Timestamp,
) -> Result<(), DiskError> {
    let hex = hash.hex();
    let file = PendingFile {
        policy,
        suffix: hex[29..].to_owned(),
        hash,
        timestamp,
        name: format!("{hex}-{}", timestamp.internal()),
    };
    file.remove(disk)
}

/// Suffixes with pending updates of a policy.
///
/// # Errors
/// `Io` if the directory cannot be read; one that does not exist is empty.
pub fn list_suffixes(disk: &Disk, policy: PolicyIndex) -> Result<Vec<String>, DiskError> {
    let mut suffixes = match list(disk, &policy.dir("async_pending")) {
        Err(DiskError::NotExist) => Vec::new(),
        other => other?,
    };
    suffixes.retain(|s| is_suffix(s));
    suffixes.sort();
    Ok(suffixes)
}

/// Pending updates of a suffix, newest first for each object.
///
/// # Errors
/// `Io` if the directory cannot be read; one that does not exist is empty.
pub fn list_updates(
    disk: &Disk,
    policy: PolicyIndex,
    suffix: &str,
) -> Result<Vec<PendingFile>, DiskError> {
    let mut names = match list(disk, &format!("{}/{suffix}", policy.dir("async_pending"))) {
        Err(DiskError::NotExist) => Vec::new(),
        other => other?,
    };
    names.sort_by(|a, b| b.cmp(a));
    let files = names.into_iter().filter_map(|name| {
        let (hash, timestamp) = name.split_once('-')?;
        Some(PendingFile {
            policy,
            suffix: suffix.to_owned(),
            hash: ObjectHash::from_hex(hash)?,
            timestamp: Timestamp::parse(timestamp).ok()?,
            name,
        })
    });
    Ok(files.collect())
}

impl PendingFile {
    fn dir(&self) -> String {
        format!("{}/{}", self.policy.dir("async_pending"), self.suffix)
    }

    /// Reads the update; `None` if it is gone or invalid.
    pub fn read(&self, disk: &Disk) -> Option<AsyncUpdate> {
        let bytes = read_small_file(disk, &format!("{}/{}", self.dir(), self.name))?;
        AsyncUpdate::from_pickle(&bytes)
    }

    /// Replaces the update, for instance with a longer list of nodes that have taken it.
    ///
    /// # Errors
    /// As [`write_async_update`].
    pub fn rewrite(&self, disk: &Disk, update: &AsyncUpdate) -> Result<(), DiskError> {
        write_async_update(disk, self.policy, self.hash, self.timestamp, update)
    }

    /// Removes the update, and its directory if that becomes empty.
    ///
    /// # Errors
    /// `ReadOnly` or `Io` if the file cannot be unlinked; not for one that is gone.
    pub fn remove(&self, disk: &Disk) -> Result<(), DiskError> {
        use std::os::fd::AsFd;
        let dir = self.dir();
        let Ok(fd) = open_dir(disk, &dir) else {
            return Ok(());
        };
        remove_file(fd.as_fd(), &self.name).map_err(|errno| {
            DiskError::from_errno("unlink", format!("{dir}/{}", self.name), errno)
        })?;
        remove_dir(disk, &dir);
        Ok(())
    }

    /// Moves an invalid file to `quarantined/objects[-N]`, as Swift does.
    ///
    /// # Errors
    /// `NoSpace`, `ReadOnly` or `Io` if the directory cannot be made, or the file is gone or cannot
    /// be moved.
    pub fn quarantine(&self, disk: &Disk) -> Result<(), DiskError> {
        let to = format!("quarantined/{}/{}", self.policy.dir("objects"), self.name);
        crate::staged_file::move_aside(disk, &format!("{}/{}", self.dir(), self.name), &to)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::device_pool::{Devices, DevicesConfig};

    #[test]
    fn kept_listed_removed() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("d")).unwrap();
        let mut config = DevicesConfig::new(root.path());
        config.mount_check = false;
        let disk = Devices::new(config).get("d").unwrap().disk().unwrap();
        let hash = ObjectHash::from_hex("06fbf0b514e5199dfc4e00f42eb5ea83").unwrap();
        let update = AsyncUpdate {
            op: "PUT".into(),
            account: "a".into(),
            container: "c\u{e9}".into(),
            object: "o".into(),
            headers: vec![
                ("X-Size".into(), b"7".to_vec()),
                ("X-Content-Type".into(), "t/\u{e9}".as_bytes().to_vec()),
            ],
            db_state: Some("unsharded".into()),
            container_path: None,
            successes: vec![],
        };
        let policy = PolicyIndex(1);
        assert!(list_suffixes(&disk, policy).unwrap().is_empty());
        for seconds in [1, 2] {
            write_async_update(&disk, policy, hash, Timestamp::from_secs(seconds), &update)
                .unwrap();
        }
        assert_eq!(list_suffixes(&disk, policy).unwrap(), ["a83"]);
        let files = list_updates(&disk, policy, "a83").unwrap();
        assert_eq!(files.len(), 2);
        assert_eq!(files[0].timestamp, Timestamp::from_secs(2), "newest first");
        assert_eq!(files[0].read(&disk), Some(update.clone()));
        let mut changed = update;
        changed.successes = vec![3];
        changed.container_path = Some("a/c".into());
        files[0].rewrite(&disk, &changed).unwrap();
        assert_eq!(files[0].read(&disk), Some(changed));
        for file in &files {
            file.remove(&disk).unwrap();
            assert_eq!(file.read(&disk), None);
        }
        assert!(list_suffixes(&disk, policy).unwrap().is_empty());
    }

    #[test]
    fn noise_is_no_update() {
        assert_eq!(AsyncUpdate::from_pickle(b"\x80\x02}."), None);
        assert_eq!(AsyncUpdate::from_pickle(b"x"), None);
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_an_update_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = AsyncUpdate::from_pickle(&bytes);
        }
    }
}
