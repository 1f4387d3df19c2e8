//! Merges that many writers of one file on a mount share, and those that mounts make in turn.

use std::sync::Arc;

use super::*;
use crate::store::{Form, Why};

const RECORD: usize = 10;
const WRITERS: usize = 16;
const RECORDS: usize = 30;
/// Number of different paces of writers: those of one end together.
const PACES: u64 = 3;

fn record(place: usize) -> Vec<u8> {
    (0..RECORD).map(|i| (place * 7 + i) as u8).collect()
}

/// A host that leaves small parts to flattening, and keeps superseded segments until it ends.
fn host(store: &MemoryStore) -> Arc<Vfs<MemoryStore>> {
    host_that_flattens(store, None)
}

fn host_that_flattens(store: &MemoryStore, after: Option<Duration>) -> Arc<Vfs<MemoryStore>> {
    let limits = Limits {
        parts_max: 10_000,
        ..limits()
    };
    let mut options = mount_with(store, limits).options;
    options.superseded_for = Duration::from_secs(3600);
    options.flatten_after = after;
    Arc::new(Vfs::new(store.clone(), options, None))
}

/// Does the file on the store have all records of a writer?
fn has(store: &MemoryStore, writer: usize, writers: usize) -> bool {
    let bytes = store.whole("f").unwrap();
    let at = |place: usize| bytes.get(place * RECORD..(place + 1) * RECORD);
    let mut places = (0..RECORDS).map(|number| number * writers + writer);
    places.all(|place| at(place) == Some(&record(place)))
}

/// Opens a file, writes every `writers`-th record of it, and closes it.
async fn write(vfs: Arc<Vfs<MemoryStore>>, store: MemoryStore, writer: usize, writers: usize) {
    let ino = vfs.ino("f").await.unwrap();
    let (handle, _) = vfs.open(ino, WRITE).await.unwrap();
    for number in 0..RECORDS {
        let place = number * writers + writer;
        let offset = (place * RECORD) as u64;
        let written = vfs.write(handle, offset, record(place).into(), false);
        written.await.unwrap();
        tokio::time::sleep(Duration::from_millis(writer as u64 % PACES + 1)).await;
    }
    vfs.flush(handle).await.unwrap();
    assert!(has(&store, writer, writers), "writer {writer}");
    vfs.release(handle).await.unwrap();
}

/// Runs all writers, each on one of the hosts; returns what was asked of the store.
async fn run(store: &MemoryStore, hosts: &[Arc<Vfs<MemoryStore>>]) -> Vec<String> {
    hosts[0].put("f", &pattern(100)).await.unwrap();
    store.take_calls();
    let writer = |writer: usize| {
        let host = hosts[writer % hosts.len()].clone();
        tokio::spawn(write(host, store.clone(), writer, WRITERS))
    };
    let writers: Vec<_> = (0..WRITERS).map(writer).collect();
    for writer in writers {
        writer.await.unwrap();
    }
    assert!((0..WRITERS).all(|writer| has(store, writer, WRITERS)));
    store.take_calls()
}

fn merges(calls: &[String]) -> usize {
    calls.iter().filter(|call| *call == "PUT f").count()
}

#[tokio::test(start_paused = true)]
async fn writers_of_a_mount_share_merges_and_each_is_stored_when_its_close_returns() {
    let store = MemoryStore::default();
    let host = host(&store);
    let calls = run(&store, &[host]).await;
    let merges = merges(&calls);
    assert!(merges <= 2, "{merges} merges for {WRITERS} writers");
}

