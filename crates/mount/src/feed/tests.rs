//! Two mounts of one store, whose caches are valid for hours: what one changes the other shows only as
//! the feed tells it.

use parking_lot::Mutex;

use super::*;
use crate::error::FsError;
use crate::store::{Changed, MemoryStore};
use crate::vfs::{Changes, ROOT, for_tests};

#[derive(Default)]
struct Told(Mutex<Vec<Stale>>);

impl Kernel for Told {
    fn forget(&self, stale: &Stale) {
        self.0.lock().push(stale.clone());
    }
}

/// A mount that follows the feed, with the kernel's side.
struct Host {
    vfs: Arc<Vfs<MemoryStore>>,
    kernel: Arc<Told>,
    follows: tokio::task::JoinHandle<()>,
}

impl Host {
    async fn start(store: &MemoryStore) -> Host {
        let vfs = Arc::new(for_tests::mount_for_hours(&store.beside()));
        let kernel = Arc::new(Told::default());
        let follows = tokio::spawn(follow(vfs.clone(), kernel.clone()));
        // Its first cursor is there.
        tokio::time::sleep(Duration::from_secs(3)).await;
        Host {
            vfs,
            kernel,
            follows,
        }
    }

    fn told(&self) -> Vec<Stale> {
        std::mem::take(&mut self.kernel.0.lock())
    }

    /// Waits until the kernel is told of something.
    async fn until_told(&self) -> Vec<Stale> {
        for _ in 0..1000 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            if !self.kernel.0.lock().is_empty() {
                return self.told();
            }
        }
        panic!("the feed tells nothing");
    }

    async fn size(&self, name: &str) -> Option<u64> {
        match self.vfs.lookup(ROOT, name).await {
            Ok(attr) => Some(attr.size),
            Err(FsError::NotFound) => None,
            Err(error) => panic!("{error}"),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.follows.abort();
    }
}

async fn two() -> (MemoryStore, Host, Host) {
    let store = MemoryStore::default();
    store.announce_feed();
    let (one, other) = (Host::start(&store).await, Host::start(&store).await);
    (store, one, other)
}

#[tokio::test(start_paused = true)]
async fn another_host_s_version_is_shown_as_the_feed_tells_it() {
    let (_store, one, other) = two().await;
    let ino = for_tests::put(&one.vfs, "f", b"first").await;
    assert_eq!(other.size("f").await, Some(5));
    other.told();
    for_tests::put(&one.vfs, "f", b"second!").await;
    // It is told before hours have passed, and then asked for.
    assert_eq!(other.until_told().await, [Stale::Node(ino)]);
    assert_eq!(other.size("f").await, Some(7));
}

#[tokio::test(start_paused = true)]
async fn names_come_and_go_as_the_feed_tells_it() {
    let (_store, one, other) = two().await;
    for_tests::put(&one.vfs, "f", b"x").await;
    other.until_told().await;
    assert_eq!(for_tests::names(&other.vfs, "").await, ["f"]);
    for_tests::put(&one.vfs, "g", b"x").await;
    other.until_told().await;
    // The listing that lacks it is not believed any more.
    assert_eq!(other.size("g").await, Some(1));
    assert_eq!(for_tests::names(&other.vfs, "").await, ["f", "g"]);
    one.vfs.unlink(ROOT, "f").await.unwrap();
    let told = other.until_told().await;
    let name = Stale::Name {
        parent: ROOT,
        name: "f".into(),
    };
    assert!(told.contains(&name), "{told:?}");
    assert_eq!(other.size("f").await, None);
    assert_eq!(for_tests::names(&other.vfs, "").await, ["g"]);
}

#[tokio::test(start_paused = true)]
async fn attributes_alone_are_a_change_too() {
    let (_store, one, other) = two().await;
    let ino = for_tests::put(&one.vfs, "f", b"x").await;
    other.until_told().await;
    assert_eq!(other.size("f").await, Some(1));
    let changes = Changes {
        mode: Some(0o600),
        ..Changes::default()
    };
    one.vfs.setattr(ino, changes).await.unwrap();
    assert_eq!(other.until_told().await, [Stale::Node(ino)]);
    let attr = other.vfs.lookup(ROOT, "f").await.unwrap();
    assert_eq!(attr.attributes.mode & 0o777, 0o600);
}

