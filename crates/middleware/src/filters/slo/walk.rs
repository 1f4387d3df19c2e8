//! Translation of a manifest and ranges of its content into the pieces that hold them: recursively
//! through nested manifests, fetching only those whose bytes are wanted.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use cairn_http::{Handler, respond};
use http::Method;

use super::manifest::{self, ObjectSegment, Segment};
use crate::api_path::ObjectPath;
use crate::segments::{self, Listing, NextPiece, Piece, SegmentError};
use crate::subrequest::Subrequests;

/// Maximum depth of nested manifests, including the outermost.
const DEPTH_MAX: usize = 10;
/// Maximum number of manifests cached for reuse: a few, so that a huge tree does not fill the
/// memory.
const CACHED_MAX: usize = 20;

type Segments = Arc<Vec<Segment>>;

/// Access to nested manifests.
pub(super) struct Source {
    pub(super) next: Handler,
    pub(super) requests: Subrequests,
    pub(super) path: ObjectPath,
    pub(super) manifest_max: u64,
    /// Segments shorter than this count for the rate limit: for a range of an object, the range's
    /// length.
    pub(super) limited_below: u64,
}

/// A manifest being traversed.
struct Level {
    segments: Segments,
    at: usize,
    /// The remaining wanted bytes, relative to the segment at `at`; both included. They may be
    /// before it (negative) or beyond it.
    first: i128,
    last: i128,
}

pub(super) struct Walk {
    source: Source,
    root: Segments,
    ranges: VecDeque<Range<u64>>,
    levels: Vec<Level>,
    kept: VecDeque<(String, Segments)>,
}

impl Walk {
    pub(super) fn new(source: Source, root: Vec<Segment>, ranges: Vec<Range<u64>>) -> Self {
        Walk {
            source,
            root: Arc::new(root),
            ranges: ranges.into(),
            levels: Vec::new(),
            kept: VecDeque::new(),
        }
    }

    /// The current level; `None` at the end of all ranges.
    fn level(&mut self) -> Option<&mut Level> {
        while let Some(top) = self.levels.last() {
            if top.at < top.segments.len() && top.last >= 0 {
                break;
            }
            self.levels.pop();
        }
        if self.levels.is_empty() {
            let range = self.ranges.pop_front()?;
            self.levels.push(Level {
                segments: self.root.clone(),
                at: 0,
                first: i128::from(range.start),
                last: i128::from(range.end) - 1,
            });
        }
        self.levels.last_mut()
    }

    async fn step(&mut self) -> Result<Option<Piece>, SegmentError> {
        loop {
            let Some(level) = self.level() else {
                return Ok(None);
            };
            if level.at >= level.segments.len() || level.last < 0 {
                // The range just begun is empty.
                self.levels.pop();
                continue;
            }
            let segment = level.segments[level.at].clone();
            let length = i128::from(segment.length());
            let (first, last) = (level.first, level.last);
            level.at += 1;
            level.first -= length;
            level.last -= length;
            if first >= length {
                continue;
            }
            // Offsets within the segment, both included.
            let (from, to) = (first.max(0), last.min(length - 1));
            match segment {
                Segment::Inline(data) => {
                    let part = data.slice(from as usize..=to as usize);
                    return Ok(Some(Piece::Inline(part)));
                }
                Segment::Object(object) => {
                    let start = object.range.map_or(0, |(first, _)| i128::from(first));
                    let (from, to) = (start + from, start + to);
                    if object.is_manifest {
                        self.descend(&object, from, to).await?;
                        continue;
                    }
                    let is_limited = length < i128::from(self.source.limited_below);
                    let bytes = (from as u64, to as u64);
                    return Ok(Some(self.piece(object, bytes, is_limited)));
                }
            }
        }
    }

    fn piece(&self, object: ObjectSegment, bytes: (u64, u64), is_limited: bool) -> Piece {
        let (first, last) = bytes;
        Piece::Segment(segments::Segment {
            path: self.source.path.sibling(&object.name),
            first,
            last: Some(last),
            etag: Some(object.hash).filter(|hash| !hash.is_empty()),
            size: Some(object.bytes),
            is_limited,
        })
    }

    async fn descend(
        &mut self,
        object: &ObjectSegment,
        first: i128,
        last: i128,
    ) -> Result<(), SegmentError> {
        if self.levels.len() >= DEPTH_MAX {
            let path = self.source.path.path();
            return Err(SegmentError::Listing(format!(
                "while processing manifest {path:?}, max recursion depth was exceeded"
            )));
        }
        let segments = match self.kept.iter().find(|(name, _)| *name == object.name) {
            Some((_, segments)) => segments.clone(),
            None => {
                let segments = Arc::new(self.fetch(&object.name).await?);
                if self.kept.len() >= CACHED_MAX {
                    self.kept.pop_front();
                }
                self.kept.push_back((object.name.clone(), segments.clone()));
                segments
            }
        };
        self.levels.push(Level {
            segments,
            at: 0,
            first,
            last,
        });
        Ok(())
    }

    async fn fetch(&self, name: &str) -> Result<Vec<Segment>, SegmentError> {
        let failed = |why: String| {
            let path = self.source.path.path();
            SegmentError::Listing(format!("while fetching {path}, submanifest {name}: {why}"))
        };
        let path = self.source.path.sibling(name);
        let query = Some("multipart-manifest=get");
        let request = self.source.requests.request(Method::GET, &path, query);
        let request = request.ok_or_else(|| failed("its name is too long".into()))?;
        let response = self.source.next.call(request).await;
        if !response.status().is_success() {
            return Err(failed(respond::status_line(response.status())));
        }
        let json = response.into_body().collect(self.source.manifest_max).await;
        let json = json.map_err(|error| failed(error.to_string()))?;
        manifest::segments(&json).map_err(|error| failed(error.to_string()))
    }
}

impl Listing for Walk {
    fn next<'a>(&'a mut self) -> NextPiece<'a> {
        Box::pin(self.step())
    }
}
