//! Files of many small parts: nested manifests, and flattening.

use futures_util::FutureExt;

use super::*;
use crate::flatten::{Share, owner};

const RECORD: usize = 10;
const RECORDS: usize = 300;

/// A mount that leaves small parts to flattening.
fn host(store: &MemoryStore) -> Vfs<MemoryStore> {
    let limits = Limits {
        parts_max: 10_000,
        ..limits()
    };
    mount_with(store, limits)
}

/// A host that keeps superseded segments until it ends.
fn patient(store: &MemoryStore) -> Vfs<MemoryStore> {
    let mut options = host(store).options;
    options.superseded_for = Duration::from_secs(3600);
    Vfs::new(store.clone(), options, None)
}

fn record(place: usize) -> Vec<u8> {
    (0..RECORD).map(|i| (place * 7 + i) as u8).collect()
}

fn whole() -> Vec<u8> {
    (0..RECORDS).flat_map(record).collect()
}

/// Each mount writes its share of interleaved records, and closes.
async fn strides(mounts: &[Vfs<MemoryStore>]) {
    mounts[0].put("f", b"").await.unwrap();
    let mut handles = Vec::new();
    for (rank, mount) in mounts.iter().enumerate() {
        let ino = mount.ino("f").await.unwrap();
        let (handle, _) = mount.open(ino, WRITE).await.unwrap();
        for place in (rank..RECORDS).step_by(mounts.len()) {
            let offset = (place * RECORD) as u64;
            let bytes = record(place).into();
            mount.write(handle, offset, bytes, false).await.unwrap();
        }
        handles.push(handle);
    }
    for (mount, handle) in mounts.iter().zip(handles) {
        mount.close(handle).await.unwrap();
    }
}

fn nested_names(store: &MemoryStore) -> Vec<String> {
    let mut names = store.names();
    names.retain(|name| name.ends_with(".parts"));
    names
}

fn nested(store: &MemoryStore) -> usize {
    nested_names(store).len()
}

#[tokio::test]
async fn records_of_many_hosts_are_parts_of_their_logs_until_they_are_flattened() {
    let store = MemoryStore::default();
    let mounts: Vec<_> = (0..3).map(|_| host(&store)).collect();
    strides(&mounts).await;
    assert!(store.whole("f").unwrap() == whole());
    assert!(nested(&store) > 5, "{:?}", store.names());
    assert!(mount(&store).get("f").await.unwrap() == whole());
    let (reader, _) = mounts[1]
        .open(mounts[1].ino("f").await.unwrap(), READ)
        .await
        .unwrap();
    assert!(mounts[1].bytes(reader, 0, 50).await == whole()[..50]);
    // Each flattens its share, which chance may leave empty; together these are all.
    let ids: Vec<&str> = mounts.iter().map(|m| &*m.committer.mount_id).collect();
    let before = nested_names(&store);
    let owners: Vec<_> = before.iter().map(|name| owner(&ids, name)).collect();
    let flatten = |mount: &Vfs<MemoryStore>| {
        let committer = mount.committer.clone();
        async move { committer.flatten("f", Share::Own).await.unwrap() }
    };
    let outcomes = tokio::join!(
        flatten(&mounts[0]),
        flatten(&mounts[1]),
        flatten(&mounts[2])
    );
    for (outcome, id) in [outcomes.0, outcomes.1, outcomes.2].iter().zip(&ids) {
        let has_share = owners.contains(&Some(id));
        assert_eq!(outcome.flattened.is_some(), has_share, "{id}: {before:?}");
    }
    assert_eq!(nested(&store), 0, "{:?}", store.names());
    assert!(store.whole("f").unwrap() == whole());
    assert_eq!(segments(&store), needed(&store, "f").await);
    assert!(segments(&store).len() <= RECORD * RECORDS / 256 + 2);
    // Open handles can still read.
    assert!(mounts[1].bytes(reader, 50, 5000).await == whole()[50..]);
    assert!(mounts[2].get("f").await.unwrap() == whole());
}

/// Writes twenty runs of three small parts, with long holes between them; returns the bytes.
async fn runs_between_holes(mount: &Vfs<MemoryStore>, name: &str) -> Vec<u8> {
    let ino = mount.put(name, b"").await.unwrap();
    let mut expected = Vec::new();
    for at in (0..20).flat_map(|run| [0, 5, 10].map(|at| run * 40 + at)) {
        let (handle, _) = mount.open(ino, WRITE).await.unwrap();
        let bytes = vec![at as u8 + 1; 5];
        expected.resize(at, 0);
        expected.extend_from_slice(&bytes);
        let written = mount.write(handle, at as u64, bytes.into(), false);
        written.await.unwrap();
        mount.close(handle).await.unwrap();
    }
    expected
}

