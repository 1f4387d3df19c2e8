//! Life cycle of segments beyond one commit: they are removed with the last version that refers to
//! them, unless two names may share them.
//!
//! During a rename two manifests refer to the same segments. Before it a mark is created beside
//! them, `.segments/FILE-ID/shared`, and removed afterwards. If a rename is interrupted the mark
//! stays: its segments then outlive both names, which costs space, but neither name loses bytes
//! when the other is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::commit::Committer;
use crate::store::{Expect, Headers, Result, SEGMENTS, Segment, Store, Why, file_id, insist};

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

    /// Marks segments as shared by several names. Returns the new marks: an existing one belongs to
    /// an interrupted rename, and must stay.
    pub(crate) async fn share(&self, segments: &[Arc<Segment>]) -> Result<Vec<String>> {
        let ids: BTreeSet<&str> = segments.iter().filter_map(|s| self.owner(s)).collect();
        let mut new = Vec::new();
        for id in ids {
            let mark = mark_of(id);
            let headers = Headers::new("application/octet-stream");
            // A mark found at a retry stays, since it may be another mount's.
            let put = || self.store.put(&mark, &headers, Vec::new(), Expect::Nothing);
            match insist(put).await {
                Ok(_) => new.push(mark),
                Err(error) if error.why == Why::Changed => {}
                Err(error) => return Err(error),
            }
        }
        Ok(new)
    }

    /// Removes marks. One that stays only costs space.
    pub(crate) async fn unshare(&self, marks: Vec<String>) {
        for mark in marks {
            if let Err(error) = self.store.delete(&mark, Expect::Anything).await {
                tracing::warn!(%mark, %error, "segments stay marked as shared, and will not be removed");
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
