//! `GET …?changes=CURSOR&wait=SECONDS`: the change feed of a container, its rows beyond a cursor.
//!
//! The answer is a listing in JSON of rows in the order in which they came, those of deleted objects
//! with `"deleted": true`, and the next cursor in a header. A cursor is `TOKEN.ROWID`; the token stands
//! for this database, its storage policy and, where this process alone writes it, this process: rows
//! that a reader saw and that a power failure took may have given their ROWIDs to others. With another
//! token the answer is a cursor at the present end, and says that what came before is not told.
//!
//! With `wait` an answer without rows is held back until there are some. Whoever waits holds no thread,
//! no lane and no connection of the database.

use std::sync::OnceLock;
use std::time::Duration;

use cairn_http::Body;
use cairn_http::ending::Ending;
use cairn_http::params::Params;
use cairn_index::content_type::extract_swift_bytes;
use cairn_index::{ContainerBroker, ContainerInfo, IndexError, Metadata, ObjectRecord, Wait};
use cairn_types::hex;
use cairn_types::json_text::push_string;
use cairn_types::timestamp::decode_timestamps;
use http::HeaderMap;
use md5::{Digest, Md5};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::get::not_found;
use super::{ContainerRequest, ContainerServer};
use crate::index_server::listing;
use crate::index_server::status::Refused;
use crate::index_server::{Answer, is_yes, listed, set};

/// Header of the next cursor, by which a proxy recognises that a server has the feed.
const CURSOR: &str = "X-Backend-Changes-Cursor";
const RESET: &str = "X-Backend-Changes-Reset";

/// Maximum time of a wait; a longer one is cut to it.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Maximum number of requests that wait.
const WAITERS_MAX: usize = 4096;
/// Maximum number of reads for those that were woken, so that other reads find room in the queues.
const READS_MAX: usize = 16;
/// Interval at which a database that other processes write, too, is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Characters of a cursor's token.
const TOKEN_CHARS: usize = 12;

/// Bounds of all feeds of a server.
pub(super) struct Feeds {
    waiters: Semaphore,
    reads: Semaphore,
    /// Random number of this process, drawn when it is first needed.
    process: OnceLock<u64>,
}

impl Feeds {
    pub(super) fn new() -> Self {
        Feeds {
            waiters: Semaphore::new(WAITERS_MAX),
            reads: Semaphore::new(READS_MAX),
            process: OnceLock::new(),
        }
    }
}

/// A place in a feed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cursor {
    token: String,
    row: i64,
}

impl Cursor {
    fn parse(text: &str) -> Option<Cursor> {
        let (token, row) = text.split_once('.')?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let row = row.parse().ok().filter(|row| *row >= 0)?;
        (token.len() == TOKEN_CHARS && token.bytes().all(is_digit)).then(|| Cursor {
            token: token.to_owned(),
            row,
        })
    }

    fn text(&self) -> String {
        format!("{}.{}", self.token, self.row)
    }
}

/// A request's parameters.
#[derive(Clone, Debug)]
struct Asked {
    /// None: from the present end.
    cursor: Option<Cursor>,
    wait: Duration,
    limit: usize,
    allows_reserved: bool,
    /// Random number that the token depends on.
    process: u64,
}

/// One read of the database.
struct Seen {
    info: ContainerInfo,
    metadata: Metadata,
    cursor: Cursor,
    is_reset: bool,
    rows: Vec<ObjectRecord>,
}

impl ContainerServer {
    /// The request's answer, if it is one for the feed.
    pub(super) async fn changes(&self, asked: &ContainerRequest, params: &Params) -> Answer {
        let mut feed = self.feed_asked(params, asked.headers())?;
        let mut deadline = Instant::now() + feed.wait;
        let (mut place, mut took_turn) = (None, false);
        loop {
            // Registered before the read: what comes after the read wakes.
            let mut wait = self.db(&asked.target).wait();
            let seen = self.look(asked, &feed).await?;
            let has_news = seen.is_reset || feed.cursor.as_ref() != Some(&seen.cursor);
            if took_turn && has_news {
                wait.wake_others();
            }
            if seen.is_reset || !seen.rows.is_empty() || Instant::now() >= deadline {
                return Ok(self.told(&seen));
            }
            feed.cursor = Some(seen.cursor);
            if has_news {
                continue;
            }
            if place.is_none() {
                let free = self.feeds.waiters.try_acquire();
                place = Some(free.map_err(|_| busy())?);
            }
            took_turn = tokio::select! {
                took_turn = self.until_due(&mut wait, deadline) => took_turn,
                () = Ending::begun(&asked.parts.extensions) => {
                    deadline = Instant::now();
                    false
                }
            };
        }
    }

    fn is_shared(&self) -> bool {
        !self.pool.config().exclusive
    }

    /// Returns when there was an update, at the deadline, or when it is this waiter's turn to look, which
    /// is true.
    async fn until_due(&self, wait: &mut Wait, deadline: Instant) -> bool {
        loop {
            let until = match self.is_shared() {
                true => deadline.min(Instant::now() + LOOK_INTERVAL),
                false => deadline,
            };
            let woken = tokio::time::timeout_at(until, &mut *wait).await.is_ok();
            if woken || Instant::now() >= deadline {
                return false;
            }
            if wait.takes_turn(LOOK_INTERVAL) {
                return true;
            }
        }
    }

