//! Check of the expirer's deletions (`X-If-Delete-At`) against the state of an object in the whole
//! cluster.
//!
//! Each object server checks only its own copy. One that has missed a newer write would agree to
//! the deletion; and since the expirer deletes with the time of expiry as timestamp, its tombstone
//! is newer than that write if the write came earlier, so replication would then remove
//! acknowledged data. Therefore the object's servers are asked first, and the object is deleted
//! only if its newest version expires and so many servers agree that at least one of them knows
//! every acknowledged write. OpenStack Swift does not check this. (A write in progress at the
//! moment of expiry can still be hidden by the tombstone of a server that it has not reached.)

use cairn_http::respond::header_timestamp;
use cairn_http::{Body, Request, Response};
use cairn_peer::Node;
use cairn_peer::backend_uri;
use cairn_types::plant::Plant;
use cairn_types::{Quorum, Timestamp};
use futures_util::future::join_all;
use http::{HeaderMap, Method, StatusCode};
use tracing::{debug, info};

use super::Location;
use crate::headers;
use crate::request::Incoming;
use crate::state::Proxy;
use crate::status;

/// State of the object on one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Has {
    /// An object of this timestamp that expires at the given time.
    Expiring(Timestamp),
    /// An object of this timestamp that does not expire then.
    Lasting(Timestamp),
    Tombstone(Timestamp),
    Nothing,
    /// No response.
    Unknown,
}

impl Has {
    fn time(self) -> Timestamp {
        match self {
            Has::Expiring(time) | Has::Lasting(time) | Has::Tombstone(time) => time,
            Has::Nothing | Has::Unknown => Timestamp::ZERO,
        }
    }
}

/// Decision from all responses.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    GoAhead,
    /// The newest version does not expire at the given time.
    Lasts,
    /// Too few servers responded.
    Unclear,
}

/// `quorum` is the number of the object's replicas that store an acknowledged write.
fn judge(answers: &[Has], quorum: Quorum) -> Verdict {
    let count = |is: fn(&Has) -> bool| answers.iter().filter(|has| is(has)).count();
    let newest = answers.iter().map(|has| has.time()).max();
    let lasts = |has: &Has| matches!(has, Has::Lasting(at) if Some(*at) == newest);
    if answers.iter().any(lasts) {
        return Verdict::Lasts;
    }
    // The servers that store an acknowledged write cannot all be silent or all disagree: a quorum
    // and the set of servers that agree here have one in common.
    let silent = count(|has| *has == Has::Unknown);
    let expiring = count(|has| matches!(has, Has::Expiring(_)));
    let agreeing = expiring + count(|has| matches!(has, Has::Tombstone(_)));
    let is_clear =
        silent < quorum.size().max(1) && (expiring == 0 || agreeing > quorum.missing_max());
    match is_clear {
        true => Verdict::GoAhead,
        false => Verdict::Unclear,
    }
}

impl Proxy {
    /// The response to a deletion that must not be carried out, or not now; `None` if it may.
    pub(super) async fn refused_expiry(
        &self,
        incoming: &Incoming,
        location: &Location,
    ) -> Option<Response> {
        let expected = Timestamp::parse(incoming.header("x-if-delete-at")?).ok()?;
        if Plant::ExpiredNow.is_on() || Plant::ExpiredUnasked.is_on() {
            return None;
        }
        let path = incoming.target.entity_path();
        let mut head = headers::base(incoming);
        let policy = location.policy.to_string();
        headers::insert(&mut head, headers::POLICY_INDEX, &policy);
        headers::insert(&mut head, "x-backend-open-expired", "true");
        let ask = async |nodes: Vec<Node>| {
            let asked = nodes.into_iter().map(async |node| {
                let answer = self.ask_one(&node, location.partition, &path, &head).await;
                answer.map_or(Has::Unknown, |answer| has(&answer, expected))
            });
            join_all(asked).await
        };
        let primaries = location.ring.primaries(location.partition);
        let quorum = location.kind.upload_quorum(primaries.len());
        let mut answers = ask(primaries).await;
        // Handoffs may have a write that a primary has missed.
        let expires = |has: &Has| matches!(has, Has::Expiring(_));
        let affinity = self.affinities.of(Some(location.policy));
        if !answers.iter().all(expires) || affinity.writes_near() {
            answers.extend(ask(self.handoffs_to_ask(location)).await);
        }
        let verdict = judge(&answers, quorum);
        if verdict != Verdict::GoAhead {
            info!(
                path,
                ?answers,
                ?verdict,
                "an object that was to expire stays"
            );
        }
        match verdict {
            Verdict::GoAhead => None,
            Verdict::Lasts => Some(status::condition_fails()),
            Verdict::Unclear => Some(status::no_quorum()),
        }
    }

