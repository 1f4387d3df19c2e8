//! The load: clients that each write and read objects of their own at a constant rate, and track
//! acknowledgements. A client uses the proxy of its region; if that refuses the connection, the
//! other one. Every other failure, and every invalid status, is an error.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use cairn_testkit::model::keys::{Key, State, Write, next_version, payload, version_of};
use cairn_testkit::model::{CONTAINERS, container, load};
use cairn_testkit::random::Random;
use cairn_testkit::wire::{Account, Response};

/// Number of clients, with alternating preferred proxies.
pub(super) const CLIENTS: usize = 8;
/// Number of keys that a client changes; the others are written once and then only read.
const CHANGING: usize = 12;

/// A finished request.
#[derive(Clone, Debug)]
pub(super) struct FinishedRequest {
    pub(super) began: Instant,
    pub(super) took: Duration,
    pub(super) verb: &'static str,
    pub(super) error: Option<String>,
    /// Transaction id of the response, if there was one.
    pub(super) trans_id: Option<String>,
    /// Fewer than two primaries of the object, which is written or may not exist, are on its
    /// proxy's side of the cut.
    pub(super) few_there: bool,
    /// The error is a 503 without a quorum: a POST with too few reachable primaries (no other
    /// server can take it), a GET there of an object that those do not have, or an upload that lost
    /// most of its servers midway.
    pub(super) without_quorum: bool,
}

impl FinishedRequest {
    pub(super) fn is_error(&self) -> bool {
        self.error.is_some() && !self.without_quorum
    }
}

/// Number of primaries of an object in each region, by path.
pub(super) type Sides = BTreeMap<String, [usize; 2]>;

/// A client's connections to both proxies.
pub(super) struct Proxies {
    accounts: Vec<Account>,
    first: usize,
    /// Transaction id of the last response.
    trans_id: Option<String>,
}

impl Proxies {
    pub(super) fn login(addresses: &[SocketAddr]) -> Result<Proxies> {
        let login = |address: &SocketAddr| Account::login_to(*address, "test:tester", "testing");
        let accounts: Result<Vec<Account>> = addresses.iter().map(login).collect();
        let accounts = accounts.context("logging in")?;
        Ok(Proxies {
            accounts,
            first: 0,
            trans_id: None,
        })
    }

    fn another(&self, first: usize) -> Proxies {
        Proxies {
            accounts: self.accounts.iter().map(Account::another).collect(),
            first,
            trans_id: None,
        }
    }

    pub(super) fn through(&mut self, number: usize) -> &mut Account {
        &mut self.accounts[number]
    }

    fn call(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Response> {
        let answer = self.accounts[self.first].call(method, path, "", headers, body);
        let refused = |error: &anyhow::Error| {
            let cause = error.downcast_ref::<std::io::Error>();
            cause.is_some_and(|e| e.kind() == ErrorKind::ConnectionRefused)
        };
        let answer = match answer {
            Err(error) if refused(&error) => {
                self.first = (self.first + 1) % self.accounts.len();
                self.accounts[self.first].call(method, path, "", headers, body)
            }
            answer => answer,
        };
        let answered = answer.as_ref().ok();
        self.trans_id = answered.and_then(|answer| answer.header("x-trans-id").map(str::to_owned));
        answer
    }
}

/// A running load.
pub(super) struct Clients {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<(Vec<Key>, Vec<FinishedRequest>)>>,
}

/// Creates the containers, and the objects that do not change.
pub(super) fn prepare(
    proxies: &mut Proxies,
    objects: usize,
    headers: &[(&str, &str)],
) -> Result<Vec<Vec<Key>>> {
    for number in 0..CONTAINERS {
        let account = proxies.through(0);
        account.must("PUT", &container(number), "", headers, b"")?;
    }
    let mut random = Random::new(1);
    let mut all = Vec::new();
    for client in 0..CLIENTS {
        let mut keys = Vec::new();
        for number in 0..CHANGING + objects / CLIENTS {
            let mut key = Key::new(
                &container(number % CONTAINERS),
                format!("w{client}/k{number:04}"),
            );
            if number >= CHANGING {
                let write = Write::Put {
                    version: next_version(),
                };
                let before = key.sent(write);
                let Write::Put { version } = write else {
                    bail!("a PUT was made")
                };
                let body = payload(&key.path(), version, load::size(&mut random));
                let account = proxies.through(number % 2);
                account.must("PUT", &key.path(), "", &[], &body)?;
                key.acknowledged(write, &before);
            }
            keys.push(key);
        }
        all.push(keys);
    }
    Ok(all)
}

impl Clients {
    /// Starts the clients. `rate` is each client's requests per second; `cut` is the distribution
    /// of primaries while the regions may be cut off.
    pub(super) fn start(
        proxies: &Proxies,
        keys: Vec<Vec<Key>>,
        rate: f64,
        seed: u64,
        cut: Option<&Arc<Sides>>,
    ) -> Clients {
        let stop = Arc::new(AtomicBool::new(false));
        let start = |(number, keys): (usize, Vec<Key>)| {
            let client = Client {
                proxies: proxies.another(number % 2),
                keys,
                random: Random::new(seed ^ (number as u64) << 32),
                seen: Vec::new(),
                cut: cut.cloned(),
                tried: None,
            };
            let stop = stop.clone();
            std::thread::spawn(move || client.run(rate, &stop))
        };
        let threads = keys.into_iter().enumerate().map(start).collect();
        Clients { stop, threads }
    }

