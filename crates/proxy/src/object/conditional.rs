//! Conditional writes: `If-Match` and `If-None-Match` of PUT, POST and DELETE, decided by a majority
//! of the object's primaries (`docs/conditional-writes.md`).
//!
//! First all primaries are asked for their promise to write this request next, and for what they
//! have. With a majority's promise, and if the condition holds of the newest that any of them has,
//! the write goes to those that promised.

mod ask;
mod judge;
mod status;

use std::sync::Arc;
use std::time::Duration;

use cairn_http::own_thread;
use cairn_http::{Response, respond};
use cairn_peer::fan_out::Answer;
use cairn_peer::{Backends, Node, Nodes};
use cairn_types::Timestamp;
use cairn_types::plant::Plant;
use http::header::{ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH};
use http::{HeaderMap, Method};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use self::ask::Action;
pub(crate) use self::judge::Condition;
use self::judge::{Heard, Verdict, judge, majority};
use self::status::Refusal;
use super::Place;
use crate::app::Proxy;
use crate::checks::MessageLength;
use crate::headers;
use crate::request::Incoming;
use crate::write::{Write, answer_from};

/// Names the promise, in PROMISE and in the write under it.
pub(super) const TOKEN: &str = "x-backend-promise-token";
/// Says that a write was decided by a majority, not by each server for itself.
const COMMITTED: &str = "x-conditional-write";
/// Names the metadata that conditions are held against, instead of the content's own ETag.
const ETAG_IS_AT: &str = "x-backend-etag-is-at";
const SHOWN_ETAGS: &str = "x-object-sysmeta-slo-etag,x-object-sysmeta-symlink-target-etag";
/// How long to begin another try while others write, or servers are not ready.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pauses between tries.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Promises older than that are asked for again: they may run out before the write is there.
const FRESH: Duration = Duration::from_millis(2500);
/// A write whose answer is missing is sent again so often, until its promise is so old.
const ATTEMPTS: usize = 3;
const AGAIN: Duration = Duration::from_secs(4);

/// A conditional write on its way. Promises that nothing was written under are given back when it is
/// dropped, as it is when its client has left.
pub(crate) struct Swap {
    backends: Arc<Backends>,
    /// For each server's answer.
    timeout: Duration,
    /// The time of promises that servers may hold for it, and that nothing was written under yet.
    held: Option<Timestamp>,
    condition: Condition,
    primaries: Vec<Node>,
    partition: u32,
    path: String,
    /// The head of each question.
    head: HeaderMap,
    token: String,
    /// The newest time that any server has told of.
    newest: Timestamp,
}

/// A majority's promise.
pub(crate) struct Promised {
    pub(super) timestamp: Timestamp,
    pub(super) nodes: Vec<Node>,
    at: Instant,
}

impl Promised {
    pub(super) fn is_by(&self, node: &Node) -> bool {
        self.nodes.iter().any(|own| own.device.id == node.device.id)
    }
}

/// The outcome of a write on one server, by its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It is there, or was, and something newer is.
    Done,
    /// It is not, and will not be.
    Refused,
    Unknown,
}

