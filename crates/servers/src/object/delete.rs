//! DELETE: replaces the object by a tombstone, and updates its container.

use std::sync::Arc;

use cairn_disk::steps::Step;
use cairn_disk::{DiskError, Metadata, ObjectInfo, OpenOptions};
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
    metadata: Metadata,
    previous: Previous,
    is_tombstone: bool,
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
        let if_delete_at = if_delete_at(&parts)?;
        let mut writing = self.begin_promised(&parts, &target)?;
        let (engine, key) = (target.engine.clone(), target.key.clone());
        let owes = owes_row(&parts.headers);
        let step = target.device.commit(move |disk| {
            let open = engine.open(disk, &key, &OpenOptions::metadata(timestamp));
            let (info, seen) = match open {
                Ok(open) => (Ok(open.info), open.seen),
                Err(error) => (Err(error), None),
            };
            let mut before = before(info, timestamp)?;
            if let Some(expected) = if_delete_at {
                if let Err(refusal) = still_expires(&before, timestamp, expected) {
                    return Ok(Step::Done((before, Some(refusal), None)));
                }
                before.previous = Previous::Deleted;
            }
            if before.timestamp >= timestamp {
                return Ok(Step::Done((before, None, None)));
            }
            let deleted = match owes {
                true => engine.delete_owing(disk, &key, timestamp, seen)?,
                false => engine.delete(disk, &key, timestamp, seen)?.map(|()| None),
            };
            Ok(deleted.map(move |debt| (before, None, debt)))
        });
        let written = step.await.map_err(Refusal::from);
        match (&mut writing, &written) {
            // Refused: nothing was deleted.
            (Some(writing), Ok((_, Some(_), _))) => writing.is_not_written(),
            _ => promise::note(&mut writing, &written),
        }
        drop(writing);
        let (before, refused, debt) = written?;
        // Dequeued after the deletion: had that failed, nothing else would record that the object
        // expires.
        if let Some(old) = before.metadata.delete_at().filter(|_| refused.is_none()) {
            self.dequeue_expiry(&parts, &target, timestamp, old).await;
        }
        // A repeated deletion, as the expirer sends, may never have reached the container: its
        // tombstone was written, and then the disk or the power failed.
        let is_repeated = before.is_tombstone && before.timestamp == timestamp;
        if is_repeated || (refused.is_none() && before.timestamp < timestamp) {
            let headers = || {
                let mut update = UpdateHeaders::new();
                update.set("x-timestamp", timestamp.internal());
                update
            };
            let row = || Some(tombstone_of(&target, timestamp));
            self.update_row("DELETE", (&parts, &target), debt, row, headers)
                .await?;
        }
        if let Some(refusal) = refused {
            return Err(refusal);
        }
        let mut response = status::deleted(before.previous, before.timestamp.max(timestamp));
        let content_type = before.metadata.get_str("Content-Type").unwrap_or("");
        set(
            response.headers_mut(),
            "x-backend-content-type",
            content_type,
        );
        Ok(response)
    }
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
    let delete_at = before.metadata.delete_at().unwrap_or(0);
    if Timestamp::from_secs(delete_at) != expected {
        return Err(Refusal::PreconditionFailed(
            "X-If-Delete-At and X-Delete-At do not match",
        ));
    }
    Ok(())
}

fn before(open: Result<ObjectInfo, DiskError>, timestamp: Timestamp) -> Result<Before, DiskError> {
    let missing = |timestamp, metadata| Before {
        timestamp,
        metadata,
        previous: Previous::Missing,
        is_tombstone: false,
    };
    match open {
        Ok(info) => Ok(Before {
            timestamp: info.data_timestamp,
            previous: match info.data_timestamp < timestamp {
                true => Previous::Deleted,
                false => Previous::Newer,
            },
            metadata: info.metadata,
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
