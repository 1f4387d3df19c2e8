//! Conditional writers: concurrent clients read an object and replace, delete or create it on the
//! condition that it is unchanged; and a check that the results are consistent.
//!
//! Every content is unique and names the version it replaces. So all writes of an object form a
//! tree, and those that happened one path of it: each version has at most one successor, and
//! acknowledged writes are on the path.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_http::Body;
use futures_util::stream;
use http::Method;
use md5::{Digest, Md5};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::client::{ACCOUNT, Answer, MARK, ask, path};
use crate::cluster::{Cluster, hash_path};
use crate::replicas;
use crate::shared::{NODES, PROXIES};

/// The container of the objects, which is replicated.
const CONTAINER: &str = "c0";
const OBJECTS: [&str; 2] = ["k0", "k1"];
const CLIENTS: u64 = 5;
/// Time after which clients start nothing: doubt is remembered for a minute.
const WORK_DURATION: Duration = Duration::from_secs(35);
/// Size of large contents: clients send them in chunks, and the proxy streams them.
const LARGE_BYTES: usize = 5_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Unknown, possibly for now.
    Unknown,
    Done,
    /// Must not happen any more.
    Refused,
    /// As `Refused`, because the condition did not hold.
    Failed,
}

impl Outcome {
    fn is_refused(self) -> bool {
        matches!(self, Outcome::Refused | Outcome::Failed)
    }
}

/// One write; `None` is no object.
#[derive(Clone, Debug)]
struct Attempt {
    before: Option<String>,
    after: Option<String>,
    outcome: Outcome,
    /// Positions in the sequence of starts and ends.
    began: usize,
    ended: Option<usize>,
}

/// All writes of one object, and the versions seen.
#[derive(Clone, Debug, Default)]
struct History {
    attempts: Vec<Attempt>,
    seen: BTreeSet<String>,
    /// Number of starts and ends.
    moments: usize,
}

