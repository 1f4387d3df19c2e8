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
//!
//! A file whose manifest cannot be read does not end a sweep. Everything that it may refer to stays:
//! all segments that were uploaded before its last change, and all marks.

mod links;
mod mark;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;

use crate::commit::{Committer, random_id};
use crate::store::{
    Expect, Headers, ObjectName, Result, Row, SEGMENTS, Store, StoreError, Why, file_id, insist,
};
use crate::turns;

/// Maximum concurrent requests of a sweep.
const CONCURRENT_REQUESTS_MAX: usize = 8;
const PIN_LEASE: Duration = Duration::from_secs(3600);
const ID_CHARS: usize = 32;
/// Maximum size of the record: half a million names.
const FOUND_MAX_BYTES: u64 = 64 << 20;

/// Maximum number of failures: behind that it is the store that fails.
const FAILURES_MAX: usize = 100;

/// An object that could not be read or removed, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub name: String,
    pub reason: String,
}

/// The result of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Number of large objects.
    pub large_objects: u64,
    pub segments: u64,
    /// Number of segments unreferenced for less than the grace period.
    pub waiting: u64,
    /// Number of unreferenced segments of files that are open on a mount.
    pub pinned: u64,
    pub removed: u64,
    pub removed_bytes: u64,
    /// Number of unreferenced segments that a file may refer to whose manifest was not read.
    pub doubtful: u64,
    pub failures: Vec<Failure>,
}

impl Swept {
    /// Records a failure that concerns one object; others are those of the sweep.
    fn failed(&mut self, name: &str, error: StoreError) -> Result<()> {
        if error.why == Why::Denied || self.failures.len() >= FAILURES_MAX {
            return Err(error);
        }
        self.failures.push(Failure {
            name: name.to_owned(),
            reason: error.message,
        });
        Ok(())
    }
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

/// A segment or mark.
struct Ours {
    bytes: u64,
    /// Seconds at which it was written.
    written: i64,
}

/// The objects below `.segments/`.
#[derive(Default)]
struct Inventory {
    /// Segments and marks.
    ours: BTreeMap<String, Ours>,
    /// Ids of pinned files.
    pinned: HashSet<String>,
    found: BTreeMap<String, i64>,
    homes: links::Homes,
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
        for (name, ours) in &inventory.ours {
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
                () if marked.may_be_of_unread(ours.written, is_mark) => {
                    swept.doubtful += u64::from(!is_mark);
                }
                () if now - since >= grace => due.push((name.clone(), ours.bytes)),
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
            let deleted = insist(delete).await;
            (name, bytes, deleted)
        };
        let deleted = futures_util::stream::iter(due.into_iter().map(delete));
        let mut deleted = deleted.buffer_unordered(CONCURRENT_REQUESTS_MAX);
        while let Some((name, bytes, deleted)) = deleted.next().await {
            if let Err(error) = deleted {
                swept.failed(&name, error)?;
                continue;
            }
            swept.removed += u64::from(!is_mark(&name));
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
                    let written = changed.seconds;
                    inventory.ours.insert(name, Ours { bytes, written });
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
