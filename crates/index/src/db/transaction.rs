//! Transactions of queued updates.

use rusqlite::Connection;

use super::group_commit::Commit;
use super::writer::Updates;
use super::{Db, Writing};
use crate::broker::Broker;
use crate::container::batch;
use crate::schema::NewDb;
use crate::{DriveCheck, IndexError, ObjectRow, Result};

/// An update in the queue of a database.
pub(crate) trait Update: Send {
    /// Condition of the device that must hold.
    fn check(&self) -> DriveCheck;
    /// Parameters for creating a missing database; none if it must exist.
    fn new_db(&self) -> Option<&NewDb>;
    /// Object rows, if the update only adds such: those of one transaction are merged together.
    fn object_rows(&mut self) -> Option<&mut Vec<ObjectRow>> {
        None
    }
    /// Whether `apply` may fail after changes, and needs a savepoint.
    fn may_fail(&self) -> bool;
    fn apply(&mut self, broker: Broker<'_>) -> Result<()>;
    /// Called once with the result of the transaction, or of `apply`.
    fn finish(self: Box<Self>, outcome: Result<()>);
}

impl Db {
    /// Runs all updates in one transaction. Returns the error that rolled it back, if any.
    pub(super) fn transact(
        &self,
        writing: Writing<'_>,
        updates: Updates,
        commits: &mut Vec<Commit>,
    ) -> Option<IndexError> {
        let (conn, opened) = (writing.conn, writing.opened);
        let mut outcomes = Vec::with_capacity(updates.len());
        let mut updates = updates;
        let result = run(conn, "BEGIN IMMEDIATE").and_then(|()| {
            apply_all(writing.broker(), &mut updates, &mut outcomes)?;
            self.writer.commit(conn)
        });
        if let Err(error) = result {
            if !conn.is_autocommit() {
                // SQLite may have rolled back already; one still in a transaction is dropped.
                let _ = run(conn, "ROLLBACK");
            }
            return Some(self.fail_rolled_back(writing, error, updates));
        }
        let outcomes = outcomes
            .into_iter()
            .map(|o| o.map_err(|e| e.at(&opened.file)));
        let applied = updates.into_iter().zip(outcomes);
        self.writer.complete(opened, applied, commits);
        None
    }

    /// Fails all updates of a rolled-back transaction.
    pub(super) fn fail_rolled_back(
        &self,
        writing: Writing<'_>,
        error: IndexError,
        updates: Updates,
    ) -> IndexError {
        let file = &writing.opened.file;
        let error = self.failed(writing.config, file, error.at(file));
        for update in updates {
            update.finish(Err(error.clone()));
        }
        error
    }
}

pub(crate) fn run(conn: &Connection, sql: &str) -> Result<()> {
    conn.prepare_cached(sql)?.execute([])?;
    Ok(())
}

/// Applies updates in order; consecutive ones that only add object rows are merged together.
fn apply_all(
    broker: Broker<'_>,
    updates: &mut [Box<dyn Update>],
    outcomes: &mut Vec<Result<()>>,
) -> Result<()> {
    let mut rows = Vec::new();
    for update in updates {
        if broker.schema.known_triggers
            && let Some(more) = update.object_rows()
        {
            rows.append(more);
            outcomes.push(Ok(()));
            continue;
        }
        merge_rows(broker, std::mem::take(&mut rows))?;
        // The update may add and remove rows by SQL.
        batch::set_triggers(broker.conn, true)?;
        outcomes.push(apply_alone(broker.conn, broker, update.as_mut())?);
    }
    merge_rows(broker, rows)
}

fn merge_rows(broker: Broker<'_>, rows: Vec<ObjectRow>) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    batch::set_triggers(broker.conn, false)?;
    batch::merge(broker, rows)
}

/// Applies one update under a savepoint. The outer error rolls back the whole transaction, the
/// inner one only this update.
pub(crate) fn apply_alone(
    conn: &Connection,
    broker: Broker<'_>,
    update: &mut dyn Update,
) -> Result<Result<()>> {
    if !update.may_fail() {
        return update.apply(broker).map(Ok);
    }
    run(conn, "SAVEPOINT one")?;
    let outcome = update.apply(broker);
    match outcome {
        Ok(()) => {}
        Err(error) if error.spoils_connection() => return Err(error),
        Err(_) => run(conn, "ROLLBACK TO one")?,
    }
    run(conn, "RELEASE one")?;
    Ok(outcome)
}
