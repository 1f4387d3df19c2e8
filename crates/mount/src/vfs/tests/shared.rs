//! Close-to-open consistency over several mounts of one store, compared with a model: an open shows
//! the result of all closes before it.

use proptest::prelude::*;

use super::*;
use crate::store::Expect;

const MOUNTS: usize = 3;
const FILE_MAX: u64 = 700;

/// A call on one of the mounts.
#[derive(Clone, Debug)]
enum Step {
    /// Writes one byte value to a range.
    Write(u64, u64),
    Append(u64),
    Truncate(u64),
    /// `open` with `O_TRUNC`.
    Empty,
    Sync,
    Close,
    Read,
    Chmod(u32),
}

fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
    let step = prop_oneof![
        4 => (0..FILE_MAX, 1..60u64).prop_map(|(offset, length)| Step::Write(offset, length)),
        4 => (1..60u64).prop_map(Step::Append),
        1 => (0..FILE_MAX).prop_map(Step::Truncate),
        1 => Just(Step::Empty),
        3 => Just(Step::Sync),
        3 => Just(Step::Close),
        3 => Just(Step::Read),
        1 => (0..0o1000u32).prop_map(Step::Chmod),
    ];
    proptest::collection::vec((0..MOUNTS, step), 1..60)
}

/// A write that has not been stored.
enum Write {
    At(u64, Vec<u8>),
    End(Vec<u8>),
}

/// A mount, its open handles, and its writes since the last commit.
struct Host {
    vfs: Vfs<MemoryStore>,
    handle: Option<(u64, bool)>,
    pending: Vec<Write>,
    /// A byte value that identifies its writes.
    byte: u8,
}

impl Host {
    async fn handle(&mut self, is_append: bool) -> u64 {
        if let Some((handle, appends)) = self.handle
            && appends == is_append
        {
            return handle;
        }
        let mode = if is_append { APPEND } else { WRITE };
        let ino = self.vfs.ino("f").await.unwrap();
        let (handle, _) = self.vfs.open(ino, mode).await.unwrap();
        self.handle = Some((handle, is_append));
        handle
    }

    fn next(&mut self, length: u64) -> Vec<u8> {
        self.byte = self.byte.wrapping_add(MOUNTS as u8);
        vec![self.byte; length as usize]
    }

    async fn close(&mut self) {
        if let Some((handle, _)) = self.handle.take() {
            self.vfs.close(handle).await.unwrap();
        }
    }

    fn commit(&mut self, file: &mut Vec<u8>) {
        for write in self.pending.drain(..) {
            let (start, bytes) = match write {
                Write::At(offset, bytes) => (offset as usize, bytes),
                Write::End(bytes) => (file.len(), bytes),
            };
            if file.len() < start + bytes.len() {
                file.resize(start + bytes.len(), 0);
            }
            file[start..start + bytes.len()].copy_from_slice(&bytes);
        }
    }

    /// Handles of both modes are not open concurrently: a commit has one kind of writes.
    async fn only(&mut self, is_append: bool, file: &mut Vec<u8>) {
        if self.handle.is_some_and(|(_, appends)| appends != is_append) {
            self.close().await;
            self.commit(file);
        }
    }
}

