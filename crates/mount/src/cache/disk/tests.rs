//! The second level of the cache: what survives, what is found out, and what is never returned.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use super::*;
use crate::cache::{Cache, Reader};
use crate::store::{MemoryStore, ObjectName, Why};

const TEXT: &[u8; 20] = b"0123456789abcdefghij";
const BLOCK_BYTES: u64 = 4;
const PLENTY: u64 = 1 << 20;

fn options(dir: &Path, limit: u64) -> DiskOptions {
    DiskOptions {
        dir: dir.to_owned(),
        limit,
        account: "http://store/v1/AUTH_a".to_owned(),
    }
}

/// A new mount's cache, whose first level is empty.
fn cache(store: &Arc<MemoryStore>, options: DiskOptions) -> Cache<MemoryStore> {
    let disk = DiskCache::open(options, BLOCK_BYTES).unwrap();
    Cache::new(store.clone(), BLOCK_BYTES, 8).with_disk(Some(disk))
}

fn store() -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::default());
    store.write("o", "t", TEXT);
    store
}

fn object(name: &str, etag: Option<&str>) -> Arc<Version> {
    Arc::new(Version {
        name: ObjectName::new("c", name),
        etag: etag.map(Into::into),
        bytes: TEXT.len() as u64,
    })
}

/// Reads bytes, and waits until they are on the disk.
async fn text(cache: &Cache<MemoryStore>, version: &Arc<Version>, at: u64, n: u64) -> String {
    let mut pieces = Vec::new();
    cache
        .read(Reader::Program, version, (at, n), &mut pieces)
        .await
        .unwrap();
    if let Some(disk) = &cache.disk {
        let all = disk.pending.acquire_many(PENDING_MAX as u32).await;
        drop(all.unwrap());
    }
    String::from_utf8(pieces.concat()).unwrap()
}

/// The cache's files, without the lock.
fn files(dir: &Path) -> BTreeSet<PathBuf> {
    let folders = fs::read_dir(dir).unwrap().map(|f| f.unwrap().path());
    let folders = folders.filter(|folder| folder.is_dir());
    folders
        .flat_map(|folder| fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()))
        .collect()
}

#[tokio::test]
async fn blocks_outlive_the_mount_and_are_read_without_the_store() {
    let (dir, store) = (tempfile::tempdir().unwrap(), store());
    let version = object("o", Some("etag0"));
    let first = cache(&store, options(dir.path(), PLENTY));
    assert_eq!(text(&first, &version, 5, 9).await, "56789abcd");
    drop(first);
    store.take_calls();
    let second = cache(&store, options(dir.path(), PLENTY));
    assert_eq!(text(&second, &version, 4, 10).await, "456789abcd");
    assert!(store.take_calls().is_empty());
    // The last, shorter block, and the first one, are read from the store around the known ones.
    assert_eq!(text(&second, &version, 0, 20).await, "0123456789abcdefghij");
    assert_eq!(store.take_calls(), ["GET o", "GET o"]);
    drop(second);
    let third = cache(&store, options(dir.path(), PLENTY));
    assert_eq!(text(&third, &version, 0, 20).await, "0123456789abcdefghij");
    assert!(store.take_calls().is_empty());
}

#[tokio::test]
async fn other_versions_accounts_and_other_clients_segments_are_not_mixed_up() {
    let (dir, store) = (tempfile::tempdir().unwrap(), store());
    let first = cache(&store, options(dir.path(), PLENTY));
    text(&first, &object("o", Some("etag0")), 0, 4).await;
    store.write("theirs/1", "t", TEXT);
    store.write(".segments/id/mount.1", "t", TEXT);
    for name in ["theirs/1", ".segments/id/mount.1"] {
        text(&first, &object(name, None), 0, 4).await;
    }
    drop(first);
    let second = cache(&store, options(dir.path(), PLENTY));
    store.take_calls();
    text(&second, &object(".segments/id/mount.1", None), 0, 4).await;
    assert!(
        store.take_calls().is_empty(),
        "a mount's segment is immutable"
    );
    text(&second, &object("theirs/1", None), 0, 4).await;
    assert_eq!(
        store.take_calls(),
        ["GET theirs/1"],
        "it may have been rewritten"
    );
    store.write("o", "t", b"another version.....");
    let (old, mut pieces) = (object("o", Some("etag9")), Vec::new());
    let read = second
        .read(Reader::Program, &old, (0, 4), &mut pieces)
        .await;
    assert_eq!(read.unwrap_err().why, Why::Changed);
    drop(second);
    let other = DiskOptions {
        account: "http://store/v1/AUTH_b".to_owned(),
        ..options(dir.path(), PLENTY)
    };
    let third = cache(&store, other);
    store.take_calls();
    text(&third, &object(".segments/id/mount.1", None), 0, 4).await;
    assert_eq!(store.take_calls(), ["GET .segments/id/mount.1"]);
}

