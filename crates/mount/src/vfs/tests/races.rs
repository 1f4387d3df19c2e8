//! Two hosts that change names of one file: one call of the other host comes before each request of a
//! call here in turn. No name loses bytes by it, also when the others are removed afterwards.

use futures_util::FutureExt;

use super::*;
use crate::sweep::SweepOptions;

const FILE: &[u8] = &[7; 600];
const SMALL: &[u8] = b"small";
const OTHER: &[u8] = b"another file";

/// A call on names of the file `f`, or of one beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Unlink(&'static str),
    Rename(&'static str, &'static str),
    Link(&'static str, &'static str),
    /// Writes a few bytes.
    Write(&'static str),
}

impl Call {
    fn is_of(self, path: &str) -> bool {
        match self {
            Call::Unlink(name) | Call::Write(name) => name == path,
            Call::Rename(from, to) | Call::Link(from, to) => from == path || to == path,
        }
    }
}

/// The number of a path's directory, and its name there.
async fn place<'a>(vfs: &Vfs<MemoryStore>, path: &'a str) -> FsResult<(u64, &'a str)> {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    Ok((vfs.ino(directory).await?, name))
}

async fn call(vfs: &Vfs<MemoryStore>, call: Call) -> FsResult<()> {
    match call {
        Call::Unlink(path) => {
            let (parent, name) = place(vfs, path).await?;
            vfs.unlink(parent, name).await
        }
        Call::Rename(from, to) => {
            let (from, to) = (place(vfs, from).await?, place(vfs, to).await?);
            vfs.rename(from, to, false).await
        }
        Call::Link(from, to) => {
            let ino = vfs.ino(from).await?;
            let (parent, name) = place(vfs, to).await?;
            vfs.link(ino, parent, name).await.map(drop)
        }
        Call::Write(name) => {
            let (handle, _) = vfs.open(vfs.ino(name).await?, WRITE).await?;
            vfs.write(handle, 0, SMALL.into(), false).await?;
            vfs.close(handle).await
        }
    }
}

/// Outcome of a race.
struct Race {
    store: MemoryStore,
    here: FsResult<()>,
    there: FsResult<()>,
    text: String,
}

/// Has the other host's call come before the request of this number; `None` if there are fewer.
async fn race(mine: Call, other: Call, file: &[u8], is_open: bool, number: usize) -> Option<Race> {
    let store = MemoryStore::default();
    let (here, there) = (mount(&store), Arc::new(mount(&store.beside())));
    let has = |path: &str| mine.is_of(path) || other.is_of(path);
    let first = if has("d") { "d/f" } else { "f" };
    if has("d") {
        here.mkdir(ROOT, "d", OWNER).await.unwrap();
    }
    let ino = here.put(first, file).await.unwrap();
    here.put("x", OTHER).await.unwrap();
    if has("l") {
        here.link(ino, ROOT, "l").await.unwrap();
    }
    let handle = match is_open {
        true => Some(here.open(ino, READ).await.unwrap().0),
        false => None,
    };
    let ended = Arc::new(Mutex::new(None));
    let (ends, runs, mut requests) = (ended.clone(), there.clone(), 0);
    store.fail(move |_, _| {
        if requests == number {
            *ends.lock() = call(&runs, other).now_or_never();
        }
        requests += 1;
        None
    });
    let result = call(&here, mine).await;
    store.heal();
    let there_result = ended.lock().take()?;
    let text =
        format!("{mine:?} {result:?}, {other:?} {there_result:?} before {number}, open: {is_open}");
    if let Some(handle) = handle {
        // Its own bytes are shown, or it says that they are gone.
        if let Ok(pieces) = here.read(handle, 0, 4096).await {
            let shown = pieces.concat();
            assert!(is_right(&shown, file), "{text}: {shown:?}");
        }
        here.close(handle).await.unwrap();
    }
    // A file that was removed there and is written here may have no place any more.
    let left = here.commit_all(|_| ()).await;
    assert!(left == 0 || result.is_err(), "{text}");
    there.settle().await;
    Some(Race {
        store,
        here: result,
        there: there_result,
        text,
    })
}

fn files(store: &MemoryStore) -> Vec<String> {
    let names = store.names().into_iter();
    names.filter(|name| !name.starts_with(SEGMENTS)).collect()
}

