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
    ObjectRow, Received, Result, Wait,
};

/// Handle of a container's database.
///
/// Every operation gives `NotMounted` or `NoSpace` by its [`DriveCheck`], `Busy` while a queue is
/// full or no thread starts, and `Closed` once the pool is closed or where it panics. One that
/// opens the database gives `NotFound` without it, `Quarantined` for a damaged file (`Corrupt` if
/// that cannot be moved), `Locked` while another process keeps its lock, and `Io`, `NoSpace` or
/// `DriveFailed` of the device.
#[derive(Clone)]
pub struct ContainerDb {
    pool: Arc<IndexPool>,
    key: DbKey,
    check: DriveCheck,
}

/// Handle of an account's database. Operations fail as those of [`ContainerDb`].
#[derive(Clone)]
pub struct AccountDb {
    pool: Arc<IndexPool>,
    key: DbKey,
    check: DriveCheck,
}

/// Handle of a database of either kind, for replication and auditing. Operations fail as those of
/// [`ContainerDb`].
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

    /// Whether there is a file of this database; it is not opened.
    ///
    /// # Errors
    /// `Io` or `DriveFailed` if the folder cannot be read; else as every operation: see
    /// [`IndexDb`].
    pub async fn exists(&self) -> Result<bool> {
        answer(self.pool.submit_exists(&self.key, self.check)).await
    }

    /// As [`ContainerDb::read`].
    ///
    /// # Errors
    /// Those of [`ContainerDb::read`].
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
    ///
    /// # Errors
    /// Those of [`ContainerDb::write`].
    pub async fn write<T, F>(&self, new: Option<NewDb>, f: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Broker<'_>) -> Result<T> + Send + 'static,
    {
        let f = move |broker: Broker<'_>| f(&broker);
        write(&self.pool, &self.key, self.check, new, f, true).await
    }

    /// As [`ContainerDb::reclaim`].
    ///
    /// # Errors
    /// Those of [`ContainerDb::reclaim`].
    pub async fn reclaim(&self, age: Timestamp, sync_age: Timestamp) -> Result<usize> {
        reclaim(&self.pool, &self.key, self.check, age, sync_age).await
    }

    /// Creates the device's `tmp` folder, into which files are received.
    ///
    /// # Errors
    /// `Io`, `NoSpace` or `DriveFailed` if the folder cannot be created or the device's synced;
    /// else as every operation: see [`IndexDb`].
    pub async fn make_tmp(&self) -> Result<()> {
        let made = self
            .pool
            .submit_shared(&self.key, self.check, |config, db| db.make_tmp(config));
        answer(made).await
    }

    /// Installs a file received in the device's `tmp` folder as this database, which must not
    /// exist. `file_name` is its name at the sender.
    ///
    /// # Errors
    /// `BadRow` for a `name` that is no plain file name, or a `file_name` of another database.
    /// `Corrupt` for a damaged file, which is then removed. `Locked` while another process has the
    /// folder locked. `Io`, `NoSpace` or `DriveFailed` of the installation; else as every
    /// operation: see [`IndexDb`].
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
    ///
    /// # Errors
    /// `BadRow` for a `name` that is no plain file name, or a row of ours without a valid time.
    /// `Corrupt` or `Quarantined` if either file is damaged; else as every operation that opens the
    /// database: see [`IndexDb`].
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
    ///
    /// # Errors
    /// Those of `may_go` as they are. `Locked` while another process has the file or the folder
    /// locked, `Io` or `DriveFailed` if the folder cannot be removed; else as every operation that
    /// opens the database: see [`IndexDb`].
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
    ///
    /// # Errors
    /// `BadRow` for a `name` that is no plain file name, `Io` if there is a file of this name, which
    /// stays; else those of [`IndexDb::make_tmp`] and [`ContainerDb::read`].
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

    /// Whether there is a file of this database; it is not opened.
    ///
    /// # Errors
    /// `Io` or `DriveFailed` if the folder cannot be read; else as every operation: see
    /// [`ContainerDb`].
    pub async fn exists(&self) -> Result<bool> {
        answer(self.pool.submit_exists(&self.key, self.check)).await
    }

    /// Runs `f` on a read connection; several queries of `f` may see different commits.
    ///
    /// # Errors
    /// Those of `f`, `Busy` while other processes keep replacing the file; else as every operation
    /// that opens the database: see [`ContainerDb`].
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
    ///
    /// # Errors
    /// Those of `f`, and as every operation that opens the database: see [`ContainerDb`]. `Busy`
    /// also if another process creates it first. An error of SQLite or the device in one update
    /// fails its whole transaction. After a failed sync the update may stand.
    pub async fn write<T, F>(&self, new: Option<NewDb>, f: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&ContainerBroker<'_>) -> Result<T> + Send + 'static,
    {
        let f = move |broker: Broker<'_>| f(&ContainerBroker(broker));
        write(&self.pool, &self.key, self.check, new, f, true).await
    }

    /// Merges rows. With `new` a missing database is created.
    ///
    /// # Errors
    /// Those of [`ContainerDb::write`].
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
    ///
    /// # Errors
    /// Those of [`ContainerDb::read`], also for the retiring file.
    pub async fn list_objects(
        &self,
        cursor: ListCursor,
        page_rows: usize,
    ) -> Result<ListPage<ObjectEntry>> {
        self.read(move |broker| broker.with_source(|source| source.list_objects(cursor, page_rows)))
            .await
    }

    /// Begins to wait for the next update by this process: see [`Wait`].
    pub fn wait(&self) -> Wait {
        self.pool.wait(&self.key)
    }

    /// Creates the file of the own shard range's epoch beside the database; new rows go there from
    /// now on. False if there is no such range, or sharding is no longer due.
    ///
    /// # Errors
    /// `Sqlite` while another process is writing; `Io`, `NoSpace` or `DriveFailed` if the new file
    /// cannot be made; else as every operation that opens the database: see [`ContainerDb`].
    pub async fn begin_sharding(&self) -> Result<bool> {
        answer(
            self.pool
                .submit_exclusive(&self.key, self.check, |config, db| {
                    db.begin_sharding(config)
                }),
        )
        .await
    }

    /// Removes the retiring file, whose rows are in the shards. False if there is none, or an older one is left.
    ///
    /// # Errors
    /// `Io` or `DriveFailed` if the folder cannot be read or synced, or the file not removed; else
    /// as every operation: see [`ContainerDb`].
    pub async fn end_sharding(&self) -> Result<bool> {
        answer(
            self.pool
                .submit_exclusive(&self.key, self.check, |config, db| db.end_sharding(config)),
        )
        .await
    }

    /// Creates the database with this epoch. False if it exists.
    ///
    /// # Errors
    /// `Locked` while another process has the folder locked; `Io`, `NoSpace` or `DriveFailed` if
    /// the file cannot be made; else as every operation: see [`ContainerDb`].
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
    ///
    /// # Errors
    /// Those of [`ContainerDb::write`]; `NotFound` without the database. Pages before the error
    /// stay reclaimed.
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

    /// Whether there is a file of this database; it is not opened.
    ///
    /// # Errors
    /// `Io` or `DriveFailed` if the folder cannot be read; else as every operation: see
    /// [`AccountDb`].
    pub async fn exists(&self) -> Result<bool> {
        answer(self.pool.submit_exists(&self.key, self.check)).await
    }

    /// As [`ContainerDb::read`].
    ///
    /// # Errors
    /// Those of [`ContainerDb::read`].
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
    ///
    /// # Errors
    /// Those of [`ContainerDb::write`].
    pub async fn write<T, F>(&self, new: Option<NewDb>, f: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&AccountBroker<'_>) -> Result<T> + Send + 'static,
    {
        let f = move |broker: Broker<'_>| f(&AccountBroker(broker));
        write(&self.pool, &self.key, self.check, new, f, true).await
    }

    /// Merges rows. With `new` a missing database is created.
    ///
    /// # Errors
    /// Those of [`ContainerDb::write`].
    pub async fn merge_items(&self, new: Option<NewDb>, rows: Vec<ContainerRow>) -> Result<()> {
        let f = move |broker: Broker<'_>| AccountBroker(broker).merge_items(rows);
        write(&self.pool, &self.key, self.check, new, f, false).await
    }

    /// Lists containers.
    ///
    /// # Errors
    /// Those of [`ContainerDb::read`].
    pub async fn list_containers(
        &self,
        cursor: ListCursor,
        page_rows: usize,
    ) -> Result<ListPage<ContainerEntry>> {
        self.read(move |broker| broker.list_containers(cursor, page_rows))
            .await
    }

    /// As [`ContainerDb::reclaim`].
    ///
    /// # Errors
    /// Those of [`ContainerDb::reclaim`].
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