    fn feed_asked(&self, params: &Params, headers: &HeaderMap) -> Result<Asked, Refused> {
        let limit_max = self.config.constraints.container_listing_limit;
        let query = listing::list_query(params, headers, limit_max)?;
        let wait = params.get("wait").filter(|text| !text.is_empty());
        let wait = match wait.map(str::parse::<f64>) {
            None => 0.0,
            Some(Ok(seconds)) if seconds >= 0.0 && seconds.is_finite() => seconds,
            Some(_) => {
                return Err(Refused::BadRequest(format!(
                    "wait={}: expected seconds, 0 to {}",
                    params.get("wait").unwrap_or_default(),
                    WAIT_MAX.as_secs()
                )));
            }
        };
        Ok(Asked {
            cursor: params.get("changes").and_then(Cursor::parse),
            wait: Duration::from_secs_f64(wait.min(WAIT_MAX.as_secs_f64())),
            limit: query.limit.max(1),
            allows_reserved: is_yes(headers, "x-backend-allow-reserved-names"),
            process: match self.pool.config().exclusive {
                true => {
                    let draw = || (self.pool.config().random)() as u64;
                    *self.feeds.process.get_or_init(draw)
                }
                false => 0,
            },
        })
    }

    async fn look(&self, asked: &ContainerRequest, feed: &Asked) -> Result<Seen, Refused> {
        let feed = feed.clone();
        let _place = self.feeds.reads.acquire().await;
        let db = self.db(&asked.target);
        let read = db.read(move |broker| {
            let info = broker.info()?;
            match info.is_deleted() {
                true => Ok(Err(Box::new(info))),
                false => seen(broker, info, &feed).map(Ok),
            }
        });
        match read.await {
            Ok(Ok(seen)) => Ok(seen),
            Ok(Err(info)) => Err(not_found(Ok(*info))),
            Err(error) => Err(not_found(Err(error))),
        }
    }

    fn told(&self, seen: &Seen) -> cairn_http::Response {
        let mut headers = self.headers_of(&seen.info, &seen.metadata);
        set(&mut headers, "X-Backend-Record-Type", "object");
        set(&mut headers, CURSOR, seen.cursor.text());
        if seen.is_reset {
            set(&mut headers, RESET, "true");
        }
        let mut json = Vec::with_capacity(2 + 192 * seen.rows.len());
        json.push(b'[');
        for (number, row) in seen.rows.iter().enumerate() {
            if number > 0 {
                json.extend_from_slice(b", ");
            }
            push_row(&mut json, row);
        }
        json.push(b']');
        listed("application/json", headers, Some(Body::full(json)))
    }
}

/// The refusal of a wait beyond those that there may be.
fn busy() -> Refused {
    Refused::Index(IndexError::Busy {
        what: "the change feed: as many requests wait as may".to_owned(),
    })
}

/// The token of a database.
fn token(info: &ContainerInfo, process: u64) -> String {
    let text = format!("{}\n{}\n{process}", info.id, info.storage_policy_index);
    hex::encode(Md5::digest(text))[..TOKEN_CHARS].to_owned()
}

fn seen(
    broker: &ContainerBroker<'_>,
    info: ContainerInfo,
    feed: &Asked,
) -> cairn_index::Result<Seen> {
    let token = token(&info, feed.process);
    let metadata = broker.metadata()?;
    let end = broker.max_row()?.max(0);
    let known = feed
        .cursor
        .as_ref()
        .filter(|cursor| cursor.token == token && cursor.row <= end);
    let Some(known) = known else {
        let cursor = Cursor { token, row: end };
        return Ok(Seen {
            info,
            metadata,
            cursor,
            is_reset: true,
            rows: Vec::new(),
        });
    };
    let mut rows = broker.items_since(known.row, feed.limit)?;
    let row = rows.last().map_or(known.row, |row| row.rowid);
    rows.retain(|row| {
        let is_hidden = row.name.is_empty() || row.name.starts_with('\0') && !feed.allows_reserved;
        row.storage_policy_index == info.storage_policy_index && !is_hidden
    });
    Ok(Seen {
        info,
        metadata,
        cursor: Cursor { token, row },
        is_reset: false,
        rows,
    })
}

/// Appends a row as listings have it.
fn push_row(out: &mut Vec<u8>, row: &ObjectRecord) {
    let (content_type, swift_bytes) = extract_swift_bytes(&row.content_type);
    let size = swift_bytes.and_then(|bytes| bytes.parse().ok());
    let modified = decode_timestamps(&row.created_at).map(|(_, _, meta)| meta);
    let member = |out: &mut Vec<u8>, name: &str, value: &str| {
        out.extend_from_slice(b", \"");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\": ");
        push_string(out, value);
    };
    let shown = |value| if row.deleted { "" } else { value };
    out.extend_from_slice(b"{\"bytes\": ");
    out.extend_from_slice(size.unwrap_or(row.size).to_string().as_bytes());
    member(out, "hash", shown(&row.etag));
    member(out, "name", &row.name);
    member(out, "content_type", shown(&content_type));
    let modified = modified.unwrap_or(cairn_types::Timestamp::ZERO);
    member(out, "last_modified", &modified.isoformat());
    if row.deleted {
        out.extend_from_slice(b", \"deleted\": true");
    }
    out.push(b'}');
}

/// Takes all places of those that wait.
#[cfg(test)]
pub(super) fn tests_take_places(server: &ContainerServer) -> tokio::sync::SemaphorePermit<'_> {
    let all = server.feeds.waiters.try_acquire_many(WAITERS_MAX as u32);
    all.expect("nobody waits")
}