/// The conditions of a write; an error where they cannot be read.
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
    /// Makes a conditional write of a request that has conditions; `None` where each server is to
    /// check for itself, as OpenStack Swift's do.
    pub(super) async fn begin_swap(
        &self,
        incoming: &mut Incoming,
        place: &Place,
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
        if place.erasure.is_some() {
            return unsupported(
                "Conditional writes are not available in erasure-coded policies: use a container of \
                 a replicated policy",
            );
        }
        let mut head = headers::base(incoming);
        headers::insert(&mut head, headers::POLICY_INDEX, &place.policy.to_string());
        // Large objects and links to versions have other ETags than their own content, encrypted or
        // not: these come first.
        let filters = incoming.header(ETAG_IS_AT).map(|names| format!(",{names}"));
        let names = [SHOWN_ETAGS, filters.as_deref().unwrap_or_default()].concat();
        headers::insert(&mut head, ETAG_IS_AT, &names);
        let token = format!("{:016x}{:016x}", own_thread::random(), own_thread::random());
        headers::insert(&mut head, TOKEN, &token);
        let mut swap = Swap {
            backends: self.backends.clone(),
            timeout: self.options.node_timeout,
            held: None,
            condition,
            primaries: place.ring.primaries(place.partition),
            partition: place.partition,
            path: incoming.target.entity_path(),
            head,
            token,
            newest: Timestamp::ZERO,
        };
        let heard = self
            .ask_primaries(&swap, Action::Look, self.clock.now())
            .await;
        swap.note(&heard);
        match judge(&heard, &swap.condition, true) {
            Verdict::Unsupported => unsupported(
                "Conditional writes are not available: an object server of this partition does not \
                 know them",
            ),
            Verdict::Fails => Err(Refusal::DoesNotHold.into_response()),
            // Others may answer yet.
            _ => {
                // Servers are not to judge by themselves.
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

    /// A majority's promise, of what the condition holds of. An error: the answer; nothing was written.
    pub(super) async fn promised(&self, swap: &mut Swap) -> Result<Promised, Response> {
        let deadline = Instant::now() + PATIENCE;
        let mut pause = PAUSE_MIN;
        loop {
            let (timestamp, at) = (self.time_of(swap), Instant::now());
            swap.held = Some(timestamp);
            let heard = self.ask_primaries(swap, Action::Give, timestamp).await;
            swap.note(&heard);
            let verdict = judge(&heard, &swap.condition, false);
            if verdict == Verdict::Go && at.elapsed() < FRESH {
                let given = |(node, heard): (&Node, &Heard)| {
                    let is_given = matches!(heard, Heard::Seen(s) if s.word == judge::Word::Given);
                    is_given.then(|| node.clone())
                };
                let nodes = swap.primaries.iter().zip(&heard).filter_map(given);
                return Ok(Promised {
                    timestamp,
                    nodes: nodes.collect(),
                    at,
                });
            }
            swap.give_back();
            if verdict == Verdict::Fails {
                return Err(Refusal::DoesNotHold.into_response());
            }
            if Instant::now() > deadline || verdict == Verdict::Unsupported {
                info!(path = %swap.path, ?verdict, ?heard, "a conditional write is given up");
                return Err(Refusal::GivenUp(verdict).into_response());
            }
            // Whoever tries at the same time is not to come back at the same time.
            sleep(pause + pause.mul_f64(own_thread::random() as f64 / u64::MAX as f64)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// The answer where too few of those that gave their promise have the content.
    pub(super) fn unpromised(&self, swap: &mut Swap) -> Response {
        swap.give_back();
        Refusal::GivenUp(Verdict::TooFew).into_response()
    }

    /// Nodes to open uploads to: the primaries, and no others.
    pub(super) fn swap_nodes(&self, swap: &Swap, place: &Place) -> Arc<Nodes> {
        let (nodes, most) = (swap.primaries.clone(), swap.primaries.len());
        let limiter = self.limiter.clone();
        let (ring, partition) = (place.ring.clone(), place.partition);
        Arc::new(Nodes::in_order(ring, partition, nodes, most, limiter))
    }

    /// Gets the promises and sends the write to those that gave them.
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
        let enough = majority(swap.primaries.len());
        let mut all: Vec<Option<Answer>> = promised.nodes.iter().map(|_| None).collect();
        for attempt in 0..ATTEMPTS {
            let outcomes = outcomes(&write.method, &all, promised.timestamp);
            let count = |is| outcomes.iter().filter(|outcome| **outcome == is).count();
            let done = count(Outcome::Done);
            if done >= enough || count(Outcome::Unknown) == 0 {
                break;
            }
            if attempt > 0 {
                if promised.at.elapsed() > AGAIN {
                    break;
                }
                sleep(PAUSE_MAX).await;
            }
            let missing = (0..all.len()).filter(|i| outcomes[*i] == Outcome::Unknown);
            let missing: Vec<usize> = missing.collect();
            let wanted = enough - done;
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

    /// The client's answer from those of the servers that had promised.
    pub(super) fn conclude_swap(
        &self,
        swap: &Swap,
        method: &Method,
        answers: Vec<Answer>,
        timestamp: Timestamp,
    ) -> Response {
        let enough = majority(swap.primaries.len());
        let outcomes: Vec<Outcome> = answers
            .iter()
            .map(|answer| outcome(method, Some(answer), timestamp))
            .collect();
        let count = |is| outcomes.iter().filter(|outcome| **outcome == is).count();
        let done = count(Outcome::Done);
        if done < enough {
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
    /// Remembers what is newest.
    fn note(&mut self, heard: &[Heard]) {
        for heard in heard {
            if let Heard::Seen(seen) = heard {
                self.newest = self.newest.max(seen.newest).max(seen.data);
            }
        }
    }

    /// From here on servers may have written under their promises.
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

    /// The heads of uploads that are promised at their ends: no length is told, as a server takes
    /// content of a known length for whole when it has it.
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

    pub(super) fn majority(&self) -> usize {
        majority(self.primaries.len())
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
        // A tombstone was left all the same, and its time told.
        404 if *method == Method::DELETE && answer.headers.contains_key("x-backend-timestamp") => {
            Outcome::Done
        }
        409 => {
            let there = respond::header_timestamp(&answer.headers, "x-backend-timestamp");
            let is_lost = answer.headers.contains_key("x-backend-promise");
            match there {
                // Under the promise: it was there already, or what is newer was written without a
                // condition.
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
