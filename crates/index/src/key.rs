//! Key and path of a database:
//! `<devices>/<device>/<accounts|containers>/<partition>/<suffix>/<hash>/<hash>.db`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_types::ObjectHash;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DbKind {
    Account,
    Container,
}

impl DbKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            DbKind::Account => "account",
            DbKind::Container => "container",
        }
    }

    /// Folder on a device.
    pub const fn datadir(self) -> &'static str {
        match self {
            DbKind::Account => "accounts",
            DbKind::Container => "containers",
        }
    }

    /// Table of listed rows.
    pub(crate) const fn contains(self) -> &'static str {
        match self {
            DbKind::Account => "container",
            DbKind::Container => "object",
        }
    }

    /// Table (or view) with the stat row.
    pub(crate) const fn stat(self) -> &'static str {
        match self {
            DbKind::Account => "account_stat",
            DbKind::Container => "container_stat",
        }
    }
}

/// Key of one database on one device. The partition is the text in the request's path: a number in
/// every real cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DbKey {
    pub device: Arc<str>,
    pub partition: Arc<str>,
    pub kind: DbKind,
    pub hash: ObjectHash,
}

impl DbKey {
    pub fn new(device: &str, partition: &str, kind: DbKind, hash: ObjectHash) -> Self {
        DbKey {
            device: device.into(),
            partition: partition.into(),
            kind,
            hash,
        }
    }

    /// Folder of the database.
    pub fn dir(&self, devices: &Path) -> PathBuf {
        let mut path = devices.join(&*self.device);
        path.push(self.kind.datadir());
        path.push(&*self.partition);
        path.push(self.hash.suffix());
        path.push(self.hash.hex());
        path
    }

    /// File of a database that was never sharded.
    pub fn file(&self, devices: &Path) -> PathBuf {
        self.dir(devices).join(format!("{}.db", self.hash.hex()))
    }
}
