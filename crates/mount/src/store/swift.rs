//! A container of a Swift store. If the store announces conditional writes, conditions are sent
//! with writes. With others, a HEAD before a PUT finds another writer's version, unless both write
//! at the same moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_client::{
    ByteRange, Capabilities, Change, ClientError, Condition, Entry, GetQuery, Info, ListQuery,
    ManifestEntry, Payload, Swift, WriteError, encode_value,
};
use cairn_types::Timestamp;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

use super::{
    Changed, Expect, Form, Headers, News, ObjectName, Part, Result, Row, Segment, Stat, Store,
    StoreError, Usage, Why, is_home,
};
use crate::time::Time;

/// Headers that a POST or PUT without them would remove.
const KEPT: [&str; 8] = [
    "content-encoding",
    "content-disposition",
    "content-language",
    "cache-control",
    "expires",
    "x-delete-at",
    "x-object-manifest",
    "x-robots-tag",
];

const META: &str = "x-object-meta-";

/// A container, accessed with the session's user.
pub(crate) struct SwiftStore {
    swift: Swift,
    container: String,
    /// The store evaluates conditions at commit. It may turn out that it does not for this
    /// container.
    decides: AtomicBool,
    /// With conditions a link has its target as ETag.
    tells_links: bool,
    /// Conditions of copies of manifests are of their `X-Manifest-Etag`.
    tells_manifests: bool,
    has_links: bool,
    feed_wait: Option<Duration>,
    limits: NameLimits,
}

/// Maximum lengths that the store announces.
#[derive(Clone, Copy, Debug)]
struct NameLimits {
    name_bytes: usize,
    request_line_bytes: usize,
    header_bytes: usize,
}

/// Bytes of a listing's request line beside the account's path, the container and the names: method,
/// the other options, version.
const LINE_BYTES: usize = 128;

impl NameLimits {
    /// Is a name short enough for every request that is made of it? `below` is the account's path
    /// with the container.
    fn fits(&self, name: &str, below: usize) -> bool {
        if name.len() > self.name_bytes {
            return false;
        }
        let encoded = encode_value(name).len();
        // A listing has two names: the directory's, and that of an object in it.
        let line = 2 * encoded + below + LINE_BYTES;
        // A copy has the source in a header.
        let header = encoded + below + LINE_BYTES;
        line <= self.request_line_bytes && header <= self.header_bytes
    }
}

impl SwiftStore {
    /// A container whose store has `capabilities`; `policy` is the container's.
    pub(crate) fn new(
        swift: Swift,
        container: &str,
        capabilities: &Capabilities,
        policy: &str,
    ) -> SwiftStore {
        let decides = capabilities.has_conditional_writes(policy);
        SwiftStore {
            limits: NameLimits {
                name_bytes: capabilities.object_name_bytes,
                request_line_bytes: capabilities.request_line_bytes,
                header_bytes: capabilities.header_bytes,
            },
            swift,
            container: container.to_owned(),
            has_links: capabilities.has_symlinks,
            tells_manifests: capabilities.tells_manifests,
            tells_links: decides && capabilities.tells_symlinks,
            feed_wait: capabilities.change_feed_wait_secs.map(Duration::from_secs),
            decides: AtomicBool::new(decides),
        }
    }

    fn stat(&self, info: Info) -> Stat {
        stat(info, &self.container, self.tells_manifests)
    }

    /// Do conditions of writes tell a link from an empty object?
    fn tells_links(&self) -> bool {
        self.tells_links && self.decides()
    }

    /// The account's URL.
    pub(crate) fn account(&self) -> String {
        self.swift.account().to_string()
    }

