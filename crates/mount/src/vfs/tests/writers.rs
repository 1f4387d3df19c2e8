//! Several mounts that write one file concurrently: their calls to the store are interleaved at
//! random, responses get lost, and in the end every byte is there exactly once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

const MOUNTS: usize = 3;
const RECORDS: usize = 12;

/// Fault injection of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Weather {
    Fair,
    /// Some writes fail before they are carried out, some responses get lost.
    Foul,
}

fn store(seed: u64, weather: Weather) -> MemoryStore {
    let store = MemoryStore::default();
    store.take_turns(seed);
    if weather == Weather::Foul {
        store.fail(strikes(seed + 1));
        store.lose(strikes(seed + 2));
    }
    store
}

/// Selects every eighth upload of the file, at random.
fn strikes(seed: u64) -> impl FnMut(&str, &str) -> Option<Why> + Send + 'static {
    let mut random = StdRng::seed_from_u64(seed);
    move |verb, name| {
        let is_file = verb == "PUT" && name == "f";
        (is_file && random.random_range(0..8) == 0).then_some(Why::Timeout)
    }
}

/// Repeats until the store accepts it: after a failed sync the caller must sync again. What is
/// never stored is missed in the end.
async fn sync(vfs: &Vfs<MemoryStore>, handle: u64) {
    for _ in 0..50 {
        if vfs.sync(handle).await.is_ok() {
            break;
        }
    }
}

/// Runs `writer` on several mounts concurrently; returns the file as another client then reads it.
async fn run<F>(store: &MemoryStore, writer: impl Fn(Arc<Vfs<MemoryStore>>, u64) -> F) -> Vec<u8>
where
    F: Future<Output = ()> + Send + 'static,
{
    let mounts = (0..MOUNTS).map(|_| Arc::new(mount(store)));
    let mounts: Vec<Arc<Vfs<MemoryStore>>> = mounts.collect();
    let tasks = mounts.iter().enumerate();
    let tasks: Vec<_> = tasks
        .map(|(i, vfs)| tokio::spawn(writer(vfs.clone(), i as u64)))
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    for vfs in &mounts {
        vfs.commit_all(|_| ()).await;
    }
    store.heal();
    // An unreadable file is wrong.
    store.whole("f").unwrap_or_default().to_vec()
}

/// Opens the file, which one of the mounts creates.
async fn opened(vfs: &Vfs<MemoryStore>, mode: OpenMode) -> u64 {
    vfs.create(ROOT, "f", OWNER, mode, false).await.unwrap().1
}

/// Writes every `MOUNTS`-th record of a file, in an order of its own, with occasional syncs.
async fn strides(store: &MemoryStore, seed: u64, record: usize) -> Vec<u8> {
    run(store, move |vfs, number| async move {
        let mut random = StdRng::seed_from_u64(seed * 10 + number);
        let handle = opened(&vfs, WRITE).await;
        let mut left: Vec<usize> = (0..RECORDS).collect();
        while !left.is_empty() {
            let index = left.swap_remove(random.random_range(0..left.len()));
            let place = index * MOUNTS + number as usize;
            let bytes = vec![place as u8 + 1; record];
            let offset = (place * record) as u64;
            vfs.write(handle, offset, bytes.into(), false)
                .await
                .unwrap();
            if random.random_range(0..3) == 0 {
                sync(&vfs, handle).await;
            }
        }
        sync(&vfs, handle).await;
        let _ = vfs.close(handle).await;
    })
    .await
}

fn strided(record: usize) -> Vec<u8> {
    let places = 0..(MOUNTS * RECORDS) as u8;
    places.flat_map(|place| vec![place + 1; record]).collect()
}

/// Appends records that contain their writer and number.
async fn appends(store: &MemoryStore, seed: u64, length: usize) -> Vec<u8> {
    run(store, move |vfs, number| async move {
        let mut random = StdRng::seed_from_u64(seed * 10 + number);
        let mut handle = opened(&vfs, APPEND).await;
        for record in 0..RECORDS {
            let text = line(number as usize, record, length);
            vfs.write(handle, 0, text.into(), false).await.unwrap();
            match random.random_range(0..4) {
                0 => sync(&vfs, handle).await,
                1 => {
                    sync(&vfs, handle).await;
                    let _ = vfs.close(handle).await;
                    handle = opened(&vfs, APPEND).await;
                }
                _ => {}
            }
        }
        sync(&vfs, handle).await;
        let _ = vfs.close(handle).await;
    })
    .await
}

