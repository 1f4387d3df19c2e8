//! Closes that wait for a journal: what was closed is neither lost nor made twice, however the mount ends.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::journal::{Journal, JournalError};
use crate::private_dir::DirError;

const CONTAINER: &str = "http://h/v1/a/c";

/// A directory in memory, where syncs take no time.
fn directory() -> TempDir {
    TempDir::new_in("/dev/shm").unwrap_or_else(|_| TempDir::new().unwrap())
}

/// A mount with a journal, which takes up what is in it.
async fn begin(store: &MemoryStore, dir: &Path) -> (Vfs<MemoryStore>, Replayed) {
    let (journal, numbers) = Journal::open(dir, CONTAINER).unwrap();
    let vfs = mount(store).with_journal(journal);
    let replayed = vfs.replay(&numbers).await.unwrap();
    (vfs, replayed)
}

/// The next mount, and the end of it: everything is on the store.
async fn replay(store: &MemoryStore, dir: &Path) -> Replayed {
    let (vfs, replayed) = begin(store, dir).await;
    vfs.settle().await;
    assert!(vfs.settle_closes().await);
    replayed
}

fn entries(dir: &Path) -> Vec<std::path::PathBuf> {
    let all = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = all.filter(|path| path.extension().is_some()).collect();
    all.sort();
    all
}

async fn append(vfs: &Vfs<MemoryStore>, path: &str, bytes: &'static [u8]) {
    let ino = vfs.ino(path).await.unwrap();
    let (handle, _) = vfs.open(ino, APPEND).await.unwrap();
    vfs.write(handle, 0, bytes.into(), false).await.unwrap();
    vfs.close(handle).await.unwrap();
}

fn away(store: &MemoryStore) {
    store.fail(|_, _| Some(Why::Unavailable));
}

const ONE: Replayed = Replayed {
    files: 1,
    stored: 0,
    incomplete: 0,
    left: 0,
};
const STORED: Replayed = Replayed {
    files: 0,
    stored: 1,
    incomplete: 0,
    left: 0,
};

#[tokio::test]
async fn a_close_does_not_wait_for_the_store() {
    let (store, dir) = (MemoryStore::default(), directory());
    let (vfs, _) = begin(&store, dir.path()).await;
    store.fail(|verb, _| (verb == "PUT").then_some(Why::Unavailable));
    vfs.put("f", b"closed").await.unwrap();
    assert_eq!(vfs.get("f").await.unwrap(), b"closed");
    assert_eq!(store.names(), Vec::<String>::new());
    // It is killed.
    drop(vfs);
    store.heal();
    assert_eq!(replay(&store, dir.path()).await, ONE);
    assert_eq!(store.whole("f").unwrap(), "closed");
    assert_eq!(entries(dir.path()).len(), 0);
}

#[tokio::test]
async fn what_is_closed_is_stored_soon() {
    let (store, dir) = (MemoryStore::default(), directory());
    let (vfs, _) = begin(&store, dir.path()).await;
    let vfs = Arc::new(vfs);
    let sending = vfs.clone();
    let sending = tokio::spawn(async move { sending.send_closed().await });
    vfs.put("f", b"closed").await.unwrap();
    away(&store);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(entries(dir.path()).len(), 1, "it stays until it is stored");
    store.heal();
    while !entries(dir.path()).is_empty() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(store.whole("f").unwrap(), "closed");
    sending.abort();
}

#[tokio::test]
async fn writes_go_over_the_version_that_is_there_then() {
    let (store, dir) = (MemoryStore::default(), directory());
    store.write("f", "text/plain", b"abc");
    let (vfs, _) = begin(&store, dir.path()).await;
    append(&vfs, "f", b"def").await;
    drop(vfs);
    append(&mount(&store), "f", b"XY").await;
    assert_eq!(store.whole("f").unwrap(), "abcXY");
    assert_eq!(replay(&store, dir.path()).await, ONE);
    assert_eq!(store.whole("f").unwrap(), "abcXYdef");
    assert!(
        store
            .head("f")
            .await
            .unwrap()
            .headers
            .content_type
            .starts_with("text/plain")
    );
}

