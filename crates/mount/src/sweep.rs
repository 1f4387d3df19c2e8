//! Garbage collection by mark and sweep: removes segments that no object of the container has
//! referred to for a grace period. Such segments are left by a kill, a failed deletion or an
//! interrupted rename.
//!
//! A sweep reads all manifests of the container (mark). Unreferenced segments are recorded in
//! `.segments/sweep`, each with the time when it was first found so; those recorded a grace period
//! ago, and still unreferenced, are removed. A delayed listing, a rename in progress or a commit
//! with uploaded but unreferenced segments takes far less time.
//!
//! Segments of files that are open without a name, or written without a sync, are protected by
//! pins: each mount with such files maintains an object `.segments/pins/MOUNT` with their ids,
//! which is valid for an hour after it was last written.

mod links;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};

use crate::commit::{Committer, random_id};
use crate::store::{
    Expect, Form, Headers, ObjectName, Result, Row, SEGMENTS, Store, StoreError, Why, file_id,
    insist,
};
use crate::turns;

/// Maximum concurrent requests of a sweep.
const CONCURRENT_REQUESTS_MAX: usize = 8;
/// Maximum restarts of marking, because a large object disappeared during it.
const MARKS_MAX: u32 = 5;
const PIN_LEASE: Duration = Duration::from_secs(3600);
const ID_CHARS: usize = 32;
/// Maximum size of the record: half a million names.
const FOUND_MAX_BYTES: u64 = 64 << 20;

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Number of large objects whose manifests were read.
    pub large_objects: u64,
    pub segments: u64,
    /// Number of segments unreferenced for less than the grace period.
    pub waiting: u64,
    /// Number of unreferenced segments of files that are open on a mount.
    pub pinned: u64,
    pub removed: u64,
    pub removed_bytes: u64,
}

/// Options of a sweep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SweepOptions {
    pub(crate) grace: Duration,
    /// A planted bug.
    #[cfg(test)]
    pub(crate) ignores_pins: bool,
}

fn pins_of(mount: &str) -> String {
    format!("{SEGMENTS}/pins/{mount}")
}

/// Is it a mark of segments that names share, or of a mount's turn, and no segment?
fn is_mark(name: &str) -> bool {
    let last = name.rsplit('/').next();
    last == Some("shared") || last == Some(turns::NAME)
}

/// Does a name have the form of segments and marks? Others are left alone.
fn is_ours(name: &str) -> bool {
    let Some(id) = file_id(name) else {
        return false;
    };
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let rest = &name[SEGMENTS.len() + 1 + id.len() + 1..];
    let rest = rest.strip_suffix(".parts").unwrap_or(rest);
    let is_segment = rest.split_once('.').is_some_and(|(mount, number)| {
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        !mount.is_empty() && !number.is_empty() && is_hex(mount) && is_number
    });
    id.len() == ID_CHARS && is_hex(id) && (rest == "shared" || rest == turns::NAME || is_segment)
}

/// Parses the record: names with the time in seconds when each was first found unreferenced, one
/// per line.
fn parse_found(text: &[u8]) -> BTreeMap<String, i64> {
    let text = String::from_utf8_lossy(text);
    let line = |line: &str| {
        let (seconds, name) = line.split_once(' ')?;
        let seconds = seconds.parse().ok()?;
        let is_swept = is_ours(name) || crate::links::is_entry(name) || crate::store::is_home(name);
        is_swept.then(|| (name.to_owned(), seconds))
    };
    text.lines().filter_map(line).collect()
}

fn write_found(found: &BTreeMap<String, i64>) -> Bytes {
    let lines = found
        .iter()
        .map(|(name, seconds)| format!("{seconds} {name}\n"));
    lines.collect::<String>().into()
}

/// The objects below `.segments/`.
#[derive(Default)]
struct Inventory {
    /// Segments and marks, with their sizes.
    ours: BTreeMap<String, u64>,
    /// Ids of pinned files.
    pinned: HashSet<String>,
    found: BTreeMap<String, i64>,
    homes: links::Homes,
}