fn line(writer: usize, record: usize, length: usize) -> Vec<u8> {
    format!("{writer}:{record:0>length$}\n").into_bytes()
}

/// Why a file is not the result of all appends: each record once, those of one writer in order.
fn check_appends(bytes: &[u8], length: usize) -> Result<(), String> {
    let text = String::from_utf8_lossy(bytes);
    for writer in 0..MOUNTS {
        let start = format!("{writer}:");
        let found: Vec<String> = text
            .lines()
            .filter(|line| line.starts_with(&start))
            .map(|line| format!("{line}\n"))
            .collect();
        let expected = (0..RECORDS).map(|record| line(writer, record, length));
        let expected: Vec<String> = expected
            .map(|line| String::from_utf8_lossy(&line).into_owned())
            .collect();
        if found != expected {
            return Err(format!("writer {writer}: {found:?}"));
        }
    }
    match text.lines().count() == MOUNTS * RECORDS {
        true => Ok(()),
        false => Err(format!("{} lines", text.lines().count())),
    }
}

#[tokio::test]
async fn strides_of_several_mounts_are_one_file() {
    for seed in 0..30 {
        for weather in [Weather::Fair, Weather::Foul] {
            // As a single object, and as a manifest over segments.
            for record in [1, 40] {
                let bytes = strides(&store(seed, weather), seed, record).await;
                let is_whole = bytes == strided(record);
                assert!(is_whole, "seed {seed}, {weather:?}, {record}");
            }
        }
    }
}

#[tokio::test]
async fn appends_of_several_mounts_lose_nothing_and_repeat_nothing() {
    for seed in 0..30 {
        for weather in [Weather::Fair, Weather::Foul] {
            for length in [1, 30] {
                let bytes = appends(&store(seed, weather), seed, length).await;
                let checked = check_appends(&bytes, length);
                assert_eq!(checked, Ok(()), "seed {seed}, {weather:?}, {length}");
            }
        }
    }
}

#[tokio::test]
async fn a_lost_swap_that_is_taken_for_won_is_found() {
    let (mut strides_lost, mut appends_lost) = (0, 0);
    for seed in 0..10 {
        let planted = store(seed, Weather::Fair);
        planted.plant_lost_swaps();
        strides_lost += u32::from(strides(&planted, seed, 40).await != strided(40));
        let planted = store(seed, Weather::Fair);
        planted.plant_lost_swaps();
        let bytes = appends(&planted, seed, 30).await;
        appends_lost += u32::from(check_appends(&bytes, 30).is_err());
    }
    assert!(
        strides_lost >= 8 && appends_lost >= 8,
        "{strides_lost}, {appends_lost}"
    );
}

#[tokio::test]
async fn a_name_is_made_exclusively_by_one_mount() {
    for seed in 0..50 {
        let store = MemoryStore::default();
        store.take_turns(seed);
        let mut random = StdRng::seed_from_u64(seed);
        store.lose(move |verb, name| {
            let is_file = verb == "PUT" && name == "f";
            (is_file && random.random_range(0..3) == 0).then_some(Why::Timeout)
        });
        let tries = (0..5).map(|_| {
            let vfs = mount(&store);
            tokio::spawn(async move { vfs.create(ROOT, "f", OWNER, WRITE, true).await })
        });
        let tries: Vec<_> = tries.collect();
        let mut made = 0;
        for tried in tries {
            match tried.await.unwrap() {
                Ok(_) => made += 1,
                Err(error) => assert!(matches!(error, FsError::Exists), "{error}"),
            }
        }
        assert_eq!(made, 1, "seed {seed}");
    }
}

#[tokio::test]
async fn a_file_that_one_mount_makes_is_there_before_it_is_closed() {
    let store = MemoryStore::default();
    let (one, two) = (mount(&store), mount(&store));
    let (attr, handle) = one.create(ROOT, "f", OWNER, WRITE, false).await.unwrap();
    let (other, _) = two.create(ROOT, "f", OWNER, WRITE, false).await.unwrap();
    assert_eq!(other.attributes.mode, attr.attributes.mode);
    assert!(two.ino("f").await.is_ok());
    one.write(handle, 0, pattern(10).into(), false)
        .await
        .unwrap();
    one.close(handle).await.unwrap();
    assert!(two.get("f").await.unwrap() == pattern(10));
    // A file made to be truncated is stored once, when it is closed.
    store.take_calls();
    let (_, handle) = one.create(ROOT, "g", OWNER, TRUNCATE, false).await.unwrap();
    one.write(handle, 0, pattern(10).into(), false)
        .await
        .unwrap();
    one.close(handle).await.unwrap();
    let puts = store
        .take_calls()
        .into_iter()
        .filter(|call| call == "PUT g");
    assert_eq!(puts.count(), 1);
}