#[tokio::test(start_paused = true)]
async fn own_changes_are_told_nobody_and_asked_for_by_nobody() {
    let (_store, one, _other) = two().await;
    one.told();
    one.vfs.store().take_calls();
    let before = one.vfs.store().changes_count();
    for number in 0..20 {
        for_tests::put(&one.vfs, &format!("f{number}"), b"content").await;
    }
    one.vfs.unlink(ROOT, "f7").await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(one.vfs.store().changes_count() > before + 20);
    assert_eq!(one.told(), []);
    one.vfs.store().take_calls();
    assert_eq!(one.size("f3").await, Some(7));
    assert_eq!(one.vfs.store().take_calls(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_reset_drops_all_and_failures_drop_nothing() {
    let (store, one, other) = two().await;
    let ino = for_tests::put(&one.vfs, "f", b"first").await;
    other.until_told().await;
    assert_eq!(other.size("f").await, Some(5));
    other.vfs.told_entry(ino);
    other.told();
    tokio::time::sleep(Duration::from_secs(1)).await;
    other
        .vfs
        .store()
        .fail(|verb, _| (verb == "CHANGES").then_some(Why::Unavailable));
    // Ends the wait in progress.
    store.write("unrelated", "text/plain", b"");
    other.until_told().await;
    for_tests::put(&one.vfs, "f", b"second!").await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(other.size("f").await, Some(5));
    let asked = other.vfs.store().take_calls();
    let asked = asked.iter().filter(|call| call.starts_with("CHANGES"));
    assert!((2..20).contains(&asked.count()), "it backs off");
    other.vfs.store().heal();
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert!(other.told().contains(&Stale::Node(ino)));
    assert_eq!(other.size("f").await, Some(7));
    for_tests::put(&one.vfs, "f", b"third").await;
    let reset = News {
        is_reset: true,
        ..News::default()
    };
    other.until_told().await;
    let told = other.vfs.take_up(&reset);
    assert!(told.contains(&Stale::Node(ino)), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_look_that_the_feed_overtakes_is_repeated() {
    let store = MemoryStore::default();
    let vfs = for_tests::mount_for_hours(&store);
    for_tests::put(&vfs, "f", b"first").await;
    let changed = |etag: &str| News {
        changed: vec![Changed {
            name: "f".into(),
            etag: Some(etag.into()),
            content_type: "text/plain".into(),
        }],
        ..News::default()
    };
    let mut overtaken = 0;
    for seed in 0..20 {
        vfs.take_up(&changed("another"));
        store.take_turns(seed);
        store.take_calls();
        let mut look = Box::pin(vfs.lookup(ROOT, "f"));
        let begun = tokio::time::timeout(Duration::ZERO, &mut look).await;
        if begun.is_err() {
            vfs.take_up(&changed("a third"));
            look.await.unwrap();
            overtaken += 1;
        }
        let heads = store.take_calls();
        let heads = heads.iter().filter(|call| *call == "HEAD f").count();
        assert_eq!(heads, if begun.is_err() { 2 } else { 1 });
        // The answer to the second question is valid.
        assert_eq!(vfs.lookup(ROOT, "f").await.unwrap().size, 5);
        assert_eq!(store.take_calls(), Vec::<String>::new());
    }
    assert!(overtaken > 0);
}

#[tokio::test(start_paused = true)]
async fn without_a_feed_nobody_asks() {
    let store = MemoryStore::default();
    let host = Host::start(&store).await;
    assert!(host.follows.is_finished());
    assert_eq!(host.vfs.store().take_calls(), Vec::<String>::new());
}

/// As of `rm -r d; mkdir d; cd d`: the first one's row comes when the second is there.
#[tokio::test(start_paused = true)]
async fn a_directory_that_was_made_anew_keeps_its_name_in_the_kernel() {
    let store = MemoryStore::default();
    let vfs = for_tests::mount_for_hours(&store);
    let other = for_tests::mount_for_hours(&store.beside());
    for_tests::make_directory(&vfs, "d").await;
    vfs.lookup(ROOT, "d").await.unwrap();
    let removed = News {
        changed: vec![Changed {
            name: "d".into(),
            etag: None,
            content_type: "application/directory".into(),
        }],
        ..News::default()
    };
    let name = Stale::Name {
        parent: ROOT,
        name: "d".into(),
    };
    let stale = vfs.take_up(&removed);
    assert!(stale.contains(&name), "{stale:?}");
    let told = vfs.confirmed(stale).await;
    assert!(!told.contains(&name), "{told:?}");
    vfs.store().fail(|_, _| Some(Why::Unavailable));
    let told = vfs.confirmed(vfs.take_up(&removed)).await;
    assert!(!told.contains(&name), "not known to be gone: {told:?}");
    vfs.store().heal();
    other.rmdir(ROOT, "d").await.unwrap();
    let told = vfs.confirmed(vfs.take_up(&removed)).await;
    assert!(told.contains(&name), "{told:?}");
}
