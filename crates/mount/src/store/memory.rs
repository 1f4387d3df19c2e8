//! An in-memory store for tests: conditions are evaluated, large objects are read through their
//! manifests, and calls fail as a test demands.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::watch;

use super::{
    Changed, EMPTY_ETAG, Expect, Form, Headers, News, ObjectName, Part, Result, Row, Stat, Store,
    StoreError, Usage, Why,
};
use crate::time::Time;

#[derive(Clone)]
enum Body {
    Bytes(Bytes),
    Parts(Vec<Part>),
    /// A link to the object of this name.
    Link(String),
}

#[derive(Clone)]
struct Object {
    body: Body,
    etag: String,
    /// Number of its version, which no other has, and copies have too.
    number: u64,
    changed: Time,
    headers: Headers,
}

impl Object {
    fn bytes(&self) -> u64 {
        match &self.body {
            Body::Bytes(bytes) => bytes.len() as u64,
            Body::Parts(parts) => parts.iter().map(|part| part.length).sum(),
            Body::Link(_) => 0,
        }
    }
}

const NAME_MAX_BYTES: usize = 1024;

/// Fault injection: called with each call's verb and name.
type Faults = Box<dyn FnMut(&str, &str) -> Option<Why> + Send>;

/// All changes, and a notice of each.
#[derive(Clone)]
struct Feed {
    changed: Arc<Mutex<Vec<Changed>>>,
    count: Arc<watch::Sender<usize>>,
    /// Whether the store announces a feed.
    is_there: Arc<AtomicBool>,
}

impl Default for Feed {
    fn default() -> Feed {
        Feed {
            changed: Arc::default(),
            count: Arc::new(watch::Sender::new(0)),
            is_there: Arc::default(),
        }
    }
}

/// Clones share the store. Conditions are evaluated at commit, unless a test disables that.
#[derive(Clone, Default)]
pub(crate) struct MemoryStore {
    objects: Arc<Mutex<BTreeMap<String, Object>>>,
    versions: Arc<AtomicU64>,
    calls: Arc<Mutex<Vec<String>>>,
    faults: Arc<Mutex<Option<Faults>>>,
    /// Fault injection for calls that are carried out but whose responses are lost.
    lost: Arc<Mutex<Option<Faults>>>,
    /// Each call yields to others at random before it starts.
    turns: Arc<Mutex<Option<StdRng>>>,
    decides_nothing: Arc<AtomicBool>,
    /// Links have ETags of their own, as in a store that tells them from empty objects.
    tells_links_apart: Arc<AtomicBool>,
    /// Changes in their order; those who wait for more are told.
    feed: Feed,
    /// A planted bug: a failed condition is reported as success, and nothing is written.
    believes_lost_swaps: Arc<AtomicBool>,
}

impl MemoryStore {
    pub(crate) fn fail(&self, faults: impl FnMut(&str, &str) -> Option<Why> + Send + 'static) {
        *self.faults.lock() = Some(Box::new(faults));
    }

    /// Loses the responses of calls that are carried out.
    pub(crate) fn lose(&self, lost: impl FnMut(&str, &str) -> Option<Why> + Send + 'static) {
        *self.lost.lock() = Some(Box::new(lost));
    }

    pub(crate) fn heal(&self) {
        *self.faults.lock() = None;
        *self.lost.lock() = None;
    }

    /// The same objects for a mount whose calls do not fail.
    pub(crate) fn beside(&self) -> MemoryStore {
        MemoryStore {
            faults: Arc::default(),
            lost: Arc::default(),
            calls: Arc::default(),
            ..self.clone()
        }
    }

    pub(crate) fn take_turns(&self, seed: u64) {
        *self.turns.lock() = Some(StdRng::seed_from_u64(seed));
    }

    pub(crate) fn decide_nothing(&self) {
        self.decides_nothing.store(true, Ordering::Relaxed);
    }

    pub(crate) fn tell_links_apart(&self) {
        self.tells_links_apart.store(true, Ordering::Relaxed);
    }

