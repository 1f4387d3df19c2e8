//! Evaluation of the servers' responses to PROMISE: pure functions.

use cairn_formats::conditional::EntityTags;
use cairn_types::plant::Plant;
use cairn_types::{Quorum, Timestamp};

/// The conditions of a write on the object that it replaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(super) if_match: Option<String>,
    pub(super) if_none_match: Option<String>,
}

impl Condition {
    /// Do they hold for an object with this ETag, or for none?
    pub(super) fn holds(&self, etag: Option<&str>) -> bool {
        let among = |tags: &str| etag.is_some_and(|etag| EntityTags::parse(tags).contains(etag));
        self.if_match.as_deref().is_none_or(among)
            && !self.if_none_match.as_deref().is_some_and(among)
    }

    /// Is it the condition that OpenStack Swift supports for a PUT (`If-None-Match: *`)?
    pub(super) fn is_swifts(&self) -> bool {
        let any = |tags: &String| EntityTags::parse(tags).has_any();
        self.if_match.is_none() && self.if_none_match.as_ref().is_some_and(any)
    }
}

/// A server's decision on the promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PromiseReply {
    Given,
    /// No promise was requested, only the state.
    None,
    /// Another conditional write holds the promise.
    Busy,
    /// The requested timestamp is older than one the server knows.
    Older,
    /// The server's clock differs too much.
    Clock,
    /// The server has just started, and may have forgotten promises.
    Started,
}

/// State of the object on one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectState {
    pub(super) reply: PromiseReply,
    /// Time of the content, or of the tombstone; zero if there is neither.
    pub(super) data: Timestamp,
    /// The newest timestamp known to the server, promises included.
    pub(super) newest: Timestamp,
    /// ETag of the object; `None` if there is none.
    pub(super) etag: Option<String>,
    /// Timestamp of a write that may have been committed on another server.
    pub(super) in_doubt: Option<Timestamp>,
}

/// One server's response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerReply {
    State(ObjectState),
    /// The server does not support PROMISE: it is OpenStack Swift's, or an old version.
    Unsupported,
    Silent,
}

/// Decision on the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The servers that promised may be sent the write.
    Go,
    /// The condition does not hold.
    Fails,
    /// Another conditional write is in progress.
    Conflict,
    /// The promise must be requested again with a newer timestamp.
    Older,
    /// An earlier write may be on a server that does not respond.
    InDoubt,
    /// Too few servers respond, or are ready.
    TooFew,
    Unsupported,
}

/// Number of promises needed for a write.
fn promises_needed(majority: Quorum) -> usize {
    match Plant::PromiseMinority.is_on() {
        true => 1,
        false => majority.size(),
    }
}

