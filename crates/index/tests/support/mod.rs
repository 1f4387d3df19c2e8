//! Helpers of the integration tests: waiting for futures, and indexes in temporary folders.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

pub mod swift;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use cairn_index::{AccountDb, ContainerDb, DbKey, IndexConfig, IndexPool, NewDb, ObjectRow};
use cairn_types::{HashPath, Timestamp};
use tempfile::TempDir;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

pub fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

pub struct Index {
    pub dir: TempDir,
    pub pool: Arc<IndexPool>,
}

pub fn index() -> Index {
    index_with(|_| {})
}

pub fn index_with(change: impl FnOnce(&mut IndexConfig)) -> Index {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sda")).unwrap();
    let mut config = IndexConfig::new(dir.path());
    change(&mut config);
    let pool = IndexPool::new(config);
    Index { dir, pool }
}

impl Index {
    pub fn container(&self, name: &str) -> ContainerDb {
        self.pool
            .container(&HashPath::new("", "endcap"), "sda", "7", "a", name)
    }

    /// Closes a database as soon as the thread that worked on it last has let go of it.
    pub fn close(&self, key: &DbKey) {
        while !self.pool.close_db(key) {
            thread::yield_now();
        }
    }

    pub fn account(&self) -> AccountDb {
        self.pool
            .account(&HashPath::new("", "endcap"), "sda", "7", "a")
    }
}

pub fn new_container(name: &str) -> Option<NewDb> {
    Some(NewDb::Container {
        account: "a".into(),
        container: name.into(),
        put_timestamp: "0000000001.00000".into(),
        storage_policy_index: 0,
    })
}

pub fn new_account() -> Option<NewDb> {
    Some(NewDb::Account {
        account: "a".into(),
        put_timestamp: "0000000001.00000".into(),
    })
}

pub fn object(name: &str, time: u64, size: i64) -> ObjectRow {
    let time = Timestamp::from_secs(time);
    ObjectRow {
        name: name.into(),
        data: time,
        ctype: time,
        meta: time,
        size,
        content_type: "text/plain".into(),
        etag: "etag".into(),
        deleted: false,
        storage_policy_index: 0,
    }
}