    pub(crate) fn plant_lost_swaps(&self) {
        self.believes_lost_swaps.store(true, Ordering::Relaxed);
    }

    /// `VERB NAME` of all calls since the last time.
    pub(crate) fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock())
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.objects.lock().keys().cloned().collect()
    }

    /// Reads an object like another client.
    pub(crate) fn whole(&self, name: &str) -> Result<Bytes> {
        let objects = self.objects.lock();
        let bytes = find(&objects, name)?.bytes();
        read(&objects, name, 0, bytes)
    }

    /// The version of an object.
    pub(crate) fn etag(&self, name: &str) -> Option<String> {
        let objects = self.objects.lock();
        objects.get(name).map(|object| object.etag.clone())
    }

    /// The number of an object's version: empty ones are told apart by it, other than by their ETags.
    pub(crate) fn version(&self, name: &str) -> Option<u64> {
        let objects = self.objects.lock();
        find(&objects, name).ok().map(|object| object.number)
    }

    /// The object to which a link leads.
    pub(crate) fn home(&self, name: &str) -> Option<String> {
        match &self.objects.lock().get(name)?.body {
            Body::Link(home) => Some(home.clone()),
            Body::Bytes(_) | Body::Parts(_) => None,
        }
    }

    /// Writes an object like another client.
    pub(crate) fn write(&self, name: &str, content_type: &str, bytes: &'static [u8]) {
        let headers = Headers::new(content_type);
        let body = Body::Bytes(Bytes::from_static(bytes));
        self.store(&mut self.objects.lock(), name, &headers, body);
    }

    async fn called(&self, verb: &str, name: &str) -> Result<()> {
        let turns = match &mut *self.turns.lock() {
            Some(random) => random.random_range(0..8),
            None => 0,
        };
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        self.calls.lock().push(format!("{verb} {name}"));
        let why = self
            .faults
            .lock()
            .as_mut()
            .and_then(|fault| fault(verb, name));
        match why {
            Some(why) => Err(failure(verb, name, why)),
            None => Ok(()),
        }
    }

    /// The response to a write that was carried out.
    fn answer<T>(&self, verb: &str, name: &str, answer: T) -> Result<T> {
        let mut lost = self.lost.lock();
        match lost.as_mut().and_then(|lost| lost(verb, name)) {
            Some(why) => Err(failure(verb, name, why)),
            None => Ok(answer),
        }
    }

    /// Is a write with a failed condition to be reported as success?
    fn is_believed(&self, held: &Result<()>) -> bool {
        held.is_err() && self.believes_lost_swaps.load(Ordering::Relaxed)
    }

    fn store(
        &self,
        objects: &mut BTreeMap<String, Object>,
        name: &str,
        headers: &Headers,
        body: Body,
    ) -> String {
        let version = self.versions.fetch_add(1, Ordering::Relaxed);
        let is_empty = match &body {
            Body::Bytes(bytes) => bytes.is_empty(),
            Body::Parts(_) => false,
            Body::Link(_) => !self.tells_links_apart.load(Ordering::Relaxed),
        };
        let etag = match is_empty {
            true => EMPTY_ETAG.to_owned(),
            false => format!("etag{version}"),
        };
        let object = Object {
            body,
            etag: etag.clone(),
            number: version,
            changed: Time::now(),
            headers: headers.clone(),
        };
        self.tell(name, Some(&object));
        objects.insert(name.to_owned(), object);
        etag
    }

    /// Begins to announce a change feed.
    pub(crate) fn announce_feed(&self) {
        self.feed.is_there.store(true, Ordering::Relaxed);
    }

    /// Number of changes so far.
    pub(crate) fn changes_count(&self) -> usize {
        self.feed.changed.lock().len()
    }

    fn tell(&self, name: &str, object: Option<&Object>) {
        let content_type = object.map(|object| object.headers.content_type.clone());
        let mut changed = self.feed.changed.lock();
        changed.push(Changed {
            name: name.to_owned(),
            etag: object.map(|object| object.etag.clone()),
            content_type: content_type.unwrap_or_default(),
        });
        self.feed.count.send_replace(changed.len());
    }

    fn expect(objects: &BTreeMap<String, Object>, name: &str, expect: Expect<'_>) -> Result<()> {
        let is = objects.get(name).map(|object| object.etag.as_str());
        let holds = match expect {
            Expect::Anything => true,
            Expect::Nothing => is.is_none(),
            Expect::Version(etag) => is == Some(etag),
        };
        match holds {
            true => Ok(()),
            false => Err(StoreError::new(Why::Changed, format!("{name} is {is:?}"))),
        }
    }
}

