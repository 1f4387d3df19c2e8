//! Audit of a database: SQLite's integrity check, and a comparison of its counts.

use std::fs;

use crate::broker::Broker;
use crate::{AccountBroker, DbKind, IndexError, Result};

/// Maximum size for the integrity check, which reads the whole file; a shared database takes no
/// updates while it runs.
const CHECKED_BYTES_MAX: u64 = 64 << 20;

impl Broker<'_> {
    /// Compares the counts; returns the mismatch, if any. Deleted databases are skipped.
    ///
    /// # Errors
    /// A damaged file is `Corrupt`, which quarantines the database.
    pub fn audit(&self) -> Result<Option<String>> {
        if self.is_deleted_db()? {
            return Ok(None);
        }
        let path = self.conn.path().unwrap_or_default();
        let size = fs::metadata(path).map_or(0, |meta| meta.len());
        if size <= CHECKED_BYTES_MAX {
            let verdict: String = self
                .conn
                .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
            if verdict != "ok" {
                return Err(IndexError::corrupt(verdict));
            }
        }
        match self.kind() {
            DbKind::Account => AccountBroker(*self).audit_counts(),
            DbKind::Container => Ok(None),
        }
    }
}

impl AccountBroker<'_> {
    /// Compares an account's totals with the sums over its policies.
    fn audit_counts(&self) -> Result<Option<String>> {
        let info = self.info()?;
        let stats = self.policy_stats()?;
        let sums = stats.iter().fold((0, 0, 0), |sum, policy| {
            (
                sum.0 + policy.container_count,
                sum.1 + policy.object_count,
                sum.2 + policy.bytes_used,
            )
        });
        let totals = [
            ("container_count", info.container_count, sums.0),
            ("object_count", info.object_count, sums.1),
            ("bytes_used", info.bytes_used, sums.2),
        ];
        let wrong = totals.iter().find(|(_, total, sum)| total != sum);
        Ok(wrong.map(|(name, total, sum)| {
            format!(
                "the total {name} of the account {} ({total}) is not the sum over its policies \
                 ({sum})",
                info.account
            )
        }))
    }
}
