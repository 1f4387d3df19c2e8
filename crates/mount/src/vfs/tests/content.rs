//! File content.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

/// A file, a handle to it, and its expected content.
struct Fsx {
    store: MemoryStore,
    vfs: Vfs<MemoryStore>,
    handle: u64,
    model: Vec<u8>,
    random: StdRng,
    log: Vec<String>,
}

const FSX_MAX: u64 = 3000;

impl Fsx {
    async fn new(seed: u64) -> Fsx {
        let store = MemoryStore::default();
        let vfs = mount(&store);
        let (_, handle) = vfs.create(ROOT, "f", OWNER, WRITE, true).await.unwrap();
        Fsx {
            store,
            vfs,
            handle,
            model: Vec::new(),
            random: StdRng::seed_from_u64(seed),
            log: Vec::new(),
        }
    }

    fn range(&mut self) -> (u64, u64) {
        let offset = self.random.random_range(0..FSX_MAX);
        let length = match self.random.random_range(0..3) {
            0 => self.random.random_range(1..8),
            1 => self.random.random_range(1..100),
            _ => self.random.random_range(1..700),
        };
        (offset, length.min(FSX_MAX - offset))
    }

    /// Asserts that the store has the expected content.
    fn check_store(&self) {
        let stored = self.store.whole("f").unwrap();
        assert_eq!(stored.len(), self.model.len(), "{:#?}", self.log);
        assert!(
            stored == self.model,
            "another client reads other bytes: {:#?}",
            self.log
        );
    }

    /// Syncs or closes; if the store fails, the file keeps its state.
    async fn store_it(&mut self, closes: bool) {
        let result = match closes {
            true => {
                let handle = self.handle;
                let closed = self.vfs.close(handle).await;
                let ino = self.vfs.ino("f").await.unwrap();
                self.handle = self.vfs.open(ino, WRITE).await.unwrap().0;
                closed
            }
            false => self.vfs.sync(self.handle).await,
        };
        if result.is_ok() {
            self.check_store();
        }
    }

    async fn step(&mut self, fails: bool) {
        let (offset, length) = self.range();
        let end = (offset + length) as usize;
        let kind = self.random.random_range(0..100);
        let name = ["write", "read", "cut", "zero", "sync", "close"];
        match kind {
            0..45 => {
                let byte = self.random.random::<u8>();
                let data: Vec<u8> = (0..length).map(|i| byte.wrapping_add(i as u8)).collect();
                self.log.push(format!("{} {offset}+{length}", name[0]));
                let written = self
                    .vfs
                    .write(self.handle, offset, data.clone().into(), false)
                    .await;
                // While the store fails, memory may run out: then the write is refused.
                assert!(written.is_ok() || fails);
                if written.is_err() {
                    return;
                }
                if self.model.len() < end {
                    self.model.resize(end, 0);
                }
                self.model[offset as usize..end].copy_from_slice(&data);
            }
            45..75 => {
                self.log.push(format!("{} {offset}+{length}", name[1]));
                let expected = self.model.get(offset as usize..end.min(self.model.len()));
                let expected = expected.unwrap_or_default().to_vec();
                match self.vfs.read(self.handle, offset, length as u32).await {
                    Ok(read) => assert!(read.concat() == expected, "{:#?}", self.log),
                    Err(error) => assert!(fails, "{error}: {:#?}", self.log),
                }
            }
            75..82 => {
                self.log.push(format!("{} {offset}", name[2]));
                let ino = self.vfs.ino("f").await.unwrap();
                let changes = Changes {
                    size: Some(offset),
                    ..Changes::default()
                };
                // Truncation is committed at once; if that fails, it is still effective here.
                let changed = self.vfs.setattr(ino, changes).await;
                assert!(changed.is_ok() || fails);
                self.model.resize(offset as usize, 0);
            }
            82..87 => {
                self.log.push(format!("{} {offset}+{length}", name[3]));
                self.vfs
                    .zero(self.handle, offset, length, true)
                    .await
                    .unwrap();
                let end = end.min(self.model.len());
                if let Some(part) = self.model.get_mut(offset as usize..end) {
                    part.fill(0);
                }
            }
            87..95 => {
                self.log.push(name[4].to_owned());
                self.store_it(false).await;
            }
            _ => {
                self.log.push(name[5].to_owned());
                self.store_it(true).await;
            }
        }
    }
}

