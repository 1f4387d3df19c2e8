//! Rows that the log of the object's device owes until they are durable in their container: whether a
//! write's row is one, and how it is given to a database of this process without a request.

use std::net::SocketAddr;
use std::sync::Arc;

use cairn_disk::container_row::{is_overridden, row_headers};
use cairn_disk::owed::Debt;
use cairn_disk::{DiskError, Metadata};
use cairn_http::respond::header;
use cairn_index::{DbKey, DbKind, ObjectRow, TakesRows};
use cairn_types::{PolicyIndex, Timestamp};
use http::HeaderMap;
use http::request::Parts;

use super::Inner;
use super::put::is_replication;
use super::target::Target;
use super::updates::UpdateHeaders;

/// Whether a write's row can be made anew from what is stored, and is sent by this server.
pub(super) fn owes_row(headers: &HeaderMap) -> bool {
    let sends = header(headers, "x-container-partition").is_some_and(|text| !text.is_empty());
    let names = headers.keys().map(|name| name.as_str());
    sends && !is_replication(headers) && !is_overridden(names)
}

/// The row of a PUT, from its metadata; `None`: a request with it would be refused.
pub(super) fn row_of(object: &str, policy: PolicyIndex, metadata: &Metadata) -> Option<ObjectRow> {
    let headers = row_headers(metadata);
    let last = |name: &str| {
        let found = headers.iter().rfind(|(other, _)| other == name)?;
        std::str::from_utf8(found.1).ok()
    };
    let (data, ctype, meta) = ObjectRow::times(last("x-timestamp")?, None, None).ok()?;
    Some(ObjectRow {
        name: object.to_owned(),
        data,
        ctype,
        meta,
        size: last("x-size")?.trim().parse().ok()?,
        content_type: last("x-content-type")?.to_owned(),
        etag: last("x-etag")?.to_owned(),
        deleted: false,
        storage_policy_index: i64::from(policy.0),
    })
}

/// The row of a DELETE.
pub(super) fn tombstone_of(object: &str, policy: PolicyIndex, timestamp: Timestamp) -> ObjectRow {
    ObjectRow::tombstone(object.to_owned(), timestamp, i64::from(policy.0))
}

impl Inner {
    /// Updates the container of a write: by its row, where that is owed and a database of this process takes
    /// it, else by a request with `headers`. What is owed is settled.
    ///
    /// # Errors
    /// As [`Inner::update_container`]; the row is owed still.
    pub(super) async fn update_row(
        self: &Arc<Self>,
        op: &'static str,
        (parts, target): (&Parts, &Target),
        debt: Option<Debt>,
        row: impl FnOnce() -> Option<ObjectRow>,
        headers: impl FnOnce() -> UpdateHeaders,
    ) -> Result<(), DiskError> {
        let left = match debt.map(|debt| (debt, row())) {
            Some((debt, Some(row))) => match self.give_row(parts, target, row, debt) {
                Ok(()) => return Ok(()),
                Err(debt) => Some(debt),
            },
            Some((debt, None)) => Some(debt),
            None => None,
        };
        let headers = headers();
        // Boxed, so that the future of a row that was given is not as large.
        Box::pin(self.update_container(op, parts, target, headers)).await?;
        if let Some(debt) = left {
            debt.settle();
        }
        Ok(())
    }

    /// Gives a row to a database of this process; gives the debt back where a request has to be made.
    pub(super) fn give_row(
        &self,
        parts: &Parts,
        target: &Target,
        row: ObjectRow,
        debt: Debt,
    ) -> Result<(), Debt> {
        let Some((databases, device, partition)) = self.databases_of(&parts.headers) else {
            return Err(debt);
        };
        let hash_path = &self.config.hash_path;
        let hash = hash_path.hash(&target.account, Some(&target.container), None);
        let key = DbKey::new(device, partition, DbKind::Container, hash);
        databases
            .take_row(&key, row, debt)
            .map_err(|(_, debt)| debt)
    }

    /// The one database that a request's row is for, with its device and partition, if it is of this
    /// process.
    fn databases_of<'p>(
        &self,
        headers: &'p HeaderMap,
    ) -> Option<(Arc<dyn TakesRows>, &'p str, &'p str)> {
        let is_of_shard = headers.contains_key("x-backend-quoted-container-path")
            || headers.contains_key("x-backend-container-path");
        if is_of_shard {
            return None;
        }
        // A list of hosts, for more than one row, is no address.
        let host: SocketAddr = header(headers, "x-container-host")?.trim().parse().ok()?;
        let device = header(headers, "x-container-device")?.trim();
        let partition = header(headers, "x-container-partition")?.trim();
        Some((self.config.local_rows.at(host)?, device, partition))
    }
}