/// Is it one of the two files, as it was or written to?
fn is_right(bytes: &[u8], file: &[u8]) -> bool {
    let is_like = |file: &[u8]| {
        let start = SMALL.len();
        bytes.len() == file.len() && bytes[start..] == file[start..]
    };
    // A directory is empty.
    bytes.is_empty() || bytes == SMALL || is_like(file) || is_like(OTHER)
}

/// Nothing is broken, and nothing breaks when one name goes after the other.
async fn check(race: &Race, file: &[u8]) {
    let (store, text) = (&race.store, &race.text);
    let vfs = mount(store);
    let mut names = files(store);
    while let Some(name) = names.pop() {
        let found: Vec<(String, Vec<u8>)> = {
            let all = names.iter().chain([&name]);
            all.map(|name| match store.whole(name) {
                Ok(bytes) => (name.clone(), bytes.to_vec()),
                Err(error) => panic!("{text}: {name}: {error}"),
            })
            .collect()
        };
        for (name, bytes) in &found {
            assert!(is_right(bytes, file), "{text}: {name} {bytes:?}");
        }
        let (parent, name) = place(&vfs, &name).await.unwrap();
        match vfs.lookup(parent, name).await.unwrap().attributes.kind {
            Kind::Directory => vfs.rmdir(parent, name).await.unwrap(),
            _ => vfs.unlink(parent, name).await.unwrap(),
        }
        vfs.settle().await;
    }
    let now = SweepOptions {
        grace: Duration::ZERO,
        ignores_pins: false,
    };
    vfs.committer.sweep(now).await.unwrap();
    vfs.committer.sweep(now).await.unwrap();
    assert_eq!(store.names(), [""; 0], "{text}");
}

/// Do names lead to one file?
async fn are_one(store: &MemoryStore, names: [&str; 2]) -> bool {
    let vfs = mount(store);
    let [one, two] = names;
    let one = vfs.ino(one).await.unwrap();
    one == vfs.ino(two).await.unwrap()
}

/// All races of two calls; `judge` sees each, and what is there is checked afterwards.
async fn races(mine: Call, other: Call, judge: impl AsyncFn(&Race)) {
    for file in [FILE, SMALL] {
        for is_open in [false, true] {
            let mut number = 0;
            while let Some(race) = race(mine, other, file, is_open, number).await {
                judge(&race).await;
                check(&race, file).await;
                number += 1;
            }
            assert!(number > 1, "{mine:?} {other:?}");
        }
    }
}

/// The bytes of the other host's name are there, if it was made.
fn is_kept(race: &Race, name: &str) {
    if race.there.is_ok() {
        assert!(
            files(&race.store).iter().any(|it| it == name),
            "{}",
            race.text
        );
    }
}

#[tokio::test]
async fn a_removal_leaves_what_has_another_name_by_then() {
    for mine in [Call::Unlink("f"), Call::Rename("x", "f")] {
        for other in [Call::Rename("f", "g"), Call::Link("f", "g")] {
            races(mine, other, async |race| is_kept(race, "g")).await;
        }
    }
}