/// Evaluates the responses of all primaries; with `looked` no promise was requested.
pub(super) fn judge(heard: &[ServerReply], condition: &Condition, looked: bool) -> Verdict {
    let majority = Quorum::majority_of(heard.len());
    if heard.contains(&ServerReply::Unsupported) {
        return Verdict::Unsupported;
    }
    let seen: Vec<&ObjectState> = heard
        .iter()
        .filter_map(|heard| match heard {
            ServerReply::State(seen) => Some(seen),
            _ => None,
        })
        .collect();
    let said = |reply: PromiseReply| seen.iter().filter(|seen| seen.reply == reply).count();
    let Some(newest) = seen.iter().max_by_key(|seen| seen.data) else {
        return Verdict::TooFew;
    };
    let is_known = majority.is_reached_by(seen.len());
    if is_known && !condition.holds(newest.etag.as_deref()) {
        return Verdict::Fails;
    }
    if looked {
        return match is_known {
            true => Verdict::Go,
            false => Verdict::TooFew,
        };
    }
    if said(PromiseReply::Older) > 0 {
        return Verdict::Older;
    }
    let given = said(PromiseReply::Given);
    if given < promises_needed(majority) {
        return match said(PromiseReply::Busy) {
            0 => Verdict::TooFew,
            _ => Verdict::Conflict,
        };
    }
    // A server whose state shows otherwise does not have the write in doubt, and after promising
    // something newer will not accept it. So all servers must have promised.
    let is_in_doubt = |seen: &&ObjectState| seen.in_doubt.is_some_and(|at| at > newest.data);
    if given < majority.servers() && seen.iter().any(is_in_doubt) && !Plant::DoubtIgnored.is_on() {
        return Verdict::InDoubt;
    }
    Verdict::Go
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(secs: u64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    fn seen(reply: PromiseReply, secs: u64, etag: Option<&str>) -> ObjectState {
        ObjectState {
            reply,
            data: at(secs),
            newest: at(secs),
            etag: etag.map(str::to_owned),
            in_doubt: None,
        }
    }

    fn has(reply: PromiseReply, secs: u64, etag: Option<&str>) -> ServerReply {
        ServerReply::State(seen(reply, secs, etag))
    }

    fn matching(etag: &str) -> Condition {
        Condition {
            if_match: Some(etag.into()),
            if_none_match: None,
        }
    }

    fn absent() -> Condition {
        Condition {
            if_match: None,
            if_none_match: Some("*".into()),
        }
    }

    #[test]
    fn conditions() {
        assert!(matching("\"a\", \"b\"").holds(Some("b")) && matching("*").holds(Some("x")));
        assert!(!matching("*").holds(None) && !matching("\"a\"").holds(Some("b")));
        assert!(absent().holds(None) && !absent().holds(Some("a")));
        assert!(absent().is_swifts() && !matching("*").is_swifts());
        let not = Condition {
            if_none_match: Some("\"a\"".into()),
            ..Condition::default()
        };
        assert!(not.holds(None) && not.holds(Some("b")) && !not.holds(Some("a")));
        assert!(!not.is_swifts());
    }

    #[test]
    fn the_newest_of_a_majority_decides() {
        use PromiseReply::{Busy, Given, Older, Started};
        let verdict = |heard: &[ServerReply], condition: &Condition| judge(heard, condition, false);
        let (b, old) = (has(Given, 5, Some("b")), has(Given, 3, Some("a")));
        let silent = ServerReply::Silent;
        let all = [b.clone(), old.clone(), silent.clone()];
        assert_eq!(verdict(&all, &matching("b")), Verdict::Go);
        assert_eq!(verdict(&all, &matching("a")), Verdict::Fails);
        assert_eq!(verdict(&all, &absent()), Verdict::Fails);
        // The object has been deleted since.
        let deleted = [b.clone(), has(Given, 6, None), silent.clone()];
        assert_eq!(verdict(&deleted, &absent()), Verdict::Go);
        assert_eq!(verdict(&deleted, &matching("b")), Verdict::Fails);
        // A server that cannot promise reports its state all the same.
        let newer = [b.clone(), b.clone(), has(Busy, 6, Some("c"))];
        assert_eq!(verdict(&newer, &matching("b")), Verdict::Fails);
        let few = [b.clone(), silent.clone(), silent.clone()];
        assert_eq!(verdict(&few, &matching("b")), Verdict::TooFew);
        assert_eq!(verdict(&few, &matching("a")), Verdict::TooFew);
        let busy = [b.clone(), has(Busy, 5, Some("b")), silent.clone()];
        assert_eq!(verdict(&busy, &matching("b")), Verdict::Conflict);
        let new = [b.clone(), has(Started, 5, Some("b")), silent.clone()];
        assert_eq!(verdict(&new, &matching("b")), Verdict::TooFew);
        let older = [b.clone(), b.clone(), has(Older, 5, Some("b"))];
        assert_eq!(verdict(&older, &matching("b")), Verdict::Older);
        let swifts = [b.clone(), b.clone(), ServerReply::Unsupported];
        assert_eq!(verdict(&swifts, &matching("b")), Verdict::Unsupported);
        assert_eq!(verdict(&[silent], &absent()), Verdict::TooFew);
        assert_eq!(verdict(&[b.clone(), b], &matching("b")), Verdict::Go);
    }

    #[test]
    fn what_is_in_doubt_takes_all() {
        let doubting = ServerReply::State(ObjectState {
            in_doubt: Some(at(7)),
            ..seen(PromiseReply::Given, 5, Some("b"))
        });
        let b = has(PromiseReply::Given, 5, Some("b"));
        let verdict = |heard: &[ServerReply]| judge(heard, &matching("b"), false);
        let two = [doubting.clone(), b.clone(), ServerReply::Silent];
        assert_eq!(verdict(&two), Verdict::InDoubt);
        let busy = [
            doubting.clone(),
            b.clone(),
            has(PromiseReply::Busy, 5, Some("b")),
        ];
        assert_eq!(verdict(&busy), Verdict::InDoubt);
        assert_eq!(
            verdict(&[doubting.clone(), b.clone(), b.clone()]),
            Verdict::Go
        );
        // The write in doubt has arrived.
        let come = [
            doubting,
            has(PromiseReply::Given, 7, Some("c")),
            ServerReply::Silent,
        ];
        assert_eq!(judge(&come, &matching("c"), false), Verdict::Go);
    }
}
