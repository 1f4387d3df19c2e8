//! Names, attributes and directories.

use super::*;
use crate::store::{Changed, News};
use crate::time::Time;

#[tokio::test]
async fn attributes_are_stored_and_listed_without_a_head() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    vfs.mkdir(
        ROOT,
        "d",
        Owner {
            mode: 0o700,
            ..OWNER
        },
    )
    .await
    .unwrap();
    for i in 0..20 {
        let ino = vfs.put(&format!("d/{i:02}"), b"x").await.unwrap();
        let mtime = Some(Time {
            seconds: 1_000_000 + i,
            nanos: 5,
        });
        let changes = Changes {
            mode: Some(0o604),
            uid: Some(77),
            mtime,
            ..Changes::default()
        };
        vfs.setattr(ino, changes).await.unwrap();
    }
    let headers = store.head("d/03").await.unwrap().headers;
    assert_eq!(headers.meta["mtime"], "1000003.000000005");
    assert_eq!(
        (&*headers.meta["mode"], &*headers.meta["uid"]),
        ("100604", "77")
    );
    let mut other = mount(&store);
    other.options.fresh = Duration::from_secs(60);
    let directory = other.ino("d").await.unwrap();
    let attr = other.getattr(directory).await.unwrap();
    assert_eq!((attr.attributes.mode, attr.attributes.uid), (0o700, 5));
    let stream = other.opendir(directory).await.unwrap();
    store.take_calls();
    let entries = other.readdir(directory, stream, 0).await.unwrap();
    let attributes = other
        .attributes_of(directory, entries.clone())
        .await
        .unwrap();
    assert_eq!(entries.len(), 22);
    let attr = attributes[5].as_ref().unwrap();
    assert_eq!((&*entries[5].name, attr.size), ("03", 1));
    assert_eq!(
        (
            attr.attributes.mode,
            attr.attributes.uid,
            attr.attributes.gid
        ),
        (0o604, 77, 6)
    );
    assert_eq!(
        attr.attributes.mtime,
        Time {
            seconds: 1_000_003,
            nanos: 5
        }
    );
    assert!(other.lookup(directory, "07").await.is_ok());
    assert_eq!(store.take_calls(), ["LIST d/"]);
}

#[tokio::test]
async fn objects_of_other_clients_have_defaults_and_directories_are_implied() {
    let store = MemoryStore::default();
    store.write("a/b/c", "text/plain", b"text");
    store.write("a/", "application/directory", b"");
    store.write("a//odd", "text/plain", b"");
    store.write(".segments/x/y", "text/plain", b"");
    let vfs = mount(&store);
    assert_eq!(vfs.names("").await, ["a"]);
    assert_eq!(vfs.names("a").await, ["b"]);
    assert_eq!(vfs.names("a/b").await, ["c"]);
    let attr = vfs.getattr(vfs.ino("a/b/c").await.unwrap()).await.unwrap();
    assert_eq!(
        (attr.attributes.mode, attr.attributes.uid, attr.size),
        (0o644, 1, 4)
    );
    assert!(matches!(vfs.ino(".segments").await, Err(FsError::NotFound)));
    let made = vfs.mkdir(ROOT, ".segments", OWNER).await;
    assert!(matches!(made, Err(FsError::Reserved)));
    // An implied directory stays when its last file is removed.
    let b = vfs.ino("a/b").await.unwrap();
    vfs.unlink(b, "c").await.unwrap();
    assert!(vfs.names("a/b").await.is_empty());
    assert!(mount(&store).names("a/b").await.is_empty());
    vfs.setattr(
        b,
        Changes {
            mode: Some(0o711),
            ..Changes::default()
        },
    )
    .await
    .unwrap();
    let other = mount(&store);
    let attr = other
        .getattr(other.ino("a/b").await.unwrap())
        .await
        .unwrap();
    assert_eq!(attr.attributes.mode, 0o711);
}

#[tokio::test]
async fn new_files_show_before_they_are_stored_and_removed_ones_do_not() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    vfs.put("b", b"").await.unwrap();
    let (_, handle) = vfs.create(ROOT, "a", OWNER, TRUNCATE, false).await.unwrap();
    assert_eq!(vfs.names("").await, ["a", "b"]);
    assert_eq!(store.names(), ["b"]);
    let again = vfs.create(ROOT, "a", OWNER, WRITE, true).await;
    assert!(matches!(again, Err(FsError::Exists)));
    vfs.close(handle).await.unwrap();
    assert_eq!(store.names(), ["a", "b"]);
    // A listing that is out of date shows a removed name.
    vfs.unlink(ROOT, "b").await.unwrap();
    store.write("b", "text/plain", b"");
    assert_eq!(vfs.names("").await, ["a"]);
}