/// Everything that manifests refer to.
#[derive(Default)]
struct Marked {
    names: HashSet<String>,
    /// Number of objects that refer to segments of a file, by its id.
    holders: HashMap<String, usize>,
    links: links::Links,
}

impl<S: Store> Committer<S> {
    /// Writes the pins of files that are open here and whose segments must stay; an empty `ids`
    /// removes them.
    pub(crate) async fn pin(&self, ids: &BTreeSet<String>) -> Result<()> {
        let name = pins_of(&self.mount_id);
        if ids.is_empty() {
            return self.store.delete(&name, Expect::Anything).await.map(drop);
        }
        let body: String = ids.iter().map(|id| format!("{id}\n")).collect();
        let headers = Headers::new("text/plain");
        let body = vec![Bytes::from(body)];
        let put = self.store.put(&name, &headers, body, Expect::Anything);
        put.await.map(drop)
    }

    /// The store's current time, in seconds.
    pub(crate) async fn store_time(&self) -> Result<i64> {
        let name = format!("{SEGMENTS}/time/{}", random_id());
        let headers = Headers::new("text/plain");
        let put = self
            .store
            .put(&name, &headers, Vec::new(), Expect::Anything);
        put.await?;
        let stat = self.store.head_newest(&name).await;
        self.store.delete(&name, Expect::Anything).await?;
        Ok(stat?.changed.seconds)
    }

    /// Removes segments that have been unreferenced for the grace period.
    pub(crate) async fn sweep(&self, options: SweepOptions) -> Result<Swept> {
        let now = self.store_time().await?;
        let mut swept = Swept::default();
        // Taken first: objects created later are not considered.
        let inventory = self.inventory(now).await?;
        let marked = self.mark(&mut swept).await?;
        let (mut waiting, mut due) = (BTreeMap::new(), Vec::new());
        let grace = options.grace.as_secs() as i64;
        for (name, bytes) in &inventory.ours {
            let id = file_id(name).unwrap_or_default();
            let is_mark = is_mark(name);
            swept.segments += u64::from(!is_mark);
            let is_shared = is_mark && marked.holders.get(id).is_some_and(|count| *count > 1);
            if marked.names.contains(name) || is_shared {
                continue;
            }
            #[cfg(test)]
            let is_pinned = !options.ignores_pins && inventory.pinned.contains(id);
            #[cfg(not(test))]
            let is_pinned = inventory.pinned.contains(id);
            let since = inventory.found.get(name).copied().unwrap_or(now);
            match () {
                () if is_pinned => swept.pinned += u64::from(!is_mark),
                () if now - since >= grace => due.push((name.clone(), *bytes)),
                () => {
                    swept.waiting += u64::from(!is_mark);
                    waiting.insert(name.clone(), since);
                }
            }
        }
        let times = (now, grace);
        self.sweep_links(&inventory, &marked.links, times, &mut waiting, &mut swept)
            .await?;
        self.remember(&waiting, &inventory.found).await?;
        let delete = |(name, bytes): (String, u64)| async move {
            let delete = || self.store.delete(&name, Expect::Anything);
            insist(delete).await.map(|_| (is_mark(&name), bytes))
        };
        let deleted = futures_util::stream::iter(due.into_iter().map(delete));
        let mut deleted = deleted.buffer_unordered(CONCURRENT_REQUESTS_MAX);
        while let Some((is_mark, bytes)) = deleted.try_next().await? {
            swept.removed += u64::from(!is_mark);
            swept.removed_bytes += bytes;
        }
        Ok(swept)
    }

    async fn remember(
        &self,
        waiting: &BTreeMap<String, i64>,
        before: &BTreeMap<String, i64>,
    ) -> Result<()> {
        let name = format!("{SEGMENTS}/sweep");
        if waiting == before {
            return Ok(());
        }
        if waiting.is_empty() {
            return self.store.delete(&name, Expect::Anything).await.map(drop);
        }
        let headers = Headers::new("text/plain");
        let body = vec![write_found(waiting)];
        let put = self.store.put(&name, &headers, body, Expect::Anything);
        put.await.map(drop)
    }

