//! Sweeps, pins, and interrupted renames.

use super::*;
use crate::store::Expect;
use crate::sweep::{SweepOptions, Swept};

const SWEEP: SweepOptions = SweepOptions {
    grace: Duration::ZERO,
    ignores_pins: false,
};

async fn sweep(store: &MemoryStore, options: SweepOptions) -> Swept {
    mount(store).committer.sweep(options).await.unwrap()
}

#[tokio::test]
async fn what_nothing_refers_to_goes_after_the_grace_period() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    vfs.put("kept", &pattern(1000)).await.unwrap();
    vfs.settle().await;
    let needed = segments(&store);
    let killed = mount(&store);
    for _ in 0..3 {
        let id = crate::commit::random_id();
        killed
            .committer
            .upload(&id, vec![pattern(50).into()])
            .await
            .unwrap();
    }
    store.write(".segments/mine", "t", b"of another program");
    let day = SweepOptions {
        grace: Duration::from_secs(86_400),
        ..SWEEP
    };
    let swept = sweep(&store, day).await;
    assert_eq!((swept.waiting, swept.removed), (3, 0), "{swept:?}");
    assert_eq!(sweep(&store, day).await.waiting, 3);
    let swept = sweep(&store, SWEEP).await;
    assert_eq!((swept.waiting, swept.removed), (0, 3), "{swept:?}");
    assert_eq!(swept.removed_bytes, 150);
    let mut left = needed;
    left.push(".segments/mine".to_owned());
    left.sort();
    assert_eq!(segments(&store), left);
    assert!(vfs.get("kept").await.unwrap() == pattern(1000));
}

#[tokio::test]
async fn nested_manifests_and_what_they_refer_to_stay() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    let ino = vfs.put("f", &pattern(2000)).await.unwrap();
    let (handle, _) = vfs.open(ino, WRITE).await.unwrap();
    for i in 0..60u64 {
        vfs.write(handle, 30 * i, vec![7; 3].into(), false)
            .await
            .unwrap();
        vfs.sync(handle).await.unwrap();
    }
    vfs.close(handle).await.unwrap();
    vfs.settle().await;
    assert!(store.names().iter().any(|name| name.ends_with(".parts")));
    let before = segments(&store);
    let swept = sweep(&store, SWEEP).await;
    assert_eq!((swept.removed, swept.large_objects), (0, 1), "{swept:?}");
    assert_eq!(segments(&store), before);
}

/// A file that is open without a name, and one with uploaded but uncommitted data, during a sweep
/// by another mount. Returns whether both are intact afterwards.
async fn held_during_a_sweep(options: SweepOptions) -> bool {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    let ino = vfs.put("unlinked", &pattern(1000)).await.unwrap();
    vfs.settle().await;
    let (reader, _) = vfs.open(ino, READ).await.unwrap();
    vfs.unlink(ROOT, "unlinked").await.unwrap();
    let (_, writer) = vfs.create(ROOT, "new", OWNER, WRITE, false).await.unwrap();
    for i in 0..12u64 {
        let bytes = pattern(100).into();
        vfs.write(writer, 100 * i, bytes, false).await.unwrap();
    }
    let node = vfs.node(vfs.ino("new").await.unwrap()).unwrap();
    vfs.await_uploads(&node).await.unwrap();
    vfs.pin_held().await.unwrap();
    let swept = sweep(&store, options).await;
    let is_read = match vfs.read(reader, 0, 2000).await {
        Ok(pieces) => pieces.concat() == pattern(1000),
        Err(_) => false,
    };
    let is_written = vfs.close(writer).await.is_ok() && store.whole("new").is_ok();
    if is_read && is_written {
        assert!(swept.pinned > 0, "{swept:?}");
        vfs.close(reader).await.unwrap();
        vfs.settle().await;
        vfs.unpin().await.unwrap();
        assert_eq!(segments(&store), needed(&store, "new").await);
    }
    is_read && is_written
}

#[tokio::test]
async fn a_sweep_leaves_what_is_open_somewhere() {
    assert!(held_during_a_sweep(SWEEP).await);
    // The test detects a sweep that ignores pins.
    let planted = SweepOptions {
        ignores_pins: true,
        ..SWEEP
    };
    assert!(!held_during_a_sweep(planted).await);
}