#[tokio::test]
async fn two_hosts_that_move_a_file_leave_two_whole_names_or_one() {
    for other in [Call::Rename("f", "g"), Call::Unlink("f")] {
        races(Call::Rename("f", "h"), other, async |race| {
            if let Call::Rename(..) = other {
                is_kept(race, "g");
            }
            if race.here.is_ok() {
                assert!(
                    files(&race.store).contains(&"h".to_owned()),
                    "{}",
                    race.text
                );
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_file_that_gets_a_link_while_it_moves_is_one_file() {
    races(Call::Rename("f", "h"), Call::Link("f", "g"), async |race| {
        if race.there.is_ok() {
            assert!(race.here.is_ok(), "{}", race.text);
            assert!(are_one(&race.store, ["g", "h"]).await, "{}", race.text);
        }
    })
    .await;
}

#[tokio::test]
async fn a_link_that_moves_leaves_what_another_host_has_put_there() {
    races(
        Call::Rename("l", "m"),
        Call::Rename("x", "l"),
        async |race| {
            assert!(race.there.is_ok(), "{}", race.text);
            let found = files(&race.store)
                .iter()
                .any(|name| race.store.whole(name).unwrap() == OTHER);
            assert!(found, "{}", race.text);
        },
    )
    .await;
}

#[tokio::test]
async fn links_are_made_and_removed_beside_everything() {
    for mine in [
        Call::Link("f", "h"),
        Call::Unlink("l"),
        Call::Rename("l", "f"),
        Call::Write("f"),
    ] {
        for other in [
            Call::Unlink("f"),
            Call::Unlink("l"),
            Call::Link("f", "g"),
            Call::Rename("f", "g"),
            Call::Rename("x", "f"),
            Call::Rename("l", "g"),
            Call::Write("f"),
        ] {
            races(mine, other, async |race| match other {
                Call::Link(_, name) | Call::Rename(_, name) => is_kept(race, name),
                _ => {}
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_directory_s_rename_takes_along_what_others_make_of_its_files() {
    for other in [
        Call::Link("d/f", "g"),
        Call::Rename("d/f", "g"),
        Call::Unlink("d/f"),
        Call::Write("d/f"),
    ] {
        races(Call::Rename("d", "e"), other, async |race| match other {
            Call::Link(..) if race.there.is_ok() => {
                assert!(race.here.is_ok(), "{}", race.text);
                assert!(are_one(&race.store, ["g", "e/f"]).await, "{}", race.text);
            }
            Call::Rename(..) => is_kept(race, "g"),
            _ => {}
        })
        .await;
    }
}

/// A mount that is killed between the copies and the deletions of a directory's rename leaves both
/// names. A small file that another host made large before its copy keeps its bytes under the new name
/// when the old one is removed.
#[tokio::test]
async fn a_file_that_grows_before_a_directory_s_rename_copies_it_is_whole_under_both_names() {
    let store = MemoryStore::default();
    let (here, there) = (mount(&store), Arc::new(mount(&store.beside())));
    let directory = here.mkdir(ROOT, "d", OWNER).await.unwrap();
    here.put("d/f", SMALL).await.unwrap();
    there.ino("d/f").await.unwrap();
    let (writes, mut is_written) = (there.clone(), false);
    store.fail(move |verb, name| match (verb, name) {
        ("COPY", "d/f") => {
            if !std::mem::replace(&mut is_written, true) {
                let written = writes.put("d/f", FILE).now_or_never();
                written.expect("it waits for nothing").unwrap();
            }
            None
        }
        // It is killed here.
        ("DELETE", name) if name.starts_with("d/") => Some(Why::Refused),
        _ => None,
    });
    here.rename((ROOT, "d"), (ROOT, "e"), false)
        .await
        .unwrap_err();
    assert_eq!(store.whole("e/f").unwrap(), FILE);
    there.unlink(directory.ino, "f").await.unwrap();
    there.settle().await;
    assert_eq!(store.whole("e/f").unwrap(), FILE);
}

/// Removed names are not shown for a while, as listings may be out of date; names that are moved there are.
#[tokio::test]
async fn a_directory_moved_to_where_one_was_removed_shows_names_that_are_not_known_here() {
    let store = MemoryStore::default();
    let here = mount(&store);
    let root = here.mkdir(ROOT, "a", OWNER).await.unwrap().ino;
    let inner = here.mkdir(root, "inner", OWNER).await.unwrap().ino;
    here.put("a/inner/file", b"old").await.unwrap();
    here.unlink(inner, "file").await.unwrap();
    here.rmdir(root, "inner").await.unwrap();
    here.rmdir(ROOT, "a").await.unwrap();
    // Its directories have no objects.
    store.write("b/inner/file", "text/plain", b"new");
    here.rename((ROOT, "b"), (ROOT, "a"), false).await.unwrap();
    assert_eq!(here.names("a").await, ["inner"]);
    assert_eq!(here.names("a/inner").await, ["file"]);
    let a = here.ino("a").await.unwrap();
    let removed = here.rmdir(a, "inner").await;
    assert!(matches!(removed, Err(FsError::NotEmpty)), "{removed:?}");
}

/// The store's listing still has the row of a file that was removed here, and shows a directory by it.
#[tokio::test]
async fn a_directory_that_only_an_old_row_shows_is_made_anew() {
    let store = MemoryStore::default();
    let here = mount(&store);
    let directory = here.mkdir(ROOT, "d", OWNER).await.unwrap().ino;
    here.put("d/file", b"old").await.unwrap();
    here.unlink(directory, "file").await.unwrap();
    here.rmdir(ROOT, "d").await.unwrap();
    store.write("d/file", "text/plain", b"old");
    assert!(matches!(here.ino("d").await, Err(FsError::NotFound)));
    here.mkdir(ROOT, "d", OWNER).await.unwrap();
    assert!(store.head("d").await.is_ok());
    // Another name below it is no old row.
    here.rmdir(ROOT, "d").await.unwrap();
    store.write("d/other", "text/plain", b"new");
    assert!(here.ino("d").await.is_ok());
}