#[tokio::test]
async fn mounts_that_make_a_file_together_have_one() {
    for seed in 0..50 {
        let store = MemoryStore::default();
        store.take_turns(seed);
        let tries = (0..5u64).map(|number| {
            let vfs = mount(&store);
            tokio::spawn(async move {
                let made = vfs.create(ROOT, "f", OWNER, WRITE, false).await;
                let (_, handle) = made.unwrap();
                let byte = vec![number as u8 + 1].into();
                vfs.write(handle, number, byte, false).await.unwrap();
                vfs.close(handle).await.unwrap();
            })
        });
        for tried in tries.collect::<Vec<_>>() {
            tried.await.unwrap();
        }
        assert_eq!(
            store.whole("f").unwrap()[..],
            [1, 2, 3, 4, 5],
            "seed {seed}"
        );
    }
}

#[tokio::test]
async fn a_rename_takes_along_what_is_written_meanwhile() {
    for seed in 0..40 {
        for size in [20, 600] {
            let store = MemoryStore::default();
            let (one, two) = (mount(&store), mount(&store));
            one.put("f", &pattern(size)).await.unwrap();
            let ino = two.ino("f").await.unwrap();
            let (handle, _) = two.open(ino, WRITE).await.unwrap();
            two.write(handle, 3, vec![0xbb; 4].into(), false)
                .await
                .unwrap();
            store.take_turns(seed);
            let rename = tokio::spawn(async move {
                let renamed = one.rename((ROOT, "f"), (ROOT, "g"), false).await;
                renamed.map(|()| one)
            });
            let closed = two.sync(handle).await;
            rename.await.unwrap().unwrap();
            let mut expected = pattern(size);
            let found = store.whole("g").unwrap();
            // The write preceded the rename, or found the name gone.
            if closed.is_ok() && store.whole("f").is_err() {
                expected[3..7].fill(0xbb);
            }
            assert!(found == expected, "seed {seed}, {size}, {closed:?}");
        }
    }
}

#[tokio::test]
async fn what_was_written_unnoticed_is_not_appended_again() {
    for size in [10, 300] {
        let store = MemoryStore::default();
        let (one, two) = (mount(&store), mount(&store));
        one.put("f", &pattern(size)).await.unwrap();
        let mut handles = Vec::new();
        for vfs in [&one, &two] {
            let ino = vfs.ino("f").await.unwrap();
            handles.push(vfs.open(ino, APPEND).await.unwrap().0);
        }
        let append = async |vfs: &Vfs<MemoryStore>, handle: usize, text: &'static str| {
            let written = vfs.write(handles[handle], 0, text.into(), false);
            written.await.unwrap();
        };
        append(&one, 0, "first").await;
        // The response gets lost, and then the store becomes unreachable.
        let (down, goes) = (store.clone(), store.clone());
        store.lose(move |verb, name| {
            let is_file = verb == "PUT" && name == "f";
            if is_file {
                goes.fail(|_, _| Some(Why::Unavailable));
            }
            is_file.then_some(Why::Timeout)
        });
        assert!(one.sync(handles[0]).await.is_err());
        down.heal();
        append(&two, 1, "second").await;
        two.sync(handles[1]).await.unwrap();
        append(&one, 0, "third").await;
        one.sync(handles[0]).await.unwrap();
        let expected = [&pattern(size)[..], b"firstsecondthird"].concat();
        assert!(store.whole("f").unwrap() == expected, "{size}");
    }
}

#[tokio::test]
async fn a_store_without_conditions_is_looked_at_before_each_write() {
    for size in [20, 600] {
        let store = MemoryStore::default();
        store.decide_nothing();
        let (one, two) = (mount(&store), mount(&store));
        one.put("f", &pattern(size)).await.unwrap();
        let ino = two.ino("f").await.unwrap();
        let (handle, _) = two.open(ino, APPEND).await.unwrap();
        two.write(handle, 0, "two".into(), false).await.unwrap();
        let ino = one.ino("f").await.unwrap();
        let (other, _) = one.open(ino, APPEND).await.unwrap();
        one.write(other, 0, "one".into(), false).await.unwrap();
        one.close(other).await.unwrap();
        two.close(handle).await.unwrap();
        let expected = [&pattern(size)[..], b"onetwo"].concat();
        assert!(store.whole("f").unwrap() == expected, "{size}");
        // A file is truncated by its next commit, and created by its first.
        store.take_calls();
        let (handle, _) = one.open(ino, TRUNCATE).await.unwrap();
        one.create(ROOT, "g", OWNER, WRITE, true).await.unwrap();
        let calls = store.take_calls();
        assert!(
            !calls.iter().any(|call| call.starts_with("PUT")),
            "{calls:?}"
        );
        one.close(handle).await.unwrap();
        assert!(store.whole("f").unwrap().is_empty());
    }
}

