//! Conditional writes: `If-Match` and `If-None-Match` of PUT, POST and DELETE, decided by a
//! majority of the object's primaries (`docs/conditional-writes.md`).
//!
//! Phase one asks all primaries for a promise to accept this write next, and for the state of their
//! copy. If a majority promises, and the condition holds for the newest copy, phase two sends the
//! write to the servers that promised.

mod ask;
mod judge;
mod refusal;

use std::sync::Arc;
use std::time::Duration;

use cairn_http::own_thread;
use cairn_http::{Response, respond};
use cairn_peer::gather::Answer;
use cairn_peer::{Backends, Node, Nodes};
use cairn_types::plant::Plant;
use cairn_types::{Quorum, Timestamp};
use http::header::{ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, Method};
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use self::ask::Action;
pub(crate) use self::judge::Condition;
use self::judge::{ServerReply, Verdict, judge};
use self::refusal::Refusal;
use super::Location;
use crate::checks::MessageLength;
use crate::headers;
use crate::request::Incoming;
use crate::state::Proxy;
use crate::status;
use crate::write::{Write, answer_from};

/// Header that identifies a promise, in PROMISE and in the write under it.
pub(super) const TOKEN: &str = "x-backend-promise-token";
/// Header of a response that states that a majority decided the write, instead of each server by
/// itself.
const COMMITTED: &str = "x-conditional-write";
/// Header that names the metadata to compare conditions with, instead of the content's own ETag.
const ETAG_IS_AT: &str = "x-backend-etag-is-at";
/// Metadata that takes the place of the content's ETag: a large object's, that of a link to one
/// version, and the target of another link, whose own content is empty.
const SHOWN_ETAGS: &str = "x-object-sysmeta-slo-etag,x-object-sysmeta-symlink-target-etag,\
                           x-object-sysmeta-symlink-target";
/// Maximum time during which promises are requested again, while others write or servers are not
/// ready.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);
/// Pauses between such requests.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Maximum age of promises when the write begins; older ones are requested again, since they could
/// expire before the write arrives.
const PROMISE_FRESH: Duration = Duration::from_millis(2500);
/// Maximum number of times that a write without a response is sent, and maximum age of its promise
/// at that.
const ATTEMPTS_MAX: usize = 3;
const RESEND_UNTIL: Duration = Duration::from_secs(4);

/// A conditional write in progress. When dropped, as when its client disconnects, it releases
/// promises under which nothing was written.
pub(crate) struct Swap {
    backends: Arc<Backends>,
    /// Maximum wait for each server's response.
    timeout: Duration,
    /// Timestamp of promises that servers may hold for this write, as long as nothing was written
    /// under them.
    held: Option<Timestamp>,
    /// Promises of a majority that the first round obtained.
    given: Option<Promised>,
    condition: Condition,
    primaries: Vec<Node>,
    partition: u32,
    path: String,
    /// Headers of each PROMISE request.
    head: HeaderMap,
    token: String,
    /// The newest timestamp that any server reported.
    newest: Timestamp,
}

/// The promise of a majority.
pub(crate) struct Promised {
    pub(super) timestamp: Timestamp,
    pub(super) nodes: Vec<Node>,
    at: Instant,
}

/// The first round of a conditional write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    Look,
    Give,
}

impl Promised {
    /// Are they young enough for a write to begin under them?
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < PROMISE_FRESH
    }

    pub(super) fn is_by(&self, node: &Node) -> bool {
        self.nodes.iter().any(|own| own.device.id == node.device.id)
    }
}

/// Outcome of the write on one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It was committed, even if something newer has replaced it.
    Done,
    /// It was not committed, and will not be.
    Refused,
    Unknown,
}

/// The conditions of a write; an error response if they are malformed.
pub(super) fn condition(incoming: &Incoming) -> Result<Option<Condition>, Response> {
    let read = |name: &HeaderName| -> Result<Option<String>, Response> {
        let mut values = Vec::new();
        for value in incoming.headers().get_all(name) {
            let bad = |_| Refusal::Unreadable(name).into_response();
            values.push(value.to_str().map_err(bad)?);
        }
        Ok((!values.is_empty()).then(|| values.join(",")))
    };
    let condition = Condition {
        if_match: read(&IF_MATCH)?,
        if_none_match: read(&IF_NONE_MATCH)?,
    };
    Ok((condition != Condition::default()).then_some(condition))
}