#[tokio::test]
async fn directories_are_made_and_removed_when_empty() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    let directory = vfs.mkdir(ROOT, "d", OWNER).await.unwrap().ino;
    assert!(matches!(
        vfs.mkdir(ROOT, "d", OWNER).await,
        Err(FsError::Exists)
    ));
    let (_, handle) = vfs
        .create(directory, "f", OWNER, WRITE, true)
        .await
        .unwrap();
    assert!(matches!(vfs.rmdir(ROOT, "d").await, Err(FsError::NotEmpty)));
    vfs.close(handle).await.unwrap();
    assert!(matches!(vfs.rmdir(ROOT, "d").await, Err(FsError::NotEmpty)));
    assert!(matches!(
        vfs.unlink(ROOT, "d").await,
        Err(FsError::IsADirectory)
    ));
    assert!(matches!(
        vfs.rmdir(directory, "f").await,
        Err(FsError::NotADirectory)
    ));
    vfs.unlink(directory, "f").await.unwrap();
    vfs.rmdir(ROOT, "d").await.unwrap();
    assert!(store.names().is_empty());
    assert!(matches!(vfs.ino("d").await, Err(FsError::NotFound)));
}

#[tokio::test]
async fn files_are_renamed_with_their_segments() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    for size in [10, 1000] {
        let ino = vfs.put("from", &pattern(size)).await.unwrap();
        let target = vfs.put("to", &pattern(500)).await.unwrap();
        let (reader, _) = vfs.open(target, READ).await.unwrap();
        let kept = vfs.rename((ROOT, "from"), (ROOT, "to"), true).await;
        assert!(matches!(kept, Err(FsError::Exists)));
        vfs.rename((ROOT, "from"), (ROOT, "to"), false)
            .await
            .unwrap();
        assert!(
            vfs.bytes(reader, 0, 1000).await == pattern(500),
            "whoever had it open"
        );
        vfs.close(reader).await.unwrap();
        assert_eq!(vfs.names("").await, ["to"]);
        assert!(store.whole("to").unwrap() == pattern(size));
        assert_eq!(vfs.ino("to").await.unwrap(), ino);
        // It is then changed under its new name.
        let (handle, _) = vfs.open(ino, WRITE).await.unwrap();
        vfs.write(handle, 0, vec![1].into(), false).await.unwrap();
        vfs.rename((ROOT, "to"), (ROOT, "later"), false)
            .await
            .unwrap();
        vfs.write(handle, 1, vec![2].into(), false).await.unwrap();
        vfs.close(handle).await.unwrap();
        assert_eq!(store.whole("later").unwrap()[..3], [1, 2, 2]);
        vfs.unlink(ROOT, "later").await.unwrap();
        vfs.settle().await;
        assert!(store.names().is_empty(), "{:?}", store.names());
    }
}

#[tokio::test]
async fn directories_are_renamed_with_all_that_is_in_them() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    vfs.mkdir(ROOT, "d", OWNER).await.unwrap();
    vfs.mkdir(ROOT, "d2", OWNER).await.unwrap();
    let directory = vfs.ino("d").await.unwrap();
    vfs.mkdir(directory, "e", OWNER).await.unwrap();
    vfs.put("d/e/f", &pattern(1000)).await.unwrap();
    let open = vfs.put("d/g", b"g").await.unwrap();
    let (handle, _) = vfs.open(open, WRITE).await.unwrap();
    vfs.write(handle, 0, b"G".to_vec().into(), false)
        .await
        .unwrap();
    let inside = vfs.rename((ROOT, "d"), (directory, "x"), false).await;
    assert!(matches!(inside, Err(FsError::Invalid(_))));
    vfs.put("full", b"").await.unwrap();
    let over = vfs.rename((ROOT, "d"), (ROOT, "full"), false).await;
    assert!(matches!(over, Err(FsError::NotADirectory)));
    // Failing copies leave everything unchanged.
    store.fail(|verb, name| (verb == "COPY" && name == "d/g").then_some(Why::Unavailable));
    assert!(vfs.rename((ROOT, "d"), (ROOT, "d2"), false).await.is_err());
    store.heal();
    assert!(vfs.get("d/e/f").await.unwrap() == pattern(1000));
    vfs.rename((ROOT, "d"), (ROOT, "d3"), false).await.unwrap();
    vfs.close(handle).await.unwrap();
    assert_eq!(vfs.names("d3").await, ["e", "g"]);
    assert_eq!(store.whole("d3/g").unwrap(), "G");
    assert!(vfs.get("d3/e/f").await.unwrap() == pattern(1000));
    assert!(store.names().iter().all(|name| !name.starts_with("d/")));
    assert_eq!(vfs.ino("d3").await.unwrap(), directory);
}