    pub(super) fn stop(self) -> Result<(Vec<Vec<Key>>, Vec<FinishedRequest>)> {
        self.stop.store(true, Ordering::Relaxed);
        let (mut all, mut seen) = (Vec::new(), Vec::new());
        for thread in self.threads {
            let Ok((keys, of_client)) = thread.join() else {
                bail!("a client panicked");
            };
            all.push(keys);
            seen.extend(of_client);
        }
        Ok((all, seen))
    }
}

struct Client {
    proxies: Proxies,
    keys: Vec<Key>,
    random: Random,
    seen: Vec<FinishedRequest>,
    cut: Option<Arc<Sides>>,
    /// Path of the last written object.
    tried: Option<String>,
}

impl Client {
    fn run(mut self, rate: f64, stop: &AtomicBool) -> (Vec<Key>, Vec<FinishedRequest>) {
        let pace = Duration::from_secs_f64(1.0 / rate);
        // Clients start at different times.
        let mut due = Instant::now() + pace.mul_f64(self.random.below(100) as f64 / 100.0);
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            // A slow request delays the next ones, without catching up.
            due = (due + pace).max(Instant::now());
            let began = Instant::now();
            self.tried = None;
            let (verb, result) = self.one();
            let took = began.elapsed();
            let error = result.err().map(|error| format!("{verb} {error:#}"));
            self.seen.push(FinishedRequest {
                began,
                took,
                verb,
                few_there: self.few_there(),
                trans_id: self.proxies.trans_id.take(),
                without_quorum: error.as_ref().is_some_and(|error| {
                    matches!(verb, "POST" | "GET") && error.contains(": 503") && self.few_there()
                }),
                error,
            });
        }
        (self.keys, self.seen)
    }

    fn few_there(&self) -> bool {
        let (Some(sides), Some(path)) = (&self.cut, &self.tried) else {
            return false;
        };
        sides.get(path).map_or(3, |sides| sides[self.proxies.first]) < 2
    }

    fn one(&mut self) -> (&'static str, Result<()>) {
        let stable = (self.keys.len() - CHANGING) as u64;
        match self.random.below(20) {
            0..=8 if stable > 0 => {
                let index = CHANGING + self.random.below(stable) as usize;
                ("GET", self.read_stable(index))
            }
            9 => ("list", self.list()),
            choice => {
                let index = self.random.below(CHANGING as u64) as usize;
                self.change(index, choice)
            }
        }
    }

    fn change(&mut self, index: usize, choice: u64) -> (&'static str, Result<()>) {
        let present = matches!(self.keys[index].settled(), Some(State::Present { .. }));
        match choice {
            10..=11 => ("GET", self.read_changing(index)),
            12..=13 => ("DELETE", self.write(index, Write::Delete)),
            14..=15 if present => {
                let number = next_version();
                ("POST", self.write(index, Write::Post { number }))
            }
            _ => {
                let version = next_version();
                ("PUT", self.write(index, Write::Put { version }))
            }
        }
    }