#[tokio::test(start_paused = true)]
async fn who_writes_alone_does_not_wait() {
    let store = MemoryStore::default();
    let host = host(&store);
    host.put("f", &pattern(100)).await.unwrap();
    write(host.clone(), store.clone(), 0, WRITERS).await;
    let ino = host.ino("f").await.unwrap();
    let (handle, _) = host.open(ino, WRITE).await.unwrap();
    let written = host.write(handle, 3, vec![1; 2].into(), false);
    written.await.unwrap();
    let start = tokio::time::Instant::now();
    host.close(handle).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// Writers that call `fsync` at once, of which the store refuses the first `fails` swaps; their results,
/// and the number of swaps.
async fn syncs_at_once(fails: usize) -> (Vec<FsResult<()>>, usize) {
    let store = MemoryStore::default();
    let host = host(&store);
    host.put("f", &pattern(100)).await.unwrap();
    let ino = host.ino("f").await.unwrap();
    let mut handles = Vec::new();
    for writer in 0..WRITERS {
        let (handle, _) = host.open(ino, WRITE).await.unwrap();
        for number in 0..RECORDS {
            let place = number * WRITERS + writer;
            let offset = (place * RECORD) as u64;
            let written = host.write(handle, offset, record(place).into(), false);
            written.await.unwrap();
        }
        handles.push(handle);
    }
    store.take_calls();
    store.take_turns(3);
    let mut left = fails;
    store.fail(move |verb, name| {
        let is_failed = verb == "PUT" && name == "f" && left > 0;
        left -= usize::from(is_failed);
        is_failed.then_some(Why::Refused)
    });
    let sync = |handle: u64| {
        let host = host.clone();
        tokio::spawn(async move { host.sync(handle).await })
    };
    let syncs: Vec<_> = handles.iter().map(|handle| sync(*handle)).collect();
    let mut results = Vec::new();
    for sync in syncs {
        results.push(sync.await.unwrap());
    }
    let calls = merges(&store.take_calls());
    let is_stored = (0..WRITERS).all(|writer| has(&store, writer, WRITERS));
    assert!(is_stored || results.iter().all(Result::is_err));
    store.heal();
    for handle in handles {
        host.close(handle).await.unwrap();
    }
    assert!((0..WRITERS).all(|writer| has(&store, writer, WRITERS)));
    (results, calls)
}

#[tokio::test]
async fn syncs_at_once_share_a_merge_and_its_failure() {
    let (results, merges) = syncs_at_once(0).await;
    assert!(results.iter().all(Result::is_ok) && merges == 1, "{merges}");
    // One attempt is repeated, as after a lost swap; it fails twice.
    let (results, merges) = syncs_at_once(1000).await;
    assert!(results.iter().all(Result::is_err), "{results:?}");
    assert!(merges <= 2, "{merges} for {WRITERS} writers");
}

#[tokio::test(start_paused = true)]
async fn a_close_that_is_given_up_keeps_nobody() {
    let store = MemoryStore::default();
    let host = host(&store);
    host.put("f", &pattern(100)).await.unwrap();
    let ino = host.ino("f").await.unwrap();
    let mut handles = Vec::new();
    for writer in 0..3 {
        let (handle, _) = host.open(ino, WRITE).await.unwrap();
        for number in 0..RECORDS {
            let place = number * 3 + writer;
            let offset = (place * RECORD) as u64;
            let written = host.write(handle, offset, record(place).into(), false);
            written.await.unwrap();
        }
        handles.push(handle);
    }
    let (leader, follower) = (host.clone(), host.clone());
    let (first, second) = (handles[0], handles[1]);
    let leader = tokio::spawn(async move { leader.flush(first).await });
    tokio::task::yield_now().await;
    let follower = tokio::spawn(async move { follower.flush(second).await });
    tokio::task::yield_now().await;
    leader.abort();
    let ended = tokio::time::timeout(Duration::from_secs(60), follower).await;
    ended.unwrap().unwrap().unwrap();
    assert!(has(&store, 1, 3));
    for handle in handles {
        host.close(handle).await.unwrap();
    }
}

/// Nobody has seen them, while those of versions that were replaced may be being read.
#[tokio::test(start_paused = true)]
async fn indexes_of_lost_swaps_go_at_once() {
    let mut lost = 0;
    for seed in 0..5 {
        let store = MemoryStore::default();
        let hosts: Vec<_> = (0..WRITERS).map(|_| host(&store)).collect();
        store.take_turns(seed);
        // Merges are not made in turn, so that swaps are lost.
        store.fail(|_, name| name.ends_with("/turn").then_some(Why::Unavailable));
        let calls = run(&store, &hosts).await;
        for host in &hosts {
            let removals = std::mem::take(&mut *host.background.lock());
            removals.join_all().await;
        }
        let is_index = |call: &&String| call.starts_with("PUT") && call.ends_with(".parts");
        let made = calls.iter().filter(is_index).count();
        let kept = store.names();
        let kept = kept.iter().filter(|name| name.ends_with(".parts")).count();
        let lost_here = merges(&calls) - WRITERS;
        assert_eq!(kept < made, lost_here > 0, "{seed}");
        lost += lost_here;
        for host in &hosts {
            host.settle().await;
        }
        assert_eq!(segments(&store), needed(&store, "f").await, "{seed}");
    }
    assert!(lost > 0);
}

#[tokio::test]
async fn a_turn_that_was_left_keeps_nobody_for_long() {
    let store = MemoryStore::default();
    let hosts: Vec<_> = (0..2).map(|_| host(&store)).collect();
    hosts[0].put("f", &pattern(100)).await.unwrap();
    let left = hosts[0].committer.take_turn("f", Duration::ZERO).await;
    assert!(left.is_some());
    let start = tokio::time::Instant::now();
    let none = hosts[1].committer.take_turn("f", Duration::ZERO).await;
    assert!(none.is_none());
    assert!(start.elapsed() < Duration::from_secs(3));
    let turn = hosts[1].committer.take_turn("f", Duration::ZERO).await;
    hosts[1].committer.end_turn(turn.unwrap()).await;
    // The one that was left is another one than that which its mount ends.
    let turn = hosts[1].committer.take_turn("f", Duration::ZERO).await;
    hosts[0].committer.end_turn(left.unwrap()).await;
    assert!(store.names().iter().any(|name| name.ends_with("/turn")));
    hosts[1].committer.end_turn(turn.unwrap()).await;
    assert!(!store.names().iter().any(|name| name.ends_with("/turn")));
}

#[tokio::test(start_paused = true)]
async fn mounts_merge_in_turn() {
    let store = MemoryStore::default();
    let hosts: Vec<_> = (0..WRITERS).map(|_| host(&store)).collect();
    store.take_turns(1);
    let calls = run(&store, &hosts).await;
    let merges = merges(&calls);
    assert!(
        2 * merges <= 3 * WRITERS,
        "{merges} swaps of {WRITERS} mounts"
    );
    assert!(!store.names().iter().any(|name| name.ends_with("/turn")));
}

#[tokio::test(start_paused = true)]
async fn turns_that_fail_keep_nobody() {
    let store = MemoryStore::default();
    let hosts: Vec<_> = (0..4).map(|_| host(&store)).collect();
    store.take_turns(2);
    store.fail(|_, name| name.ends_with("/turn").then_some(Why::Unavailable));
    run(&store, &hosts).await;
}

#[tokio::test]
async fn a_hole_costs_no_large_object() {
    let store = MemoryStore::default();
    let host = host(&store);
    let ino = host.put("f", &pattern(700)).await.unwrap();
    for size in [701u64, 720, 750, 1000, 5000, 30_000] {
        let (handle, _) = host.open(ino, WRITE).await.unwrap();
        host.allocate(handle, size).await.unwrap();
        host.close(handle).await.unwrap();
        assert_eq!(store.whole("f").unwrap().len() as u64, size);
        assert!(store.whole("f").unwrap()[700..].iter().all(|b| *b == 0));
    }
    let names = store.names();
    let zeros = names.iter().filter(|name| name.contains("/zeros/"));
    let (mut largest, mut plain) = (0, 0);
    for name in zeros {
        let stat = store.head(name).await.unwrap();
        largest = largest.max(stat.bytes);
        if stat.form == Form::Plain {
            plain = plain.max(stat.bytes);
        }
    }
    assert!(largest == 64 * 256 && plain == 4, "{names:?}");
}

#[tokio::test(start_paused = true)]
async fn a_file_is_not_flattened_while_it_is_written_here() {
    let store = MemoryStore::default();
    let host = host_that_flattens(&store, Some(Duration::from_secs(2)));
    host.put("f", &pattern(100)).await.unwrap();
    let ino = host.ino("f").await.unwrap();
    let (handle, _) = host.open(ino, WRITE).await.unwrap();
    for number in 0..RECORDS {
        let offset = (number * 2 * RECORD) as u64;
        let written = host.write(handle, offset, record(number).into(), false);
        written.await.unwrap();
    }
    host.sync(handle).await.unwrap();
    let written = host.write(handle, 5, vec![1].into(), false);
    written.await.unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    let is_index = |name: &String| name.ends_with(".parts");
    assert!(needed(&store, "f").await.iter().any(is_index));
    host.close(handle).await.unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    host.settle().await;
    assert!(!needed(&store, "f").await.iter().any(is_index));
}

/// The host that is killed, once it has the turn.
#[derive(Default)]
struct Victim {
    host: Option<usize>,
    requests: usize,
    killed: Option<tokio::time::Instant>,
    /// The calls of each host.
    calls: Vec<tokio::task::AbortHandle>,
}

/// Hosts that close one file at once, of which the first that has the turn is killed before a later
/// request of its own. Returns false if it has made fewer.
async fn killed_in_its_turn(seed: u64, number: usize) -> bool {
    let store = MemoryStore::default();
    store.take_turns(seed);
    let victim = Arc::new(Mutex::new(Victim::default()));
    let links: Vec<_> = (0..WRITERS).map(|_| store.beside()).collect();
    let hosts: Vec<_> = links.iter().map(host).collect();
    hosts[0].put("f", &pattern(100)).await.unwrap();
    // Each of them has stored one record before.
    let last = WRITERS * RECORDS;
    for (writer, host) in hosts.iter().enumerate() {
        let (handle, _) = host
            .open(host.ino("f").await.unwrap(), WRITE)
            .await
            .unwrap();
        let place = last + writer;
        let written = host.write(handle, (place * RECORD) as u64, record(place).into(), false);
        written.await.unwrap();
        host.close(handle).await.unwrap();
    }
    for (me, link) in links.iter().enumerate() {
        let victim = victim.clone();
        link.fail(move |verb, name| {
            let mut victim = victim.lock();
            if victim.host.is_none() && verb == "PUT" && name.ends_with("/turn") {
                victim.host = Some(me);
                return None;
            }
            if victim.host != Some(me) {
                return None;
            }
            victim.requests += 1;
            if victim.requests <= number {
                return None;
            }
            victim.killed.get_or_insert_with(tokio::time::Instant::now);
            victim.calls[me].abort();
            Some(Why::Unavailable)
        });
    }
    let calls: Vec<_> = hosts
        .iter()
        .enumerate()
        .map(|(me, host)| tokio::spawn(write(host.clone(), store.clone(), me, WRITERS)))
        .collect();
    victim.lock().calls = calls.iter().map(|call| call.abort_handle()).collect();
    let mut ended = Vec::new();
    for call in calls {
        ended.push(call.await.is_ok());
    }
    let (me, killed) = {
        let victim = victim.lock();
        (victim.host.unwrap(), victim.killed)
    };
    let Some(killed) = killed else {
        return false;
    };
    assert!(
        killed.elapsed() < Duration::from_secs(4),
        "{:?}",
        killed.elapsed()
    );
    for (writer, has_ended) in ended.iter().enumerate() {
        let is_there = *has_ended && has(&store, writer, WRITERS);
        assert!(is_there || writer == me, "{number}: writer {writer}");
        let at = (last + writer) * RECORD;
        let stored = store.whole("f").unwrap().slice(at..at + RECORD);
        assert!(stored == record(last + writer), "{number}: writer {writer}");
    }
    true
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_killed_in_its_turn_keeps_nobody_for_long() {
    for seed in 0..5 {
        crate::simulated::begin(seed, None);
        let mut killed = 0;
        while killed_in_its_turn(seed, killed).await {
            killed += 1;
        }
        // Each of its requests until the turn is removed.
        assert!(killed > 2, "{killed}");
    }
    crate::simulated::end();
}
