//! Refusals of a read: when they decide that there is no data, and the response they make.

use bytes::Bytes;
use cairn_http::Response;
use cairn_peer::quorum;
use cairn_types::{Quorum, Timestamp};
use http::HeaderMap;
use tracing::warn;

use super::{Source, Tried};
use crate::{status, write};

/// Responses of replicas that could not provide the data.
pub(super) struct Refusals {
    /// Number of further primaries without any trace of the object that are ignored
    /// (`rebalance_missing_suppression_count`).
    unheard_of_left: usize,
    /// Refusing primaries that cannot all have missed a write that a quorum of them has.
    enough: Quorum,
    /// Number of primaries that responded and cannot provide the data.
    primaries: usize,
    statuses: Vec<u16>,
    answers: Vec<(HeaderMap, Bytes)>,
    pub(super) newest_tombstone: Timestamp,
}

impl Refusals {
    pub(super) fn new(primaries: usize, unheard_of: usize) -> Self {
        Refusals {
            unheard_of_left: unheard_of.min(primaries.saturating_sub(1)),
            enough: Quorum::majority_of(primaries),
            primaries: 0,
            statuses: Vec::new(),
            answers: Vec::new(),
            newest_tombstone: Timestamp::ZERO,
        }
    }

    /// Do the primaries' refusals decide the outcome without the missing responses? A quorum has
    /// every acknowledged write, so a majority includes a server that has it.
    pub(super) fn is_settled(&self) -> bool {
        self.enough.is_reached_by(self.primaries) && !self.statuses.is_empty()
    }

    /// Records a refusal; returns a source unless a newer tombstone is known.
    pub(super) fn note(&mut self, tried: Tried) -> Option<Source> {
        match tried {
            Tried::Good(source) if source.timestamp >= self.newest_tombstone => Some(*source),
            Tried::Good(_) | Tried::Nothing => None,
            Tried::Refused {
                status,
                headers,
                body,
                tombstone,
                is_primary,
                is_unheard_of,
            } => {
                self.primaries += usize::from(is_primary && status < 500);
                if is_unheard_of && self.unheard_of_left > 0 {
                    self.unheard_of_left -= 1;
                    return None;
                }
                self.newest_tombstone = self.newest_tombstone.max(tombstone);
                self.statuses.push(status);
                self.answers.push((headers, body));
                None
            }
        }
    }
}

/// The response if no node has the data: the one most agree on, or 503.
pub(super) fn refusal(refusals: &Refusals, path: &str) -> Response {
    let statuses = &refusals.statuses;
    let quorum = Quorum::of_replicas(statuses.len());
    match quorum::best_index(statuses, quorum).filter(|_| !statuses.is_empty()) {
        Some(i) => {
            let (headers, body) = &refusals.answers[i];
            write::answer_from(statuses[i], headers, body.clone())
        }
        None => {
            warn!(path, ?statuses, "no replica answered the read");
            status::unavailable()
        }
    }
}
