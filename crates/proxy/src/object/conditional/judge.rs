//! Judgement of servers' answers to PROMISE, together: pure functions.

use cairn_formats::conditional::EntityTags;
use cairn_types::Timestamp;
use cairn_types::plant::Plant;

/// The conditions of a write, of the object it replaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(super) if_match: Option<String>,
    pub(super) if_none_match: Option<String>,
}

impl Condition {
    /// Does it hold of an object with this ETag, or of none?
    pub(super) fn holds(&self, etag: Option<&str>) -> bool {
        let among = |tags: &str| etag.is_some_and(|etag| EntityTags::parse(tags).contains(etag));
        self.if_match.as_deref().is_none_or(among)
            && !self.if_none_match.as_deref().is_some_and(among)
    }

    /// Is it what OpenStack Swift knows of a PUT?
    pub(super) fn is_swifts(&self) -> bool {
        let any = |tags: &String| EntityTags::parse(tags).has_any();
        self.if_match.is_none() && self.if_none_match.as_ref().is_some_and(any)
    }
}

/// A server's word on its promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    Given,
    /// It was only looked.
    None,
    /// Another conditional write has it.
    Busy,
    /// The time asked for is not new enough.
    Older,
    /// The server's clock is another.
    Clock,
    /// It started a moment ago.
    Started,
}

/// The state of an object on one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) word: Word,
    /// The time of the content, or the tombstone; zero where there is nothing.
    pub(super) data: Timestamp,
    /// The newest time it knows, of promises too.
    pub(super) newest: Timestamp,
    /// `None`: there is no object.
    pub(super) etag: Option<String>,
    /// A write of that time may be on another server.
    pub(super) in_doubt: Option<Timestamp>,
}

/// One server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Seen(Seen),
    /// It does not know the question: OpenStack Swift's, or an old one.
    Unsupported,
    Silent,
}

/// The consequence for the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It may be carried out by those that gave their promise.
    Go,
    /// The condition does not hold.
    Fails,
    /// Another conditional write is under way.
    Conflict,
    /// A newer time has to be asked for.
    Older,
    /// A write before this one may be on a server that does not answer.
    InDoubt,
    /// Too few answer, or are ready.
    TooFew,
    Unsupported,
}

/// More than half of the replicas.
pub(super) fn majority(replicas: usize) -> usize {
    replicas / 2 + 1
}

/// Promises that are enough to write.
fn promises_needed(replicas: usize) -> usize {
    match Plant::PromiseMinority.is_on() {
        true => 1,
        false => majority(replicas),
    }
}

/// Judges all primaries' answers; `looked`: no promise was asked for.
pub(super) fn judge(heard: &[Heard], condition: &Condition, looked: bool) -> Verdict {
    let replicas = heard.len();
    if heard.contains(&Heard::Unsupported) {
        return Verdict::Unsupported;
    }
    let seen: Vec<&Seen> = heard
        .iter()
        .filter_map(|heard| match heard {
            Heard::Seen(seen) => Some(seen),
            _ => None,
        })
        .collect();
    let said = |word: Word| seen.iter().filter(|seen| seen.word == word).count();
    let Some(newest) = seen.iter().max_by_key(|seen| seen.data) else {
        return Verdict::TooFew;
    };
    let is_known = seen.len() >= majority(replicas);
    if is_known && !condition.holds(newest.etag.as_deref()) {
        return Verdict::Fails;
    }
    if looked {
        return match is_known {
            true => Verdict::Go,
            false => Verdict::TooFew,
        };
    }
    if said(Word::Older) > 0 {
        return Verdict::Older;
    }
    let given = said(Word::Given);
    if given < promises_needed(replicas) {
        return match said(Word::Busy) {
            0 => Verdict::TooFew,
            _ => Verdict::Conflict,
        };
    }
    // A write in doubt is on no server that says otherwise, and comes to none that has promised
    // something newer: so all have to.
    let is_in_doubt = |seen: &&Seen| seen.in_doubt.is_some_and(|at| at > newest.data);
    if given < replicas && seen.iter().any(is_in_doubt) && !Plant::DoubtIgnored.is_on() {
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

    fn seen(word: Word, secs: u64, etag: Option<&str>) -> Seen {
        Seen {
            word,
            data: at(secs),
            newest: at(secs),
            etag: etag.map(str::to_owned),
            in_doubt: None,
        }
    }

    fn has(word: Word, secs: u64, etag: Option<&str>) -> Heard {
        Heard::Seen(seen(word, secs, etag))
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
        use Word::{Busy, Given, Older, Started};
        let verdict = |heard: &[Heard], condition: &Condition| judge(heard, condition, false);
        let (b, old) = (has(Given, 5, Some("b")), has(Given, 3, Some("a")));
        let silent = Heard::Silent;
        let all = [b.clone(), old.clone(), silent.clone()];
        assert_eq!(verdict(&all, &matching("b")), Verdict::Go);
        assert_eq!(verdict(&all, &matching("a")), Verdict::Fails);
        assert_eq!(verdict(&all, &absent()), Verdict::Fails);
        // It was deleted since.
        let deleted = [b.clone(), has(Given, 6, None), silent.clone()];
        assert_eq!(verdict(&deleted, &absent()), Verdict::Go);
        assert_eq!(verdict(&deleted, &matching("b")), Verdict::Fails);
        // Without a promise to give a server says what there is all the same.
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
        let swifts = [b.clone(), b.clone(), Heard::Unsupported];
        assert_eq!(verdict(&swifts, &matching("b")), Verdict::Unsupported);
        assert_eq!(verdict(&[silent], &absent()), Verdict::TooFew);
        assert_eq!(verdict(&[b.clone(), b], &matching("b")), Verdict::Go);
        assert_eq!(majority(1), 1);
        assert_eq!(majority(2), 2);
        assert_eq!(majority(4), 3);
    }

    #[test]
    fn what_is_in_doubt_takes_all() {
        let doubting = Heard::Seen(Seen {
            in_doubt: Some(at(7)),
            ..seen(Word::Given, 5, Some("b"))
        });
        let b = has(Word::Given, 5, Some("b"));
        let verdict = |heard: &[Heard]| judge(heard, &matching("b"), false);
        let two = [doubting.clone(), b.clone(), Heard::Silent];
        assert_eq!(verdict(&two), Verdict::InDoubt);
        let busy = [doubting.clone(), b.clone(), has(Word::Busy, 5, Some("b"))];
        assert_eq!(verdict(&busy), Verdict::InDoubt);
        assert_eq!(
            verdict(&[doubting.clone(), b.clone(), b.clone()]),
            Verdict::Go
        );
        // It has come.
        let come = [doubting, has(Word::Given, 7, Some("c")), Heard::Silent];
        assert_eq!(judge(&come, &matching("c"), false), Verdict::Go);
    }
}
