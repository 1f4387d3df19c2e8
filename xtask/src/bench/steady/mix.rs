//! Clients of `bench steady`, a request at a time each, and what was acknowledged to them. Each has
//! numbers of objects of its own, so that it knows the last version of each.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use hdrhistogram::Histogram;
use serde::Serialize;

use super::path_of;
use cairn_testkit::random::Random;
use cairn_testkit::wire::{Account, Response};

/// From one look whether to go on to the next.
const LOOK: Duration = Duration::from_millis(500);
/// A refused request is repeated after this pause.
const PAUSE: Duration = Duration::from_millis(50);
const FULL: u16 = 507;
const UNAVAILABLE: u16 = 503;
/// One turn in so many deletes and creates, the others overwrite.
const TURNS: u64 = 5;

/// Requests of a measurement; latencies are of PUTs.
#[derive(Default, Serialize)]
pub(super) struct Counts {
    pub(super) overwrites: u64,
    pub(super) creates: u64,
    pub(super) deletes: u64,
    /// Answers of a store without room.
    pub(super) refused: u64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
}

/// One of the clients.
struct Client {
    account: Account,
    random: Random,
    body: Vec<u8>,
    /// Objects that are there, and their versions.
    there: Vec<(u64, u64)>,
    deleted: Vec<u64>,
    version: u64,
    next: u64,
    step: u64,
}

pub(super) struct Clients(Vec<Client>);

struct Seen {
    counts: Counts,
    puts: Histogram<u64>,
}

impl Clients {
    pub(super) fn new(account: &Account, count: usize, size: u64) -> Clients {
        let client = |number: u64| {
            let mut random = Random::new(number + 1);
            Client {
                account: account.another(),
                body: random.bytes(size as usize),
                random,
                there: Vec::new(),
                deleted: Vec::new(),
                version: 0,
                next: number,
                step: count as u64,
            }
        };
        Clients((0..count as u64).map(client).collect())
    }

    pub(super) fn objects(&self) -> u64 {
        self.0.iter().map(|client| client.there.len() as u64).sum()
    }

    /// Creates objects until there are so many, or `is_enough`.
    pub(super) fn fill(
        &mut self,
        most: u64,
        mut is_enough: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let made = AtomicU64::new(0);
        self.run(
            || Ok(made.load(Ordering::Relaxed) < most && !is_enough()?),
            |client, seen| {
                if made.fetch_add(1, Ordering::Relaxed) < most {
                    client.create(seen)?;
                } else {
                    std::thread::sleep(PAUSE);
                }
                Ok(())
            },
        )
        .map(drop)
    }

    /// Has all clients do the mix for as long as `goes_on` says.
    pub(super) fn mix(&mut self, goes_on: impl FnMut() -> Result<bool>) -> Result<Counts> {
        self.run(goes_on, Client::turn)
    }

    fn run(
        &mut self,
        mut goes_on: impl FnMut() -> Result<bool>,
        turn: impl Fn(&mut Client, &mut Seen) -> Result<()> + Sync,
    ) -> Result<Counts> {
        let stop = AtomicBool::new(false);
        let mut all = Seen::new()?;
        std::thread::scope(|scope| -> Result<()> {
            let (stop, turn) = (&stop, &turn);
            let threads = self.0.iter_mut().map(|client| {
                scope.spawn(move || -> Result<Seen> {
                    let mut seen = Seen::new()?;
                    while !stop.load(Ordering::Relaxed) {
                        turn(client, &mut seen)?;
                    }
                    Ok(seen)
                })
            });
            let threads: Vec<_> = threads.collect();
            let looked = loop {
                match goes_on() {
                    Ok(true) if !threads.iter().any(|thread| thread.is_finished()) => {}
                    looked => break looked,
                }
                std::thread::sleep(LOOK);
            };
            stop.store(true, Ordering::Relaxed);
            for thread in threads {
                let seen = thread.join().map_err(|_| anyhow!("a client panicked"))??;
                all.add(&seen)?;
            }
            looked.map(drop)
        })?;
        Ok(all.finish())
    }

    /// Reads every object, and some of the deleted ones; returns how many were as acknowledged.
    pub(super) fn verify(&mut self) -> Result<u64> {
        std::thread::scope(|scope| {
            let verify = |client| scope.spawn(move || Client::verify(client));
            let threads: Vec<_> = self.0.iter_mut().map(verify).collect();
            let ended = threads.into_iter().map(|thread| {
                let ended = thread.join();
                ended.map_err(|_| anyhow!("a client panicked"))?
            });
            ended.sum()
        })
    }
}