async fn step(host: &mut Host, step: &Step, file: &mut Vec<u8>) {
    match *step {
        Step::Write(offset, length) => {
            host.only(false, file).await;
            let (handle, bytes) = (host.handle(false).await, host.next(length));
            let written = host.vfs.write(handle, offset, bytes.clone().into(), false);
            written.await.unwrap();
            host.pending.push(Write::At(offset, bytes));
        }
        Step::Append(length) => {
            host.only(true, file).await;
            let (handle, bytes) = (host.handle(true).await, host.next(length));
            let written = host.vfs.write(handle, 0, bytes.clone().into(), false);
            written.await.unwrap();
            host.pending.push(Write::End(bytes));
        }
        Step::Truncate(size) => {
            host.close().await;
            host.commit(file);
            let ino = host.vfs.ino("f").await.unwrap();
            let changes = Changes {
                size: Some(size),
                ..Changes::default()
            };
            host.vfs.setattr(ino, changes).await.unwrap();
            file.resize(size as usize, 0);
        }
        Step::Empty => {
            host.close().await;
            host.commit(file);
            let ino = host.vfs.ino("f").await.unwrap();
            let (handle, _) = host.vfs.open(ino, TRUNCATE).await.unwrap();
            host.handle = Some((handle, false));
            file.clear();
        }
        Step::Sync => {
            if let Some((handle, _)) = host.handle {
                host.vfs.sync(handle).await.unwrap();
            }
            host.commit(file);
        }
        Step::Close => {
            host.close().await;
            host.commit(file);
        }
        Step::Chmod(mode) => {
            let ino = host.vfs.ino("f").await.unwrap();
            let changes = Changes {
                mode: Some(mode),
                ..Changes::default()
            };
            host.vfs.setattr(ino, changes).await.unwrap();
        }
        Step::Read => {
            if host.pending.is_empty() {
                let shown = host.vfs.get("f").await.unwrap();
                assert!(shown == *file, "{} bytes, not {}", shown.len(), file.len());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn an_open_shows_what_the_closes_before_it_have_made(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let store = MemoryStore::default();
            let mut file = pattern(30);
            let mut hosts = Vec::new();
            for byte in 0..MOUNTS as u8 {
                let vfs = mount(&store);
                if byte == 0 {
                    vfs.put("f", &file).await.unwrap();
                }
                hosts.push(Host { vfs, handle: None, pending: Vec::new(), byte });
            }
            for (host, call) in &steps {
                step(&mut hosts[*host], call, &mut file).await;
            }
            for host in &mut hosts {
                host.close().await;
                host.commit(&mut file);
                host.vfs.settle().await;
            }
            assert!(store.whole("f").unwrap() == file);
            assert!(hosts[0].vfs.get("f").await.unwrap() == file);
        });
    }
}

#[tokio::test]
async fn a_name_that_another_host_has_made_anew_is_looked_for_again() {
    let store = MemoryStore::default();
    let (one, two) = (mount(&store), mount(&store));
    one.put("f", b"old").await.unwrap();
    // The other host's kernel has cached the name, and opens it by its inode number for a second.
    let known = two.ino("f").await.unwrap();
    one.unlink(ROOT, "f").await.unwrap();
    let gone = two.open(known, WRITE).await;
    assert!(
        matches!(gone, Err(FsError::Stale)),
        "the kernel has to look again"
    );
    one.put("f", b"new").await.unwrap();
    let stale = two.open(known, WRITE).await;
    assert!(
        matches!(stale, Err(FsError::Stale)),
        "the kernel has to look again"
    );
    assert_eq!(two.get("f").await.unwrap(), b"new");
}

#[tokio::test]
async fn a_directory_is_empty_when_another_host_has_removed_what_was_made_here() {
    let store = MemoryStore::default();
    let (one, two) = (mount(&store), mount(&store));
    one.mkdir(ROOT, "d", OWNER).await.unwrap();
    one.put("d/f", b"f").await.unwrap();
    one.put("d/g", b"g").await.unwrap();
    two.unlink(two.ino("d").await.unwrap(), "f").await.unwrap();
    assert_eq!(one.names("d").await, ["g"]);
    assert!(matches!(one.rmdir(ROOT, "d").await, Err(FsError::NotEmpty)));
    two.unlink(two.ino("d").await.unwrap(), "g").await.unwrap();
    one.rmdir(ROOT, "d").await.unwrap();
    assert!(store.names().is_empty(), "{:?}", store.names());
}

/// Both find the old version gone, and one of them makes the new one the base of what was written here.
#[tokio::test]
async fn two_reads_of_a_written_file_follow_another_host_together() {
    for seed in 0..40 {
        let store = MemoryStore::default();
        let (one, two) = (mount(&store), mount(&store));
        two.put("f", &pattern(40)).await.unwrap();
        let ino = one.ino("f").await.unwrap();
        let (handle, _) = one.open(ino, WRITE).await.unwrap();
        one.write(handle, 0, vec![1; 4].into(), false)
            .await
            .unwrap();
        two.put("f", &[2; 40]).await.unwrap();
        store.take_turns(seed);
        let reads = tokio::join!(one.read(handle, 0, 100), one.read(handle, 0, 100));
        let expected = [vec![1; 4], vec![2; 36]].concat();
        for read in [reads.0, reads.1] {
            assert_eq!(read.unwrap().concat(), expected, "seed {seed}");
        }
    }
}

/// The reader finds the old version gone, and then the file has a write that keeps it from the new one.
#[tokio::test]
async fn a_read_beside_a_write_follows_another_host() {
    for turns in 0..40 {
        let store = MemoryStore::default();
        let (one, two) = (mount(&store), mount(&store));
        two.put("f", &pattern(40)).await.unwrap();
        let ino = one.ino("f").await.unwrap();
        let (handle, _) = one.open(ino, WRITE).await.unwrap();
        two.put("f", &[2; 40]).await.unwrap();
        store.take_turns(turns / 10);
        let write = async {
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            one.write(handle, 0, vec![1; 4].into(), false).await
        };
        let (read, written) = tokio::join!(one.read(handle, 0, 100), write);
        written.unwrap();
        assert_eq!(read.unwrap().concat()[4..], [2; 36], "{turns} turns");
    }
}

/// The segments are those of the new name; what is written here again under the old one has its own.
#[tokio::test]
async fn a_file_that_is_renamed_elsewhere_and_written_here_is_two_files() {
    let store = MemoryStore::default();
    let (one, two) = (mount(&store), mount(&store));
    one.put("f", &pattern(1000)).await.unwrap();
    let (handle, _) = two.open(two.ino("f").await.unwrap(), WRITE).await.unwrap();
    two.write(handle, 0, vec![7; 400].into(), false)
        .await
        .unwrap();
    one.rename((ROOT, "f"), (ROOT, "g"), false).await.unwrap();
    two.close(handle).await.unwrap();
    two.settle().await;
    assert!(store.whole("g").unwrap() == pattern(1000));
    one.unlink(ROOT, "g").await.unwrap();
    one.settle().await;
    let mut expected = pattern(1000);
    expected[..400].fill(7);
    assert!(store.whole("f").unwrap() == expected);
    assert!(two.get("f").await.unwrap() == expected);
}

/// The segments of the version that was removed may go at any time.
#[tokio::test]
async fn a_file_that_is_removed_elsewhere_is_there_again_with_segments_of_its_own() {
    for is_late in [true, false] {
        let store = MemoryStore::default();
        let (one, two) = (mount(&store), mount(&store));
        one.put("f", &pattern(1000)).await.unwrap();
        one.settle().await;
        let old = segments(&store);
        let (handle, _) = two.open(two.ino("f").await.unwrap(), WRITE).await.unwrap();
        two.write(handle, 300, vec![7; 20].into(), false)
            .await
            .unwrap();
        store.fail(move |_, name| (is_late && name.ends_with("/shared")).then_some(Why::Timeout));
        one.unlink(ROOT, "f").await.unwrap();
        one.settle().await;
        store.heal();
        let closed = two.close(handle).await;
        if is_late {
            two.settle().await;
            for name in old {
                store.delete(&name, Expect::Anything).await.unwrap();
            }
            closed.unwrap();
            let mut expected = pattern(1000);
            expected[300..320].fill(7);
            assert!(store.whole("f").unwrap() == expected);
        } else {
            // Its bytes are gone, and so are those that were written.
            assert!(closed.is_err() && store.etag("f").is_none());
        }
    }
}

/// Another program of this host writes it, and has not closed it.
#[tokio::test]
async fn an_open_of_a_file_that_is_written_here_shows_what_others_have_closed() {
    let store = MemoryStore::default();
    let (one, two) = (mount(&store), mount(&store));
    one.put("f", &pattern(100)).await.unwrap();
    let ino = two.ino("f").await.unwrap();
    let (writer, _) = two.open(ino, WRITE).await.unwrap();
    two.write(writer, 0, vec![7; 4].into(), false)
        .await
        .unwrap();
    let (other, _) = one.open(one.ino("f").await.unwrap(), WRITE).await.unwrap();
    one.write(other, 50, vec![8; 100].into(), false)
        .await
        .unwrap();
    one.close(other).await.unwrap();
    let mut expected = [pattern(50), vec![8; 100]].concat();
    expected[..4].fill(7);
    assert!(two.get("f").await.unwrap() == expected);
    two.close(writer).await.unwrap();
    assert!(store.whole("f").unwrap() == expected);
}

/// Loses the response to the next commit of `f`, and the look after it.
fn lose_a_commit(store: &MemoryStore) {
    let goes = store.clone();
    store.lose(move |verb, name| {
        let is_file = verb == "PUT" && name == "f";
        if is_file {
            goes.fail(|_, _| Some(Why::Unavailable));
        }
        is_file.then_some(Why::Timeout)
    });
}

/// The segments of what it wrote go with the version that had them.
#[tokio::test]
async fn a_commit_in_doubt_that_others_have_replaced_is_not_made_again() {
    let store = MemoryStore::default();
    let (one, two) = (mount(&store), mount(&store));
    one.put("f", &pattern(1000)).await.unwrap();
    let (handle, _) = one.open(one.ino("f").await.unwrap(), WRITE).await.unwrap();
    let write = async |vfs: &Vfs<MemoryStore>, handle, offset, bytes: Vec<u8>| {
        vfs.write(handle, offset, bytes.into(), false)
            .await
            .unwrap();
    };
    write(&one, handle, 0, vec![7; 300]).await;
    lose_a_commit(&store);
    assert!(one.sync(handle).await.is_err());
    store.heal();
    let (other, _) = two.open(two.ino("f").await.unwrap(), WRITE).await.unwrap();
    write(&two, other, 0, vec![8; 300]).await;
    two.close(other).await.unwrap();
    two.settle().await;
    write(&one, handle, 900, vec![9; 10]).await;
    one.close(handle).await.unwrap();
    one.settle().await;
    let mut expected = pattern(1000);
    expected[..300].fill(8);
    expected[900..910].fill(9);
    assert!(store.whole("f").unwrap() == expected);
}

#[tokio::test]
async fn a_commit_in_doubt_that_others_have_removed_is_made_with_its_bytes_or_fails() {
    for is_late in [true, false] {
        let store = MemoryStore::default();
        let (one, two) = (mount(&store), mount(&store));
        one.put("f", &pattern(1000)).await.unwrap();
        let (handle, _) = one.open(one.ino("f").await.unwrap(), WRITE).await.unwrap();
        one.write(handle, 0, vec![7; 1000].into(), false)
            .await
            .unwrap();
        lose_a_commit(&store);
        assert!(one.sync(handle).await.is_err());
        store.heal();
        let stored = segments(&store);
        store.fail(move |_, name| (is_late && name.ends_with("/shared")).then_some(Why::Timeout));
        two.unlink(ROOT, "f").await.unwrap();
        two.settle().await;
        store.heal();
        let closed = one.close(handle).await;
        if is_late {
            for name in stored {
                store.delete(&name, Expect::Anything).await.unwrap();
            }
            closed.unwrap();
            assert!(store.whole("f").unwrap() == vec![7; 1000]);
        } else {
            assert!(closed.is_err() && store.etag("f").is_none());
        }
    }
}

/// It fails after another host's version has become the base.
#[tokio::test]
async fn a_truncation_that_fails_leaves_what_others_have_written() {
    for is_written in [false, true] {
        let store = MemoryStore::default();
        let vfs = mount(&store);
        vfs.put("f", &pattern(50)).await.unwrap();
        let ino = vfs.ino("f").await.unwrap();
        let (handle, _) = vfs.open(ino, WRITE).await.unwrap();
        if is_written {
            vfs.write(handle, 0, vec![7; 4].into(), false)
                .await
                .unwrap();
        }
        let (other, mut puts) = (store.clone(), 0);
        store.fail(move |verb, name| {
            if verb != "PUT" || name != "f" {
                return None;
            }
            puts += 1;
            if puts == 1 {
                other.write("f", "t", &[8; 60]);
            }
            (puts > 1).then_some(Why::Timeout)
        });
        assert!(vfs.open(ino, TRUNCATE).await.is_err());
        store.heal();
        let mut expected = vec![8; 60];
        if is_written {
            expected[..4].fill(7);
        }
        assert!(vfs.get("f").await.unwrap() == expected, "{is_written}");
        vfs.write(handle, 20, vec![9; 4].into(), false)
            .await
            .unwrap();
        vfs.close(handle).await.unwrap();
        expected[20..24].fill(9);
        assert!(store.whole("f").unwrap() == expected, "{is_written}");
    }
}

#[tokio::test]
async fn what_is_appended_beside_a_failed_truncation_is_at_the_end() {
    let store = MemoryStore::default();
    store.write("f", "text/plain", b"0123456789");
    let vfs = mount(&store);
    let ino = vfs.ino("f").await.unwrap();
    let (handle, _) = vfs.open(ino, APPEND).await.unwrap();
    vfs.write(handle, 0, b"abc"[..].into(), false)
        .await
        .unwrap();
    // It takes place, and its answer is lost; the store is away when it is looked for.
    let is_lost = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let loses = is_lost.clone();
    store.lose(move |verb, _| {
        let is_it = verb == "PUT";
        loses.fetch_or(is_it, Ordering::Relaxed);
        is_it.then_some(Why::Timeout)
    });
    store.fail(move |_, _| is_lost.load(Ordering::Relaxed).then_some(Why::Unavailable));
    assert!(vfs.open(ino, TRUNCATE).await.is_err());
    assert_eq!(store.whole("f").unwrap(), "");
    store.heal();
    vfs.write(handle, 0, b"def"[..].into(), false)
        .await
        .unwrap();
    vfs.close(handle).await.unwrap();
    assert_eq!(store.whole("f").unwrap(), "abcdef");
}

/// Its commit gets into doubt between the look of an open with `O_TRUNC` and the truncation, which fails.
#[tokio::test]
async fn a_truncation_that_fails_makes_no_append_in_doubt_again() {
    for seed in 0..60 {
        let store = MemoryStore::default();
        store.write("f", "text/plain", b"0123456789");
        let vfs = mount(&store);
        let ino = vfs.ino("f").await.unwrap();
        let (handle, _) = vfs.open(ino, APPEND).await.unwrap();
        vfs.write(handle, 0, b"abc"[..].into(), false)
            .await
            .unwrap();
        let away = store.clone();
        store.lose(move |verb, _| {
            let mut has_looked = false;
            away.fail(move |verb, name| match verb {
                "PUT" => (name == "f").then_some(Why::Timeout),
                _ => (!std::mem::replace(&mut has_looked, true)).then_some(Why::Unavailable),
            });
            (verb == "PUT").then_some(Why::Timeout)
        });
        store.take_turns(seed);
        let (synced, opened) = tokio::join!(vfs.sync(handle), vfs.open(ino, TRUNCATE));
        store.heal();
        vfs.write(handle, 0, b"def"[..].into(), false)
            .await
            .unwrap();
        vfs.close(handle).await.unwrap();
        let whole = String::from_utf8(store.whole("f").unwrap().to_vec()).unwrap();
        let expected: &[&str] = match (synced, opened) {
            (_, Ok(_)) => &["def", "abcdef"],
            _ => &["0123456789abcdef", "abcdef"],
        };
        assert!(expected.contains(&&*whole), "seed {seed}: {whole}");
    }
}
