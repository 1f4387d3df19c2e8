//! Uploads that are in memory whole: checked against what exists, written and made durable in one job on the
//! device's thread. Those that are streamed share the checks.

use std::sync::Arc;

use bytes::Bytes;
use cairn_disk::engine::{AtHand, Known};
use cairn_disk::owed::Debt;
use cairn_disk::steps::Step;
use cairn_disk::{
    Device, Disk, DiskError, Durability, Engine, FragmentChoice, Metadata, ObjectEngine, ObjectKey,
    OpenOptions,
};
use cairn_formats::conditional::{EntityTags, normalize_etag};
use cairn_http::respond::header;
use cairn_types::plant::Plant;
use cairn_types::{ObjectHash, Timestamp};
use http::HeaderMap;

use super::status::Refusal;

/// Maximum size in bytes of uploads that are read whole here, to be written in one job.
pub(super) const SMALL_UPLOAD_MAX_BYTES: u64 = 64 << 10;

/// Conditions of replacing the existing object.
pub(super) struct Check {
    pub(super) timestamp: Timestamp,
    pub(super) if_none_match: Option<String>,
    pub(super) fragment: Option<u32>,
}

/// State before the upload.
#[derive(Default)]
pub(super) struct Existing {
    pub(super) delete_at: Option<u64>,
}

/// Checks what exists, and makes a whole upload durable, in one job; `owes`: its row is owed. Returns what existed,
/// and the metadata, which `metadata` makes on the thread of that job.
pub(super) async fn write_whole(
    (device, engine, key): (&Arc<Device>, &Arc<dyn Engine>, &ObjectKey),
    check: Check,
    body: Bytes,
    metadata: impl FnOnce(&Bytes) -> Result<Metadata, Refusal> + Send + 'static,
    (durability, owes): (Durability, bool),
) -> Result<(Existing, Metadata, Option<Debt>), Refusal> {
    let bytes = body.len();
    let (kept_engine, own) = (engine.clone(), key.clone());
    // A tag is compared with what is stored.
    let has_tags = check.if_none_match.is_some();
    let write = move |disk: &Disk, at_hand: Option<AtHand>| {
        let known = at_hand.as_ref().map(|at_hand| at_hand.known);
        let engine = at_hand.map_or(kept_engine, |at_hand| at_hand.engine);
        let (engine, key) = (&*engine, own);
        let checked = match known {
            Some(known) => check_known(known, check.timestamp),
            None => check_existing(engine, disk, &key, check)?,
        };
        let existing = match checked {
            Ok(existing) => existing,
            Err(refusal) => return Ok(Step::Done(Err(refusal))),
        };
        let metadata = match metadata(&body) {
            Ok(metadata) => metadata,
            Err(refusal) => return Ok(Step::Done(Err(refusal))),
        };
        let kept = metadata.clone();
        let written = match owes {
            true => engine.put_small_owing(disk, &key, body, kept)?,
            false => engine
                .put_small(disk, &key, body, kept, durability)?
                .map(|()| None),
        };
        Ok(written.map(move |debt| Ok((existing, metadata, debt))))
    };
    let look = |disk: &Disk| {
        let at_hand = engine.at_hand(disk, key, bytes);
        at_hand.filter(|at_hand| !(has_tags && matches!(at_hand.known, Known::Lasting(_))))
    };
    let written = match engine.hands_writes_over() {
        true => device.commit_at_hand(look, write),
        false => device.commit(|disk| write(disk, None)),
    };
    written.await.map_err(Refusal::from).and_then(|w| w)
}

/// Maximum size in bytes of uploads that are written in one job where they are in memory already.
pub(super) fn whole_max_bytes(engine: &dyn Engine) -> u64 {
    engine.whole_max_bytes().max(SMALL_UPLOAD_MAX_BYTES)
}

pub(super) fn received_etag(headers: &HeaderMap) -> String {
    normalize_etag(header(headers, "etag").unwrap_or("")).to_owned()
}

/// Adds metadata that depends on the content, and checks it against the request's.
pub(super) fn complete(
    mut metadata: Metadata,
    size: u64,
    md5: [u8; 16],
    received: String,
) -> Result<Metadata, Refusal> {
    let etag = ObjectHash(md5).hex();
    if !received.is_empty() && received != etag {
        return Err(Refusal::EtagMismatch);
    }
    metadata.set("Content-Length", size.to_string());
    metadata.set("ETag", etag);
    Ok(metadata)
}

/// Checks that the upload may replace an object that is known unread.
fn check_known(known: Known, timestamp: Timestamp) -> Result<Existing, Refusal> {
    let before = match known {
        Known::Absent => Timestamp::ZERO,
        Known::Deleted(before) | Known::Lasting(before) => before,
    };
    if before >= timestamp && !Plant::OlderWins.is_on() {
        return Err(Refusal::Conflict(Some(before)));
    }
    Ok(Existing::default())
}

/// Checks that the upload may replace the existing object.
pub(super) fn check_existing(
    engine: &dyn ObjectEngine,
    disk: &Disk,
    key: &ObjectKey,
    check: Check,
) -> Result<Result<Existing, Refusal>, DiskError> {
    let mut existing = Existing::default();
    let (timestamp, if_none_match) = (check.timestamp, check.if_none_match);
    let mut options = OpenOptions::metadata(timestamp);
    options.fragment = FragmentChoice::of_index(check.fragment);
    let before = match engine.open(disk, key, &options) {
        Ok(open) => {
            let etag = open.info.etag();
            if if_none_match.is_some_and(|tags| EntityTags::parse(&tags).contains(etag)) {
                return Ok(Err(Refusal::PreconditionFailed("")));
            }
            existing.delete_at = open.info.metadata.delete_at();
            open.info.data_timestamp
        }
        Err(DiskError::Deleted { timestamp }) => timestamp,
        Err(DiskError::Expired(info)) => info.timestamp(),
        Err(
            DiskError::NotExist
            | DiskError::Quarantined(_)
            | DiskError::Unreadable(_)
            | DiskError::StateChanged,
        ) => Timestamp::ZERO,
        Err(error) => return Err(error),
    };
    if before >= timestamp && !Plant::OlderWins.is_on() {
        return Ok(Err(Refusal::Conflict(Some(before))));
    }
    Ok(Ok(existing))
}
