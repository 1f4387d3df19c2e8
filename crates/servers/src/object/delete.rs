//! DELETE: replaces the object by a tombstone, and updates its container.

use std::sync::Arc;

use cairn_disk::engine::{AtHand, Known, Seen};
use cairn_disk::owed::Debt;
use cairn_disk::steps::Step;
use cairn_disk::{Device, Disk, DiskError, Engine, Metadata, ObjectInfo, ObjectKey, OpenOptions};
use cairn_http::Response;
use cairn_http::respond::{header, set};
use cairn_types::Timestamp;
use http::request::Parts;

use super::owed::{owes_row, tombstone_of};
use super::promise;
use super::status::{self, Previous, Refusal};
use super::target::{Target, required_timestamp};
use super::updates::UpdateHeaders;
use super::{Inner, to_the_end};

/// State before the deletion.
struct Before {
    timestamp: Timestamp,
    /// `None`: the engine knew it unread.
    metadata: Option<Metadata>,
    previous: Previous,
    is_tombstone: bool,
}

/// A deletion.
pub(super) struct Deletion {
    pub(super) timestamp: Timestamp,
    /// Only if the object still expires then.
    pub(super) if_delete_at: Option<Timestamp>,
    /// Its row is owed.
    pub(super) owes: bool,
    /// The answer has the type of what was there.
    pub(super) needs_type: bool,
}

/// A deletion that has ended.
pub(super) struct Deleted {
    before: Before,
    timestamp: Timestamp,
    /// Nothing was deleted.
    refused: Option<Refusal>,
    /// The row's.
    pub(super) debt: Option<Debt>,
}

/// Replaces an object by a tombstone, in one job.
pub(super) async fn write_tombstone(
    (device, engine, key): (&Arc<Device>, &Arc<dyn Engine>, &ObjectKey),
    deletion: Deletion,
) -> Result<Deleted, DiskError> {
    let Deletion {
        timestamp,
        if_delete_at,
        owes,
        needs_type,
    } = deletion;
    let (kept_engine, own) = (engine.clone(), key.clone());
    let write = move |disk: &Disk, at_hand: Option<AtHand>| {
        let known = at_hand.as_ref().map(|at_hand| at_hand.known);
        let engine = at_hand.map_or(kept_engine, |at_hand| at_hand.engine);
        let key = own;
        let (mut before, seen) = match known {
            Some(known) => (before_known(known, timestamp), None),
            None => look(&*engine, disk, &key, timestamp)?,
        };
        let refused = match if_delete_at {
            Some(expected) => still_expires(&before, timestamp, expected).err(),
            None => None,
        };
        let is_needless = refused.is_some() || before.timestamp >= timestamp;
        if if_delete_at.is_some() && refused.is_none() {
            before.previous = Previous::Deleted;
        }
        let ended = move |debt| Deleted {
            before,
            timestamp,
            refused,
            debt,
        };
        if is_needless {
            return Ok(Step::Done(ended(None)));
        }
        let deleted = match owes {
            true => engine.delete_owing(disk, &key, timestamp, seen)?,
            false => engine.delete(disk, &key, timestamp, seen)?.map(|()| None),
        };
        Ok(deleted.map(ended))
    };
    let look = |disk: &Disk| {
        let at_hand = engine.at_hand(disk, key, 0);
        at_hand.filter(|at_hand| !(needs_type && matches!(at_hand.known, Known::Lasting(_))))
    };
    let written = match engine.hands_writes_over() {
        true => device.commit_at_hand(look, write),
        false => device.commit(|disk| write(disk, None)),
    };
    written.await
}

impl Deleted {
    /// Whether the container is to be told. A repeated deletion, as the expirer sends, may never have reached it:
    /// its tombstone was written, and then the disk or the power failed.
    pub(super) fn is_told(&self) -> bool {
        let (before, timestamp) = (&self.before, self.timestamp);
        let is_repeated = before.is_tombstone && before.timestamp == timestamp;
        is_repeated || (self.refused.is_none() && before.timestamp < timestamp)
    }

    /// The time at which what was deleted would have expired.
    pub(super) fn expiry(&self) -> Option<u64> {
        let metadata = self.before.metadata.as_ref();
        let expiry = metadata.and_then(Metadata::delete_at);
        expiry.filter(|_| self.refused.is_none())
    }

    /// The version before, which decides the answer, the newer one of the two times, and the metadata of that
    /// version, where it was read.
    pub(super) fn answer(self) -> Result<(Previous, Timestamp, Option<Metadata>), Refusal> {
        let before = self.before;
        match self.refused {
            Some(refusal) => Err(refusal),
            None => Ok((
                before.previous,
                before.timestamp.max(self.timestamp),
                before.metadata,
            )),
        }
    }
}

impl Inner {
    pub(super) async fn delete(self: &Arc<Self>, parts: Parts) -> Result<Response, Refusal> {
        let target = self.target(&parts)?;
        let timestamp = required_timestamp(&parts)?;
        let inner = self.clone();
        to_the_end(async move { inner.carry_out_delete(parts, target, timestamp).await }).await
    }