impl Proxy {
    /// Begins a conditional write for a request with conditions; `None` if each server is to check
    /// the condition itself, as in OpenStack Swift.
    ///
    /// With `opening` [`Opening::Give`], for a write that has its whole body already, the first round
    /// asks for the promises; with `Look` only for the state, so that no body is sent in vain.
    pub(super) async fn begin_swap(
        &self,
        incoming: &mut Incoming,
        location: &Location,
        opening: Opening,
    ) -> Result<Option<Swap>, Response> {
        if !self.options.conditional_writes {
            return Ok(None);
        }
        let Some(condition) = condition(incoming)? else {
            return Ok(None);
        };
        let is_swifts = *incoming.method() == Method::PUT && condition.is_swifts();
        let unsupported = |reason: &str| match is_swifts {
            true => Ok(None),
            false => Err(Refusal::Unsupported(reason).into_response()),
        };
        if location.erasure.is_some() {
            return unsupported(
                "Conditional writes are not available in erasure-coded policies: use a container of \
                 a replicated policy",
            );
        }
        let mut head = headers::base(incoming);
        headers::insert(
            &mut head,
            headers::POLICY_INDEX,
            &location.policy.to_string(),
        );
        // Large objects and symlinks have ETags other than their content's, encrypted or not: these
        // headers come first.
        let filters = incoming.header(ETAG_IS_AT).map(|names| format!(",{names}"));
        let names = [SHOWN_ETAGS, filters.as_deref().unwrap_or_default()].concat();
        headers::insert(&mut head, ETAG_IS_AT, &names);
        let token = format!("{:016x}{:016x}", own_thread::random(), own_thread::random());
        headers::insert(&mut head, TOKEN, &token);
        let mut swap = Swap {
            backends: self.backends.clone(),
            timeout: self.options.node_timeout,
            held: None,
            given: None,
            condition,
            primaries: location.ring.primaries(location.partition),
            partition: location.partition,
            path: incoming.target.entity_path(),
            head,
            token,
            newest: Timestamp::ZERO,
        };
        let verdict = match opening {
            Opening::Look => {
                let looked = self.ask_primaries(&swap, Action::Look, self.clock.now());
                let heard = looked.await;
                swap.note(&heard);
                judge(&heard, &swap.condition, true)
            }
            Opening::Give => {
                let (verdict, given) = self.ask_promises(&mut swap).await;
                swap.given = given;
                verdict
            }
        };
        match verdict {
            Verdict::Unsupported => unsupported(
                "Conditional writes are not available: an object server of this partition does not \
                 know them",
            ),
            Verdict::Fails => Err(Refusal::DoesNotHold.into_response()),
            // Not decided yet: `promised` asks again.
            _ => {
                // The servers must not evaluate the condition themselves.
                incoming.parts.headers.remove(IF_MATCH);
                incoming.parts.headers.remove(IF_NONE_MATCH);
                incoming.timestamp = self.time_of(&swap);
                Ok(Some(swap))
            }
        }
    }

    fn time_of(&self, swap: &Swap) -> Timestamp {
        self.clock.now().max(swap.newest.plus_ticks(1))
    }