/// The histories of all objects.
#[derive(Default)]
pub(crate) struct Swaps(Mutex<BTreeMap<&'static str, History>>);

impl Swaps {
    fn begin(&self, object: &'static str, before: Option<String>, after: Option<String>) -> usize {
        let mut all = self.0.lock();
        let history = all.entry(object).or_default();
        history.moments += 1;
        history.attempts.push(Attempt {
            before,
            after,
            outcome: Outcome::Unknown,
            began: history.moments,
            ended: None,
        });
        history.attempts.len() - 1
    }

    fn end(&self, object: &'static str, number: usize, outcome: Outcome) {
        if let Some(history) = self.0.lock().get_mut(object) {
            history.moments += 1;
            let attempt = &mut history.attempts[number];
            (attempt.outcome, attempt.ended) = (outcome, Some(history.moments));
        }
    }

    fn see(&self, object: &'static str, etag: &str) {
        let mut all = self.0.lock();
        all.entry(object).or_default().seen.insert(etag.to_owned());
    }

    fn of(&self, object: &'static str) -> History {
        self.0.lock().get(object).cloned().unwrap_or_default()
    }
}

/// Runs the clients.
pub(crate) async fn drive(cluster: &Arc<Cluster>, swaps: &Arc<Swaps>) -> Vec<String> {
    let mut under_way = tokio::task::JoinSet::new();
    for client in 0..CLIENTS {
        under_way.spawn(work(client, cluster.clone(), swaps.clone()));
    }
    let mut wrong = Vec::new();
    while let Some(ended) = under_way.join_next().await {
        match ended {
            Ok(found) => wrong.extend(found),
            Err(error) => wrong.push(format!("a client panicked: {error}")),
        }
    }
    wrong
}

/// One client; returns a violation, if any.
async fn work(client: u64, cluster: Arc<Cluster>, swaps: Arc<Swaps>) -> Option<String> {
    let dice = &cluster.shared.load_dice;
    let end = Instant::now() + WORK_DURATION;
    for number in 0.. {
        sleep(dice.micros(if dice.coin() { 900_000 } else { 20_000 })).await;
        if Instant::now() > end {
            break;
        }
        let object = OBJECTS[dice.index(OBJECTS.len())];
        let proxy = dice.index(PROXIES);
        let before = match read(&cluster, proxy, object, dice.coin()).await {
            Ok(before) => before,
            Err(Some(wrong)) => return Some(wrong),
            Err(None) => continue,
        };
        if let Some(etag) = &before {
            swaps.see(object, etag);
        }
        let line = format!("{object} client {client} write {number} after {before:?}; ");
        let kind = dice.below(10);
        let size = if dice.below(4) == 0 {
            LARGE_BYTES
        } else {
            line.len()
        };
        let content: Vec<u8> = line.bytes().cycle().take(size).collect();
        let after = (kind > 1 || before.is_none()).then(|| md5_of(&content));
        let mut headers = match &before {
            Some(etag) => vec![("if-match", format!("\"{etag}\""))],
            None => vec![("if-none-match", "*".to_owned())],
        };
        let (method, body) = match (&after, kind) {
            (Some(_), _) => {
                headers.push(("content-type", "text/plain".to_owned()));
                (Method::PUT, in_chunks(content))
            }
            (None, 0) => (Method::DELETE, Body::empty()),
            _ => {
                headers.push((MARK, line.clone()));
                (Method::POST, Body::empty())
            }
        };
        let name = path(CONTAINER, Some(object));
        let is_post = method == Method::POST;
        // A POST does not change the content.
        let attempt = (!is_post).then(|| swaps.begin(object, before.clone(), after.clone()));
        let log = |text: String| cluster.shared.log(|| format!("swap {line} {text}"));
        log(format!("{method} {after:?}"));
        let answer = ask(&cluster, proxy, method, &name, &headers, body).await;
        let outcome = outcome(answer.as_ref());
        log(format!(
            "answered {:?}: {outcome:?}",
            answer.map(|a| a.status)
        ));
        if let Some(attempt) = attempt {
            swaps.end(object, attempt, outcome);
        }
    }
    None
}

fn in_chunks(content: Vec<u8>) -> Body {
    let length = content.len();
    if length < LARGE_BYTES {
        return Body::full(Bytes::from(content));
    }
    let chunks: Vec<_> = content.chunks(900).map(Bytes::copy_from_slice).collect();
    Body::from_stream(
        stream::iter(chunks.into_iter().map(Ok)),
        Some(length as u64),
    )
}

fn outcome(answer: Option<&Answer>) -> Outcome {
    let Some(answer) = answer else {
        return Outcome::Unknown;
    };
    match answer.status {
        200..300 | 404 if answer.headers.contains_key("x-conditional-write") => Outcome::Done,
        412 => Outcome::Failed,
        404 | 409 => Outcome::Refused,
        _ => Outcome::Unknown,
    }
}

fn md5_of(bytes: &[u8]) -> String {
    let digest: [u8; 16] = Md5::digest(bytes).into();
    cairn_types::ObjectHash(digest).hex()
}

/// The ETag of the current version; an error if it is unknown, with the reason if that is a
/// violation.
async fn read(
    cluster: &Cluster,
    proxy: usize,
    object: &str,
    newest: bool,
) -> Result<Option<String>, Option<String>> {
    let mut headers = Vec::new();
    if newest {
        headers.push(("x-newest", "true".to_owned()));
    }
    let name = path(CONTAINER, Some(object));
    let answer = ask(cluster, proxy, Method::GET, &name, &headers, Body::empty()).await;
    let answer = answer.ok_or(None)?;
    match answer.status {
        404 => return Ok(None),
        200 => {}
        _ => return Err(None),
    }
    let etag = answer.headers.get("etag").and_then(|v| v.to_str().ok());
    let etag = etag.unwrap_or_default().trim_matches('"').to_owned();
    let body = answer.body.ok_or(None)?;
    match md5_of(&body) == etag {
        true => Ok(Some(etag)),
        false => Err(Some(format!(
            "{object}: content does not match its ETag {etag}"
        ))),
    }
}

/// Final check of the histories.
pub(crate) async fn check(cluster: &Cluster, swaps: &Swaps, wrong: &mut Vec<String>) {
    for object in OBJECTS {
        let history = swaps.of(object);
        match read(cluster, 0, object, true).await {
            Ok(last) => {
                // A server that forgets its doubts may drop a version that was seen.
                let seen = match cluster.shared.keeps_nodes() {
                    true => history.seen.clone(),
                    false => BTreeSet::new(),
                };
                let mut found = verify(&history.attempts, &seen, &history.seen, last.as_deref());
                found.extend(refused_in_vain(&history.attempts));
                wrong.extend(found.into_iter().map(|text| format!("{object}: {text}")));
            }
            Err(why) => wrong.push(why.unwrap_or_else(|| format!("{object}: not to be read"))),
        }
        check_replicas(cluster, object, wrong);
    }
}

fn check_replicas(cluster: &Cluster, object: &str, wrong: &mut Vec<String>) {
    let policy = cairn_types::PolicyIndex(0);
    let Some(ring) = cluster.rings().object(policy) else {
        return;
    };
    let names = (Some(CONTAINER), Some(object));
    let partition = ring.partition(&hash_path(), ACCOUNT, names.0, names.1);
    let hash = hash_path().hash(ACCOUNT, names.0, names.1);
    let primaries = ring.primaries(partition);
    let primaries: Vec<usize> = primaries.iter().map(|n| n.device.id as usize).collect();
    let Some(nodes) = replicas::of_all(cluster, policy, wrong) else {
        return;
    };
    let has: Vec<_> = nodes.iter().map(|replicas| replicas.get(&hash)).collect();
    for node in 0..NODES {
        let is_right = match primaries.contains(&node) {
            true => has[node] == has[primaries[0]],
            false => has[node].is_none(),
        };
        if !is_right {
            wrong.push(format!("{object} on n{node} is {:?} of {has:?}", has[node]));
        }
    }
}

/// Finds contradictions between these writes. `kept` are versions seen that must be on the path,
/// `seen` all versions seen, `last` is the final version.
fn verify(
    attempts: &[Attempt],
    kept: &BTreeSet<String>,
    seen: &BTreeSet<String>,
    last: Option<&str>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let puts: BTreeMap<&str, &Attempt> = attempts
        .iter()
        .filter_map(|attempt| Some((attempt.after.as_deref()?, attempt)))
        .collect();
    for etag in seen.iter().map(String::as_str).chain(last) {
        match puts.get(etag).map(|put| put.outcome) {
            None => wrong.push(format!("{etag} was seen, and nobody wrote it")),
            Some(outcome) if outcome.is_refused() => {
                wrong.push(format!("{etag} was seen, and was refused"));
            }
            _ => {}
        }
    }
    // Writes that certainly happened, with the versions they replaced.
    let done = |attempt: &&Attempt| attempt.outcome == Outcome::Done;
    let certain = attempts.iter().filter(done);
    let certain = certain.flat_map(|a| [a.before.as_deref(), a.after.as_deref()]);
    let certain = certain
        .flatten()
        .chain(kept.iter().map(String::as_str))
        .chain(last);
    let mut happened: BTreeSet<&str> = BTreeSet::new();
    for etag in certain {
        let mut next = Some(etag);
        while let Some(etag) = next {
            if !happened.insert(etag) {
                break;
            }
            next = puts.get(etag).and_then(|put| put.before.as_deref());
        }
    }
    for etag in &happened {
        if puts.get(etag).is_some_and(|put| put.outcome.is_refused()) {
            wrong.push(format!("{etag} was refused, and built on"));
        }
    }
    // Each version has at most one successor.
    let followers = |etag: &str| -> Vec<String> {
        let follows = |attempt: &&Attempt| {
            attempt.before.as_deref() == Some(etag)
                && match &attempt.after {
                    Some(after) => happened.contains(&**after),
                    None => attempt.outcome == Outcome::Done,
                }
        };
        let followers = attempts.iter().filter(follows);
        followers.map(|a| format!("{:?}", a.after)).collect()
    };
    let mut leaves = Vec::new();
    for etag in &happened {
        let followers = followers(etag);
        if followers.len() > 1 {
            wrong.push(format!("{etag} was replaced by each of {followers:?}"));
        }
        if !followers.iter().any(|follower| follower != "None") {
            leaves.push(*etag);
        }
    }
    for leaf in leaves {
        let is_last = last == Some(leaf);
        if is_last && !followers(leaf).is_empty() {
            wrong.push(format!("{leaf} was deleted, and is there"));
        }
        if !is_last && !may_be_deleted(attempts, leaf) {
            wrong.push(format!("{leaf} is lost; {last:?} is there"));
        }
    }
    wrong
}

/// Refused conditions on versions that existed all the time: acknowledged before, and replaced by
/// nobody.
fn refused_in_vain(attempts: &[Attempt]) -> Vec<String> {
    let mut wrong = Vec::new();
    for failed in attempts {
        let (Outcome::Failed, Some(etag), Some(ended)) =
            (failed.outcome, failed.before.as_deref(), failed.ended)
        else {
            continue;
        };
        let was_there = attempts.iter().any(|put| {
            let is_before = put.ended.is_some_and(|ended| ended < failed.began);
            put.after.as_deref() == Some(etag) && put.outcome == Outcome::Done && is_before
        });
        let may_replace = |other: &Attempt| {
            let is_from = other.before.as_deref() == Some(etag);
            is_from && other.began < ended && !other.outcome.is_refused()
        };
        if was_there && !attempts.iter().any(may_replace) {
            wrong.push(format!(
                "{:?} was refused, and {etag} was there",
                failed.after
            ));
        }
    }
    wrong
}

/// Whether a deletion may have followed this version, directly or indirectly.
fn may_be_deleted(attempts: &[Attempt], etag: &str) -> bool {
    let mut next = vec![etag];
    while let Some(etag) = next.pop() {
        let followers = attempts
            .iter()
            .filter(|a| a.before.as_deref() == Some(etag) && !a.outcome.is_refused());
        for follower in followers {
            match &follower.after {
                None => return true,
                Some(after) => next.push(after),
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(before: &str, after: &str, outcome: Outcome) -> Attempt {
        let named = |name: &str| (!name.is_empty()).then(|| name.to_owned());
        Attempt {
            before: named(before),
            after: named(after),
            outcome,
            began: 0,
            ended: None,
        }
    }

    fn between(began: usize, ended: usize, attempt: Attempt) -> Attempt {
        Attempt {
            began,
            ended: Some(ended),
            ..attempt
        }
    }

    #[test]
    fn a_condition_that_held_is_not_refused() {
        use Outcome::{Done, Failed, Refused, Unknown};
        let mut all = vec![
            between(1, 2, attempt("", "a", Done)),
            between(3, 6, attempt("a", "b", Failed)),
        ];
        assert_eq!(refused_in_vain(&all).len(), 1);
        all.push(between(5, 9, attempt("a", "c", Refused)));
        assert_eq!(refused_in_vain(&all).len(), 1, "that was not written");
        all[2].outcome = Unknown;
        assert!(refused_in_vain(&all).is_empty(), "it may have been there");
        all[2].began = 7;
        assert_eq!(refused_in_vain(&all).len(), 1, "not then");
        all[0].ended = Some(4);
        assert!(refused_in_vain(&all).is_empty(), "not everywhere yet");
    }

    fn is_wrong(attempts: &[Attempt], seen: &[&str], last: &str) -> bool {
        let seen: BTreeSet<String> = seen.iter().map(|etag| (*etag).to_owned()).collect();
        let last = Some(last).filter(|last| !last.is_empty());
        !verify(attempts, &seen, &seen, last).is_empty()
    }

    #[test]
    fn one_path_of_the_tree_has_happened() {
        use Outcome::{Done, Refused, Unknown};
        let mut all = vec![
            attempt("", "a", Done),
            attempt("", "b", Refused),
            attempt("a", "c", Done),
            attempt("a", "d", Unknown),
        ];
        assert!(!is_wrong(&all, &["a"], "c"));
        assert!(is_wrong(&all, &[], "a"), "c is lost");
        assert!(is_wrong(&all, &[], "b"), "it was refused");
        assert!(is_wrong(&all, &["d"], "c"), "both were there");
        assert!(is_wrong(&all, &[], ""), "nobody deleted it");
        assert!(is_wrong(&all, &["x"], "c"), "nobody wrote it");
        all.push(attempt("a", "e", Done));
        assert!(is_wrong(&all, &[], "c"), "two replaced a");
        all.pop();
        all.push(attempt("c", "", Unknown));
        assert!(!is_wrong(&all, &[], "") && !is_wrong(&all, &[], "c"));
        all.push(attempt("", "f", Done));
        assert!(!is_wrong(&all, &[], "f"));
        assert!(is_wrong(&all, &[], "c"), "f is lost");
        all[4].outcome = Done;
        assert!(is_wrong(&all, &[], "c"), "it was deleted");
        all[4].outcome = Refused;
        assert!(is_wrong(&all, &[], "f"), "c was there");
    }
}