#[tokio::test]
async fn a_commit_whose_entry_is_still_there_is_not_made_again() {
    let (store, dir) = (MemoryStore::default(), directory());
    store.write("f", "text/plain", b"abc");
    let (vfs, _) = begin(&store, dir.path()).await;
    append(&vfs, "f", b"def").await;
    let kept = fs::read(&entries(dir.path())[0]).unwrap();
    let file = entries(dir.path())[0].clone();
    vfs.settle().await;
    drop(vfs);
    append(&mount(&store), "f", b"XY").await;
    fs::write(file, kept).unwrap();
    assert_eq!(replay(&store, dir.path()).await, STORED);
    assert_eq!(store.whole("f").unwrap(), "abcdefXY");
    assert_eq!(entries(dir.path()).len(), 0);
}

#[tokio::test]
async fn a_commit_in_doubt_is_not_made_again() {
    let (store, dir) = (MemoryStore::default(), directory());
    store.write("f", "text/plain", b"abc");
    let (vfs, _) = begin(&store, dir.path()).await;
    append(&vfs, "f", b"def").await;
    // The answer is lost, and then the store is away.
    store.lose(|verb, _| (verb == "PUT").then_some(Why::Timeout));
    store.fail(|verb, _| (verb == "HEAD").then_some(Why::Unavailable));
    assert_eq!(vfs.commit_all(|_| ()).await, 1);
    assert_eq!(store.whole("f").unwrap(), "abcdef");
    drop(vfs);
    store.heal();
    assert_eq!(replay(&store, dir.path()).await, STORED);
    assert_eq!(store.whole("f").unwrap(), "abcdef");
}

#[tokio::test]
async fn a_file_whose_commit_is_in_doubt_is_not_kept_in_the_journal() {
    let (store, dir) = (MemoryStore::default(), directory());
    store.write("f", "text/plain", b"abc");
    let (vfs, _) = begin(&store, dir.path()).await;
    let ino = vfs.ino("f").await.unwrap();
    let (handle, _) = vfs.open(ino, APPEND).await.unwrap();
    vfs.write(handle, 0, b"one"[..].into(), false)
        .await
        .unwrap();
    store.lose(|verb, _| (verb == "PUT").then_some(Why::Timeout));
    store.fail(|verb, _| (verb == "HEAD").then_some(Why::Unavailable));
    assert!(vfs.sync(handle).await.is_err());
    assert_eq!(store.whole("f").unwrap(), "abcone");
    store.heal();
    vfs.write(handle, 0, b"two"[..].into(), false)
        .await
        .unwrap();
    vfs.close(handle).await.unwrap();
    drop(vfs);
    replay(&store, dir.path()).await;
    assert_eq!(store.whole("f").unwrap(), "abconetwo");
}

#[tokio::test]
async fn entries_of_two_closes_are_one_file() {
    let (store, dir) = (MemoryStore::default(), directory());
    let (vfs, _) = begin(&store, dir.path()).await;
    vfs.put("f", b"").await.unwrap();
    append(&vfs, "f", b"one").await;
    append(&vfs, "f", b"two").await;
    assert!(entries(dir.path()).len() > 1, "removals come later");
    drop(vfs);
    assert_eq!(replay(&store, dir.path()).await, ONE);
    assert_eq!(store.whole("f").unwrap(), "onetwo");
}

#[tokio::test]
async fn a_replay_that_is_killed_is_not_made_twice() {
    let (store, dir) = (MemoryStore::default(), directory());
    store.write("f", "text/plain", b"abc");
    let (vfs, _) = begin(&store, dir.path()).await;
    append(&vfs, "f", b"def").await;
    let (file, old) = (
        entries(dir.path())[0].clone(),
        fs::read(&entries(dir.path())[0]).unwrap(),
    );
    drop(vfs);
    // Killed before the commit, with the old entry still there.
    drop(begin(&store, dir.path()).await);
    fs::write(&file, &old).unwrap();
    let (vfs, replayed) = begin(&store, dir.path()).await;
    assert_eq!(replayed, ONE);
    vfs.settle().await;
    // Killed after it, with the entry of this mount still there.
    assert_eq!(store.whole("f").unwrap(), "abcdef");
    drop(vfs);
    replay(&store, dir.path()).await;
    assert_eq!(store.whole("f").unwrap(), "abcdef");
}

