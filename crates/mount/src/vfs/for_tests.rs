//! A file system for tests of other modules.

#![allow(clippy::unwrap_used)]

use super::tests::{OWNER, limits, mount_with};
use super::*;
use crate::store::MemoryStore;

/// A mount whose caches are valid for hours.
pub(crate) fn mount_for_hours(store: &MemoryStore) -> Vfs<MemoryStore> {
    let mut vfs = mount_with(store, limits());
    vfs.options.fresh = Duration::from_secs(36_000);
    vfs
}

/// Writes a file; returns its number.
pub(crate) async fn put(vfs: &Vfs<MemoryStore>, path: &str, bytes: &[u8]) -> u64 {
    vfs.put(path, bytes).await.unwrap()
}

/// Makes a directory in the root.
pub(crate) async fn make_directory(vfs: &Vfs<MemoryStore>, name: &str) {
    vfs.mkdir(ROOT, name, OWNER).await.unwrap();
}

/// The names in a directory.
pub(crate) async fn names(vfs: &Vfs<MemoryStore>, path: &str) -> Vec<String> {
    vfs.names(path).await
}