    /// All handoffs to which an upload may have gone instead of a primary.
    fn handoffs_to_ask(&self, location: &Location) -> Vec<Node> {
        let affinity = self.affinities.of(Some(location.policy));
        let primaries = location.ring.primaries(location.partition);
        let devices = location.ring.ring().device_count();
        let all = location.ring.handoffs(location.partition, devices);
        let nodes = self.options.request_node_count;
        let most = nodes.for_replicas(primaries.len()) - primaries.len();
        let mut asked = match affinity.writes_near() {
            true => affinity.to_delete_from(&primaries, all.clone()),
            false => Vec::new(),
        };
        let near: Vec<u32> = asked.iter().map(|node| node.device.id).collect();
        let others = all.into_iter().filter(|n| !near.contains(&n.device.id));
        asked.extend(others.take(most));
        asked
    }

    /// The head of a server's response; `None` for one that fails, or is error-limited.
    async fn ask_one(
        &self,
        node: &Node,
        partition: u32,
        path: &str,
        head: &HeaderMap,
    ) -> Option<Response> {
        if self.limiter.is_limited(node) {
            return None;
        }
        let mut request = Request::new(Body::empty());
        *request.method_mut() = Method::HEAD;
        *request.uri_mut() = backend_uri(node, partition, path, None);
        *request.headers_mut() = head.clone();
        let patience = self.options.node_timeout;
        match self.backends.call(node.address, request, patience).await {
            Ok(answer) => Some(answer),
            Err(error) => {
                debug!(node = %node.name(), %error, "no answer");
                self.limiter.increment(node, "no answer");
                None
            }
        }
    }
}

/// Interprets a server's response to HEAD.
fn has(answer: &Response, expected: Timestamp) -> Has {
    let time = header_timestamp(answer.headers(), "x-backend-timestamp");
    match (answer.status(), time) {
        (status, time) if status == StatusCode::NOT_FOUND => {
            time.map_or(Has::Nothing, Has::Tombstone)
        }
        (status, Some(time)) if status.is_success() => {
            match header_timestamp(answer.headers(), "x-delete-at") == Some(expected) {
                true => Has::Expiring(time),
                false => Has::Lasting(time),
            }
        }
        _ => Has::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use cairn_http::respond;

    use super::*;

    const fn at(secs: u64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    #[test]
    fn what_is_newest_and_known_decides() {
        use Has::{Expiring, Lasting, Nothing, Tombstone, Unknown};
        let verdict = |answers: &[Has]| judge(answers, Quorum::of_replicas(3));
        let old = Expiring(at(1));
        assert_eq!(verdict(&[old, old, old]), Verdict::GoAhead);
        assert_eq!(verdict(&[old, Unknown, old]), Verdict::GoAhead);
        assert_eq!(verdict(&[old, Lasting(at(2)), old]), Verdict::Lasts);
        assert_eq!(
            verdict(&[old, old, Unknown, Lasting(at(2))]),
            Verdict::Lasts
        );
        // An older version that is still present on one server.
        assert_eq!(verdict(&[old, Lasting(at(0)), old]), Verdict::GoAhead);
        // Two servers without a response may have something newer.
        assert_eq!(verdict(&[old, old, Unknown, Unknown]), Verdict::Unclear);
        // So may a server without the object, and one without a response.
        assert_eq!(verdict(&[old, Nothing, Unknown]), Verdict::Unclear);
        assert_eq!(verdict(&[old, Nothing, Nothing]), Verdict::Unclear);
        assert_eq!(verdict(&[old, Tombstone(at(9)), Nothing]), Verdict::GoAhead);
        assert_eq!(verdict(&[Nothing, Unknown, Nothing]), Verdict::GoAhead);
        // With four data and two parity fragments, five are a quorum.
        let coded = Quorum::of_fragments(4, 2, 1);
        let two = [old, old, Nothing, Nothing, Nothing, Nothing];
        assert_eq!(judge(&two, coded), Verdict::GoAhead);
        assert_eq!(judge(&two[1..], coded), Verdict::Unclear);
        assert_eq!(judge(&[old], Quorum::of_replicas(1)), Verdict::GoAhead);
    }

    #[test]
    fn answers_say_what_a_server_has() {
        let answer = |status: u16, headers: &[(&'static str, &str)]| {
            let mut response = respond::standard(respond::status(status));
            for (name, value) in headers {
                respond::set(response.headers_mut(), name, *value);
            }
            has(&response, at(50))
        };
        let time = ("x-backend-timestamp", "0000000007.00000");
        let found = [time, ("x-delete-at", "0000000050")];
        assert_eq!(answer(200, &found), Has::Expiring(at(7)));
        let found = [time, ("x-delete-at", "51")];
        assert_eq!(answer(200, &found), Has::Lasting(at(7)));
        assert_eq!(answer(200, &[time]), Has::Lasting(at(7)));
        assert_eq!(answer(404, &[time]), Has::Tombstone(at(7)));
        assert_eq!(answer(404, &[]), Has::Nothing);
        assert_eq!(answer(507, &[time]), Has::Unknown);
    }
}
