//! Async handles, each of one database that may not exist yet.
//!
//! `read` and `write` run a closure on the device's threads and return its result; a `write`
//! returns after its transaction's sync. Dropping the future does not cancel a queued update.

use std::path::PathBuf;
use std::sync::Arc;

use cairn_types::Timestamp;
use futures_channel::oneshot;

use crate::broker::Broker;
use crate::db::Update;
use crate::listing::{ContainerEntry, ListCursor, ListPage, ObjectEntry};
use crate::schema::NewDb;
use crate::{
    AccountBroker, ContainerBroker, ContainerRow, DbKey, DriveCheck, IndexError, IndexPool,
    ObjectRow, Received, Result,
};

/// Handle of a container's database.
#[derive(Clone)]
pub struct ContainerDb {
    pool: Arc<IndexPool>,
    key: DbKey,
    check: DriveCheck,
}

/// Handle of an account's database.
#[derive(Clone)]
pub struct AccountDb {
    pool: Arc<IndexPool>,
    key: DbKey,
    check: DriveCheck,
}

/// Handle of a database of either kind, for replication and auditing.
#[derive(Clone)]
pub struct IndexDb {
    pool: Arc<IndexPool>,
    key: DbKey,
    check: DriveCheck,
}

impl IndexDb {
    pub(crate) fn new(pool: Arc<IndexPool>, key: DbKey) -> Self {
        IndexDb {
            pool,
            key,
            check: DriveCheck::default(),
        }
    }

    /// Sets the device's condition, checked before every operation.
    pub fn checked(self, check: DriveCheck) -> Self {
        IndexDb { check, ..self }
    }

    pub fn key(&self) -> &DbKey {
        &self.key
    }

    pub async fn exists(&self) -> Result<bool> {
        answer(self.pool.submit_exists(&self.key, self.check)).await
    }

