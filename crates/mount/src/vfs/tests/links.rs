//! Hard links: several names of one file, on one mount and on two.

use bytes::Bytes;

use super::*;
use crate::store::Expect;
use crate::sweep::SweepOptions;

async fn file(vfs: &Vfs<MemoryStore>, name: &str, bytes: &'static [u8]) -> u64 {
    let (attr, handle) = vfs.create(ROOT, name, OWNER, WRITE, true).await.unwrap();
    vfs.write(handle, 0, bytes.into(), false).await.unwrap();
    vfs.close(handle).await.unwrap();
    attr.ino
}

async fn content(vfs: &Vfs<MemoryStore>, name: &str) -> Vec<u8> {
    let attr = vfs.lookup(ROOT, name).await.unwrap();
    let (handle, _) = vfs.open(attr.ino, READ).await.unwrap();
    let read = vfs.read(handle, 0, 4096).await.unwrap().concat();
    vfs.release(handle).await.unwrap();
    read
}

async fn write(vfs: &Vfs<MemoryStore>, name: &str, offset: u64, bytes: &'static [u8]) {
    let attr = vfs.lookup(ROOT, name).await.unwrap();
    let (handle, _) = vfs.open(attr.ino, WRITE).await.unwrap();
    vfs.write(handle, offset, bytes.into(), false)
        .await
        .unwrap();
    vfs.close(handle).await.unwrap();
}

async fn nlink(vfs: &Vfs<MemoryStore>, name: &str) -> u32 {
    vfs.lookup(ROOT, name).await.unwrap().nlink
}

/// Names below `.segments/`, which are none once a container has no large files and no links.
fn own(store: &MemoryStore) -> Vec<String> {
    let names = store.names().into_iter();
    names.filter(|name| name.starts_with(SEGMENTS)).collect()
}

#[tokio::test]
async fn several_names_are_one_file_to_everyone() {
    // As a single object, and as a manifest over segments.
    for bytes in [&b"some bytes"[..], &[7; 600]] {
        let store = MemoryStore::default();
        let (here, there) = (mount(&store), mount(&store));
        let ino = file(&here, "a", bytes).await;
        let linked = here.link(ino, ROOT, "b").await.unwrap();
        assert_eq!((linked.ino, linked.nlink), (ino, 2));
        let mut changed = bytes.to_vec();
        for (vfs, name, offset, new) in [
            (&here, "b", 0, &b"one"[..]),
            (&there, "a", 3, &b"two"[..]),
            (&there, "b", 6, &b"3"[..]),
            (&here, "a", 7, &b"4"[..]),
        ] {
            write(vfs, name, offset, new).await;
            changed[offset as usize..][..new.len()].copy_from_slice(new);
            for name in ["a", "b"] {
                for vfs in [&here, &there] {
                    assert_eq!(content(vfs, name).await, changed);
                    assert_eq!(nlink(vfs, name).await, 2);
                }
                assert_eq!(store.whole(name).unwrap(), changed, "another client's GET");
            }
        }
        let [a, b] = [there.lookup(ROOT, "a"), there.lookup(ROOT, "b")];
        assert_eq!(a.await.unwrap().ino, b.await.unwrap().ino);
        there
            .link(ino_of(&there, "b").await, ROOT, "c")
            .await
            .unwrap();
        assert_eq!(nlink(&here, "a").await, 3);
        for (vfs, name, left) in [(&here, "a", "c"), (&there, "c", "b")] {
            vfs.unlink(ROOT, name).await.unwrap();
            assert!(vfs.lookup(ROOT, name).await.is_err());
            for vfs in [&here, &there] {
                assert_eq!(content(vfs, left).await, changed);
            }
        }
        assert_eq!(nlink(&here, "b").await, 1);
        here.unlink(ROOT, "b").await.unwrap();
        here.settle().await;
        assert_eq!(store.names(), [""; 0]);
    }
}