/// Hosts that write one file at different speeds leave long holes to each other: these are no ends of
/// indexes, and flattening leaves them as they are.
#[tokio::test]
async fn long_holes_are_in_indexes_and_stay_holes() {
    let store = MemoryStore::default();
    let mount = host(&store);
    let mut expected = runs_between_holes(&mount, "f").await;
    let indexes = nested(&store);
    assert!((1..=4).contains(&indexes), "{:?}", store.names());
    assert!(store.whole("f").unwrap() == expected);
    let outcome = mount.committer.flatten("f", Share::All).await.unwrap();
    assert!(outcome.flattened.is_some());
    assert_eq!(nested(&store), 0);
    assert!(store.whole("f").unwrap() == expected);
    assert_eq!(segments(&store), needed(&store, "f").await);
    let stored = segments(&store).into_iter();
    let stored: usize = stored.map(|name| store.whole(&name).unwrap().len()).sum();
    assert!(stored < 400, "{stored} bytes are stored of 300");
    assert!(mount.get("f").await.unwrap() == expected);
    // Written again the file has indexes again, of which only the run that has changed is flattened.
    let ino = mount.ino("f").await.unwrap();
    let (handle, _) = mount.open(ino, WRITE).await.unwrap();
    let written = mount.write(handle, 405, vec![7; 2].into(), false);
    written.await.unwrap();
    mount.close(handle).await.unwrap();
    expected[405..407].fill(7);
    store.take_calls();
    mount.committer.flatten("f", Share::All).await.unwrap();
    let calls = store.take_calls();
    let puts = calls.iter().filter(|call| call.starts_with("PUT"));
    assert_eq!(puts.count(), 2, "{calls:?}");
    assert!(store.whole("f").unwrap() == expected);
}

#[tokio::test]
async fn a_flat_manifest_has_no_more_parts_than_it_may() {
    let store = MemoryStore::default();
    let limits = Limits {
        parts_max: 10_000,
        manifest_parts: 30,
        ..limits()
    };
    let mount = mount_with(&store, limits);
    let expected = runs_between_holes(&mount, "f").await;
    let before = nested(&store);
    // Indexes whose parts do not fit stay, and are no reason to try again.
    for _ in 0..2 {
        mount.committer.flatten("f", Share::All).await.unwrap();
        let etag = store.head("f").await.unwrap().etag;
        let parts = store.manifest("f", &etag).await.unwrap().unwrap();
        assert!(parts.len() <= 30, "{} parts", parts.len());
        assert!((1..before).contains(&nested(&store)), "of {before}");
        assert!(store.whole("f").unwrap() == expected);
    }
}

/// Flat parts are left of a version that was replaced between flattening and the swap; the next one may have no
/// room for them.
#[tokio::test]
async fn flat_parts_of_a_version_before_are_used_where_there_is_room() {
    for seed in 0..40 {
        let store = MemoryStore::default();
        let limits = Limits {
            parts_max: 10_000,
            manifest_parts: 30,
            ..limits()
        };
        let mounts = [0, 1].map(|_| mount_with(&store, limits));
        let mut expected = runs_between_holes(&mounts[0], "f").await;
        store.take_turns(seed);
        let flatten = mounts[0].committer.flatten("f", Share::All);
        let write = async {
            let ino = mounts[1].ino("f").await.unwrap();
            for run in 0..4 {
                let (handle, _) = mounts[1].open(ino, WRITE).await.unwrap();
                let written = mounts[1].write(handle, 1000 + run * 40, vec![7; 30].into(), false);
                written.await.unwrap();
                mounts[1].close(handle).await.unwrap();
            }
        };
        let (flattened, ()) = tokio::join!(flatten, write);
        flattened.unwrap();
        for run in 0..4 {
            expected.resize(1000 + run * 40, 0);
            expected.extend_from_slice(&[7; 30]);
        }
        let etag = store.head("f").await.unwrap().etag;
        let parts = store.manifest("f", &etag).await.unwrap().unwrap();
        assert!(parts.len() <= 30, "seed {seed}: {} parts", parts.len());
        assert!(store.whole("f").unwrap() == expected, "seed {seed}");
    }
}

#[tokio::test]
async fn a_share_that_nobody_does_is_done_by_another() {
    let store = MemoryStore::default();
    let mounts: Vec<_> = (0..2).map(|_| host(&store)).collect();
    strides(&mounts).await;
    let own = mounts[0].committer.flatten("f", Share::Own).await.unwrap();
    assert!(own.left > 0 && nested(&store) > 0);
    let rest = mounts[0].committer.flatten("f", Share::All).await.unwrap();
    assert!(rest.left == 0 && nested(&store) == 0);
    assert!(store.whole("f").unwrap() == whole());
    assert_eq!(segments(&store), needed(&store, "f").await);
}

