//! Clients that go on while the cluster changes under them: PUT, POST, DELETE, GET and HEAD on
//! objects of both policies, listings, and containers of their own. They know what was
//! acknowledged, and every answer must fit it: no request may fail.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use cairn_testkit::model::keys::{Key, State, Write, next_version, version_of};
use cairn_testkit::model::load::{self, Counts};
use cairn_testkit::random::Random;
use cairn_testkit::wire::{Account, Response};

/// Pause between a client's requests: the servers should be busy, not the machine overrun.
const PAUSE: Duration = Duration::from_millis(150);
/// Maximum number of wrong answers that a client reports before it stops.
const MESSAGES_MAX: usize = 20;

/// Observations of all clients so far.
#[derive(Default)]
pub(super) struct Observations {
    pub(super) requests: AtomicU64,
    pub(super) wrong: Mutex<Vec<String>>,
    slowest_ms: AtomicU64,
    /// Whether some proxy is OpenStack Swift's: for an object in fragments, its GET returns the
    /// metadata of any server, with X-Newest or without.
    pub(super) has_swift_proxy: AtomicBool,
}

impl Observations {
    fn note(&self, words: String) {
        println!("        WRONG {words}");
        self.wrong.lock().push(words);
    }

    pub(super) fn errors(&self) -> usize {
        self.wrong.lock().len()
    }

    /// The longest duration of a request since the last call.
    pub(super) fn slowest(&self) -> Duration {
        Duration::from_millis(self.slowest_ms.swap(0, Ordering::Relaxed))
    }
}

pub(super) struct Client<'a> {
    pub(super) account: Account,
    pub(super) keys: &'a mut [Key],
    pub(super) random: Random,
    pub(super) seen: &'a Observations,
    pub(super) number: usize,
}

impl Client<'_> {
    pub(super) fn run(mut self, stop: &AtomicBool) {
        let mut said = 0;
        for turn in 0u64.. {
            if stop.load(Ordering::Relaxed) || said >= MESSAGES_MAX {
                return;
            }
            let start = Instant::now();
            let outcome = self.step(turn);
            let took = start.elapsed().as_millis() as u64;
            self.seen.slowest_ms.fetch_max(took, Ordering::Relaxed);
            if let Err(words) = outcome {
                self.seen.note(format!("client {}: {words}", self.number));
                said += 1;
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn step(&mut self, turn: u64) -> Result<(), String> {
        let index = self.random.below(self.keys.len() as u64) as usize;
        match self.random.below(20) {
            0..=2 => self.read(index, "GET", false),
            3..=4 => self.read(index, "GET", true),
            5 => self.read(index, "HEAD", true),
            6 => self.list(index),
            7 => self.own_container(turn),
            8..=10 => self.write(index, Write::Delete),
            11..=13 if matches!(self.keys[index].settled(), Some(State::Present { .. })) => {
                let number = next_version();
                self.write(index, Write::Post { number })
            }
            _ => {
                let version = next_version();
                self.write(index, Write::Put { version })
            }
        }
    }

    fn write(&mut self, index: usize, write: Write) -> Result<(), String> {
        self.count(1);
        let mut counts = Counts::default();
        let size = load::size(&mut self.random);
        let key = &mut self.keys[index];
        if !load::write(&mut self.account, key, write, size, &mut counts) {
            return Err(format!("{write:?} of {}: the connection broke", key.path()));
        }
        match counts.wrong.pop() {
            Some(words) => Err(words),
            None => Ok(()),
        }
    }

    /// Reads the object; with X-Newest the answer must be a possible state. Without, any replica's
    /// answer is accepted if it is a whole version, and no "not found" while the object exists.
    fn read(&mut self, index: usize, method: &str, newest: bool) -> Result<(), String> {
        let path = self.keys[index].path();
        let headers: &[(&str, &str)] = if newest { &[("X-Newest", "true")] } else { &[] };
        let response = self.call(method, &path, "", headers, b"")?;
        let key = &self.keys[index];
        let found = match response.status {
            404 => State::Absent,
            200 if method == "HEAD" => {
                let there = key.possible.iter().any(|s| *s != State::Absent);
                return there
                    .then_some(())
                    .ok_or(format!("HEAD {path}: 200, it was deleted"));
            }
            200 => {
                let version = version_of(&path, &response.body);
                let version = version.ok_or(format!("{method} {path}: no whole version"))?;
                let posted = response.header("x-object-meta-posted");
                let posted = posted.and_then(|number| number.parse().ok());
                State::Present { version, posted }
            }
            status => return Err(format!("{method} {path}: {status}")),
        };
        let stale = !newest && found != State::Absent;
        if stale || key.possible.contains(&found) || self.is_swifts_choice(index, &found) {
            return Ok(());
        }
        let words = "it must be one of";
        let newest = if newest { "newest " } else { "" };
        Err(format!(
            "{newest}{method} {path}: found {found:?}, {words} {:?}",
            key.possible
        ))
    }

    /// Whether the content is right and the metadata is from an earlier POST, which Swift's proxy
    /// may return.
    fn is_swifts_choice(&self, index: usize, found: &State) -> bool {
        let version = |state: &State| match state {
            State::Present { version, .. } => Some(*version),
            State::Absent => None,
        };
        let key = &self.keys[index];
        self.seen.has_swift_proxy.load(Ordering::Relaxed)
            && key.container.starts_with("/coded")
            && version(found).is_some()
            && key.possible.iter().any(|s| version(s) == version(found))
    }

    /// Lists the container. A listing may lag behind, so only its arrival and its form are checked.
    fn list(&mut self, index: usize) -> Result<(), String> {
        let container = self.keys[index].container.clone();
        let path = *self.random.pick(&["", container.as_str()]);
        let response = self.call("GET", path, "?format=json", &[], b"")?;
        let rows = serde_json::from_slice::<Vec<serde_json::Value>>(&response.body);
        match (response.status, rows) {
            (200, Ok(rows)) if !rows.is_empty() || !path.is_empty() => Ok(()),
            (status, _) => Err(format!("listing of {path:?}: {status}")),
        }
    }

    /// Creates a container of the client's own, fills it, empties it and deletes it.
    fn own_container(&mut self, turn: u64) -> Result<(), String> {
        let container = format!("/own-{}-{turn}", self.number);
        let object = format!("{container}/o");
        // A replicator may have created it on a server before the request arrived there.
        self.expect("PUT", &container, b"", &[201, 202])?;
        self.expect("PUT", &object, b"content", &[201])?;
        self.expect("HEAD", &container, b"", &[204])?;
        self.expect("GET", &object, b"", &[200])?;
        self.expect("DELETE", &object, b"", &[204])?;
        // The object's row may still be there.
        self.expect("DELETE", &container, b"", &[204, 409])
    }

    fn expect(
        &mut self,
        method: &str,
        path: &str,
        body: &[u8],
        expected: &[u16],
    ) -> Result<(), String> {
        let status = self.call(method, path, "", &[], body)?.status;
        if expected.contains(&status) {
            return Ok(());
        }
        Err(format!("{method} {path}: {status}, expected {expected:?}"))
    }

    fn call(
        &mut self,
        method: &str,
        path: &str,
        query: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Response, String> {
        self.count(1);
        let answer = self.account.call(method, path, query, headers, body);
        answer.map_err(|error| format!("{method} {path}: {error:#}"))
    }

    fn count(&self, requests: u64) {
        self.seen.requests.fetch_add(requests, Ordering::Relaxed);
    }
}