#[tokio::test]
async fn any_writes_are_read_back_here_and_by_other_clients() {
    for seed in 0..10 {
        let mut fsx = Fsx::new(seed).await;
        for _ in 0..1500 {
            fsx.step(false).await;
        }
        fsx.store_it(true).await;
        fsx.vfs.settle().await;
        // No unreferenced segments are left.
        let stat = fsx.store.head("f").await.unwrap();
        let parts = fsx
            .store
            .manifest("f", &stat.etag)
            .await
            .unwrap()
            .unwrap_or_default();
        assert_eq!(
            segments(&fsx.store),
            needed(&fsx.store, "f").await,
            "seed {seed}"
        );
        // Without compaction there are hundreds.
        assert!(parts.len() <= 48, "{} parts", parts.len());
        assert_eq!(fsx.vfs.budget.used(), 0);
        let other = mount(&fsx.store);
        assert!(other.get("f").await.unwrap() == fsx.model, "seed {seed}");
    }
}

#[tokio::test]
async fn what_a_failing_store_did_not_take_is_not_lost() {
    for seed in 100..106 {
        let mut fsx = Fsx::new(seed).await;
        for round in 0..8 {
            fsx.store.heal();
            for _ in 0..60 {
                fsx.step(false).await;
            }
            let mut faults = StdRng::seed_from_u64(seed * 8 + round);
            fsx.store.fail(move |verb, _| {
                let is_hit =
                    matches!(verb, "PUT" | "GET" | "COPY") && faults.random_range(0..3) == 0;
                is_hit.then_some(Why::Unavailable)
            });
            for _ in 0..40 {
                fsx.step(true).await;
            }
        }
        fsx.store.heal();
        fsx.store_it(true).await;
        fsx.check_store();
        assert_eq!(fsx.vfs.budget.used(), 0);
    }
}

#[tokio::test]
async fn a_change_of_a_large_file_uploads_the_change_alone() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    let mut bytes = pattern(2000);
    let ino = vfs.put("f", &bytes).await.unwrap();
    vfs.settle().await;
    assert_eq!(segments(&store).len(), 8);
    store.take_calls();
    let (handle, _) = vfs.open(ino, WRITE).await.unwrap();
    vfs.write(handle, 1000, vec![0xff; 40].into(), false)
        .await
        .unwrap();
    vfs.close(handle).await.unwrap();
    bytes[1000..1040].fill(0xff);
    assert!(store.whole("f").unwrap() == bytes);
    let puts = store
        .take_calls()
        .iter()
        .filter(|call| call.starts_with("PUT"))
        .count();
    // The changed segment, and the manifest.
    assert_eq!(puts, 2);
    assert_eq!(segments(&store).len(), 9);
}

#[tokio::test]
async fn holes_are_not_uploaded_and_manifests_nest() {
    let store = MemoryStore::default();
    let limits = Limits {
        manifest_parts: 12,
        extra_parts: 100,
        ..limits()
    };
    let vfs = mount_with(&store, limits);
    let (attr, handle) = vfs.create(ROOT, "f", OWNER, WRITE, true).await.unwrap();
    let size = limits.file_bytes_max();
    vfs.write(handle, size - 3, vec![1, 2, 3].into(), false)
        .await
        .unwrap();
    assert!(
        vfs.write(handle, size, vec![1].into(), false)
            .await
            .is_err()
    );
    vfs.sync(handle).await.unwrap();
    let mut expected = vec![0; size as usize];
    expected[size as usize - 3..].copy_from_slice(&[1, 2, 3]);
    assert!(store.whole("f").unwrap() == expected);
    for i in 0..15 {
        let offset = 300 * i;
        vfs.write(handle, offset, vec![7; 20].into(), false)
            .await
            .unwrap();
        expected[offset as usize..offset as usize + 20].fill(7);
    }
    vfs.close(handle).await.unwrap();
    assert!(store.whole("f").unwrap() == expected);
    assert!(store.names().iter().any(|name| name.ends_with(".parts")));
    let other = mount_with(&store, limits);
    let (handle, _) = other
        .open(other.ino("f").await.unwrap(), READ)
        .await
        .unwrap();
    assert_eq!(
        other.bytes(handle, 300, 22).await,
        [&[7; 20][..], &[0, 0]].concat()
    );
    assert_eq!(vfs.getattr(attr.ino).await.unwrap().size, size);
}

