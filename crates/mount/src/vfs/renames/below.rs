//! Objects below a directory that is renamed, and the marks on their segments.

use std::collections::BTreeMap;

use futures_util::{StreamExt, TryStreamExt};

use super::{CONCURRENT_RENAMES_MAX, COPIES_MAX};
use crate::attributes::Kind;
use crate::error::{FsError, FsResult};
use crate::links::HardLink;
use crate::segments::Mark;
use crate::store::{Row, Store, Why};
use crate::vfs::Vfs;
use crate::vfs::tree::below;

/// The version of an object below a directory, as a listing shows it or this mount has made it.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) bytes: u64,
    pub(super) etag: String,
    /// It is one of several names of a file of this kind.
    pub(super) link: Option<(HardLink, Kind)>,
}

impl Known {
    fn new(bytes: u64, etag: String, content_type: &str) -> Known {
        let link = HardLink::of_content_type(content_type);
        let link = link.map(|link| (link, Kind::of_content_type(content_type)));
        Known { bytes, etag, link }
    }
}

impl<S: Store> Vfs<S> {
    /// Marks the segments of all large files in `found` as shared; returns the new marks by names.
    pub(super) async fn share_below(
        &self,
        found: &BTreeMap<String, Known>,
    ) -> FsResult<BTreeMap<String, Vec<Mark>>> {
        let whole_bytes = self.options.limits.whole_bytes;
        let large = found.iter().filter(|(_, known)| known.bytes > whole_bytes);
        let large: Vec<String> = large.map(|(name, _)| name.clone()).collect();
        let marks = futures_util::stream::iter(large).map(|name| async move {
            for _ in 0..COPIES_MAX {
                let stat = match self.store.head(&name).await {
                    Ok(stat) => stat,
                    // The listing was out of date.
                    Err(error) if error.why == Why::NotFound => return Ok((name, Vec::new())),
                    Err(error) => return Err(error.into()),
                };
                let layout = self.layout(&name, &stat.etag, stat.form, stat.bytes);
                match layout.await {
                    Ok(layout) => {
                        let marks = self.committer.share(&layout.segments(), &[]).await?;
                        return Ok((name, marks));
                    }
                    // Another mount has written or removed it meanwhile.
                    Err(error) if matches!(error.why, Why::Changed | Why::NotFound) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(FsError::Contended)
        });
        let marks = marks.buffer_unordered(CONCURRENT_RENAMES_MAX);
        marks.try_collect().await
    }

    pub(super) async fn unshare_below(&self, marks: BTreeMap<String, Vec<Mark>>) {
        for marks in marks.into_values() {
            self.committer.unshare(marks).await;
        }
    }

    /// Names and versions of all objects below a directory, including those too recent for the
    /// listing.
    pub(super) async fn names_below(&self, directory: &str) -> FsResult<BTreeMap<String, Known>> {
        let prefix = below(directory);
        let mut found = BTreeMap::new();
        let mut marker = String::new();
        loop {
            let rows = self.store.list(&prefix, &marker, true, 0).await?;
            let Some(last) = rows.last() else { break };
            marker = last.name().to_owned();
            for row in rows {
                if let Row::Object {
                    name,
                    bytes,
                    etag,
                    content_type,
                    ..
                } = row
                {
                    found.insert(name, Known::new(bytes, etag, &content_type));
                }
            }
        }
        let mut links = Vec::new();
        {
            let tree = self.tree.lock();
            for path in tree.changed_below(directory) {
                if tree.home(&path).is_some() {
                    links.push(path);
                    continue;
                }
                let known = tree.at(&path).map(|node| {
                    let state = node.state.lock();
                    let etag = state.etag.clone().unwrap_or_default();
                    Known::new(state.bytes, etag, "")
                });
                found.insert(path, known.unwrap_or_default());
            }
        }
        for path in links {
            match self.store.head_link(&path).await {
                Ok(stat) => {
                    let known = Known::new(0, stat.etag, &stat.headers.content_type);
                    found.insert(path, known);
                }
                Err(error) if error.why == Why::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(found)
    }
}