#[tokio::test]
async fn a_commit_between_flattening_and_swap_loses_nothing() {
    for seed in 0..40 {
        let store = MemoryStore::default();
        let mounts: Vec<_> = (0..2).map(|_| host(&store)).collect();
        strides(&mounts).await;
        store.take_turns(seed);
        let mut expected = whole();
        let flatten = mounts[0].committer.flatten("f", Share::All);
        let write = async {
            let ino = mounts[1].ino("f").await.unwrap();
            for offset in [5u64, 1111, 2900] {
                let (handle, _) = mounts[1].open(ino, WRITE).await.unwrap();
                let written = mounts[1].write(handle, offset, vec![0xee; 7].into(), false);
                written.await.unwrap();
                mounts[1].close(handle).await.unwrap();
            }
        };
        let (flattened, ()) = tokio::join!(flatten, write);
        flattened.unwrap();
        for offset in [5, 1111, 2900] {
            expected[offset..offset + 7].fill(0xee);
        }
        assert!(store.whole("f").unwrap() == expected, "seed {seed}");
        assert!(
            mount(&store).get("f").await.unwrap() == expected,
            "seed {seed}"
        );
    }
}

#[tokio::test]
async fn a_commit_takes_over_what_it_has_not_touched() {
    let store = MemoryStore::default();
    let mounts: Vec<_> = (0..2).map(|_| host(&store)).collect();
    strides(&mounts).await;
    store.take_calls();
    let ino = mounts[0].ino("f").await.unwrap();
    let (handle, _) = mounts[0].open(ino, WRITE).await.unwrap();
    let written = mounts[0].write(handle, 1000, vec![1; 3].into(), false);
    written.await.unwrap();
    mounts[0].close(handle).await.unwrap();
    let calls = store.take_calls();
    let puts = calls.iter().filter(|call| call.starts_with("PUT"));
    // The data, one nested manifest, and the manifest.
    assert_eq!(puts.count(), 3, "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn a_quiet_file_is_flattened_by_itself() {
    let store = MemoryStore::default();
    let mut mounts: Vec<_> = (0..2).map(|_| host(&store)).collect();
    for mount in &mut mounts {
        mount.options.flatten_after = Some(Duration::from_secs(2));
    }
    strides(&mounts).await;
    assert!(nested(&store) > 0);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(nested(&store), 0);
    assert!(store.whole("f").unwrap() == whole());
    for mount in &mounts {
        assert!(mount.get("f").await.unwrap() == whole());
        mount.settle().await;
    }
    assert_eq!(segments(&store), needed(&store, "f").await);
}

/// A GET of a large object reads its segments one after the other.
#[tokio::test]
async fn what_another_client_is_reading_stays_for_a_while() {
    let store = MemoryStore::default();
    let vfs = patient(&store);
    vfs.put("f", &pattern(2000)).await.unwrap();
    let stat = store.head("f").await.unwrap();
    let read = store.manifest("f", &stat.etag).await.unwrap().unwrap();
    vfs.put("f", &pattern(1500)).await.unwrap();
    let is_there =
        |part: &crate::store::Part| store.names().contains(&part.segment.name.name.to_string());
    assert!(read.iter().all(is_there));
    vfs.settle().await;
    assert!(!read.iter().any(is_there));
    assert_eq!(segments(&store), needed(&store, "f").await);
}

#[tokio::test]
async fn a_store_without_room_gets_it_from_superseded_versions() {
    let store = MemoryStore::default();
    let vfs = patient(&store);
    vfs.put("f", &pattern(2000)).await.unwrap();
    let before = segments(&store).len();
    vfs.put("f", &pattern(1500)).await.unwrap();
    assert!(segments(&store).len() > before);
    store.fail(|verb, _| (verb == "PUT").then_some(Why::Full));
    assert!(vfs.put("f", &pattern(1000)).await.is_err());
    store.heal();
    let removals = std::mem::take(&mut *vfs.background.lock());
    removals.join_all().await;
    assert_eq!(segments(&store), needed(&store, "f").await);
}

/// Another host gives the file another name during its flattening, and its name to another file.
#[tokio::test]
async fn a_file_that_was_renamed_while_it_was_flattened_keeps_its_segments() {
    let other = pattern(1000);
    let mut renamed = 0;
    for number in 0.. {
        let store = MemoryStore::default();
        let mounts: Vec<_> = (0..2).map(|_| host(&store)).collect();
        strides(&mounts).await;
        let flattening = &mounts[0];
        flattening.put("x", &other).await.unwrap();
        let there = host(&store.beside());
        let (mut requests, moves) = (0, Arc::new(Mutex::new(None)));
        let moved = moves.clone();
        store.fail(move |_, _| {
            if requests == number {
                let moves = async {
                    there.rename((ROOT, "f"), (ROOT, "g"), false).await?;
                    there.rename((ROOT, "x"), (ROOT, "f"), false).await
                };
                *moved.lock() = moves.now_or_never();
            }
            requests += 1;
            None
        });
        let flattened = flattening.committer.flatten("f", Share::All).await;
        store.heal();
        let Some(result) = moves.lock().take() else {
            break;
        };
        result.unwrap();
        flattened.unwrap();
        flattening.settle().await;
        assert_eq!(store.whole("g").unwrap(), whole(), "before {number}");
        assert_eq!(store.whole("f").unwrap(), other, "before {number}");
        renamed += 1;
    }
    assert!(renamed > 10);
}