#[tokio::test]
async fn a_file_is_as_the_last_close_left_it() {
    let store = MemoryStore::default();
    let (one, two) = (mount(&store), mount(&store));
    for bytes in [pattern(10), pattern(700)] {
        let ino = one.put("f", &bytes).await.unwrap();
        assert!(two.get("f").await.unwrap() == bytes);
        let (reader, _) = two.open(two.ino("f").await.unwrap(), READ).await.unwrap();
        let (writer, _) = one.open(ino, TRUNCATE).await.unwrap();
        one.write(writer, 0, pattern(900).into(), false)
            .await
            .unwrap();
        assert!(
            two.get("f").await.unwrap().is_empty(),
            "not before the close"
        );
        one.close(writer).await.unwrap();
        assert!(two.get("f").await.unwrap() == pattern(900));
        assert!(two.bytes(reader, 0, 2000).await == pattern(900));
        two.close(reader).await.unwrap();
    }
}

#[tokio::test]
async fn two_mounts_that_write_one_file_are_merged() {
    let store = MemoryStore::default();
    let (one, two) = (mount(&store), mount(&store));
    for size in [60, 1000] {
        let mut bytes = pattern(size);
        let first = one.put("f", &bytes).await.unwrap();
        let second = two.ino("f").await.unwrap();
        let (a, _) = one.open(first, WRITE).await.unwrap();
        let (b, _) = two.open(second, WRITE).await.unwrap();
        one.write(a, 3, vec![0xaa; 10].into(), false).await.unwrap();
        two.write(b, 40, vec![0xbb; 10].into(), false)
            .await
            .unwrap();
        one.close(a).await.unwrap();
        two.close(b).await.unwrap();
        bytes[3..13].fill(0xaa);
        bytes[40..50].fill(0xbb);
        assert!(store.whole("f").unwrap() == bytes, "{size}");
        assert!(one.get("f").await.unwrap() == bytes, "{size}");
    }
}

#[tokio::test]
async fn an_unlinked_file_is_read_and_written_until_it_is_closed() {
    for size in [40, 1000] {
        let store = MemoryStore::default();
        let vfs = mount(&store);
        let bytes = pattern(size);
        let ino = vfs.put("f", &bytes).await.unwrap();
        let (handle, _) = vfs.open(ino, WRITE).await.unwrap();
        vfs.unlink(ROOT, "f").await.unwrap();
        assert!(matches!(
            vfs.lookup(ROOT, "f").await,
            Err(FsError::NotFound)
        ));
        assert!(store.head("f").await.is_err());
        assert!(vfs.bytes(handle, 0, 2000).await == bytes);
        vfs.write(handle, 0, vec![9].into(), false).await.unwrap();
        assert_eq!(vfs.bytes(handle, 0, 2).await, [9, 1]);
        assert_eq!(vfs.getattr(ino).await.unwrap().size, size as u64);
        vfs.close(handle).await.unwrap();
        vfs.settle().await;
        assert!(store.names().is_empty(), "{:?}", store.names());
        // A new file of the same name is another node.
        vfs.put("f", b"new").await.unwrap();
        assert_eq!(vfs.get("f").await.unwrap(), b"new");
    }
}

#[tokio::test]
async fn appends_go_to_the_end() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    let ino = vfs.put("f", b"one ").await.unwrap();
    let (first, _) = vfs.open(ino, APPEND).await.unwrap();
    let (second, _) = vfs.open(ino, APPEND).await.unwrap();
    vfs.write(first, 0, b"two ".to_vec().into(), false)
        .await
        .unwrap();
    vfs.write(second, 0, b"three".to_vec().into(), false)
        .await
        .unwrap();
    vfs.close(first).await.unwrap();
    vfs.close(second).await.unwrap();
    assert_eq!(store.whole("f").unwrap(), "one two three");
}

#[tokio::test]
async fn large_files_of_other_clients_are_changed_without_being_uploaded_again() {
    static LARGE: [u8; 1000] = [5; 1000];
    let store = MemoryStore::default();
    store.write("f", "image/png", &LARGE);
    let vfs = mount(&store);
    let ino = vfs.ino("f").await.unwrap();
    let (handle, _) = vfs.open(ino, WRITE).await.unwrap();
    vfs.write(handle, 10, vec![1].into(), false).await.unwrap();
    store.take_calls();
    vfs.close(handle).await.unwrap();
    let calls = store.take_calls();
    assert!(calls.contains(&"COPY f".to_owned()), "{calls:?}");
    let mut expected = LARGE.to_vec();
    expected[10] = 1;
    assert!(store.whole("f").unwrap() == expected);
    let content_type = store.head("f").await.unwrap().headers.content_type;
    assert!(
        content_type.starts_with("image/png;posix="),
        "{content_type}"
    );
}