async fn ino_of(vfs: &Vfs<MemoryStore>, name: &str) -> u64 {
    vfs.lookup(ROOT, name).await.unwrap().ino
}

#[tokio::test]
async fn a_name_that_is_there_stays_and_is_not_counted() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    let ino = file(&vfs, "a", b"one").await;
    file(&vfs, "b", b"two").await;
    let refused = vfs.link(ino, ROOT, "b").await;
    assert!(matches!(refused, Err(FsError::Exists)), "{refused:?}");
    // On another host, since this one looked.
    vfs.link(ino, ROOT, "c").await.unwrap();
    store.write("d", "text/plain", b"three");
    let refused = vfs.link(ino, ROOT, "d").await;
    assert!(matches!(refused, Err(FsError::Exists)), "{refused:?}");
    assert_eq!(nlink(&vfs, "a").await, 2);
    assert_eq!(content(&vfs, "d").await, b"three");
}

#[tokio::test]
async fn an_open_file_is_read_behind_its_last_name() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    let ino = file(&vfs, "a", b"bytes").await;
    vfs.link(ino, ROOT, "b").await.unwrap();
    let (handle, _) = vfs.open(ino, WRITE).await.unwrap();
    vfs.unlink(ROOT, "a").await.unwrap();
    vfs.unlink(ROOT, "b").await.unwrap();
    assert_eq!(vfs.read(handle, 0, 100).await.unwrap().concat(), b"bytes");
    vfs.write(handle, 5, Bytes::from_static(b"!"), false)
        .await
        .unwrap();
    assert_eq!(vfs.read(handle, 0, 100).await.unwrap().concat(), b"bytes!");
    vfs.close(handle).await.unwrap();
    vfs.settle().await;
    assert_eq!(store.names(), [""; 0]);
}

/// A file that is open on one host is written on when another host makes its first hard link.
#[tokio::test]
async fn open_files_follow_the_first_link() {
    let store = MemoryStore::default();
    let (here, there) = (mount(&store), mount(&store));
    file(&here, "a", b"abc").await;
    let ino = ino_of(&there, "a").await;
    let (handle, _) = there.open(ino, WRITE).await.unwrap();
    there
        .write(handle, 3, Bytes::from_static(b"def"), false)
        .await
        .unwrap();
    here.link(ino_of(&here, "a").await, ROOT, "b")
        .await
        .unwrap();
    there.close(handle).await.unwrap();
    for vfs in [&here, &there] {
        assert_eq!(content(vfs, "b").await, b"abcdef");
        assert_eq!(content(vfs, "a").await, b"abcdef");
    }
}

/// A listing, or a look at the other name, comes before the close.
#[tokio::test]
async fn open_files_follow_the_first_link_that_is_listed() {
    for is_listed in [true, false] {
        let store = MemoryStore::default();
        let (here, there) = (mount(&store), mount(&store));
        // As made by another mount: nothing has changed on this one.
        file(&here, "a", b"abc").await;
        let ino = ino_of(&there, "a").await;
        let (handle, _) = there.open(ino, WRITE).await.unwrap();
        let more = Bytes::from_static(b"def");
        there.write(handle, 3, more, false).await.unwrap();
        here.link(ino_of(&here, "a").await, ROOT, "b")
            .await
            .unwrap();
        if is_listed {
            there.names("").await;
        }
        for name in ["b", "a"] {
            there.lookup(ROOT, name).await.unwrap();
        }
        there.close(handle).await.unwrap();
        for name in ["a", "b"] {
            assert_eq!(content(&here, name).await, b"abcdef", "{is_listed}");
        }
    }
}