    fn write(&mut self, index: usize, write: Write) -> Result<()> {
        let size = load::size(&mut self.random);
        let key = &mut self.keys[index];
        let (path, before) = (key.path(), key.sent(write));
        self.tried = Some(path.clone());
        let (answer, expected) = match write {
            Write::Put { version } => {
                let body = payload(&path, version, size);
                (self.proxies.call("PUT", &path, &[], &body), 201)
            }
            Write::Post { number } => {
                let number = number.to_string();
                let headers = [("X-Object-Meta-Posted", number.as_str())];
                (self.proxies.call("POST", &path, &headers, b""), 202)
            }
            Write::Delete => (self.proxies.call("DELETE", &path, &[], b""), 204),
        };
        let status = answer?.status;
        // As in Swift: if most of the servers never had the object, and now have its tombstone.
        let nothing_there = matches!(write, Write::Delete) && status == 404;
        ensure!(
            status == expected || nothing_there,
            "{path}: {status}; it was {before:?}"
        );
        key.acknowledged(write, &before);
        Ok(())
    }

    /// Objects from before the faults must be readable at any time.
    fn read_stable(&mut self, index: usize) -> Result<()> {
        let key = &self.keys[index];
        let path = key.path();
        let answer = self.proxies.call("GET", &path, &[], b"")?;
        ensure!(answer.status == 200, "{path}: {}", answer.status);
        let version = version_of(&path, &answer.body);
        let found = version.map(|version| State::Present {
            version,
            posted: None,
        });
        ensure!(found == key.settled(), "{path}: found {found:?}");
        Ok(())
    }

    /// A replica that was away may return an older version, but never an incomplete one. Its 404
    /// alone is not accepted as a response, as in Swift (`rebalance_missing_suppression_count`).
    fn read_changing(&mut self, index: usize) -> Result<()> {
        let path = self.keys[index].path();
        if !matches!(self.keys[index].settled(), Some(State::Present { .. })) {
            self.tried = Some(path.clone());
        }
        let answer = self.proxies.call("GET", &path, &[], b"")?;
        match answer.status {
            200 => ensure!(
                version_of(&path, &answer.body).is_some(),
                "{path}: {} bytes that are no whole version",
                answer.body.len()
            ),
            404 => {}
            status => bail!("{path}: {status}"),
        }
        Ok(())
    }

    fn list(&mut self) -> Result<()> {
        let path = container(self.random.below(CONTAINERS as u64) as usize);
        let answer = self.proxies.call("GET", &path, &[], b"")?;
        ensure!(
            matches!(answer.status, 200 | 204),
            "{path}: {}",
            answer.status
        );
        Ok(())
    }
}

/// Excuses uploads in progress at the time of the fault that lost most of their servers: on the
/// smaller side of a cut, or, for fragments, those of a host. Data that was sent cannot be sent
/// again.
pub(super) fn excuse_uploads(seen: &mut [FinishedRequest], fault: Instant, fragments: bool) {
    for seen in seen {
        let under_way =
            seen.began < fault + Duration::from_secs(1) && seen.began + seen.took > fault;
        let error = seen.error.as_deref().unwrap_or("");
        let refused = error.starts_with("PUT") && error.contains(": 503");
        if under_way && refused && (fragments || seen.few_there) {
            seen.without_quorum = true;
        }
    }
}

/// Paths of all objects that clients change.
pub(super) fn changing(keys: &[Vec<Key>]) -> impl Iterator<Item = String> {
    keys.iter()
        .flat_map(|keys| &keys[..CHANGING])
        .map(Key::path)
}

/// Counts of errors by message, ignoring numbers.
pub(super) fn kinds_of_errors<'a>(
    seen: impl Iterator<Item = &'a FinishedRequest>,
) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    let counted = seen.filter(|seen| seen.is_error());
    for error in counted.filter_map(|seen| seen.error.as_ref()) {
        let words = error.splitn(3, ' ').collect::<Vec<_>>();
        let kind = match words[..] {
            [verb, path, rest] if path.ends_with(':') => {
                let status = rest.split(';').next().unwrap_or(rest);
                format!("{verb}: {status}")
            }
            _ => error.clone(),
        };
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}