#[tokio::test]
async fn segments_of_a_broken_rename_go_with_the_last_name() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    let ino = vfs.put("a", &pattern(1000)).await.unwrap();
    vfs.settle().await;
    // Both names exist, and the mark.
    store.fail(|verb, name| (verb == "DELETE" && name == "a").then_some(Why::Unavailable));
    assert!(vfs.rename((ROOT, "a"), (ROOT, "b"), false).await.is_err());
    store.heal();
    drop(vfs);
    let before = segments(&store);
    assert!(
        before.iter().any(|name| name.ends_with("/shared")),
        "{ino}: {before:?}"
    );
    assert_eq!(sweep(&store, SWEEP).await.removed, 0);
    assert_eq!(segments(&store), before);
    let later = mount(&store);
    later.unlink(ROOT, "a").await.unwrap();
    later.settle().await;
    assert_eq!(sweep(&store, SWEEP).await.removed, 0);
    assert!(later.get("b").await.unwrap() == pattern(1000));
    // One name is left: its segments are its own again.
    assert!(
        !segments(&store)
            .iter()
            .any(|name| name.ends_with("/shared"))
    );
    later.unlink(ROOT, "b").await.unwrap();
    later.settle().await;
    sweep(&store, SWEEP).await;
    assert!(segments(&store).is_empty(), "{:?}", segments(&store));
}

#[tokio::test]
async fn a_directory_s_rename_that_broke_off_is_finished() {
    for breaks_at in 0..60 {
        let store = MemoryStore::default();
        let vfs = mount(&store);
        vfs.mkdir(ROOT, "from", OWNER).await.unwrap();
        let from = vfs.ino("from").await.unwrap();
        vfs.mkdir(from, "inner", OWNER).await.unwrap();
        for (name, bytes) in [("from/a", 10), ("from/b", 1000), ("from/inner/c", 30)] {
            vfs.put(name, &pattern(bytes)).await.unwrap();
        }
        vfs.settle().await;
        let mut left = breaks_at;
        store.fail(move |_, _| {
            left -= 1;
            (left < 0).then_some(Why::Unavailable)
        });
        let renamed = vfs.rename((ROOT, "from"), (ROOT, "to"), false).await;
        store.heal();
        drop(vfs);
        let other = mount(&store);
        other.resume_renames(Duration::ZERO).await.unwrap();
        let is_whole = |names: &[String]| names == ["a", "b", "inner"];
        let (old, new) = match other.ino("to").await {
            Ok(_) => (other.ino("from").await.is_ok(), true),
            Err(_) => (true, false),
        };
        assert!(old != new, "{breaks_at}: {:?}", store.names());
        let at = if new { "to" } else { "from" };
        assert!(renamed.is_err() || new, "{breaks_at}");
        assert!(
            is_whole(&other.names(at).await),
            "{breaks_at}: {:?}",
            store.names()
        );
        for (name, bytes) in [("a", 10), ("b", 1000), ("inner/c", 30)] {
            let read = other.get(&format!("{at}/{name}")).await.unwrap();
            assert!(read == pattern(bytes), "{breaks_at}: {name}");
        }
        let is_left = |name: &String| name.starts_with(".segments/intents/");
        assert!(!store.names().iter().any(is_left), "{breaks_at}");
        assert_eq!(sweep(&store, SWEEP).await.pinned, 0);
        assert!(other.get(&format!("{at}/b")).await.unwrap() == pattern(1000));
    }
}

#[tokio::test]
async fn a_rename_that_cannot_be_finished_does_not_keep_others_from_it() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    for name in ["a", "b", "c"] {
        vfs.mkdir(ROOT, name, OWNER).await.unwrap();
        vfs.put(&format!("{name}/file"), b"bytes").await.unwrap();
    }
    store.fail(|verb, name| {
        let is_move = verb == "COPY" || verb == "DELETE" && name.contains("intents");
        is_move.then_some(Why::Unavailable)
    });
    for name in ["a", "b", "c"] {
        let new = format!("new-{name}");
        let renamed = vfs.rename((ROOT, name), (ROOT, &new), false).await;
        assert!(renamed.is_err());
    }
    store.fail(|verb, name| (verb == "COPY" && name.starts_with("b")).then_some(Why::Refused));
    drop(vfs);
    let other = mount(&store);
    assert!(other.resume_renames(Duration::ZERO).await.is_err());
    for name in ["new-a/file", "new-c/file", "b/file"] {
        assert_eq!(other.get(name).await.unwrap(), b"bytes", "{name}");
    }
    let is_intent = |name: &String| name.starts_with(".segments/intents/");
    let left: Vec<String> = store.names().into_iter().filter(is_intent).collect();
    assert_eq!(left.len(), 1, "{left:?}");
    store.heal();
    other.resume_renames(Duration::ZERO).await.unwrap();
    assert_eq!(other.get("new-b/file").await.unwrap(), b"bytes");
}