/// A file that is known says nothing of a name that another host has replaced, also while it is written.
#[tokio::test]
async fn a_replaced_name_is_noticed_beside_a_known_file() {
    for is_written in [false, true] {
        let store = MemoryStore::default();
        let mut vfs = mount(&store);
        vfs.options.fresh = Duration::from_millis(200);
        let ino = file(&vfs, "a", b"one").await;
        for name in ["b", "c"] {
            vfs.link(ino, ROOT, name).await.unwrap();
        }
        let (handle, _) = vfs.open(ino, WRITE).await.unwrap();
        if is_written {
            let more = Bytes::from_static(b"1");
            vfs.write(handle, 0, more, false).await.unwrap();
        }
        tokio::time::sleep(vfs.options.fresh * 2).await;
        store.write("b", "text/plain", b"two");
        store.delete("c", Expect::Anything).await.unwrap();
        assert_eq!(ino_of(&vfs, "a").await, ino);
        assert_eq!(content(&vfs, "b").await, b"two");
        let gone = vfs.lookup(ROOT, "c").await;
        assert!(matches!(gone, Err(FsError::NotFound)), "{gone:?}");
        vfs.close(handle).await.unwrap();
        let first: &[u8] = if is_written { b"1ne" } else { b"one" };
        assert_eq!(store.whole("a").unwrap(), first);
        assert_eq!(store.whole("b").unwrap(), &b"two"[..]);
    }
}

#[tokio::test]
async fn names_move_and_replace_each_other() {
    let store = MemoryStore::default();
    let (here, there) = (mount(&store), mount(&store));
    let ino = file(&here, "a", b"one").await;
    here.link(ino, ROOT, "b").await.unwrap();
    file(&here, "x", b"two").await;
    // Two names of one file: nothing happens.
    here.rename((ROOT, "a"), (ROOT, "b"), false).await.unwrap();
    assert_eq!(nlink(&here, "a").await, 2);
    // A link to a new name, and over another file.
    here.rename((ROOT, "a"), (ROOT, "c"), false).await.unwrap();
    assert!(there.lookup(ROOT, "a").await.is_err());
    here.rename((ROOT, "c"), (ROOT, "x"), false).await.unwrap();
    for vfs in [&here, &there] {
        assert_eq!(content(vfs, "x").await, b"one");
        assert_eq!(nlink(vfs, "b").await, 2);
    }
    // Another file over a link.
    file(&here, "y", b"three").await;
    there.rename((ROOT, "y"), (ROOT, "b"), false).await.unwrap();
    for vfs in [&here, &there] {
        assert_eq!(content(vfs, "b").await, b"three");
        assert_eq!(content(vfs, "x").await, b"one");
        assert_eq!(nlink(vfs, "x").await, 1);
    }
    // A directory with a link in it.
    let dir = here.mkdir(ROOT, "d", OWNER).await.unwrap();
    let ino = ino_of(&here, "x").await;
    here.link(ino, dir.ino, "in").await.unwrap();
    here.rename((ROOT, "d"), (ROOT, "e"), false).await.unwrap();
    for vfs in [&here, &there] {
        let dir = vfs.lookup(ROOT, "e").await.unwrap();
        let inner = vfs.lookup(dir.ino, "in").await.unwrap();
        assert_eq!((inner.ino, inner.nlink), (ino_of(vfs, "x").await, 2));
    }
    assert_eq!(store.whole("e/in").unwrap(), &b"one"[..]);
    assert!(store.whole("d/in").is_err());
}

#[tokio::test]
async fn listings_show_links_with_their_files_numbers() {
    let store = MemoryStore::default();
    let (here, there) = (mount(&store), mount(&store));
    let ino = file(&here, "a", b"bytes").await;
    here.link(ino, ROOT, "b").await.unwrap();
    let handle = there.opendir(ROOT).await.unwrap();
    let entries = there.readdir(ROOT, handle, 0).await.unwrap();
    let found: Vec<(String, u64)> = entries
        .into_iter()
        .filter(|entry| !entry.name.starts_with('.'))
        .map(|entry| (entry.name, entry.ino))
        .collect();
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(found[0].1, found[1].1);
    let attrs = there.readdir_plus(ROOT, handle, 0).await.unwrap();
    let of = |name: &str| attrs.iter().find(|(_, n, _)| n == name).unwrap().2.clone();
    assert_eq!((of("a").size, of("a").nlink), (5, 2));
    assert_eq!(of("a"), of("b"));
}