    async fn inventory(&self, now: i64) -> Result<Inventory> {
        let mut inventory = Inventory::default();
        let (prefix, pins) = (format!("{SEGMENTS}/"), pins_of(""));
        let (found, times) = (format!("{SEGMENTS}/sweep"), format!("{SEGMENTS}/time/"));
        let links = crate::store::links_folder();
        let lease = PIN_LEASE.as_secs() as i64;
        let mut marker = String::new();
        loop {
            let rows = self.store.list(&prefix, &marker, true, 0).await?;
            let Some(last) = rows.last() else {
                return Ok(inventory);
            };
            marker = last.name().to_owned();
            for row in rows {
                let Row::Object {
                    name,
                    bytes,
                    changed,
                    ..
                } = row
                else {
                    continue;
                };
                if name == found {
                    let text = self.small_object(&name, bytes).await?;
                    inventory.found = parse_found(&text);
                } else if name.starts_with(&pins) {
                    if now - changed.seconds > lease {
                        self.store.delete(&name, Expect::Anything).await?;
                        continue;
                    }
                    let text = self.small_object(&name, bytes).await?;
                    let text = String::from_utf8_lossy(&text).into_owned();
                    inventory.pinned.extend(text.lines().map(str::to_owned));
                } else if is_ours(&name) {
                    inventory.ours.insert(name, bytes);
                } else if name.starts_with(&links) {
                    inventory.homes.take(&name, bytes);
                } else if name.starts_with(&times) && now - changed.seconds > lease {
                    self.store.delete(&name, Expect::Anything).await?;
                }
            }
        }
    }

