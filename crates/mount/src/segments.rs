//! Life cycle of segments beyond one commit: they are removed with the last version that refers to
//! them, unless two names may share them.
//!
//! During a rename two manifests refer to the same segments. Before it a mark is created beside
//! them, `.segments/FILE-ID/shared`, and removed afterwards. If a rename is interrupted the mark
//! stays: its segments then outlive both names, which costs space, but neither name loses bytes
//! when the other is removed. Each mount writes marks of its own, so that one which finds its mark
//! replaced knows that another mount has given the file a further name meanwhile, and leaves it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;

use crate::commit::{Committer, random_id};
use crate::store::{
    Expect, Headers, Result, SEGMENTS, Segment, Store, StoreError, Why, file_id, insist,
};

/// Maximum times that a mark is written while other mounts make and remove it.
const MARKS_MAX: u32 = 20;

/// A mark that this mount has made.
#[derive(Debug)]
pub(crate) struct Mark {
    name: String,
    etag: String,
}

fn mark_of(id: &str) -> String {
    format!("{SEGMENTS}/{id}/shared")
}

impl<S: Store> Committer<S> {
    /// The file that a segment of this container was created for; `None` for objects not created by
    /// mounts.
    fn owner<'a>(&self, segment: &'a Segment) -> Option<&'a str> {
        let is_here = &*segment.name.container == self.store.container();
        file_id(&segment.name.name).filter(|_| is_here)
    }

    /// Marks segments as shared by several names, beside the marks `held` of the same call. Returns the
    /// new marks: an existing one belongs to another rename, which may have been interrupted, and must
    /// stay.
    pub(crate) async fn share(
        &self,
        segments: &[Arc<Segment>],
        held: &[&Mark],
    ) -> Result<Vec<Mark>> {
        let ids: BTreeSet<&str> = segments.iter().filter_map(|s| self.owner(s)).collect();
        let mut new = Vec::new();
        for id in ids {
            let name = mark_of(id);
            if held.iter().all(|mark| mark.name != name) {
                new.extend(self.put_mark(name).await?);
            }
        }
        Ok(new)
    }

    /// Makes a mark, or replaces the one that is there: `None`.
    async fn put_mark(&self, name: String) -> Result<Option<Mark>> {
        let headers = Headers::new("application/octet-stream");
        let body = Bytes::from(random_id());
        let mut before: Option<String> = None;
        for _ in 0..MARKS_MAX {
            let expect = before.as_deref().map_or(Expect::Nothing, Expect::Version);
            let put = || self.store.put(&name, &headers, vec![body.clone()], expect);
            match insist(put).await {
                Ok(etag) if before.is_none() => return Ok(Some(Mark { name, etag })),
                Ok(_) => return Ok(None),
                Err(error) if error.why == Why::Changed => {}
                Err(error) => return Err(error),
            }
            // A mark found at a retry stays, since it may be another mount's.
            before = match self.store.head_newest(&name).await {
                Ok(stat) => Some(stat.etag),
                Err(error) if error.why == Why::NotFound => None,
                Err(error) => return Err(error),
            };
        }
        let message = format!("{name} comes and goes");
        Err(StoreError::new(Why::Unavailable, message))
    }

    /// Removes marks that no other mount has replaced. One that stays only costs space.
    pub(crate) async fn unshare(&self, marks: Vec<Mark>) {
        for Mark { name, etag } in marks {
            match self.store.delete(&name, Expect::Version(&etag)).await {
                Ok(_) => {}
                Err(error) if error.why == Why::Changed => {
                    tracing::info!(mark = name, "another name may share segments: they stay");
                }
                Err(error) => {
                    tracing::warn!(mark = name, %error, "segments stay marked as shared, and will not be removed");
                }
            }
        }
    }

    /// Removes segments without references; a failure only costs space.
    pub(crate) async fn remove(&self, segments: Vec<Arc<Segment>>) {
        let mut of_files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for segment in &segments {
            if let Some(id) = self.owner(segment) {
                of_files.entry(id).or_default().push(&segment.name.name);
            }
        }
        for (id, names) in of_files {
            match self.store.head(&mark_of(id)).await {
                Err(error) if error.why == Why::NotFound => {}
                Ok(_) => {
                    tracing::info!(file = id, "segments that two names share stay");
                    continue;
                }
                Err(error) => {
                    tracing::warn!(file = id, %error, "segments that are not needed stay");
                    continue;
                }
            }
            for name in names {
                if let Err(error) = self.store.delete(name, Expect::Anything).await {
                    tracing::warn!(segment = name, %error, "a segment that is not needed stays");
                }
            }
        }
    }
}