/// Two mounts make and remove names of one file while answers get lost: a name that is there always has
/// its file, and what is left counts what is there.
#[tokio::test]
async fn the_file_stays_as_long_as_it_has_a_name() {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    for seed in 0..60 {
        let store = MemoryStore::default();
        let vfs = mount(&store);
        file(&vfs, "a", b"bytes").await;
        store.take_turns(seed);
        let mut random = StdRng::seed_from_u64(seed);
        store.lose(move |verb, name| {
            let is_link = verb == "PUT" && !name.starts_with(SEGMENTS);
            (is_link && random.random_range(0..6) == 0).then_some(Why::Timeout)
        });
        let tasks = (0..2u64).map(|number| {
            let vfs = mount(&store);
            tokio::spawn(async move {
                let mut random = StdRng::seed_from_u64(seed * 10 + number);
                for _ in 0..20 {
                    let [from, to] = [(); 2].map(|()| ["a", "b", "c"][random.random_range(0..3)]);
                    let Ok(attr) = vfs.lookup(ROOT, from).await else {
                        continue;
                    };
                    let _ = match random.random_range(0..8) {
                        0 => vfs.unlink(ROOT, from).await,
                        1 | 2 => vfs.rename((ROOT, from), (ROOT, to), false).await,
                        _ => vfs.link(attr.ino, ROOT, to).await.map(drop),
                    };
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        store.heal();
        let vfs = mount(&store);
        let names = store.names().into_iter();
        let names: Vec<String> = names.filter(|name| !name.starts_with(SEGMENTS)).collect();
        for name in &names {
            assert_eq!(
                store.whole(name).unwrap(),
                &b"bytes"[..],
                "seed {seed}: {name}"
            );
        }
        vfs.committer.sweep(now()).await.unwrap();
        for name in &names {
            assert_eq!(content(&vfs, name).await, b"bytes", "seed {seed}: {name}");
            vfs.unlink(ROOT, name).await.unwrap();
        }
        vfs.settle().await;
        vfs.committer.sweep(now()).await.unwrap();
        assert_eq!(own(&store), [""; 0], "seed {seed}");
    }
}

/// A file of which another host has removed the last name is not written where its object was.
#[tokio::test]
async fn a_file_without_names_is_not_made_again() {
    for bytes in [&b"some bytes"[..], &[7; 600]] {
        let store = MemoryStore::default();
        let (here, there) = (mount(&store), mount(&store));
        let ino = file(&here, "a", bytes).await;
        here.link(ino, ROOT, "b").await.unwrap();
        let (handle, _) = there.open(ino_of(&there, "a").await, WRITE).await.unwrap();
        there
            .write(handle, 3, Bytes::from_static(b"more"), false)
            .await
            .unwrap();
        for name in ["a", "b"] {
            here.unlink(ROOT, name).await.unwrap();
        }
        here.settle().await;
        for _ in 0..2 {
            let synced = there.sync(handle).await;
            assert!(matches!(synced, Err(FsError::Stale)), "{synced:?}");
        }
        let closed = there.close(handle).await;
        assert!(matches!(closed, Err(FsError::Stale)), "{closed:?}");
        let homes: Vec<String> = own(&store);
        let is_home = |name: &&String| name.starts_with(".segments/links/");
        assert_eq!(homes.iter().find(is_home), None);
    }
}

/// The answer to its making got lost, and it cannot be looked at: one name too many is counted, never one
/// too few.
#[tokio::test]
async fn a_link_that_may_be_there_is_counted() {
    for is_rename in [false, true] {
        let store = MemoryStore::default();
        let (here, there) = (mount(&store), mount(&store));
        let ino = file(&here, "a", b"bytes").await;
        here.link(ino, ROOT, "b").await.unwrap();
        let away = store.clone();
        store.lose(move |verb, name| {
            let is_it = verb == "PUT" && name == "c";
            if is_it {
                away.fail(|_, name| (name == "c").then_some(Why::Unavailable));
            }
            is_it.then_some(Why::Timeout)
        });
        let made = match is_rename {
            true => here.rename((ROOT, "b"), (ROOT, "c"), false).await,
            false => here.link(ino, ROOT, "c").await.map(drop),
        };
        assert!(made.is_err());
        store.heal();
        for name in ["a", "b"] {
            there.unlink(ROOT, name).await.unwrap();
        }
        there.settle().await;
        assert_eq!(content(&there, "c").await, b"bytes");
        there.unlink(ROOT, "c").await.unwrap();
        there.settle().await;
        assert_eq!(own(&store), [""; 0]);
    }
}

/// For some stores the link is an empty object like the file before it, which a look finds out; others
/// tell them apart at the commit.
#[tokio::test]
async fn an_empty_file_is_changed_where_another_host_s_link_leads() {
    for (change, tells) in ["write", "chmod", "unlink", "rename", "link"]
        .into_iter()
        .flat_map(|change| [(change, false), (change, true)])
    {
        let store = MemoryStore::default();
        if tells {
            store.tell_links_apart();
        }
        let (here, mut there) = (mount(&store), mount(&store));
        let ino = file(&here, "f", b"").await;
        // A commit that looks believes what was seen just now.
        if change != "write" || tells {
            there.options.fresh = Duration::from_secs(60);
        }
        let known = ino_of(&there, "f").await;
        let (handle, _) = there.open(known, WRITE).await.unwrap();
        here.link(ino, ROOT, "g").await.unwrap();
        let mode = Changes {
            mode: Some(0o600),
            ..Changes::default()
        };
        match change {
            "write" => {
                let more = Bytes::from_static(b"bytes");
                there.write(handle, 0, more, false).await.unwrap();
            }
            "chmod" => _ = there.setattr(known, mode).await.unwrap(),
            "unlink" => there.unlink(ROOT, "f").await.unwrap(),
            "rename" => {
                let renamed = there.rename((ROOT, "f"), (ROOT, "h"), false);
                renamed.await.unwrap();
            }
            _ => _ = there.link(known, ROOT, "h").await.unwrap(),
        }
        there.close(handle).await.unwrap();
        let (names, links): (&[&str], _) = match change {
            "unlink" => (&["g"], 1),
            "rename" => (&["g", "h"], 2),
            "link" => (&["f", "g", "h"], 3),
            _ => (&["f", "g"], 2),
        };
        let fresh = mount(&store);
        let first = fresh.lookup(ROOT, "g").await.unwrap();
        assert_eq!(first.nlink, links, "{change}");
        assert_eq!(first.attributes.mode == 0o600, change == "chmod");
        let expected: &[u8] = if change == "write" { b"bytes" } else { b"" };
        for name in names {
            assert_eq!(ino_of(&fresh, name).await, first.ino, "{change}: {name}");
            assert_eq!(content(&fresh, name).await, expected, "{change}: {name}");
        }
    }
}

fn now() -> SweepOptions {
    SweepOptions {
        grace: Duration::ZERO,
        ignores_pins: false,
    }
}

/// A kill between the entry of a name and the name itself leaves the entry.
#[tokio::test]
async fn a_sweep_removes_entries_without_names() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    let ino = file(&vfs, "a", &[7; 600]).await;
    vfs.link(ino, ROOT, "b").await.unwrap();
    for name in ["b", "a"] {
        store.delete(name, Expect::Anything).await.unwrap();
        assert!(own(&store).len() > 2);
        vfs.committer.sweep(now()).await.unwrap();
    }
    vfs.committer.sweep(now()).await.unwrap();
    assert_eq!(own(&store), [""; 0]);
}