/// A write with a transient failure may have taken place.
fn failure(verb: &str, name: &str, why: Why) -> StoreError {
    let is_passing = matches!(why, Why::Timeout | Why::Unavailable);
    StoreError {
        is_in_doubt: is_passing && matches!(verb, "PUT" | "POST" | "DELETE"),
        ..StoreError::new(why, format!("{verb} {name}: on purpose"))
    }
}

/// An object, or the one to which a link of that name leads.
fn find<'a>(objects: &'a BTreeMap<String, Object>, name: &str) -> Result<&'a Object> {
    let missing = || StoreError::new(Why::NotFound, format!("no {name}"));
    let object = objects.get(name).ok_or_else(missing)?;
    match &object.body {
        Body::Link(target) => objects.get(target).ok_or_else(missing),
        _ => Ok(object),
    }
}

/// Reads are of the version that is expected, also where a link leads to it.
fn of_version(name: &str, object: &Object, etag: &str) -> Result<()> {
    match object.etag == etag {
        true => Ok(()),
        false => {
            let message = format!("{name} is {:?}", object.etag);
            Err(StoreError::new(Why::Changed, message))
        }
    }
}

/// A manifest's own ETag is another than that of its object.
fn stored_etag(object: &Object) -> String {
    match object.body {
        Body::Bytes(_) | Body::Link(_) => object.etag.clone(),
        Body::Parts(_) => format!("manifest of {}", object.etag),
    }
}

fn stat(object: &Object) -> Stat {
    Stat {
        bytes: object.bytes(),
        etag: object.etag.clone(),
        stored_etag: Some(stored_etag(object)),
        changed: object.changed,
        form: match object.body {
            Body::Bytes(_) | Body::Link(_) => Form::Plain,
            Body::Parts(_) => Form::Manifest,
        },
        headers: object.headers.clone(),
        home: None,
    }
}

fn read(objects: &BTreeMap<String, Object>, name: &str, offset: u64, length: u64) -> Result<Bytes> {
    let object = find(objects, name)?;
    let beyond = || StoreError::new(Why::Refused, format!("{name} has no {offset}+{length}"));
    if offset + length > object.bytes() {
        return Err(beyond());
    }
    let parts = match &object.body {
        Body::Bytes(bytes) => {
            return Ok(bytes.slice(offset as usize..(offset + length) as usize));
        }
        Body::Link(_) => return Err(beyond()),
        Body::Parts(parts) => parts,
    };
    let (mut at, mut all) = (0, BytesMut::new());
    for part in parts {
        let (start, end) = (offset.max(at), (offset + length).min(at + part.length));
        if start < end {
            let from = part.offset + (start - at);
            all.extend_from_slice(&read(objects, &part.segment.name.name, from, end - start)?);
        }
        at += part.length;
    }
    Ok(all.freeze())
}

impl Store for MemoryStore {
    fn container(&self) -> &str {
        "c"
    }

    fn decides(&self) -> bool {
        !self.decides_nothing.load(Ordering::Relaxed)
    }

    fn fits(&self, path: &str) -> bool {
        path.len() <= NAME_MAX_BYTES
    }

    async fn head_newest(&self, name: &str) -> Result<Stat> {
        self.head(name).await
    }