#[tokio::test]
async fn links_and_extended_attributes_are_kept() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    let link = vfs
        .symlink(ROOT, "link", "../somewhere", OWNER)
        .await
        .unwrap();
    assert_eq!(link.size, 12);
    let ino = vfs.put("f", b"x").await.unwrap();
    vfs.setxattr(ino, "user.a", b"one", XattrMode::Create)
        .await
        .unwrap();
    vfs.setxattr(ino, "user.b", &[7; 900], XattrMode::Any)
        .await
        .unwrap();
    let again = vfs.setxattr(ino, "user.a", b"", XattrMode::Create).await;
    assert!(matches!(again, Err(FsError::Exists)));
    for name in ["security.selinux", "system.posix_acl_access", "other"] {
        let refused = vfs.setxattr(ino, name, b"x", XattrMode::Any).await;
        assert!(matches!(refused, Err(FsError::NotOffered(_))), "{name}");
    }
    let large = vfs
        .setxattr(ino, "user.c", &[0; 2000], XattrMode::Any)
        .await;
    assert!(matches!(large, Err(FsError::AttributesFull)));
    let (handle, _) = vfs.open(ino, WRITE).await.unwrap();
    vfs.write(handle, 0, b"y".to_vec().into(), false)
        .await
        .unwrap();
    vfs.close(handle).await.unwrap();
    let other = mount(&store);
    assert_eq!(
        other
            .readlink(other.ino("link").await.unwrap())
            .await
            .unwrap(),
        "../somewhere"
    );
    let ino = other.ino("f").await.unwrap();
    assert_eq!(other.listxattr(ino).await.unwrap(), b"user.a\0user.b\0");
    assert_eq!(other.getxattr(ino, "user.b").await.unwrap(), [7; 900]);
    other.removexattr(ino, "user.a").await.unwrap();
    let gone = other.getxattr(ino, "user.a").await;
    assert!(matches!(gone, Err(FsError::NoAttribute)));
    assert!(matches!(
        other.getxattr(ino, "system.x").await,
        Err(FsError::NoAttribute)
    ));
}

#[tokio::test]
async fn a_read_only_mount_changes_nothing() {
    let store = MemoryStore::default();
    store.write("f", "text/plain", b"text");
    let mut vfs = mount(&store);
    vfs.options.is_read_only = true;
    let ino = vfs.ino("f").await.unwrap();
    assert_eq!(vfs.get("f").await.unwrap(), b"text");
    assert!(matches!(vfs.open(ino, WRITE).await, Err(FsError::ReadOnly)));
    assert!(matches!(
        vfs.unlink(ROOT, "f").await,
        Err(FsError::ReadOnly)
    ));
    assert!(matches!(
        vfs.mkdir(ROOT, "d", OWNER).await,
        Err(FsError::ReadOnly)
    ));
    let changed = vfs
        .setattr(
            ino,
            Changes {
                size: Some(0),
                ..Changes::default()
            },
        )
        .await;
    assert!(matches!(changed, Err(FsError::ReadOnly)));
}

#[tokio::test]
async fn long_names_and_paths_are_refused() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    let long = vfs.mkdir(ROOT, &"x".repeat(256), OWNER).await;
    assert!(matches!(long, Err(FsError::NameTooLong)));
    let mut parent = ROOT;
    for _ in 0..4 {
        parent = vfs
            .mkdir(parent, &"x".repeat(250), OWNER)
            .await
            .unwrap()
            .ino;
    }
    let deep = vfs.mkdir(parent, &"x".repeat(30), OWNER).await;
    assert!(matches!(deep, Err(FsError::NameTooLong)));
}

#[tokio::test]
async fn a_directory_is_not_renamed_to_where_names_below_it_are_too_long() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    let below = ["x"; 4].map(|x| x.repeat(250)).join("/");
    store.write(&format!("d/{below}"), "text/plain", b"a");
    store.write("d/near", "text/plain", b"b");
    let before = store.names();
    let renamed = vfs.rename((ROOT, "d"), (ROOT, "a-longer-name-than-that"), false);
    assert!(matches!(renamed.await, Err(FsError::NameTooLong)));
    assert_eq!(
        store.names(),
        before,
        "copies, or an intent that never ends"
    );
    let renamed = vfs.rename((ROOT, "d"), (ROOT, "e"), false);
    renamed.await.unwrap();
    assert!(store.names().contains(&format!("e/{below}")));
}

