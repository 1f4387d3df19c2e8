//! Queue of containers that may have changes to report: those written by this process's container
//! servers, recorded from their requests, and those to be retried.

use std::collections::HashMap;
use std::sync::Arc;

use cairn_disk::owed::Debt;
use cairn_http::params::{split_path, unquote};
use cairn_http::{Handler, Request, Service, ServiceFuture};
use cairn_index::{DbKey, DbKind, ObjectRow, TakesRows};
use cairn_types::{HashPath, ObjectHash};
use http::Method;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum queued containers, about 100 bytes each.
const WRITTEN_MAX: usize = 100_000;

/// Containers to check, each once.
#[derive(Debug, Default)]
pub struct Written(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By container, the earliest time of its check.
    waiting: HashMap<DbKey, Instant>,
    /// Whether the limit was exceeded and some are missing.
    lost: bool,
}

impl Written {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Queues a container for `when` or later. An earlier entry is not changed.
    pub(super) fn note(&self, key: DbKey, when: Instant) {
        let mut state = self.0.lock();
        if state.waiting.contains_key(&key) {
            return;
        }
        if state.waiting.len() >= WRITTEN_MAX {
            state.lost = true;
        } else {
            state.waiting.insert(key, when);
        }
    }

    /// Takes the containers that are due.
    pub(super) fn take(&self, now: Instant) -> Vec<DbKey> {
        let mut state = self.0.lock();
        let due = state.waiting.extract_if(|_, when| *when <= now);
        due.map(|(key, _)| key).collect()
    }

    /// Whether some were dropped since the last call.
    pub(super) fn take_lost(&self) -> bool {
        let mut state = self.0.lock();
        std::mem::take(&mut state.lost)
    }
}

/// Service around a container server that records each container a request may have written to.
pub struct NotesWrites {
    next: Handler,
    hash_path: HashPath,
    written: Arc<Written>,
}

/// The same around databases that take rows by a call.
pub struct NotesRows {
    next: Arc<dyn TakesRows>,
    written: Arc<Written>,
}

impl NotesRows {
    pub fn around(next: Arc<dyn TakesRows>, written: Arc<Written>) -> Arc<dyn TakesRows> {
        Arc::new(NotesRows { next, written })
    }
}

impl NotesWrites {
    pub fn around(next: Handler, hash_path: HashPath, written: Arc<Written>) -> Handler {
        Arc::new(NotesWrites {
            next,
            hash_path,
            written,
        })
    }
}

impl TakesRows for NotesRows {
    fn take_row(&self, key: &DbKey, row: ObjectRow, debt: Debt) -> Result<(), (ObjectRow, Debt)> {
        self.next.take_row(key, row, debt)?;
        self.written.note(key.clone(), Instant::now());
        Ok(())
    }
}

/// Records the container once the request has been answered or dropped: a sweep before that would
/// be too early.
struct Pending<'w> {
    written: &'w Written,
    key: Option<DbKey>,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.written.note(key, Instant::now());
        }
    }
}

impl Service for NotesWrites {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        let Some(key) = written_by(request.method(), request.uri().path(), &self.hash_path) else {
            return self.next.call(request);
        };
        Box::pin(async move {
            let _pending = Pending {
                written: &self.written,
                key: Some(key),
            };
            self.next.call(request).await
        })
    }
}

/// Key of the container of `/device/partition/account/container[/object]`, or of a `REPLICATE` of
/// `/device/partition/hash`.
fn written_by(method: &Method, path: &str, hash_path: &HashPath) -> Option<DbKey> {
    if [Method::GET, Method::HEAD, Method::OPTIONS].contains(method) {
        return None;
    }
    let path = unquote(path).ok()?;
    let parts = split_path(&path, 3, 5, true)?;
    let part = |index: usize| parts.get(index).copied().flatten();
    let (device, partition, third) = (part(0)?, part(1)?, part(2)?);
    let is_number = partition.bytes().all(|byte| byte.is_ascii_digit());
    if matches!(device, "." | "..") || !is_number {
        return None;
    }
    let hash = match part(3) {
        Some(container) => hash_path.hash(third, Some(container), None),
        None => ObjectHash::from_hex(third)?,
    };
    Some(DbKey::new(device, partition, DbKind::Container, hash))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use cairn_http::{Body, handler_fn, respond};
    use http::StatusCode;

    use super::*;

    fn key(number: u32) -> DbKey {
        let hash = ObjectHash::from_hex(&format!("{number:032x}")).unwrap();
        DbKey::new("sda", "7", DbKind::Container, hash)
    }

    #[test]
    fn which_requests_write_where() {
        let hashes = HashPath::new("", "end");
        let of = |method: Method, path: &str| written_by(&method, path, &hashes);
        let expected = DbKey::new(
            "sda",
            "7",
            DbKind::Container,
            hashes.hash("a", Some("c é"), None),
        );
        for path in ["/sda/7/a/c%20%C3%A9", "/sda/7/a/c%20%C3%A9/o/p"] {
            assert_eq!(of(Method::PUT, path).as_ref(), Some(&expected), "{path}");
            assert_eq!(of(Method::GET, path), None);
        }
        let replicate = Method::from_bytes(b"REPLICATE").unwrap();
        let path = format!("/sda/7/{}", expected.hash.hex());
        assert_eq!(of(replicate, &path), Some(expected));
        for path in ["/recon/x", "/sda/7/a", "/../7/a/c", "/sda/../a/c", "/a/%ff"] {
            assert_eq!(of(Method::PUT, path), None, "{path}");
        }
    }

    #[test]
    fn each_once_and_not_too_many() {
        let written = Written::new();
        let now = Instant::now();
        let later = now + Duration::from_secs(60);
        written.note(key(1), later);
        written.note(key(1), now);
        written.note(key(2), now);
        assert_eq!(written.take(now), [key(2)]);
        assert_eq!(written.take(now), []);
        assert_eq!(written.take(later), [key(1)]);
        for number in 0..=u32::try_from(WRITTEN_MAX).unwrap() {
            written.note(key(number), now);
        }
        assert!(written.take_lost());
        assert!(!written.take_lost());
        assert_eq!(written.take(now).len(), WRITTEN_MAX);
    }

    #[tokio::test]
    async fn noted_once_answered() {
        let written = Written::new();
        let seen = written.clone();
        let inner = handler_fn(move |_| {
            assert!(seen.take(Instant::now()).is_empty());
            async { respond::text(StatusCode::CREATED, "") }
        });
        let server = NotesWrites::around(inner, HashPath::new("", "end"), written.clone());
        let mut request = Request::new(Body::empty());
        *request.method_mut() = Method::PUT;
        *request.uri_mut() = "/sda/7/a/c".parse().unwrap();
        assert_eq!(server.call(request).await.status(), StatusCode::CREATED);
        assert_eq!(written.take(Instant::now()).len(), 1);
    }
}
