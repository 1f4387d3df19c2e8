//! The file system over an in-memory store: what programs see, and what another client of the store
//! sees after a close.

#![allow(clippy::unwrap_used)]

mod closes;
mod content;
mod doubts;
mod gathering;
mod links;
mod names;
mod races;
mod shared;
mod simulator;
mod small;
mod upkeep;
mod writers;

use super::*;
use crate::store::MemoryStore;

pub(super) const OWNER: Owner = Owner {
    uid: 5,
    gid: 6,
    mode: 0o640,
};
pub(super) const WRITE: OpenMode = OpenMode {
    is_writer: true,
    is_append: false,
    truncates: false,
};
pub(super) const READ: OpenMode = OpenMode {
    is_writer: false,
    is_append: false,
    truncates: false,
};
pub(super) const APPEND: OpenMode = OpenMode {
    is_writer: true,
    is_append: true,
    truncates: false,
};
pub(super) const TRUNCATE: OpenMode = OpenMode {
    is_writer: true,
    is_append: false,
    truncates: true,
};

/// File forms as in production, at sizes of a few bytes.
pub(super) fn limits() -> Limits {
    Limits {
        whole_bytes: 64,
        segment_bytes: 256,
        hole_bytes: 16,
        small_bytes: 16,
        parts_max: 120,
        extra_parts: 6,
        manifest_parts: 1000,
    }
}

pub(super) fn mount_with(store: &MemoryStore, limits: Limits) -> Vfs<MemoryStore> {
    let options = VfsOptions {
        is_read_only: false,
        defaults: Defaults { uid: 1, gid: 2 },
        fresh: Duration::ZERO,
        limits,
        cache_bytes: 4096,
        block_bytes: 32,
        unwritten_bytes: 2000,
        flatten_after: None,
        superseded_for: Duration::ZERO,
    };
    Vfs::new(store.clone(), options, None)
}

pub(super) fn mount(store: &MemoryStore) -> Vfs<MemoryStore> {
    mount_with(store, limits())
}

impl Vfs<MemoryStore> {
    pub(super) async fn ino(&self, path: &str) -> FsResult<u64> {
        let mut ino = ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            ino = self.lookup(ino, name).await?.ino;
        }
        Ok(ino)
    }

    pub(super) async fn put(&self, path: &str, bytes: &[u8]) -> FsResult<u64> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = self.ino(parent).await?;
        let mode = OpenMode {
            truncates: true,
            ..WRITE
        };
        let (attr, handle) = self.create(parent, name, OWNER, mode, false).await?;
        self.write(handle, 0, bytes.to_vec().into(), false).await?;
        self.close(handle).await?;
        Ok(attr.ino)
    }

    pub(super) async fn close(&self, handle: u64) -> FsResult<()> {
        let flushed = self.flush(handle).await;
        self.release(handle).await?;
        flushed
    }

    pub(super) async fn bytes(&self, handle: u64, offset: u64, size: u32) -> Vec<u8> {
        self.read(handle, offset, size).await.unwrap().concat()
    }

    pub(super) async fn get(&self, path: &str) -> FsResult<Vec<u8>> {
        let (handle, _) = self.open(self.ino(path).await?, READ).await?;
        let pieces = self.read(handle, 0, 1 << 20).await;
        self.close(handle).await?;
        Ok(pieces?.concat())
    }

    pub(super) async fn names(&self, path: &str) -> Vec<String> {
        let ino = self.ino(path).await.unwrap();
        let stream = self.opendir(ino).await.unwrap();
        let mut names = Vec::new();
        loop {
            let page = self.readdir(ino, stream, names.len() as u64).await.unwrap();
            if page.is_empty() {
                break;
            }
            names.extend(page.into_iter().map(|entry| entry.name));
        }
        self.releasedir(stream);
        names.drain(..2);
        names.sort();
        names
    }

    /// Waits for background work.
    pub(super) async fn settle(&self) {
        assert_eq!(self.commit_all(|_| ()).await, 0);
    }
}

pub(super) fn segments(store: &MemoryStore) -> Vec<String> {
    let is_segment = |name: &String| name.starts_with(".segments/") && !name.contains("/zeros/");
    store.names().into_iter().filter(is_segment).collect()
}

/// The segments that a file refers to, in the form of `segments`.
pub(super) async fn needed(store: &MemoryStore, name: &str) -> Vec<String> {
    let stat = store.head(name).await.unwrap();
    let parts = store.manifest(name, &stat.etag).await.unwrap();
    let vfs = mount(store);
    let layout = vfs.committer.layout_of(parts.unwrap_or_default()).await;
    let all = layout.unwrap().segments();
    let mut names: Vec<String> = all.iter().map(|s| s.name.name.to_string()).collect();
    names.retain(|name| !name.contains("/zeros/"));
    names.sort();
    names
}

pub(super) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i % 251) as u8).collect()
}