    async fn head(&self, name: &str) -> Result<Stat> {
        self.called("HEAD", name).await?;
        let objects = self.objects.lock();
        let home = match objects.get(name).map(|object| &object.body) {
            Some(Body::Link(target)) => Some(target.clone()),
            _ => None,
        };
        let stat = stat(find(&objects, name)?);
        Ok(Stat { home, ..stat })
    }

    fn has_links(&self) -> bool {
        true
    }

    async fn head_link(&self, name: &str) -> Result<Stat> {
        self.called("HEAD", name).await?;
        let objects = self.objects.lock();
        let missing = || StoreError::new(Why::NotFound, format!("no {name}"));
        objects.get(name).map(stat).ok_or_else(missing)
    }

    async fn put_link(
        &self,
        name: &str,
        content_type: &str,
        target: &str,
        expect: Expect<'_>,
    ) -> Result<String> {
        self.called("PUT", name).await?;
        let mut objects = self.objects.lock();
        MemoryStore::expect(&objects, name, expect)?;
        let body = Body::Link(target.to_owned());
        let etag = self.store(&mut objects, name, &Headers::new(content_type), body);
        self.answer("PUT", name, etag)
    }

    async fn read(
        &self,
        object: &ObjectName,
        etag: Option<&str>,
        offset: u64,
        length: u64,
    ) -> Result<Vec<Bytes>> {
        self.called("GET", &object.name).await?;
        let objects = self.objects.lock();
        if let Some(etag) = etag {
            of_version(&object.name, find(&objects, &object.name)?, etag)?;
        }
        Ok(vec![read(&objects, &object.name, offset, length)?])
    }

    async fn manifest(&self, name: &str, etag: &str) -> Result<Option<Vec<Part>>> {
        self.called("MANIFEST", name).await?;
        let objects = self.objects.lock();
        let object = find(&objects, name)?;
        of_version(name, object, etag)?;
        match &object.body {
            Body::Bytes(_) | Body::Link(_) => Ok(None),
            Body::Parts(parts) => Ok(Some(parts.clone())),
        }
    }

    async fn references(&self, name: &str, etag: Option<&str>) -> Result<Vec<ObjectName>> {
        let parts = match etag {
            Some(etag) => self.manifest(name, etag).await?,
            None => self.parts(name).await?,
        };
        let parts = parts.unwrap_or_default().into_iter();
        Ok(parts.map(|part| part.segment.name.clone()).collect())
    }

    async fn parts(&self, name: &str) -> Result<Option<Vec<Part>>> {
        self.called("MANIFEST", name).await?;
        match &find(&self.objects.lock(), name)?.body {
            Body::Bytes(_) | Body::Link(_) => Ok(None),
            Body::Parts(parts) => Ok(Some(parts.clone())),
        }
    }

    async fn put(
        &self,
        name: &str,
        headers: &Headers,
        body: Vec<Bytes>,
        expect: Expect<'_>,
    ) -> Result<String> {
        self.called("PUT", name).await?;
        let mut objects = self.objects.lock();
        let held = MemoryStore::expect(&objects, name, expect);
        if self.is_believed(&held) {
            return Ok("lost".to_owned());
        }
        held?;
        let body = Body::Bytes(body.concat().into());
        let etag = self.store(&mut objects, name, headers, body);
        self.answer("PUT", name, etag)
    }

    async fn put_manifest(
        &self,
        name: &str,
        headers: &Headers,
        parts: &[Part],
        expect: Expect<'_>,
    ) -> Result<String> {
        self.called("PUT", name).await?;
        let mut objects = self.objects.lock();
        for part in parts {
            // As in a real store, each segment is checked before any condition.
            let refused = || StoreError::new(Why::Refused, format!("{part:?} of {name}"));
            let object = find(&objects, &part.segment.name.name).map_err(|_| refused())?;
            if object.bytes() != part.segment.bytes || part.length == 0 {
                return Err(refused());
            }
            read(&objects, &part.segment.name.name, part.offset, part.length)?;
        }
        let held = MemoryStore::expect(&objects, name, expect);
        if self.is_believed(&held) {
            return Ok("lost".to_owned());
        }
        held?;
        let body = Body::Parts(parts.to_vec());
        let etag = self.store(&mut objects, name, headers, body);
        self.answer("PUT", name, etag)
    }