#[tokio::test]
async fn names_that_went_do_not_come_back() {
    let (store, dir) = (MemoryStore::default(), directory());
    let (vfs, _) = begin(&store, dir.path()).await;
    vfs.mkdir(ROOT, "d", OWNER).await.unwrap();
    for name in ["gone", "moved", "over", "d/inside"] {
        vfs.put(name, name.as_bytes()).await.unwrap();
    }
    vfs.put("target", b"replaced").await.unwrap();
    vfs.unlink(ROOT, "gone").await.unwrap();
    vfs.rename((ROOT, "moved"), (ROOT, "new"), false)
        .await
        .unwrap();
    vfs.rename((ROOT, "over"), (ROOT, "target"), false)
        .await
        .unwrap();
    vfs.rename((ROOT, "d"), (ROOT, "e"), false).await.unwrap();
    assert_eq!(entries(dir.path()).len(), 0);
    drop(vfs);
    replay(&store, dir.path()).await;
    let mut names = store.names();
    names.retain(|name| !name.starts_with(".segments/"));
    assert_eq!(names, ["e", "e/inside", "new", "target"]);
    for (name, text) in [
        ("new", "moved"),
        ("target", "over"),
        ("e/inside", "d/inside"),
    ] {
        assert_eq!(store.whole(name).unwrap(), text);
    }
}

#[tokio::test]
async fn a_file_that_others_removed_is_there_again_where_it_is_whole() {
    let (store, dir) = (MemoryStore::default(), directory());
    store.write("changed", "text/plain", b"abc");
    let (vfs, _) = begin(&store, dir.path()).await;
    append(&vfs, "changed", b"def").await;
    vfs.put("new", b"all of it").await.unwrap();
    drop(vfs);
    store
        .delete("changed", crate::store::Expect::Anything)
        .await
        .unwrap();
    let replayed = replay(&store, dir.path()).await;
    assert_eq!((replayed.files, replayed.left), (1, 1));
    assert_eq!(store.names(), ["new"]);
    assert_eq!(entries(dir.path()).len(), 1, "nothing is thrown away");
}

#[tokio::test]
async fn incomplete_entries_go_and_damaged_ones_stay() {
    let (store, dir) = (MemoryStore::default(), directory());
    let (vfs, _) = begin(&store, dir.path()).await;
    vfs.put("f", b"some bytes").await.unwrap();
    drop(vfs);
    let file = entries(dir.path())[0].clone();
    let whole = fs::read(&file).unwrap();
    for length in 0..whole.len() {
        fs::write(&file, &whole[..length]).unwrap();
        let replayed = replay(&store, dir.path()).await;
        assert_eq!((replayed.incomplete, replayed.stored), (1, 0), "{length}");
        assert!(entries(dir.path()).is_empty() && store.names().is_empty());
    }
    let last = whole.len() - 1;
    for at in [whole.iter().position(|byte| *byte == b'{').unwrap(), last] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(&file, &damaged).unwrap();
        assert_eq!(replay(&store, dir.path()).await.left, 1);
        assert_eq!(fs::read(&file).unwrap(), damaged);
        assert_eq!(store.names(), Vec::<String>::new());
    }
    fs::write(&file, &whole).unwrap();
    assert_eq!(replay(&store, dir.path()).await, ONE);
    assert_eq!(store.whole("f").unwrap(), "some bytes");
}

#[test]
fn a_directory_is_the_journal_of_one_mount_of_one_container() {
    let dir = directory();
    let (journal, _) = Journal::open(dir.path(), CONTAINER).unwrap();
    let open = |container| Journal::open(dir.path(), container).map(|(_, numbers)| numbers);
    assert!(matches!(
        open(CONTAINER),
        Err(JournalError::Dir(DirError::InUse))
    ));
    drop(journal);
    // An empty one may change hands.
    assert_eq!(open("http://h/v1/a/other").unwrap(), Vec::<u64>::new());
    fs::write(dir.path().join("0000000000000007.close"), b"x").unwrap();
    assert!(
        matches!(open(CONTAINER), Err(JournalError::Other { other }) if other.ends_with("other"))
    );
    assert_eq!(open("http://h/v1/a/other").unwrap(), [7]);
}