/// A revalidation may bring another version between the steps of a write.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_look_between_takes_no_write_away() {
    const WRITES: usize = 3000;
    let store = MemoryStore::default();
    let (one, two) = (Arc::new(mount(&store)), mount(&store));
    let ino = one.put("f", b"").await.unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let looks = (0..3).map(|_| {
        let (one, is_over) = (one.clone(), is_over.clone());
        tokio::spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                one.getattr(ino).await.unwrap();
                tokio::task::yield_now().await;
            }
        })
    });
    let looks: Vec<_> = looks.collect();
    let (first, _) = one.open(ino, APPEND).await.unwrap();
    let (second, _) = two.open(two.ino("f").await.unwrap(), APPEND).await.unwrap();
    for _ in 0..WRITES {
        two.write(second, 0, "b".into(), false).await.unwrap();
        two.sync(second).await.unwrap();
        one.write(first, 0, "a".into(), false).await.unwrap();
        one.sync(first).await.unwrap();
    }
    is_over.store(true, Ordering::Relaxed);
    for look in looks {
        look.await.unwrap();
    }
    let bytes = store.whole("f").unwrap();
    let count = |byte: u8| bytes.iter().filter(|is| **is == byte).count();
    assert_eq!((count(b'a'), count(b'b')), (WRITES, WRITES));
}

/// The response to its creation gets lost, and another mount writes it before the first looks at it.
#[tokio::test]
async fn a_file_that_was_made_in_doubt_has_what_others_have_written() {
    for seed in 0..60 {
        let store = MemoryStore::default();
        let (one, two) = (mount(&store), mount(&store));
        store.take_turns(seed);
        let mut is_first = true;
        store.lose(move |verb, name| {
            let is_it = verb == "PUT" && name == "f" && std::mem::take(&mut is_first);
            is_it.then_some(Why::Timeout)
        });
        let write = async {
            let ino = loop {
                match two.ino("f").await {
                    Ok(ino) => break ino,
                    Err(_) => tokio::task::yield_now().await,
                }
            };
            let (handle, _) = two.open(ino, APPEND).await.unwrap();
            two.write(handle, 0, "two".into(), false).await.unwrap();
            two.close(handle).await.unwrap();
        };
        let (made, ()) = tokio::join!(one.create(ROOT, "f", OWNER, APPEND, true), write);
        let (_, handle) = made.unwrap();
        one.write(handle, 0, "one".into(), false).await.unwrap();
        one.close(handle).await.unwrap();
        assert_eq!(store.whole("f").unwrap(), "twoone", "seed {seed}");
    }
}

#[tokio::test]
async fn a_directory_s_rename_takes_along_what_is_written_meanwhile() {
    for seed in 0..100 {
        for size in [20, 600] {
            let store = MemoryStore::default();
            let (one, two) = (mount(&store), mount(&store));
            one.mkdir(ROOT, "from", OWNER).await.unwrap();
            one.put("from/f", &pattern(size)).await.unwrap();
            let ino = two.ino("from/f").await.unwrap();
            let (handle, _) = two.open(ino, WRITE).await.unwrap();
            two.write(handle, 3, vec![0xbb; 4].into(), false)
                .await
                .unwrap();
            store.take_turns(seed);
            let sync = async {
                for _ in 0..seed {
                    tokio::task::yield_now().await;
                }
                two.sync(handle).await
            };
            let rename = one.rename((ROOT, "from"), (ROOT, "to"), false);
            let (renamed, synced) = tokio::join!(rename, sync);
            renamed.unwrap();
            let mut written = pattern(size);
            written[3..7].fill(0xbb);
            let (old, new) = (store.whole("from/f"), store.whole("to/f").unwrap());
            let is_there = new == written || old.is_ok_and(|old| old == written);
            assert!(synced.is_err() || is_there, "seed {seed}, {size}");
            assert!(
                new == written || new == pattern(size),
                "seed {seed}, {size}"
            );
        }
    }
}