#[tokio::test]
async fn a_rename_that_breaks_off_leaves_two_whole_names() {
    for (removed, kept) in [("from", "to"), ("to", "from"), ("from", "from2")] {
        for directory in ["", "d/"] {
            let store = MemoryStore::default();
            let vfs = mount(&store);
            let at = |name: &str| match directory {
                "" => name.to_owned(),
                _ => format!("{name}/f"),
            };
            if !directory.is_empty() {
                vfs.mkdir(ROOT, "from", OWNER).await.unwrap();
            }
            vfs.put(&at("from"), &pattern(1000)).await.unwrap();
            let first = at("from");
            store.fail(move |verb, name| {
                (verb == "DELETE" && name == first).then_some(Why::Unavailable)
            });
            let broken = vfs.rename((ROOT, "from"), (ROOT, "to"), false).await;
            assert!(broken.is_err());
            store.heal();
            // Both exist for the next reader.
            let other = mount(&store);
            if kept == "from2" {
                other
                    .rename((ROOT, "to"), (ROOT, "from2"), false)
                    .await
                    .unwrap();
            }
            let (parent, name) = match directory {
                "" => (ROOT, removed),
                _ => (other.ino(removed).await.unwrap(), "f"),
            };
            other.unlink(parent, name).await.unwrap();
            other.settle().await;
            assert!(store.whole(&at(kept)).unwrap() == pattern(1000), "{kept}");
        }
    }
}

#[tokio::test]
async fn a_broken_rename_of_a_file_is_done_again() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    vfs.put("from", &pattern(1000)).await.unwrap();
    store.fail(|verb, name| (verb == "DELETE" && name == "from").then_some(Why::Unavailable));
    let broken = vfs.rename((ROOT, "from"), (ROOT, "to"), false).await;
    assert!(broken.is_err());
    store.heal();
    vfs.rename((ROOT, "from"), (ROOT, "to"), false)
        .await
        .unwrap();
    vfs.settle().await;
    assert_eq!(vfs.names("").await, ["to"]);
    assert!(store.whole("to").unwrap() == pattern(1000));
}

#[tokio::test]
async fn devices_and_set_id_bits_are_kept_until_somebody_else_writes() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    let made = vfs.mknod(ROOT, "null", Kind::CharDevice, OWNER, 0x103);
    made.await.unwrap();
    let owner = Owner {
        mode: 0o6755,
        ..OWNER
    };
    let created = vfs.create(ROOT, "tool", owner, WRITE, true).await;
    let (_, handle) = created.unwrap();
    vfs.sync(handle).await.unwrap();
    let mode = |path: &'static str| {
        let other = mount(&store);
        async move {
            let attr = other.lookup(ROOT, path).await.unwrap();
            (attr.attributes.mode, attr.attributes.rdev)
        }
    };
    assert_eq!(mode("null").await, (0o640, 0x103));
    assert_eq!(mode("tool").await, (0o6755, 0));
    assert!(vfs.drop_set_id(handle).unwrap());
    assert!(!vfs.drop_set_id(handle).unwrap(), "there is none any more");
    vfs.write(handle, 0, vec![1].into(), false).await.unwrap();
    vfs.unlink(ROOT, "null").await.unwrap();
    vfs.close(handle).await.unwrap();
    assert_eq!(mode("tool").await, (0o755, 0));
}

#[tokio::test]
async fn the_time_of_a_change_stays_while_nothing_changes() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    let ino = vfs.put("file", b"content").await.unwrap();
    let changed = async || vfs.getattr(ino).await.unwrap().ctime;
    let node = vfs.tree.lock().at("file").unwrap();
    // Not requested from the store yet.
    let before = Vfs::<MemoryStore>::attr(&node).ctime;
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(changed().await, before, "as the store tells it");
    let stream = vfs.opendir(ROOT).await.unwrap();
    vfs.readdir_plus(ROOT, stream, 0).await.unwrap();
    assert_eq!(changed().await, before, "as a listing tells it");
    // Another mount's.
    let other = mount(&store);
    let of_other = other.ino("file").await.unwrap();
    let mode = Changes {
        mode: Some(0o600),
        ..Changes::default()
    };
    other.setattr(of_other, mode).await.unwrap();
    assert!(changed().await > before);
}

