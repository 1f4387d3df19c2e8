//! The mark of a sweep: everything below `.segments/` that objects of the container refer to.

use std::collections::{HashMap, HashSet};

use futures_util::StreamExt;

use super::{CONCURRENT_REQUESTS_MAX, Swept, links};
use crate::commit::Committer;
use crate::store::{
    Form, ObjectName, Result, Row, SEGMENTS, Store, StoreError, Why, file_id, is_home, links_folder,
};

/// Maximum restarts of marking, because a large object disappeared during it.
const MARKS_MAX: u32 = 5;
/// Number of attempts to read the manifest of one version.
const READS_MAX: u32 = 3;
/// Maximum difference of the clocks by which the store's times are made.
const CLOCKS_SECONDS: i64 = 3600;

/// Everything that manifests refer to.
#[derive(Default)]
pub(super) struct Marked {
    pub(super) names: HashSet<String>,
    /// Number of objects that refer to segments of a file, by its id.
    pub(super) holders: HashMap<String, usize>,
    pub(super) links: links::Links,
    /// Last change, in seconds, of any file whose manifest was not read.
    unread: Option<i64>,
}

/// A large object as the listing shows it.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Large {
    name: String,
    etag: String,
    /// Seconds of its last change.
    changed: i64,
}

/// Result of reading what a large object refers to.
enum Found {
    /// Names below `.segments/`.
    References(Vec<String>),
    Gone,
    /// It is there, and was changed at this time, in seconds, at the latest.
    Unread(StoreError, i64),
}

impl Marked {
    /// May a file whose manifest was not read refer to an object written at this time? What was uploaded
    /// behind the file's last change is not part of it.
    pub(super) fn may_be_of_unread(&self, written: i64, is_mark: bool) -> bool {
        self.unread
            .is_some_and(|changed| is_mark || written <= changed.saturating_add(CLOCKS_SECONDS))
    }

    fn take(&mut self, names: Vec<String>) {
        let ids: HashSet<&str> = names.iter().filter_map(|name| file_id(name)).collect();
        for id in ids {
            *self.holders.entry(id.to_owned()).or_default() += 1;
        }
        self.names.extend(names);
    }

    fn miss(&mut self, changed: i64) {
        self.unread = self.unread.max(Some(changed));
    }
}

impl<S: Store> Committer<S> {
    /// Collects everything below `.segments/` that an object of the container refers to. Files that
    /// cannot be read are failures of the sweep.
    pub(super) async fn mark(&self, swept: &mut Swept) -> Result<Marked> {
        let mut gone_before = HashSet::new();
        for _ in 0..MARKS_MAX {
            let mut marked = Marked::default();
            let large = self.large_objects(&mut marked.links).await?;
            swept.large_objects = large.len() as u64;
            swept.failures.clear();
            let references = |large: Large| async move { (self.references(&large).await, large) };
            let references = futures_util::stream::iter(large.into_iter().map(references));
            let mut references = references.buffered(CONCURRENT_REQUESTS_MAX);
            let mut gone = HashSet::new();
            while let Some((found, large)) = references.next().await {
                match found {
                    Found::References(names) => marked.take(names),
                    Found::Gone => _ = gone.insert(large),
                    Found::Unread(error, changed) => {
                        swept.failed(&large.name, error)?;
                        marked.miss(changed.max(large.changed));
                    }
                }
            }
            // An object that is gone may have been renamed to a name that the listing had already
            // passed. One that was gone before the listing began has not.
            if !gone.is_subset(&gone_before) {
                gone_before = gone;
                continue;
            }
            for large in gone {
                let message = "the listing shows it, and it is not there";
                swept.failed(&large.name, StoreError::new(Why::NotFound, message))?;
                marked.miss(large.changed);
            }
            return Ok(marked);
        }
        let message = "large files of the container keep coming and going: sweep later";
        Err(StoreError::new(Why::Changed, message))
    }

    /// All large objects that are files; takes the hard links of the container.
    async fn large_objects(&self, links: &mut links::Links) -> Result<Vec<Large>> {
        let (mut large, mut marker) = (Vec::new(), String::new());
        let (own, behind_own) = (format!("{SEGMENTS}/"), format!("{SEGMENTS}0"));
        let homes = links_folder();
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
                    etag,
                    is_manifest,
                    content_type,
                    changed,
                } = row
                else {
                    continue;
                };
                links.take(&content_type);
                let is_file = !name.starts_with(&own) || is_home(&name);
                if is_file && (is_manifest || bytes > self.limits.whole_bytes) {
                    let changed = changed.seconds;
                    large.push(Large {
                        name,
                        etag,
                        changed,
                    });
                }
            }
        }
    }

    /// Reads what a large object refers to below `.segments/`.
    async fn references(&self, large: &Large) -> Found {
        let (mut version, mut tries) = (None, 0);
        loop {
            let stat = match self.store.head_newest(&large.name).await {
                Ok(stat) => stat,
                Err(error) if error.why == Why::NotFound => return Found::Gone,
                Err(error) => return Found::Unread(error, large.changed),
            };
            if stat.form != Form::Manifest {
                return Found::References(Vec::new());
            }
            if version.as_ref() != Some(&stat.etag) {
                (version, tries) = (Some(stat.etag.clone()), 0);
            }
            match self.references_of(&large.name, &stat.etag).await {
                Ok(names) => return Found::References(names),
                // The version may have been replaced, and its segments be gone.
                Err(error)
                    if matches!(error.why, Why::Changed | Why::NotFound) && tries < READS_MAX =>
                {
                    tries += 1;
                }
                Err(error) => return Found::Unread(error, stat.changed.seconds),
            }
        }
    }

    /// Names below `.segments/` that a version of a large object refers to.
    async fn references_of(&self, name: &str, etag: &str) -> Result<Vec<String>> {
        let is_own = |name: &ObjectName| {
            &*name.container == self.store.container() && name.name.starts_with(SEGMENTS)
        };
        let outer = self.store.references(name, Some(etag)).await?;
        let mut all: Vec<String> = Vec::new();
        for name in outer.into_iter().filter(is_own) {
            if name.name.ends_with(".parts") {
                let inner = self.store.references(&name.name, None).await?;
                let inner = inner.into_iter().filter(is_own);
                all.extend(inner.map(|name| name.name.to_string()));
            }
            all.push(name.name.to_string());
        }
        Ok(all)
    }
}
