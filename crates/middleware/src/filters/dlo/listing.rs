//! The segments of a dynamic large object, read page by page from its container's listing.

use std::collections::VecDeque;
use std::ops::Range;

use cairn_formats::listing::MAX_LISTING_BYTES;
use cairn_http::params::quote;
use cairn_http::{Handler, Response};
use http::Method;
use serde::Deserialize;

use crate::segments::{Listing, NextPiece, Piece, Segment, SegmentError};
use crate::status;
use crate::subrequest::Subrequests;

/// Fields needed of a row.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct SegmentRow {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) hash: String,
}

/// Source of listing pages.
pub(super) struct Pages {
    pub(super) next: Handler,
    pub(super) requests: Subrequests,
    /// The decoded path of the segments' container.
    pub(super) container: String,
    pub(super) prefix: String,
    /// Maximum rows of a page.
    pub(super) page: usize,
}

impl Pages {
    /// The rows after `marker`; the error is the container's response.
    pub(super) async fn get(&self, marker: &str) -> Result<Vec<SegmentRow>, Response> {
        let mut query = format!("format=json&prefix={}", quote(&self.prefix));
        if !marker.is_empty() {
            query.push_str(&format!("&marker={}", quote(marker)));
        }
        let request = self
            .requests
            .request(Method::GET, &self.container, Some(&query));
        let request = request.ok_or_else(status::path_too_long)?;
        let response = self.next.call(request).await;
        if !response.status().is_success() {
            return Err(response);
        }
        let unavailable = status::unavailable;
        let body = response.into_body().collect(MAX_LISTING_BYTES).await;
        let body = body.map_err(|_| unavailable())?;
        if body.is_empty() {
            return Ok(Vec::new());
        }
        serde_json::from_slice(&body).map_err(|_| unavailable())
    }
}

/// The segments in order, from the first page on.
pub(super) struct SegmentListing {
    pages: Pages,
    rows: VecDeque<SegmentRow>,
    /// The last name of the page, if there may be another page.
    marker: Option<String>,
    /// Bytes to skip, and number of bytes wanted after them.
    skip: u64,
    wanted: u64,
}

impl SegmentListing {
    pub(super) fn new(pages: Pages, first: Vec<SegmentRow>, range: Option<Range<u64>>) -> Self {
        let range = range.unwrap_or(0..u64::MAX);
        let mut listing = SegmentListing {
            pages,
            rows: VecDeque::new(),
            marker: None,
            skip: range.start,
            wanted: range.end - range.start,
        };
        listing.take_page(first);
        listing
    }

    fn take_page(&mut self, rows: Vec<SegmentRow>) {
        let is_full = rows.len() >= self.pages.page;
        self.marker = rows.last().filter(|_| is_full).map(|r| r.name.clone());
        self.rows = rows.into();
    }

    /// The wanted part of this row; `None` if there is none.
    fn piece(&mut self, row: &SegmentRow) -> Option<Piece> {
        if self.skip >= row.bytes {
            self.skip -= row.bytes;
            return None;
        }
        let first = std::mem::take(&mut self.skip);
        let there = row.bytes - first;
        let taken = there.min(self.wanted);
        self.wanted -= taken;
        // The row's ETag and size are not compared with the object: any object of that name is
        // valid, and it may be newer than the listing.
        Some(Piece::Segment(Segment {
            path: format!("{}/{}", self.pages.container, row.name),
            first,
            last: (taken < there).then(|| first + taken - 1),
            etag: None,
            size: None,
            is_limited: true,
        }))
    }
}

impl Listing for SegmentListing {
    fn next<'a>(&'a mut self) -> NextPiece<'a> {
        Box::pin(async move {
            while self.wanted > 0 {
                if let Some(row) = self.rows.pop_front() {
                    if let Some(piece) = self.piece(&row) {
                        return Ok(Some(piece));
                    }
                    continue;
                }
                let Some(marker) = self.marker.take() else {
                    return Ok(None);
                };
                match self.pages.get(&marker).await {
                    Ok(rows) => self.take_page(rows),
                    Err(refused) => {
                        return Err(SegmentError::Listing(format!(
                            "got status {} listing {}",
                            refused.status().as_u16(),
                            self.pages.container
                        )));
                    }
                }
            }
            Ok(None)
        })
    }
}