    /// As [`ContainerDb::read`].
    pub async fn read<T, F>(&self, f: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Broker<'_>) -> Result<T> + Send + 'static,
    {
        answer(
            self.pool
                .submit_read(&self.key, self.check, move |broker| f(&broker)),
        )
        .await
    }

    /// As [`ContainerDb::write`].
    pub async fn write<T, F>(&self, new: Option<NewDb>, f: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Broker<'_>) -> Result<T> + Send + 'static,
    {
        let f = move |broker: Broker<'_>| f(&broker);
        write(&self.pool, &self.key, self.check, new, f, true).await
    }

    /// As [`ContainerDb::reclaim`].
    pub async fn reclaim(&self, age: Timestamp, sync_age: Timestamp) -> Result<usize> {
        reclaim(&self.pool, &self.key, self.check, age, sync_age).await
    }

    /// Creates the device's `tmp` folder, into which files are received.
    pub async fn make_tmp(&self) -> Result<()> {
        let made = self
            .pool
            .submit_shared(&self.key, self.check, |config, db| db.make_tmp(config));
        answer(made).await
    }

    /// Installs a file received in the device's `tmp` folder as this database, which must not
    /// exist. `file_name` is its name at the sender.
    pub async fn take_received(&self, name: String, file_name: Option<String>) -> Result<Received> {
        answer(
            self.pool
                .submit_exclusive(&self.key, self.check, move |config, db| {
                    db.take_received(config, &name, file_name.as_deref())
                }),
        )
        .await
    }

    /// Merges this database's rows into a file received in `tmp`, and replaces the database by it.
    pub async fn replace_by_received(&self, name: String) -> Result<Received> {
        let first = name.clone();
        let filled = self
            .pool
            .submit_shared(&self.key, self.check, move |config, db| {
                db.fill_received(config, &first)
            });
        let Some(since) = answer(filled).await? else {
            return Ok(Received::NotNow);
        };
        answer(
            self.pool
                .submit_exclusive(&self.key, self.check, move |config, db| {
                    db.replace_by_received(config, &name, since)
                }),
        )
        .await
    }

    /// Removes the database and its folder if `may_go` accepts its last state; no writes occur in
    /// between.
    pub async fn remove_if<F>(&self, may_go: F) -> Result<bool>
    where
        F: FnOnce(&Broker<'_>) -> Result<bool> + Send + 'static,
    {
        answer(
            self.pool
                .submit_exclusive(&self.key, self.check, move |config, db| {
                    db.remove_if(config, |broker| may_go(&broker))
                }),
        )
        .await
    }

    /// Writes a consistent copy to a new file of this name in `tmp`, concurrently with readers and
    /// writers. Returns the copy's path and the database's file name.
    pub async fn snapshot(&self, name: String) -> Result<(PathBuf, String)> {
        answer(
            self.pool
                .submit_shared(&self.key, self.check, move |config, db| {
                    db.snapshot(config, &name)
                }),
        )
        .await
    }
}

async fn answer<T>(waiting: Result<oneshot::Receiver<Result<T>>>) -> Result<T> {
    waiting?.await.unwrap_or(Err(IndexError::Closed))
}

impl ContainerDb {
    pub(crate) fn new(pool: Arc<IndexPool>, key: DbKey) -> Self {
        ContainerDb {
            pool,
            key,
            check: DriveCheck::default(),
        }
    }

    /// Sets the device's condition, checked before every operation.
    pub fn checked(self, check: DriveCheck) -> Self {
        ContainerDb { check, ..self }
    }

    pub fn key(&self) -> &DbKey {
        &self.key
    }

    pub async fn exists(&self) -> Result<bool> {
        answer(self.pool.submit_exists(&self.key, self.check)).await
    }

    /// Runs `f` on a read connection; several queries of `f` may see different commits.
    pub async fn read<T, F>(&self, f: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&ContainerBroker<'_>) -> Result<T> + Send + 'static,
    {
        answer(self.pool.submit_read(&self.key, self.check, move |broker| {
            f(&ContainerBroker(broker))
        }))
        .await
    }

    /// Runs `f` in a transaction, rolled back if it fails. With `new` a missing database is
    /// created.
    pub async fn write<T, F>(&self, new: Option<NewDb>, f: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&ContainerBroker<'_>) -> Result<T> + Send + 'static,
    {
        let f = move |broker: Broker<'_>| f(&ContainerBroker(broker));
        write(&self.pool, &self.key, self.check, new, f, true).await
    }

    /// Merges rows. With `new` a missing database is created.
    pub async fn merge_items(&self, new: Option<NewDb>, rows: Vec<ObjectRow>) -> Result<()> {
        let (reply, receiver) = oneshot::channel();
        let update = Box::new(RowsUpdate {
            check: self.check,
            new,
            rows,
            reply,
        });
        answer(
            self.pool
                .submit_update(&self.key, update)
                .map(|()| receiver),
        )
        .await
    }

    /// Lists objects; from the retiring file while the container is being sharded.
    pub async fn list_objects(
        &self,
        cursor: ListCursor,
        page_rows: usize,
    ) -> Result<ListPage<ObjectEntry>> {
        self.read(move |broker| broker.with_source(|source| source.list_objects(cursor, page_rows)))
            .await
    }

    /// Creates the file of the own shard range's epoch beside the database; new rows go there from
    /// now on. False if there is no such range, or sharding is no longer due.
    pub async fn begin_sharding(&self) -> Result<bool> {
        answer(
            self.pool
                .submit_exclusive(&self.key, self.check, |config, db| {
                    db.begin_sharding(config)
                }),
        )
        .await
    }

    /// Removes the retiring file, whose rows are in the shards. False if there is none.
    pub async fn end_sharding(&self) -> Result<bool> {
        answer(
            self.pool
                .submit_exclusive(&self.key, self.check, |config, db| db.end_sharding(config)),
        )
        .await
    }

    /// Creates the database with this epoch. False if it exists.
    pub async fn create_at_epoch(&self, new: NewDb, epoch: Option<String>) -> Result<bool> {
        answer(
            self.pool
                .submit_exclusive(&self.key, self.check, move |config, db| {
                    db.create_at_epoch(config, &new, epoch.as_deref())
                }),
        )
        .await
    }

    /// Reclaims tombstones older than `age`, page by page, and old sync points and metadata.
    pub async fn reclaim(&self, age: Timestamp, sync_age: Timestamp) -> Result<usize> {
        reclaim(&self.pool, &self.key, self.check, age, sync_age).await
    }
}

impl AccountDb {
    pub(crate) fn new(pool: Arc<IndexPool>, key: DbKey) -> Self {
        AccountDb {
            pool,
            key,
            check: DriveCheck::default(),
        }
    }

    /// Sets the device's condition, checked before every operation.
    pub fn checked(self, check: DriveCheck) -> Self {
        AccountDb { check, ..self }
    }

    pub fn key(&self) -> &DbKey {
        &self.key
    }

    pub async fn exists(&self) -> Result<bool> {
        answer(self.pool.submit_exists(&self.key, self.check)).await
    }

    /// As [`ContainerDb::read`].
    pub async fn read<T, F>(&self, f: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&AccountBroker<'_>) -> Result<T> + Send + 'static,
    {
        answer(self.pool.submit_read(&self.key, self.check, move |broker| {
            f(&AccountBroker(broker))
        }))
        .await
    }

    /// As [`ContainerDb::write`].
    pub async fn write<T, F>(&self, new: Option<NewDb>, f: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&AccountBroker<'_>) -> Result<T> + Send + 'static,
    {
        let f = move |broker: Broker<'_>| f(&AccountBroker(broker));
        write(&self.pool, &self.key, self.check, new, f, true).await
    }

    pub async fn merge_items(&self, new: Option<NewDb>, rows: Vec<ContainerRow>) -> Result<()> {
        let f = move |broker: Broker<'_>| AccountBroker(broker).merge_items(rows);
        write(&self.pool, &self.key, self.check, new, f, false).await
    }

    pub async fn list_containers(
        &self,
        cursor: ListCursor,
        page_rows: usize,
    ) -> Result<ListPage<ContainerEntry>> {
        self.read(move |broker| broker.list_containers(cursor, page_rows))
            .await
    }

    pub async fn reclaim(&self, age: Timestamp, sync_age: Timestamp) -> Result<usize> {
        reclaim(&self.pool, &self.key, self.check, age, sync_age).await
    }
}

/// Reclaims with one transaction per page, so that other updates interleave.
async fn reclaim(
    pool: &IndexPool,
    key: &DbKey,
    check: DriveCheck,
    age: Timestamp,
    sync_age: Timestamp,
) -> Result<usize> {
    let (mut removed, mut marker) = (0, Some(String::new()));
    while let Some(from) = marker {
        let f = move |broker: Broker<'_>| broker.reclaim_tombstones(age, &from);
        let page = write(pool, key, check, None, f, true).await?;
        removed += page.removed;
        marker = page.next_marker;
    }
    let f = move |broker: Broker<'_>| broker.reclaim_other(age, sync_age);
    write(pool, key, check, None, f, true).await?;
    Ok(removed)
}

async fn write<T, F>(
    pool: &IndexPool,
    key: &DbKey,
    check: DriveCheck,
    new: Option<NewDb>,
    f: F,
    may_fail: bool,
) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce(Broker<'_>) -> Result<T> + Send + 'static,
{
    let (reply, receiver) = oneshot::channel();
    let update = Box::new(ClosureUpdate {
        check,
        new,
        may_fail,
        f: Some(f),
        value: None,
        reply,
    });
    answer(pool.submit_update(key, update).map(|()| receiver)).await
}

/// An update whose closure returns a value to its caller.
struct ClosureUpdate<T, F> {
    check: DriveCheck,
    new: Option<NewDb>,
    may_fail: bool,
    f: Option<F>,
    value: Option<T>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T, F> Update for ClosureUpdate<T, F>
where
    T: Send,
    F: FnOnce(Broker<'_>) -> Result<T> + Send,
{
    fn check(&self) -> DriveCheck {
        self.check
    }

    fn new_db(&self) -> Option<&NewDb> {
        self.new.as_ref()
    }

    fn may_fail(&self) -> bool {
        self.may_fail
    }

    fn apply(&mut self, broker: Broker<'_>) -> Result<()> {
        let f = self.f.take().ok_or(IndexError::Closed)?;
        self.value = Some(f(broker)?);
        Ok(())
    }

    fn finish(self: Box<Self>, outcome: Result<()>) {
        let ClosureUpdate { value, reply, .. } = *self;
        let answer = outcome.and_then(|()| value.ok_or(IndexError::Closed));
        // The update stands even if its caller is gone.
        let _ = reply.send(answer);
    }
}

/// Object rows whose caller waits for their commit.
struct RowsUpdate {
    check: DriveCheck,
    new: Option<NewDb>,
    rows: Vec<ObjectRow>,
    reply: oneshot::Sender<Result<()>>,
}

impl Update for RowsUpdate {
    fn check(&self) -> DriveCheck {
        self.check
    }

    fn new_db(&self) -> Option<&NewDb> {
        self.new.as_ref()
    }

    fn object_rows(&mut self) -> Option<&mut Vec<ObjectRow>> {
        Some(&mut self.rows)
    }

    fn may_fail(&self) -> bool {
        false
    }

    fn apply(&mut self, broker: Broker<'_>) -> Result<()> {
        ContainerBroker(broker).merge_items(std::mem::take(&mut self.rows))
    }

    fn finish(self: Box<Self>, outcome: Result<()>) {
        // The rows stand even if their caller is gone.
        let _ = self.reply.send(outcome);
    }
}