    /// Makes a conditional write; if the store does not evaluate conditions, after checking by a
    /// HEAD.
    async fn write<'a, T, F>(
        &self,
        name: &str,
        expect: Expect<'a>,
        write: impl Fn(Condition<'a>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, WriteError>>,
    {
        if self.decides() {
            let condition = match expect {
                Expect::Nothing => Condition::Absent,
                Expect::Version(etag) => Condition::Matches(etag),
                Expect::Anything => Condition::None,
            };
            match write(condition).await {
                Err(WriteError::Failed(error)) if is_undecided(&error) => {
                    tracing::warn!(
                        %error,
                        "conditions of writes are not decided in this container: let one mount at a \
                         time write a file"
                    );
                    self.decides.store(false, Ordering::Relaxed);
                }
                written => return Ok(written?),
            }
        }
        self.check(name, expect).await?;
        let condition = match expect {
            Expect::Nothing => Condition::Absent,
            Expect::Version(_) | Expect::Anything => Condition::None,
        };
        Ok(write(condition).await?)
    }

    /// The condition for a write that needs no check if the store does not evaluate conditions.
    fn where_decided<'a>(&self, expect: Expect<'a>) -> Expect<'a> {
        match self.decides() {
            true => expect,
            false => Expect::Anything,
        }
    }

    /// The entries of a version of a manifest.
    async fn entries(&self, name: &str, etag: &str) -> Result<Vec<ManifestEntry>> {
        let is_other = |entries: &Vec<ManifestEntry>| {
            cairn_client::large_object_etag(entries).is_some_and(|is| is != etag)
        };
        let mut entries = self.swift.get_manifest(&self.container, name).await?;
        if is_other(&entries) {
            // The responding server may have missed the last write.
            let newest = self.swift.get_newest_manifest(&self.container, name);
            entries = newest.await?;
        }
        match cairn_client::large_object_etag(&entries) {
            Some(is) if is != etag => {
                let message = format!("{name}: version {etag} was expected, {is} is there");
                Err(StoreError::new(Why::Changed, message))
            }
            _ => Ok(entries),
        }
    }

    /// Checks the expected version by a HEAD before a write.
    async fn check(&self, name: &str, expect: Expect<'_>) -> Result<()> {
        let Expect::Version(etag) = expect else {
            return Ok(());
        };
        let now = match self.head(name).await {
            Ok(stat) => stat.etag,
            Err(error) if error.why == Why::NotFound => "(none)".to_owned(),
            Err(error) => return Err(error),
        };
        match now == etag {
            true => Ok(()),
            false => Err(StoreError::new(
                Why::Changed,
                format!("{name}: version {etag} was expected, {now} is there"),
            )),
        }
    }
}

/// Does the store report that it does not evaluate conditions: for this policy, or because the
/// container has versions?
fn is_undecided(error: &ClientError) -> bool {
    error.status() == Some(StatusCode::NOT_IMPLEMENTED)
}

impl From<WriteError> for StoreError {
    fn from(error: WriteError) -> StoreError {
        let is_in_doubt = matches!(error, WriteError::InDoubt(_));
        StoreError {
            is_in_doubt,
            ..error.into_inner().into()
        }
    }
}

impl From<ClientError> for StoreError {
    fn from(error: ClientError) -> StoreError {
        let why = match error.status().map(|status| status.as_u16()) {
            Some(404 | 410) => Why::NotFound,
            Some(409 | 412) => Why::Changed,
            Some(401 | 403) => Why::Denied,
            Some(413 | 507) => Why::Full,
            Some(414) => Why::TooLarge,
            Some(_) if error.is_passing() => Why::Unavailable,
            Some(_) => Why::Refused,
            None => match &error {
                ClientError::Timeout { .. } => Why::Timeout,
                ClientError::Connect { .. } | ClientError::Broken { .. } => Why::Unavailable,
                ClientError::Login(_) if error.is_passing() => Why::Unavailable,
                ClientError::Login(_) => Why::Denied,
                _ => Why::Refused,
            },
        };
        StoreError::new(why, error.to_string())
    }
}

fn header_map(headers: &Headers) -> Result<HeaderMap> {
    let mut map = HeaderMap::new();
    let mut add = |name: &str, value: &str| {
        let wrong = |what: String| StoreError::new(Why::Refused, format!("header {name}: {what}"));
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|e| wrong(e.to_string()))?;
        let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|e| wrong(e.to_string()))?;
        map.insert(name, value);
        Ok::<(), StoreError>(())
    };
    add(CONTENT_TYPE.as_str(), &headers.content_type)?;
    for (name, value) in &headers.meta {
        add(&format!("{META}{name}"), value)?;
    }
    for (name, value) in &headers.kept {
        add(name, value)?;
    }
    Ok(map)
}

fn time(timestamp: Timestamp) -> Time {
    // Ticks of ten microseconds.
    Time {
        seconds: timestamp.secs() as i64,
        nanos: (timestamp.ticks() % 100_000) as u32 * 10_000,
    }
}

/// The object in the container to which a hard link led.
fn home(info: &Info, container: &str) -> Option<String> {
    let location = info.header("content-location")?;
    let (account, name) = location.split_once(&format!("/{}/", encode_value(container)))?;
    let is_account = account.trim_start_matches('/').split('/').count() == 2;
    (is_account && is_home(name)).then(|| name.to_owned())
}