/// A store that was killed in the middle of a copy may have the object and no row of it.
#[tokio::test]
async fn what_was_copied_already_is_listed_again_before_its_old_name_goes() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    vfs.mkdir(ROOT, "from", OWNER).await.unwrap();
    vfs.put("from/a", &pattern(10)).await.unwrap();
    let is_old = |name: &str| name.starts_with("from");
    store.fail(move |verb, name| (verb == "DELETE" && is_old(name)).then_some(Why::Unavailable));
    let renamed = vfs.rename((ROOT, "from"), (ROOT, "to"), false).await;
    assert!(renamed.is_err());
    store.heal();
    drop(vfs);
    store.take_calls();
    let other = mount(&store);
    other.resume_renames(Duration::ZERO).await.unwrap();
    let calls = store.take_calls();
    let at = |call: &str| calls.iter().position(|made| made == call);
    assert!(at("POST to/a").is_some(), "{calls:?}");
    assert!(at("POST to/a") < at("DELETE from/a"), "{calls:?}");
    assert!(other.get("to/a").await.unwrap() == pattern(10));
    assert!(other.ino("from").await.is_err());
}

/// Another host gives the copy a second name before the old one has gone.
#[tokio::test]
async fn what_was_copied_and_is_a_hard_link_now_is_moved() {
    for bytes in [10, 1000] {
        let store = MemoryStore::default();
        store.tell_links_apart();
        let vfs = mount(&store);
        vfs.mkdir(ROOT, "from", OWNER).await.unwrap();
        vfs.put("from/a", &pattern(bytes)).await.unwrap();
        store.fail(|verb, name| {
            (verb == "DELETE" && name.starts_with("from")).then_some(Why::Unavailable)
        });
        let renamed = vfs.rename((ROOT, "from"), (ROOT, "to"), false).await;
        assert!(renamed.is_err());
        store.heal();
        drop(vfs);
        let other = mount(&store);
        let ino = other.ino("to/a").await.unwrap();
        other.link(ino, ROOT, "b").await.unwrap();
        other.resume_renames(Duration::ZERO).await.unwrap();
        assert!(other.ino("from").await.is_err());
        other.settle().await;
        sweep(&store, SWEEP).await;
        for name in ["to/a", "b"] {
            assert!(other.get(name).await.unwrap() == pattern(bytes), "{name}");
        }
    }
}

#[tokio::test]
async fn what_was_written_under_the_new_name_meanwhile_stays() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    vfs.mkdir(ROOT, "from", OWNER).await.unwrap();
    vfs.put("from/a", b"old").await.unwrap();
    vfs.settle().await;
    store.fail(|verb, _| (verb == "DELETE").then_some(Why::Unavailable));
    // The probe object for the store's time is deleted too.
    let intent = vfs.committer.intend("from", "to").await;
    store.heal();
    let intent = match intent {
        Ok(intent) => intent,
        Err(_) => vfs.committer.intend("from", "to").await.unwrap(),
    };
    drop(intent);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    store.write("to/a", "t", b"new");
    vfs.resume_renames(Duration::ZERO).await.unwrap();
    assert_eq!(store.whole("to/a").unwrap(), "new");
    assert_eq!(store.whole("from/a").unwrap(), "old");
    store.delete("to/a", Expect::Anything).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_intent_of_a_rename_that_is_done_goes_with_a_later_try() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    vfs.mkdir(ROOT, "from", OWNER).await.unwrap();
    vfs.put("from/a", b"bytes").await.unwrap();
    let is_intent = |name: &str| name.starts_with(".segments/intents/");
    store.fail(move |verb, name| {
        let is_its_end = verb == "DELETE" && is_intent(name);
        is_its_end.then_some(Why::Unavailable)
    });
    vfs.rename((ROOT, "from"), (ROOT, "to"), false)
        .await
        .unwrap();
    store.heal();
    vfs.mkdir(ROOT, "from", OWNER).await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let left = store.names().into_iter().any(|name| is_intent(&name));
    assert!(!left, "another mount would move the new directory");
}