/// It has bytes of files that others may not read, and what is in it is written to the store.
#[tokio::test]
async fn a_journal_is_its_users_alone() {
    let (store, outer) = (MemoryStore::default(), directory());
    let dir = outer.path().join("new/journal");
    let (vfs, _) = begin(&store, &dir).await;
    vfs.put("f", b"closed").await.unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    for entry in fs::read_dir(&dir).unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
    drop(vfs);
    for open in [0o720, 0o702] {
        fs::set_permissions(&dir, fs::Permissions::from_mode(open)).unwrap();
        let opened = Journal::open(&dir, CONTAINER).map(drop);
        assert!(matches!(opened, Err(JournalError::Open { mode }) if mode == open));
    }
}

#[tokio::test]
async fn where_the_journal_cannot_be_written_closes_wait_for_the_store() {
    let (store, dir) = (MemoryStore::default(), directory());
    let (vfs, _) = begin(&store, dir.path()).await;
    fs::remove_dir_all(dir.path()).unwrap();
    vfs.put("f", b"closed").await.unwrap();
    assert_eq!(store.whole("f").unwrap(), "closed");
}

#[tokio::test]
async fn syncs_and_large_files_wait_for_the_store() {
    let (store, dir) = (MemoryStore::default(), directory());
    let (vfs, _) = begin(&store, dir.path()).await;
    vfs.put("large", &pattern(5000)).await.unwrap();
    assert_eq!(store.whole("large").unwrap(), pattern(5000));
    let (_, handle) = vfs
        .create(ROOT, "synced", OWNER, TRUNCATE, false)
        .await
        .unwrap();
    vfs.write(handle, 0, b"one"[..].into(), false)
        .await
        .unwrap();
    vfs.flush(handle).await.unwrap();
    assert!(store.etag("synced").is_none());
    vfs.sync(handle).await.unwrap();
    assert_eq!(store.whole("synced").unwrap(), "one");
    vfs.release(handle).await.unwrap();
    assert!(vfs.settle_closes().await);
    assert_eq!(entries(dir.path()).len(), 0);
}

#[tokio::test]
async fn attributes_are_those_of_the_close() {
    let (store, dir) = (MemoryStore::default(), directory());
    store.write("there", "text/plain", b"abc");
    let (vfs, _) = begin(&store, dir.path()).await;
    let mode = |mode| Changes {
        mode: Some(mode),
        ..Changes::default()
    };
    for (path, new) in [("there", false), ("new", true)] {
        if new {
            vfs.put(path, b"").await.unwrap();
        }
        let ino = vfs.ino(path).await.unwrap();
        let (handle, _) = vfs.open(ino, APPEND).await.unwrap();
        vfs.write(handle, 0, b"x"[..].into(), false).await.unwrap();
        vfs.setattr(ino, mode(0o751)).await.unwrap();
        vfs.setxattr(ino, "user.a", b"v", XattrMode::Any)
            .await
            .unwrap();
        vfs.close(handle).await.unwrap();
    }
    drop(vfs);
    assert_eq!(replay(&store, dir.path()).await.files, 2);
    let vfs = mount(&store);
    for path in ["there", "new"] {
        let ino = vfs.ino(path).await.unwrap();
        assert_eq!(
            vfs.getattr(ino).await.unwrap().attributes.mode,
            0o751,
            "{path}"
        );
        assert_eq!(vfs.getxattr(ino, "user.a").await.unwrap(), b"v", "{path}");
    }
}

/// A call of the mount's only user, or what happens to it.
#[derive(Clone, Debug)]
enum Step {
    Write(usize, u64, u64),
    Append(usize, u64),
    Truncate(usize, u64),
    Unlink(usize),
    Rename(usize, usize),
    /// All closed files are stored.
    Send,
    Away,
    Killed,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = 0..NAMES.len();
    let step = prop_oneof![
        4 => (name.clone(), 0..200u64, 1..40u64).prop_map(|(f, o, l)| Step::Write(f, o, l)),
        4 => (name.clone(), 1..40u64).prop_map(|(file, length)| Step::Append(file, length)),
        1 => (name.clone(), 0..200u64).prop_map(|(file, size)| Step::Truncate(file, size)),
        1 => name.clone().prop_map(Step::Unlink),
        1 => (name.clone(), name).prop_map(|(from, to)| Step::Rename(from, to)),
        1 => Just(Step::Send),
        1 => Just(Step::Away),
        2 => Just(Step::Killed),
    ];
    proptest::collection::vec(step, 1..30)
}