#[tokio::test]
async fn a_file_has_the_same_number_on_all_mounts_at_any_time() {
    let store = MemoryStore::default();
    let (here, there) = (mount(&store), mount(&store));
    let number = here.put("file", b"content").await.unwrap();
    assert_eq!(there.lookup(ROOT, "file").await.unwrap().ino, number);
    there.forget(number, 1);
    assert!(there.tree.lock().node(number).is_none());
    assert_eq!(there.lookup(ROOT, "file").await.unwrap().ino, number);
    // The one that is open has it still.
    let (handle, _) = here.open(number, READ).await.unwrap();
    here.unlink(ROOT, "file").await.unwrap();
    let new = here.put("file", b"other").await.unwrap();
    assert_ne!(new, number);
    assert_eq!(here.bytes(handle, 0, 9).await, b"content");
}

#[tokio::test]
async fn a_file_that_the_kernel_forgot_is_there() {
    let store = MemoryStore::default();
    mount(&store).put("file", b"content").await.unwrap();
    let mut vfs = mount(&store);
    vfs.options.fresh = Duration::from_secs(60);
    let stream = vfs.opendir(ROOT).await.unwrap();
    let entries = vfs.readdir_plus(ROOT, stream, 0).await.unwrap();
    // At the end the listing is known to be complete.
    let end = entries.last().unwrap().0;
    assert!(
        vfs.readdir_plus(ROOT, stream, end)
            .await
            .unwrap()
            .is_empty()
    );
    let (_, _, attr) = entries.into_iter().find(|(_, n, _)| n == "file").unwrap();
    vfs.forget(attr.ino, 1);
    vfs.releasedir(stream);
    assert!(vfs.tree.lock().at("file").is_none());
    assert!(vfs.lookup(ROOT, "file").await.is_ok());
}

#[tokio::test]
async fn a_file_that_is_forgotten_or_made_while_its_directory_is_read_is_there() {
    let store = MemoryStore::default();
    mount(&store).put("file", b"content").await.unwrap();
    let mut vfs = mount(&store);
    vfs.options.fresh = Duration::from_secs(60);
    for is_made in [false, true] {
        let stream = vfs.opendir(ROOT).await.unwrap();
        let entries = vfs.readdir_plus(ROOT, stream, 0).await.unwrap();
        let (end, name, attr) = entries.last().cloned().unwrap();
        assert_eq!(name, "file");
        let name = match is_made {
            true => {
                store.write("new", "t", b"new");
                vfs.take_up(&News {
                    changed: vec![changed("new")],
                    ..News::default()
                });
                "new"
            }
            false => {
                vfs.told_entry(attr.ino);
                vfs.forget(attr.ino, 1);
                "file"
            }
        };
        // The listing goes on behind that, and ends.
        vfs.readdir_plus(ROOT, stream, end).await.unwrap();
        vfs.releasedir(stream);
        assert!(vfs.lookup(ROOT, name).await.is_ok(), "{name}");
    }
    // A listing that nothing has disturbed is complete.
    vfs.names("").await;
    store.take_calls();
    assert!(vfs.lookup(ROOT, "other").await.is_err());
    assert!(store.take_calls().is_empty());
}

/// A name of another host, as the feed tells it.
fn changed(name: &str) -> Changed {
    Changed {
        name: name.to_owned(),
        etag: Some("etag".to_owned()),
        content_type: "t".to_owned(),
    }
}

#[tokio::test]
async fn where_many_names_are_missed_one_listing_serves_for_all() {
    let store = MemoryStore::default();
    let mut vfs = mount(&store);
    vfs.options.fresh = Duration::from_secs(10);
    for number in 0..40 {
        let missed = vfs.lookup(ROOT, &format!("n{number}")).await;
        assert!(matches!(missed, Err(FsError::NotFound)));
    }
    let calls = store.take_calls();
    let count = |verb: &str| calls.iter().filter(|call| call.starts_with(verb)).count();
    assert_eq!(count("HEAD"), 40);
    assert!(count("LIST") < 12, "{calls:?}");
    // An object created by another host is seen at once all the same.
    store.write("n100", "t", b"new");
    vfs.lookup(ROOT, "n100").await.unwrap();
    // A directory that exists by what another host has made in it is seen when the feed has told of it, and
    // what is known of the other names stays.
    store.write("made/below/f", "t", b"new");
    assert!(vfs.ino("made").await.is_err());
    let news = News {
        changed: vec![changed("made/below/f")],
        ..News::default()
    };
    vfs.take_up(&news);
    vfs.ino("made/below/f").await.unwrap();
    store.take_calls();
    assert!(vfs.lookup(ROOT, "n41").await.is_err());
    assert_eq!(store.take_calls(), ["HEAD n41"]);
}