#[tokio::test]
async fn failures_are_told_and_a_later_sync_makes_them_good() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    let (_, handle) = vfs.create(ROOT, "f", OWNER, WRITE, true).await.unwrap();
    vfs.write(handle, 0, b"kept".to_vec().into(), false)
        .await
        .unwrap();
    store.fail(|verb, _| (verb == "PUT").then_some(Why::Timeout));
    for _ in 0..2 {
        let error = vfs.sync(handle).await.unwrap_err();
        assert!(matches!(error, FsError::Store(error) if error.why == Why::Timeout));
    }
    assert_eq!(vfs.commit_all(|_| ()).await, 1);
    store.heal();
    vfs.close(handle).await.unwrap();
    assert_eq!(store.whole("f").unwrap(), "kept");
}

/// The file's bytes go with its name, unless it was open before: it is not empty then.
#[tokio::test]
async fn an_open_beside_an_unlink_has_the_file_or_not() {
    for turns in 0..40 {
        for size in [20, 600] {
            let store = MemoryStore::default();
            let vfs = mount(&store);
            let ino = vfs.put("f", &pattern(size)).await.unwrap();
            store.take_turns(turns / 8);
            let open = async {
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
                vfs.open(ino, READ).await
            };
            let (opened, removed) = tokio::join!(open, vfs.unlink(ROOT, "f"));
            removed.unwrap();
            match opened {
                Ok((handle, _)) => {
                    match vfs.read(handle, 0, 1000).await {
                        Ok(bytes) => assert!(bytes.concat() == pattern(size), "{turns}"),
                        Err(error) => assert!(matches!(error, FsError::Stale), "{error}"),
                    }
                    vfs.close(handle).await.unwrap();
                }
                Err(error) => assert!(
                    matches!(error, FsError::Stale | FsError::NotFound),
                    "{turns}: {error}"
                ),
            }
        }
    }
}

/// A page that the kernel read before a write, and sends while the write has not returned.
#[tokio::test]
async fn a_page_from_before_a_write_leaves_its_bytes_alone() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    let ino = vfs.put("f", &pattern(64)).await.unwrap();
    let (handle, _) = vfs.open(ino, WRITE).await.unwrap();
    // Without pages there is nothing to drop.
    assert!(
        vfs.write(handle, 0, "x".into(), false)
            .await
            .unwrap()
            .is_none()
    );
    let mut page = vfs.read_pages(handle, 0, 64).await.unwrap().concat();
    let written = vfs.write(handle, 8, "new".into(), false).await.unwrap();
    let other = vfs.write(handle, 20, "more".into(), false).await.unwrap();
    assert_eq!(written.as_ref().unwrap().range, 8..11);
    // Through a mapping, beside what was written.
    page[40] = b'!';
    let sent = vfs.write(handle, 0, page.clone().into(), true);
    assert!(sent.await.unwrap().is_none());
    page[8..11].copy_from_slice(b"new");
    page[20..24].copy_from_slice(b"more");
    assert_eq!(vfs.bytes(handle, 0, 100).await, page);
    // The writes have returned: the kernel has no such page any more.
    drop((written, other));
    page[8..24].fill(b'm');
    vfs.write(handle, 0, page.clone().into(), true)
        .await
        .unwrap();
    vfs.close(handle).await.unwrap();
    assert_eq!(vfs.get("f").await.unwrap(), page);
}

/// A program saw the written bytes through a mapping, and changed them.
#[tokio::test]
async fn a_page_that_was_read_after_a_write_counts_whole() {
    let store = MemoryStore::default();
    let vfs = mount(&store);
    let ino = vfs.put("f", &pattern(64)).await.unwrap();
    let (handle, _) = vfs.open(ino, WRITE).await.unwrap();
    vfs.read_pages(handle, 0, 64).await.unwrap();
    let _written = vfs.write(handle, 8, "newest".into(), false).await.unwrap();
    let mut page = vfs.read_pages(handle, 0, 12).await.unwrap().concat();
    page[8..12].copy_from_slice(b"seen");
    page.extend([b'-'; 20]);
    vfs.write(handle, 0, page.into(), true).await.unwrap();
    assert_eq!(vfs.bytes(handle, 6, 10).await, b"\x06\x07seenst--");
    vfs.close(handle).await.unwrap();
}