#[tokio::test]
async fn a_torn_changed_or_swapped_file_is_a_miss_and_is_written_anew() {
    let damages: [fn(&Path, &Path); 5] = [
        |file, _| fs::write(file, b"").unwrap(),
        |file, _| {
            let bytes = fs::read(file).unwrap();
            fs::write(file, &bytes[..bytes.len() - 1]).unwrap();
        },
        |file, _| {
            let mut bytes = fs::read(file).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(file, bytes).unwrap();
        },
        |file, other| fs::rename(other, file).unwrap(),
        |file, _| fs::remove_file(file).unwrap(),
    ];
    for damage in damages {
        let (dir, store) = (tempfile::tempdir().unwrap(), store());
        let version = object("o", Some("etag0"));
        let first = cache(&store, options(dir.path(), PLENTY));
        text(&first, &version, 0, 8).await;
        drop(first);
        let second = cache(&store, options(dir.path(), PLENTY));
        store.take_calls();
        let all: Vec<PathBuf> = files(dir.path()).into_iter().collect();
        assert_eq!(all.len(), 2);
        damage(&all[0], &all[1]);
        assert_eq!(text(&second, &version, 0, 8).await, "01234567");
        assert_eq!(store.take_calls(), ["GET o"]);
        drop(second);
        let third = cache(&store, options(dir.path(), PLENTY));
        assert_eq!(text(&third, &version, 0, 8).await, "01234567");
        assert!(store.take_calls().is_empty(), "it was not written anew");
    }
}

#[tokio::test]
async fn the_directory_is_bounded_and_the_least_recently_used_go_first() {
    let (dir, store) = (tempfile::tempdir().unwrap(), store());
    let version = object("o", Some("etag0"));
    let limit = 3 * UNIT_BYTES;
    let first = cache(&store, options(dir.path(), limit));
    for at in [0, 4, 8] {
        text(&first, &version, at, 4).await;
    }
    // Used again, from the disk: the cache in memory has two blocks.
    text(&first, &version, 0, 4).await;
    text(&first, &version, 12, 4).await;
    assert_eq!(files(dir.path()).len(), 3);
    let disk = first.disk.as_ref().unwrap();
    let there = |block| disk.has(&version, block);
    assert_eq!([0, 1, 2, 3].map(there), [true, false, true, true]);
    drop(first);
    let less = cache(&store, options(dir.path(), limit / 3));
    assert_eq!(
        files(dir.path()).len(),
        1,
        "a smaller bound holds from the start"
    );
    drop(less);
}

#[tokio::test]
async fn files_that_are_not_the_caches_stay() {
    let (dir, store) = (tempfile::tempdir().unwrap(), store());
    let first = cache(&store, options(dir.path(), PLENTY));
    text(&first, &object("o", Some("etag0")), 0, 4).await;
    drop(first);
    let file = files(dir.path()).into_iter().next().unwrap();
    let (own, beside) = (dir.path().join("notes"), file.with_file_name("notes"));
    fs::write(&own, b"mine").unwrap();
    fs::write(&beside, b"mine").unwrap();
    drop(cache(&store, options(dir.path(), 1)));
    assert!(!file.exists() && own.exists() && beside.exists());
}

#[tokio::test]
async fn a_disk_that_fails_costs_a_request_and_no_bytes() {
    let (dir, store) = (tempfile::tempdir().unwrap(), store());
    let version = object("o", Some("etag0"));
    let at = dir.path().join("cache");
    let cache = cache(&store, options(&at, PLENTY));
    text(&cache, &version, 0, 4).await;
    fs::remove_dir_all(&at).unwrap();
    fs::write(&at, b"a file").unwrap();
    store.take_calls();
    for _ in 0..3 {
        assert_eq!(text(&cache, &version, 0, 20).await, "0123456789abcdefghij");
    }
    assert!(
        cache
            .disk
            .as_ref()
            .unwrap()
            .index
            .lock()
            .paused_until
            .is_some()
    );
    assert!(!store.take_calls().is_empty());
}

#[test]
fn a_directory_has_one_mount() {
    let dir = tempfile::tempdir().unwrap();
    let first = DiskCache::open(options(dir.path(), PLENTY), BLOCK_BYTES).unwrap();
    let second = DiskCache::open(options(dir.path(), PLENTY), BLOCK_BYTES);
    assert!(second.err().unwrap().contains("another mount uses it"));
    drop(first);
    DiskCache::open(options(dir.path(), PLENTY), BLOCK_BYTES).unwrap();
    let file = dir.path().join("file");
    fs::write(&file, b"").unwrap();
    assert!(DiskCache::open(options(&file, PLENTY), BLOCK_BYTES).is_err());
}