const NAMES: [&str; 3] = ["a", "b", "c"];
type Files = BTreeMap<&'static str, Vec<u8>>;

/// Makes a call; what it has to do is in `files` when it ends well.
async fn call(vfs: &Vfs<MemoryStore>, step: &Step, byte: u8, files: &mut Files) -> FsResult<()> {
    match *step {
        Step::Write(file, _, length) | Step::Append(file, length) => {
            let appends = matches!(step, Step::Append(..));
            let (name, mode) = (NAMES[file], if appends { APPEND } else { WRITE });
            let handle = match vfs.ino(name).await {
                Ok(ino) => vfs.open(ino, mode).await?.0,
                Err(_) => {
                    vfs.create(
                        ROOT,
                        name,
                        OWNER,
                        OpenMode {
                            truncates: true,
                            ..mode
                        },
                        false,
                    )
                    .await?
                    .1
                }
            };
            let content = files.get(name).cloned().unwrap_or_default();
            let at = match *step {
                Step::Write(_, offset, _) => offset,
                _ => content.len() as u64,
            };
            let bytes = vec![byte; length as usize];
            let written = vfs.write(handle, at, bytes.clone().into(), false).await;
            vfs.close(handle).await?;
            written?;
            let mut content = content;
            content.resize(content.len().max(at as usize + bytes.len()), 0);
            content[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
            files.insert(name, content);
        }
        Step::Truncate(file, size) => {
            let name = NAMES[file];
            let Ok(ino) = vfs.ino(name).await else {
                return Ok(());
            };
            let changes = Changes {
                size: Some(size),
                ..Changes::default()
            };
            vfs.setattr(ino, changes).await?;
            files.get_mut(name).unwrap().resize(size as usize, 0);
        }
        Step::Unlink(file) => {
            if vfs.ino(NAMES[file]).await.is_ok() {
                vfs.unlink(ROOT, NAMES[file]).await?;
                files.remove(NAMES[file]);
            }
        }
        Step::Rename(from, to) => {
            let (from, to) = (NAMES[from], NAMES[to]);
            if from != to && vfs.ino(from).await.is_ok() {
                vfs.rename((ROOT, from), (ROOT, to), false).await?;
                let content = files.remove(from).unwrap();
                files.insert(to, content);
            }
        }
        Step::Send => vfs.settle().await,
        Step::Away | Step::Killed => {}
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn a_mount_that_is_killed_again_and_again_has_all_that_was_closed(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (store, dir) = (MemoryStore::default(), directory());
            let mut vfs = begin(&store, dir.path()).await.0;
            let mut files = Files::new();
            for (number, step) in steps.iter().enumerate() {
                // A store that answers HEAD only: closes go on, all else may fail.
                let is_away = matches!(step, Step::Away);
                if is_away {
                    store.fail(|verb, _| (verb != "HEAD" && verb != "GET").then_some(Why::Unavailable));
                    for (file, name) in NAMES.iter().enumerate() {
                        // More than that is not kept in the journal.
                        let fits = files.get(name).is_some_and(|content| content.len() <= 59);
                        if fits {
                            let step = Step::Append(file, 5);
                            call(&vfs, &step, 200 + number as u8, &mut files).await.unwrap();
                        }
                    }
                    assert!(vfs.commit_all(|_| ()).await <= NAMES.len());
                    store.heal();
                    drop(vfs);
                    vfs = begin(&store, dir.path()).await.0;
                }
                call(&vfs, step, number as u8, &mut files).await.unwrap();
                if matches!(step, Step::Killed) {
                    drop(vfs);
                    vfs = begin(&store, dir.path()).await.0;
                }
                for name in NAMES {
                    let content = vfs.get(name).await.ok();
                    assert_eq!(content, files.get(name).cloned(), "{name} after {step:?}");
                }
            }
            vfs.settle().await;
            assert!(vfs.settle_closes().await);
            assert_eq!(entries(dir.path()).len(), 0);
            for name in NAMES {
                let content = store.whole(name).ok().map(|bytes| bytes.to_vec());
                assert_eq!(content, files.get(name).cloned(), "{name} on the store");
            }
        });
    }
}