    /// Obtains the promise of a majority with the condition fulfilled. An error is the response to
    /// the client; nothing was written.
    pub(super) async fn promised(&self, swap: &mut Swap) -> Result<Promised, Response> {
        if let Some(given) = swap.given.take() {
            if given.is_fresh() {
                return Ok(given);
            }
            swap.give_back();
        }
        let deadline = Instant::now() + RETRY_TIMEOUT;
        let mut pause = PAUSE_MIN;
        loop {
            let (verdict, given) = self.ask_promises(swap).await;
            if let Some(given) = given {
                return Ok(given);
            }
            if verdict == Verdict::Fails {
                return Err(Refusal::DoesNotHold.into_response());
            }
            if Instant::now() > deadline || verdict == Verdict::Unsupported {
                info!(path = %swap.path, ?verdict, "a conditional write is given up");
                return Err(Refusal::GivenUp(verdict).into_response());
            }
            // Random, so that concurrent writers do not retry at the same time.
            sleep(pause + pause.mul_f64(own_thread::random() as f64 / u64::MAX as f64)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Asks all primaries for promises once. Returns those of a majority if the write may go on under
    /// them; gives them back otherwise.
    async fn ask_promises(&self, swap: &mut Swap) -> (Verdict, Option<Promised>) {
        let (timestamp, at) = (self.time_of(swap), Instant::now());
        swap.held = Some(timestamp);
        let heard = self.ask_primaries(swap, Action::Give, timestamp).await;
        swap.note(&heard);
        let verdict = judge(&heard, &swap.condition, false);
        let given = |(node, heard): (&Node, &ServerReply)| {
            let is_given =
                matches!(heard, ServerReply::State(s) if s.reply == judge::PromiseReply::Given);
            is_given.then(|| node.clone())
        };
        let nodes = swap.primaries.iter().zip(&heard).filter_map(given);
        let promised = Promised {
            timestamp,
            nodes: nodes.collect(),
            at,
        };
        if verdict == Verdict::Go && promised.is_fresh() {
            return (verdict, Some(promised));
        }
        swap.give_back();
        debug!(path = %swap.path, ?verdict, ?heard, "no promises for a conditional write");
        (verdict, None)
    }

    /// The response if too few of the promising servers received the content.
    pub(super) fn unpromised(&self, swap: &mut Swap) -> Response {
        swap.give_back();
        Refusal::GivenUp(Verdict::TooFew).into_response()
    }

    /// Nodes for the uploads: the primaries only.
    pub(super) fn swap_nodes(&self, swap: &Swap, location: &Location) -> Arc<Nodes> {
        let (nodes, most) = (swap.primaries.clone(), swap.primaries.len());
        let limiter = self.limiter.clone();
        let (ring, partition) = (location.ring.clone(), location.partition);
        Arc::new(Nodes::in_order(ring, partition, nodes, most, limiter))
    }

    /// Obtains the promises and sends the write to the servers that gave them.
    pub(super) async fn swap_write(
        &self,
        incoming: &mut Incoming,
        mut swap: Swap,
        write: Write,
    ) -> Response {
        let promised = match self.promised(&mut swap).await {
            Ok(promised) => promised,
            Err(refused) => return refused,
        };
        incoming.timestamp = promised.timestamp;
        swap.writes();
        let majority = swap.majority();
        let mut all: Vec<Option<Answer>> = promised.nodes.iter().map(|_| None).collect();
        for attempt in 0..ATTEMPTS_MAX {
            let outcomes = outcomes(&write.method, &all, promised.timestamp);
            let count = |is| outcomes.iter().filter(|outcome| **outcome == is).count();
            let done = count(Outcome::Done);
            if majority.is_reached_by(done) || count(Outcome::Unknown) == 0 {
                break;
            }
            if attempt > 0 {
                if promised.at.elapsed() > RESEND_UNTIL {
                    break;
                }
                sleep(PAUSE_MAX).await;
            }
            let missing = (0..all.len()).filter(|i| outcomes[*i] == Outcome::Unknown);
            let missing: Vec<usize> = missing.collect();
            let wanted = majority.after(done);
            let answers = self.write_promised(&swap, &promised, &write, &missing, wanted);
            for (i, answer) in missing.iter().zip(answers.await) {
                all[*i] = answer.or(all[*i].take());
            }
        }
        let answers: Vec<Answer> = all
            .into_iter()
            .map(|a| a.unwrap_or_else(Answer::none))
            .collect();
        self.conclude_swap(&swap, &write.method, answers, promised.timestamp)
    }

    /// The response to the client, from those of the promising servers.
    pub(super) fn conclude_swap(
        &self,
        swap: &Swap,
        method: &Method,
        answers: Vec<Answer>,
        timestamp: Timestamp,
    ) -> Response {
        let outcomes: Vec<Outcome> = answers
            .iter()
            .map(|answer| outcome(method, Some(answer), timestamp))
            .collect();
        let count = |is| outcomes.iter().filter(|outcome| **outcome == is).count();
        let done = count(Outcome::Done);
        if !swap.majority().is_reached_by(done) {
            if done == 0 && count(Outcome::Unknown) == 0 {
                swap.release(timestamp);
                let refused = answers.into_iter().max_by_key(|answer| answer.status);
                let refused = refused.unwrap_or_else(Answer::none);
                return answer_from(refused.status, &refused.headers, refused.body);
            }
            let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
            warn!(path = %swap.path, ?statuses, "the outcome of a conditional write is in doubt");
            return Refusal::InDoubt.into_response();
        }
        let good = |answer: &&Answer| (200..300).contains(&answer.status);
        let mut etags = answers
            .iter()
            .filter(good)
            .filter_map(|answer| respond::header(&answer.headers, ETAG.as_str()));
        if let Some(first) = etags.next()
            && etags.any(|other| other != first)
        {
            tracing::error!(path = %swap.path, "object servers answered with different ETags");
            return Refusal::EtagsDiffer.into_response();
        }
        let best = answers.iter().find(good).or_else(|| {
            let is_missing = |answer: &&Answer| answer.status == 404;
            answers.iter().find(is_missing)
        });
        let mut response = match best {
            Some(best) => answer_from(best.status, &best.headers, best.body.clone()),
            None => status::overtaken(),
        };
        respond::set(response.headers_mut(), COMMITTED, "committed");
        response
    }
}

impl Swap {
    /// Records the newest timestamp.
    fn note(&mut self, heard: &[ServerReply]) {
        for heard in heard {
            if let ServerReply::State(seen) = heard {
                self.newest = self.newest.max(seen.newest).max(seen.data);
            }
        }
    }

    /// Marks that from now on servers may have written under their promises.
    pub(super) fn writes(&mut self) {
        self.held = None;
    }

    fn give_back(&mut self) {
        if let Some(timestamp) = self.held.take() {
            self.release(timestamp);
        }
    }

    fn token(&self) -> &str {
        &self.token
    }

    /// Headers of uploads whose promise is requested only at the content's end. They are chunked:
    /// with a known length a server would treat the content as complete when it has all bytes.
    pub(super) fn opening(
        &self,
        mut all: Vec<HeaderMap>,
        length: MessageLength,
    ) -> (Vec<HeaderMap>, MessageLength) {
        for head in &mut all {
            headers::insert(head, TOKEN, &self.token);
            if let MessageLength::Known(length) = length {
                headers::insert(head, "x-backend-obj-content-length", &length.to_string());
            }
        }
        (all, MessageLength::Chunked)
    }

    pub(super) fn majority(&self) -> Quorum {
        Quorum::majority_of(self.primaries.len())
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        self.give_back();
    }
}

fn outcomes(method: &Method, all: &[Option<Answer>], timestamp: Timestamp) -> Vec<Outcome> {
    let outcomes = all.iter();
    outcomes
        .map(|answer| outcome(method, answer.as_ref(), timestamp))
        .collect()
}

fn outcome(method: &Method, answer: Option<&Answer>, timestamp: Timestamp) -> Outcome {
    let Some(answer) = answer else {
        return Outcome::Unknown;
    };
    match answer.status {
        200..300 => Outcome::Done,
        // The server stored a tombstone all the same, and returned its time.
        404 if *method == Method::DELETE && answer.headers.contains_key("x-backend-timestamp") => {
            Outcome::Done
        }
        409 => {
            let there = respond::header_timestamp(&answer.headers, "x-backend-timestamp");
            let is_lost = answer.headers.contains_key("x-backend-promise");
            match there {
                // Under a promise, 409 means that this write was committed already, or that an
                // unconditional one with a newer timestamp was.
                Some(there) if there >= timestamp && !is_lost => Outcome::Done,
                _ if Plant::PromiseRefusalBelieved.is_on() => Outcome::Done,
                _ => Outcome::Unknown,
            }
        }
        400..500 => Outcome::Refused,
        _ => Outcome::Unknown,
    }
}

#[cfg(test)]
mod tests;