    async fn post(&self, name: &str, headers: &Headers, expect: Expect<'_>) -> Result<()> {
        self.called("POST", name).await?;
        let mut objects = self.objects.lock();
        find(&objects, name)?;
        if self.decides() {
            MemoryStore::expect(&objects, name, expect)?;
        }
        if let Some(object) = objects.get_mut(name) {
            object.headers = headers.clone();
            object.changed = Time::now();
            self.tell(name, Some(object));
        }
        self.answer("POST", name, ())
    }

    async fn copy(&self, source: &str, target: &str, etag: Option<&str>) -> Result<()> {
        self.called("COPY", source).await?;
        let mut objects = self.objects.lock();
        let object = find(&objects, source)?.clone();
        if etag.is_some_and(|etag| etag != stored_etag(&object)) {
            let message = format!("{source} is {:?}", object.etag);
            return Err(StoreError::new(Why::Changed, message));
        }
        self.tell(target, Some(&object));
        objects.insert(target.to_owned(), object);
        Ok(())
    }

    async fn delete(&self, name: &str, expect: Expect<'_>) -> Result<bool> {
        self.called("DELETE", name).await?;
        let mut objects = self.objects.lock();
        if self.decides() {
            MemoryStore::expect(&objects, name, expect)?;
        }
        let was_there = objects.remove(name).is_some();
        self.tell(name, None);
        self.answer("DELETE", name, was_there)
    }

    async fn list(&self, prefix: &str, marker: &str, flat: bool, limit: u32) -> Result<Vec<Row>> {
        self.called("LIST", prefix).await?;
        let limit = if limit == 0 { 10_000 } else { limit as usize };
        let objects = self.objects.lock();
        let mut rows: Vec<Row> = Vec::new();
        for (name, object) in objects.range(prefix.to_owned()..) {
            let Some(rest) = name.strip_prefix(prefix) else {
                break;
            };
            let cut = rest.find('/').filter(|_| !flat);
            let row = match cut {
                Some(cut) => Row::Prefix(name[..prefix.len() + cut + 1].to_owned()),
                None => Row::Object {
                    name: name.clone(),
                    bytes: object.bytes(),
                    etag: object.etag.clone(),
                    content_type: object.headers.content_type.clone(),
                    changed: object.changed,
                    is_manifest: matches!(object.body, Body::Parts(_)),
                },
            };
            let is_told = rows.last().is_some_and(|last| last.name() == row.name());
            if row.name() > marker && !is_told {
                rows.push(row);
            }
            if rows.len() == limit {
                break;
            }
        }
        Ok(rows)
    }

    async fn usage(&self) -> Result<Usage> {
        self.called("USAGE", "").await?;
        let objects = self.objects.lock();
        Ok(Usage {
            bytes: objects.values().map(Object::bytes).sum(),
            objects: objects.len() as u64,
        })
    }

    fn feed_wait(&self) -> Option<Duration> {
        let is_there = self.feed.is_there.load(Ordering::Relaxed);
        is_there.then_some(Duration::from_secs(60))
    }

    async fn changes(&self, cursor: &str, wait: Duration) -> Result<News> {
        self.called("CHANGES", "").await?;
        let known = cursor.parse().ok();
        let known = known.filter(|known| *known <= self.changes_count());
        let from = known.unwrap_or(self.changes_count());
        if known.is_some() {
            let mut count = self.feed.count.subscribe();
            // Without changes in time the answer has none.
            let _ = tokio::time::timeout(wait, count.wait_for(|count| *count > from)).await;
        }
        let changed = self.feed.changed.lock()[from..].to_vec();
        Ok(News {
            cursor: (from + changed.len()).to_string(),
            is_reset: known.is_none(),
            changed,
        })
    }
}