impl Client {
    fn turn(&mut self, seen: &mut Seen) -> Result<()> {
        ensure!(!self.there.is_empty(), "a client has no objects");
        let at = self.random.below(self.there.len() as u64) as usize;
        if self.random.below(TURNS) > 0 {
            let number = self.there[at].0;
            self.there[at].1 = self.put(number, seen)?;
            seen.counts.overwrites += 1;
            return Ok(());
        }
        let (number, _) = self.there.swap_remove(at);
        self.send("DELETE", number, seen)?;
        self.deleted.push(number);
        seen.counts.deletes += 1;
        self.create(seen)
    }

    fn create(&mut self, seen: &mut Seen) -> Result<()> {
        let number = self.next;
        self.next += self.step;
        let version = self.put(number, seen)?;
        self.there.push((number, version));
        seen.counts.creates += 1;
        Ok(())
    }

    /// Puts the next version of an object, which it returns.
    fn put(&mut self, number: u64, seen: &mut Seen) -> Result<u64> {
        self.version += 1;
        stamp(&mut self.body, number, self.version);
        let begun = Instant::now();
        self.send("PUT", number, seen)?;
        let us = u64::try_from(begun.elapsed().as_micros())?;
        seen.puts.saturating_record(us.max(1));
        Ok(self.version)
    }

    fn send(&mut self, method: &str, number: u64, seen: &mut Seen) -> Result<()> {
        let path = path_of(number);
        loop {
            let body = if method == "PUT" { &self.body[..] } else { b"" };
            let answer = self.account.call(method, &path, "", &[], body)?;
            match answer.status {
                FULL | UNAVAILABLE => {
                    seen.counts.refused += 1;
                    std::thread::sleep(PAUSE);
                }
                _ if answer.is_success() => return Ok(()),
                // An attempt that was refused may have deleted it on the other devices.
                404 if method == "DELETE" && seen.counts.refused > 0 => return Ok(()),
                status => bail!("{method} {path}: {status} {}", answer.text()),
            }
        }
    }

    fn verify(&mut self) -> Result<u64> {
        let mut wanted = self.body.clone();
        for &(number, version) in &self.there {
            stamp(&mut wanted, number, version);
            let path = path_of(number);
            let answer = newest(&mut self.account, &path)?;
            ensure!(answer.status == 200, "GET {path}: {}", answer.status);
            ensure!(answer.body == wanted, "{path} has other content");
        }
        for &number in self.deleted.iter().rev().take(100) {
            let path = path_of(number);
            let answer = newest(&mut self.account, &path)?;
            ensure!(answer.status == 404, "deleted {path}: {}", answer.status);
        }
        Ok(self.there.len() as u64)
    }
}

/// The newest version: a device that was full has the one before, as its part of what is newer is on another
/// one until it is replicated.
fn newest(account: &mut Account, path: &str) -> Result<Response> {
    account.call("GET", path, "", &[("X-Newest", "true")], b"")
}

/// Makes a body that of a version of an object.
fn stamp(body: &mut [u8], number: u64, version: u64) {
    let stamp = [number.to_le_bytes(), version.to_le_bytes()].concat();
    let len = stamp.len().min(body.len());
    body[..len].copy_from_slice(&stamp[..len]);
}

impl Seen {
    fn new() -> Result<Seen> {
        Ok(Seen {
            counts: Counts::default(),
            puts: Histogram::new_with_bounds(1, 600_000_000, 3).context("a histogram")?,
        })
    }

    fn add(&mut self, other: &Seen) -> Result<()> {
        self.counts.overwrites += other.counts.overwrites;
        self.counts.creates += other.counts.creates;
        self.counts.deletes += other.counts.deletes;
        self.counts.refused += other.counts.refused;
        Ok(self.puts.add(&other.puts)?)
    }

    fn finish(mut self) -> Counts {
        let ms = |us: u64| us as f64 / 1000.0;
        self.counts.p50_ms = ms(self.puts.value_at_quantile(0.5));
        self.counts.p99_ms = ms(self.puts.value_at_quantile(0.99));
        self.counts.max_ms = ms(self.puts.max());
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_says_which_version_it_is() {
        let mut body = vec![7; 20];
        stamp(&mut body, 1, 2);
        assert_eq!(body[..8], 1u64.to_le_bytes());
        assert_eq!(body[8..16], 2u64.to_le_bytes());
        assert_eq!(body[16..], [7; 4]);
        stamp(&mut body[..3], 9, 9);
    }
}