fn stat(info: Info, container: &str, tells_manifests: bool) -> Stat {
    let home = home(&info, container);
    let mut headers = Headers::new(&info.content_type);
    for (name, value) in &info.headers {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        if let Some(meta) = name.as_str().strip_prefix(META) {
            headers.meta.insert(meta.to_owned(), value);
        } else if KEPT.contains(&name.as_str()) {
            headers.kept.insert(name.as_str().to_owned(), value);
        }
    }
    let timestamp = info
        .header("x-timestamp")
        .and_then(|t| Timestamp::parse(t).ok());
    let form = match () {
        () if info.is_static_large_object() => Form::Manifest,
        () if info.headers.contains_key("x-object-manifest") => Form::Dynamic,
        () => Form::Plain,
    };
    let manifest_etag = || info.header("x-manifest-etag").map(str::to_owned);
    let stored_etag = match form {
        Form::Plain => Some(info.etag.clone()),
        _ => tells_manifests.then(manifest_etag).flatten(),
    };
    Stat {
        bytes: info.bytes,
        etag: info.etag,
        stored_etag,
        changed: timestamp.map_or_else(Time::default, time),
        form,
        headers,
        home,
    }
}

/// The part for an entry that names an object and its size.
fn part(entry: &ManifestEntry) -> Option<Part> {
    let (container, name) = entry
        .path
        .as_deref()?
        .trim_start_matches('/')
        .split_once('/')?;
    let bytes = entry.size_bytes?;
    let (offset, length) = match &entry.range {
        None => (0, bytes),
        Some(range) => ByteRange::parse(range)?.resolve(bytes)?,
    };
    let name = ObjectName::new(container, name);
    Some(Part {
        segment: Arc::new(Segment { name, bytes }),
        offset,
        length,
    })
}

impl Store for SwiftStore {
    fn container(&self) -> &str {
        &self.container
    }

    fn decides(&self) -> bool {
        self.decides.load(Ordering::Relaxed)
    }

    fn fits(&self, path: &str) -> bool {
        let account = &self.swift.account().path;
        let below = account.len() + encode_value(&self.container).len();
        self.limits.fits(path, below)
    }

    async fn head(&self, name: &str) -> Result<Stat> {
        // All servers are asked: a majority has the last version, but a single server may have
        // missed it. What is not decided at commit would be lost with a commit over an older one.
        self.head_newest(name).await
    }

    async fn head_newest(&self, name: &str) -> Result<Stat> {
        let info = self.swift.head_newest(&self.container, name).await?;
        Ok(self.stat(info))
    }

    fn has_links(&self) -> bool {
        self.has_links
    }

    async fn head_link(&self, name: &str) -> Result<Stat> {
        let info = self.swift.head_symlink(&self.container, name).await?;
        let target = info.header("x-symlink-target").map(str::to_owned);
        let stat = self.stat(info);
        match target.filter(|_| self.tells_links()) {
            Some(etag) => Ok(Stat { etag, ..stat }),
            None => Ok(stat),
        }
    }

    async fn put_link(
        &self,
        name: &str,
        content_type: &str,
        target: &str,
        expect: Expect<'_>,
    ) -> Result<String> {
        let headers = header_map(&Headers::new(content_type))?;
        let put = |condition| {
            let (container, headers) = (&self.container, headers.clone());
            self.swift
                .put_symlink(container, name, target, headers, condition)
        };
        Ok(self.write(name, expect, put).await?.etag)
    }

    async fn read(
        &self,
        object: &ObjectName,
        etag: Option<&str>,
        offset: u64,
        length: u64,
    ) -> Result<Vec<Bytes>> {
        let mut buffer = Vec::with_capacity(length as usize);
        let range = (offset, length);
        self.read_into(object, etag, range, &mut buffer).await?;
        Ok(vec![buffer.into()])
    }

    async fn read_into(
        &self,
        object: &ObjectName,
        etag: Option<&str>,
        range: (u64, u64),
        buffer: &mut Vec<u8>,
    ) -> Result<()> {
        let (container, name) = (&object.container, &object.name);
        let mut query = GetQuery {
            range: Some(range),
            condition: etag.map_or(Condition::None, Condition::Matches),
            is_newest: false,
        };
        let read = self.swift.get_range(container, name, query, buffer);
        match read.await {
            // The responding server may have missed the last write.
            Err(error) if etag.is_some() && error.is_condition() => {
                query.is_newest = true;
                let newest = self.swift.get_range(container, name, query, buffer);
                Ok(newest.await?)
            }
            read => Ok(read?),
        }
    }

    async fn manifest(&self, name: &str, etag: &str) -> Result<Option<Vec<Part>>> {
        let entries = self.entries(name, etag).await?;
        Ok(entries.iter().map(part).collect())
    }