    async fn carry_out_delete(
        self: &Arc<Self>,
        parts: Parts,
        target: Target,
        timestamp: Timestamp,
    ) -> Result<Response, Refusal> {
        let deletion = Deletion {
            timestamp,
            if_delete_at: if_delete_at(&parts)?,
            owes: owes_row(&parts.headers),
            needs_type: true,
        };
        let mut writing = self.begin_promised(&parts, &target)?;
        let object = (&target.device, &target.engine, &target.key);
        let written = write_tombstone(object, deletion).await;
        let written = written.map_err(Refusal::from);
        match (&mut writing, &written) {
            (Some(writing), Ok(deleted)) if deleted.refused.is_some() => writing.is_not_written(),
            _ => promise::note(&mut writing, &written),
        }
        drop(writing);
        let mut deleted = written?;
        // Dequeued after the deletion: had that failed, nothing else would record that the object
        // expires.
        if let Some(old) = deleted.expiry() {
            self.dequeue_expiry(&parts, &target, timestamp, old).await;
        }
        if deleted.is_told() {
            let debt = deleted.debt.take();
            let row = || Some(tombstone_of(&target.object, target.key.policy, timestamp));
            let headers = || update_headers(timestamp);
            self.update_row("DELETE", (&parts, &target), debt, row, headers)
                .await?;
        }
        let (previous, newer, metadata) = deleted.answer()?;
        let mut response = status::deleted(previous, newer);
        if let Some(metadata) = metadata {
            let content_type = metadata.get_str("Content-Type").unwrap_or("");
            let headers = response.headers_mut();
            set(headers, "x-backend-content-type", content_type);
        }
        Ok(response)
    }
}

/// The headers of a deletion's row.
pub(super) fn update_headers(timestamp: Timestamp) -> UpdateHeaders {
    let mut update = UpdateHeaders::new();
    update.set("x-timestamp", timestamp.internal());
    update
}

/// The expiry time in `X-If-Delete-At`: the expirer deletes an object only if that is still
/// current.
fn if_delete_at(parts: &Parts) -> Result<Option<Timestamp>, Refusal> {
    if !parts.headers.contains_key("x-if-delete-at") {
        return Ok(None);
    }
    let text = header(&parts.headers, "x-if-delete-at");
    let timestamp = text.and_then(|t| Timestamp::parse(t).ok());
    let bad = || Refusal::BadRequest("Bad X-If-Delete-At header value".into());
    timestamp.map(Some).ok_or_else(bad)
}

/// Checks that the object still expires at the time in the expirer's queue.
fn still_expires(
    before: &Before,
    timestamp: Timestamp,
    expected: Timestamp,
) -> Result<(), Refusal> {
    if before.timestamp.is_zero() {
        return Err(DiskError::NotExist.into());
    }
    if before.timestamp >= timestamp {
        return Err(Refusal::Conflict(None));
    }
    // One that was known unread never expires.
    let delete_at = before.metadata.as_ref().and_then(Metadata::delete_at);
    let delete_at = delete_at.unwrap_or(0);
    if Timestamp::from_secs(delete_at) != expected {
        return Err(Refusal::PreconditionFailed(
            "X-If-Delete-At and X-Delete-At do not match",
        ));
    }
    Ok(())
}

/// The object before its deletion, read.
fn look(
    engine: &dyn Engine,
    disk: &Disk,
    key: &ObjectKey,
    timestamp: Timestamp,
) -> Result<(Before, Option<Seen>), DiskError> {
    let open = engine.open(disk, key, &OpenOptions::metadata(timestamp));
    let (info, seen) = match open {
        Ok(open) => (Ok(open.info), open.seen),
        Err(error) => (Err(error), None),
    };
    Ok((before(info, timestamp)?, seen))
}

/// The object before its deletion, where the engine knows it unread.
fn before_known(known: Known, timestamp: Timestamp) -> Before {
    let (before, is_tombstone, has_content) = match known {
        Known::Absent => (Timestamp::ZERO, false, false),
        Known::Deleted(before) => (before, true, false),
        Known::Lasting(before) => (before, false, true),
    };
    Before {
        timestamp: before,
        metadata: None,
        previous: match has_content {
            true => Previous::of_content(before, timestamp),
            false => Previous::Missing,
        },
        is_tombstone,
    }
}

fn before(open: Result<ObjectInfo, DiskError>, timestamp: Timestamp) -> Result<Before, DiskError> {
    let missing = |timestamp, metadata| Before {
        timestamp,
        metadata: Some(metadata),
        previous: Previous::Missing,
        is_tombstone: false,
    };
    match open {
        Ok(info) => Ok(Before {
            timestamp: info.data_timestamp,
            previous: Previous::of_content(info.data_timestamp, timestamp),
            metadata: Some(info.metadata),
            is_tombstone: false,
        }),
        Err(DiskError::Expired(info)) => Ok(missing(info.timestamp(), info.metadata)),
        Err(DiskError::Deleted { timestamp }) => Ok(Before {
            is_tombstone: true,
            ..missing(timestamp, Metadata::new())
        }),
        Err(DiskError::NotExist | DiskError::Quarantined(_) | DiskError::Unreadable(_)) => {
            Ok(missing(Timestamp::ZERO, Metadata::new()))
        }
        Err(error) => Err(error),
    }
}
