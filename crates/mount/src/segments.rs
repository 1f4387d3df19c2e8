//! The life of segments beyond one commit: they go with the last version that refers to them, unless
//! two names may.
//!
//! During a rename two manifests refer to the same segments. Before it a mark is put beside them,
//! `.segments/FILE-ID/shared`, and taken away behind it. Where a rename breaks off the mark stays: its
//! segments then outlive both names, which costs space, and no name loses bytes when the other goes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::commit::{Committer, SEGMENTS, file_id};
use crate::store::{Expect, Headers, Result, Segment, Store, Why, insist};

fn mark_of(id: &str) -> String {
    format!("{SEGMENTS}/{id}/shared")
}

impl<S: Store> Committer<S> {
    /// The file that a segment of this container was made for; none of what others have put together.
    fn owner<'a>(&self, segment: &'a Segment) -> Option<&'a str> {
        let is_here = &*segment.name.container == self.store.container();
        file_id(&segment.name.name).filter(|_| is_here)
    }

    /// Marks segments as those of more than one name. The marks that are new: another one is of a
    /// rename that broke off, and has to stay.
    pub(crate) async fn share(&self, segments: &[Arc<Segment>]) -> Result<Vec<String>> {
        let ids: BTreeSet<&str> = segments.iter().filter_map(|s| self.owner(s)).collect();
        let mut new = Vec::new();
        for id in ids {
            let mark = mark_of(id);
            let headers = Headers::new("application/octet-stream");
            // One that was made and is found the second time stays, as one of somebody else does.
            let put = || self.store.put(&mark, &headers, Vec::new(), Expect::Nothing);
            match insist(put).await {
                Ok(_) => new.push(mark),
                Err(error) if error.why == Why::Changed => {}
                Err(error) => return Err(error),
            }
        }
        Ok(new)
    }

    /// Takes marks away. One that stays costs space alone.
    pub(crate) async fn unshare(&self, marks: Vec<String>) {
        for mark in marks {
            if let Err(error) = self.store.delete(&mark, Expect::Anything).await {
                tracing::warn!(%mark, %error, "segments stay marked as shared, and will not be removed");
            }
        }
    }

    /// Removes segments that nothing refers to; what fails stays and costs space alone.
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