/// Uploads a segment that nothing refers to; returns its name.
async fn garbage(store: &MemoryStore) -> String {
    let (killed, id) = (mount(store), crate::commit::random_id());
    let uploaded = killed.committer.upload(&id, vec![pattern(50).into()]);
    uploaded.await.unwrap().name.name.to_string()
}

/// The part of a file whose loss makes it unreadable to a sweep.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lost {
    Head,
    Manifest,
    Index,
}

#[tokio::test(start_paused = true)]
async fn a_file_that_cannot_be_read_keeps_what_it_may_refer_to_and_no_more() {
    crate::simulated::begin(1, None);
    for lost in [Lost::Head, Lost::Manifest, Lost::Index] {
        let store = MemoryStore::default();
        let vfs = mount(&store);
        vfs.put("good", &pattern(1000)).await.unwrap();
        let ino = vfs.put("bad", &pattern(2000)).await.unwrap();
        let (handle, _) = vfs.open(ino, WRITE).await.unwrap();
        for i in 0..60u64 {
            let bytes = vec![7; 3].into();
            vfs.write(handle, 30 * i, bytes, false).await.unwrap();
            vfs.sync(handle).await.unwrap();
        }
        vfs.close(handle).await.unwrap();
        let bad = vfs.get("bad").await.unwrap();
        // A rename of the other file breaks off: two names, and a mark.
        store.fail(|verb, name| (verb == "DELETE" && name == "good").then_some(Why::Refused));
        let renamed = vfs.rename((ROOT, "good"), (ROOT, "other"), false).await;
        assert!(renamed.is_err());
        store.heal();
        vfs.settle().await;
        let before = garbage(&store).await;
        let held = segments(&store);
        tokio::time::advance(Duration::from_secs(7200)).await;
        let behind = garbage(&store).await;
        store.fail(move |verb, name| {
            let fails = match lost {
                Lost::Head => verb == "HEAD" && name == "bad",
                Lost::Manifest => verb == "MANIFEST" && name == "bad",
                Lost::Index => verb == "MANIFEST" && name.ends_with(".parts"),
            };
            let why = if lost == Lost::Index {
                Why::NotFound
            } else {
                Why::Refused
            };
            fails.then_some(why)
        });
        let swept = sweep(&store, SWEEP).await;
        let failed: Vec<&str> = swept.failures.iter().map(|f| &*f.name).collect();
        assert_eq!(failed, ["bad"], "{lost:?}: {swept:?}");
        assert_eq!(
            (swept.removed, swept.waiting),
            (1, 0),
            "{lost:?}: {swept:?}"
        );
        assert!(swept.doubtful > 1, "{lost:?}: {swept:?}");
        assert!(!store.names().contains(&behind), "{lost:?}");
        assert_eq!(segments(&store), held, "{lost:?}");
        store.heal();
        let swept = sweep(&store, SWEEP).await;
        assert_eq!(
            (swept.removed, swept.doubtful),
            (1, 0),
            "{lost:?}: {swept:?}"
        );
        assert!(swept.failures.is_empty() && !store.names().contains(&before));
        assert!(vfs.get("bad").await.unwrap() == bad, "{lost:?}");
        assert!(vfs.get("other").await.unwrap() == pattern(1000), "{lost:?}");
    }
    crate::simulated::end();
}

#[tokio::test]
async fn a_row_without_an_object_and_a_segment_that_stays_do_not_end_a_sweep() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    for name in ["gone", "there"] {
        vfs.put(name, &pattern(1000)).await.unwrap();
    }
    vfs.settle().await;
    let held = segments(&store);
    store.fail(|verb, name| (verb == "HEAD" && name == "gone").then_some(Why::NotFound));
    garbage(&store).await;
    let swept = sweep(&store, SWEEP).await;
    assert_eq!(swept.failures.len(), 1, "{swept:?}");
    assert_eq!(
        (swept.removed, swept.doubtful as usize),
        (0, held.len() / 2 + 1)
    );
    store.heal();
    let stays = garbage(&store).await;
    store.fail(move |verb, name| (verb == "DELETE" && name == stays).then_some(Why::Refused));
    let swept = sweep(&store, SWEEP).await;
    assert_eq!((swept.removed, swept.failures.len()), (1, 1), "{swept:?}");
    store.fail(|verb, name| (verb == "HEAD" && name == "gone").then_some(Why::Denied));
    let options = SWEEP;
    assert!(mount(&store).committer.sweep(options).await.is_err());
}