    async fn references(&self, name: &str, etag: Option<&str>) -> Result<Vec<ObjectName>> {
        let entries = match etag {
            Some(etag) => self.entries(name, etag).await?,
            None => self.swift.get_manifest(&self.container, name).await?,
        };
        let named = |entry: &ManifestEntry| {
            let path = entry.path.as_deref()?.trim_start_matches('/');
            let (container, name) = path.split_once('/')?;
            Some(ObjectName::new(container, name))
        };
        Ok(entries.iter().filter_map(named).collect())
    }

    async fn parts(&self, name: &str) -> Result<Option<Vec<Part>>> {
        let entries = self.swift.get_manifest(&self.container, name).await?;
        Ok(entries.iter().map(part).collect())
    }

    async fn put(
        &self,
        name: &str,
        headers: &Headers,
        body: Vec<Bytes>,
        expect: Expect<'_>,
    ) -> Result<String> {
        let headers = header_map(headers)?;
        let put = |condition| {
            let body = Payload::Bytes(body.clone());
            self.swift
                .put(&self.container, name, headers.clone(), body, condition)
        };
        Ok(self.write(name, expect, put).await?.etag)
    }

    async fn put_manifest(
        &self,
        name: &str,
        headers: &Headers,
        parts: &[Part],
        expect: Expect<'_>,
    ) -> Result<String> {
        let entry = |part: &Part| {
            let ObjectName { container, name } = &part.segment.name;
            let path = format!("/{container}/{name}");
            ManifestEntry::part(path, part.segment.bytes, part.offset, part.length)
        };
        let entries: Vec<ManifestEntry> = parts.iter().map(entry).collect();
        let headers = header_map(headers)?;
        let put = |condition| {
            let (container, headers) = (&self.container, headers.clone());
            self.swift
                .put_manifest(container, name, headers, &entries, condition)
        };
        Ok(self.write(name, expect, put).await?.etag)
    }

    async fn post(&self, name: &str, headers: &Headers, expect: Expect<'_>) -> Result<()> {
        let headers = header_map(headers)?;
        let post = |condition| {
            self.swift
                .post(&self.container, name, headers.clone(), condition)
        };
        self.write(name, self.where_decided(expect), post).await
    }

    async fn copy(&self, source: &str, target: &str, etag: Option<&str>) -> Result<()> {
        let condition = etag.map_or(Condition::None, Condition::Matches);
        self.swift
            .copy(&self.container, source, target, condition)
            .await?;
        Ok(())
    }

    async fn delete(&self, name: &str, expect: Expect<'_>) -> Result<bool> {
        let delete = |condition| self.swift.delete(&self.container, name, condition);
        self.write(name, self.where_decided(expect), delete).await
    }

    async fn list(&self, prefix: &str, marker: &str, flat: bool, limit: u32) -> Result<Vec<Row>> {
        let query = ListQuery {
            prefix,
            delimiter: (!flat).then_some('/'),
            marker,
            limit,
        };
        let entries = self.swift.list(&self.container, &query).await?;
        let row = |entry| match entry {
            Entry::Subdir(name) => Row::Prefix(name),
            Entry::Object {
                name,
                bytes,
                hash,
                content_type,
                last_modified,
                slo_etag,
            } => Row::Object {
                name,
                bytes,
                is_manifest: slo_etag.is_some(),
                etag: slo_etag.unwrap_or(hash),
                content_type,
                changed: Timestamp::parse_isoformat(&last_modified).map_or(Time::default(), time),
            },
        };
        Ok(entries.into_iter().map(row).collect())
    }

    async fn usage(&self) -> Result<Usage> {
        let info = self.swift.head_container(&self.container).await?;
        let number = |name: &str| info.header(name).and_then(|n| n.parse().ok()).unwrap_or(0);
        Ok(Usage {
            bytes: number("x-container-bytes-used"),
            objects: number("x-container-object-count"),
        })
    }

    fn feed_wait(&self) -> Option<Duration> {
        self.feed_wait
    }

    async fn changes(&self, cursor: &str, wait: Duration) -> Result<News> {
        let found = self.swift.changes(&self.container, cursor, wait).await?;
        let changed = |row: Change| Changed {
            name: row.name,
            etag: row.etag,
            content_type: row.content_type,
        };
        Ok(News {
            cursor: found.cursor,
            is_reset: found.is_reset,
            changed: found.rows.into_iter().map(changed).collect(),
        })
    }
}

/// Timeouts of a mount for login, container, and each request.
pub(crate) fn options(timeout: Duration) -> cairn_client::Options {
    cairn_client::Options {
        answer_timeout: timeout,
        stall_timeout: timeout,
        ..cairn_client::Options::default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