    /// Reads an object of the mounts' own; empty if it is gone.
    pub(crate) async fn small_object(&self, name: &str, bytes: u64) -> Result<Vec<u8>> {
        if bytes == 0 {
            return Ok(Vec::new());
        }
        if bytes > FOUND_MAX_BYTES {
            return Err(StoreError::new(
                Why::Refused,
                format!("{name} has {bytes} bytes"),
            ));
        }
        let object = ObjectName::new(self.store.container(), name);
        match self.store.read(&object, None, 0, bytes).await {
            Ok(pieces) => Ok(pieces.concat()),
            Err(error) if error.why == Why::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Collects everything below `.segments/` that an object of the container refers to.
    async fn mark(&self, swept: &mut Swept) -> Result<Marked> {
        for _ in 0..MARKS_MAX {
            let mut marked = Marked::default();
            let large = self.large_objects(&mut marked.links).await?;
            swept.large_objects = large.len() as u64;
            let references = |name: String| async move { self.references(&name).await };
            let references = futures_util::stream::iter(large.into_iter().map(references));
            let references: Vec<Option<Vec<String>>> = references
                .buffered(CONCURRENT_REQUESTS_MAX)
                .try_collect()
                .await?;
            // An object that is gone may have been renamed to a name that the listing had already
            // passed.
            if references.iter().all(Option::is_some) {
                for names in references.into_iter().flatten() {
                    let ids: HashSet<&str> = names.iter().filter_map(|n| file_id(n)).collect();
                    for id in ids {
                        *marked.holders.entry(id.to_owned()).or_default() += 1;
                    }
                    marked.names.extend(names);
                }
                return Ok(marked);
            }
        }
        let message = "large files of the container keep coming and going: sweep later";
        Err(StoreError::new(Why::Changed, message))
    }

    /// Names of all large objects that are files; takes the hard links of the container.
    async fn large_objects(&self, links: &mut links::Links) -> Result<Vec<String>> {
        let (mut large, mut marker) = (Vec::new(), String::new());
        let (own, behind_own) = (format!("{SEGMENTS}/"), format!("{SEGMENTS}0"));
        let homes = crate::store::links_folder();
        loop {
            let rows = self.store.list("", &marker, true, 0).await?;
            let Some(last) = rows.last() else {
                return Ok(large);
            };
            // The mount's own prefix is skipped, but for files with several names.
            marker = match last.name() {
                name if !name.starts_with(&own) => name.to_owned(),
                name if name < homes.as_str() => homes.clone(),
                name if name.starts_with(&homes) => name.to_owned(),
                _ => behind_own.clone(),
            };
            for row in rows {
                let Row::Object {
                    name,
                    bytes,
                    is_manifest,
                    content_type,
                    ..
                } = row
                else {
                    continue;
                };
                links.take(&content_type);
                let is_file = !name.starts_with(&own) || crate::store::is_home(&name);
                if is_file && (is_manifest || bytes > self.limits.whole_bytes) {
                    large.push(name);
                }
            }
        }
    }

    /// Names below `.segments/` that a large object refers to; `None` if it is gone.
    async fn references(&self, name: &str) -> Result<Option<Vec<String>>> {
        loop {
            let stat = match self.store.head_newest(name).await {
                Ok(stat) => stat,
                Err(error) if error.why == Why::NotFound => return Ok(None),
                Err(error) => return Err(error),
            };
            if stat.form != Form::Manifest {
                return Ok(Some(Vec::new()));
            }
            let outer = match self.store.references(name, Some(&stat.etag)).await {
                Ok(outer) => outer,
                Err(error) if error.why == Why::Changed => continue,
                Err(error) if error.why == Why::NotFound => return Ok(None),
                Err(error) => return Err(error),
            };
            let is_own = |name: &ObjectName| {
                &*name.container == self.store.container() && name.name.starts_with(SEGMENTS)
            };
            let mut all: Vec<String> = Vec::new();
            for name in outer.into_iter().filter(is_own) {
                if name.name.ends_with(".parts") {
                    match self.store.references(&name.name, None).await {
                        Ok(inner) => {
                            let inner = inner.into_iter().filter(is_own);
                            all.extend(inner.map(|name| name.name.to_string()));
                        }
                        // The version has been replaced, and its manifests are gone.
                        Err(error) if error.why == Why::NotFound => return Ok(None),
                        Err(error) => return Err(error),
                    }
                }
                all.push(name.name.to_string());
            }
            return Ok(Some(all));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_forms_are_left_alone() {
        let id = "0123456789abcdef0123456789abcdef";
        for (name, is) in [
            (format!(".segments/{id}/0a1b2c3d4e.00000012"), true),
            (format!(".segments/{id}/0a1b2c3d4e.00000012.parts"), true),
            (format!(".segments/{id}/shared"), true),
            (format!(".segments/{id}/turn"), true),
            (format!(".segments/{id}/a/turn"), false),
            (format!(".segments/{id}/photo.jpg"), false),
            (format!(".segments/{id}/"), false),
            (format!(".segments/{id}"), false),
            (format!("segments/{id}/0a.1"), false),
            (".segments/zeros/67108864".to_owned(), false),
            (".segments/pins/0a1b2c3d4e".to_owned(), false),
            (".segments/mine/0a.1".to_owned(), false),
            (".segments/sweep".to_owned(), false),
        ] {
            assert_eq!(is_ours(&name), is, "{name}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read(text in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let is_known = |name: &String| is_ours(name) || name.starts_with(&crate::store::links_folder());
            proptest::prop_assert!(parse_found(&text).keys().all(is_known));
        }

        #[test]
        fn what_was_found_is_read_as_it_was_written(seconds: Vec<i64>) {
            let name = |(i, seconds): (usize, i64)| (format!(".segments/{i:032x}/0a.{i}"), seconds);
            let found: BTreeMap<String, i64> = seconds.into_iter().enumerate().map(name).collect();
            proptest::prop_assert_eq!(parse_found(&write_found(&found)), found);
        }
    }
}
