//! Time from the start of the process until the store serves: all devices have their objects, and
//! objects drawn by lot are read from it.

use std::time::Instant;

use anyhow::{Result, ensure};
use serde::Serialize;

use super::{CONTAINERS, Part, wait_for};
use crate::bench::disk::drop_caches;
use cairn_testkit::cairn::Spread;
use cairn_testkit::random::Random;

/// Objects that are read.
const READS: usize = 64;
const SECONDS_MAX: u64 = 600;

#[derive(Serialize)]
pub(super) struct Start {
    how: &'static str,
    /// Until the servers answer.
    listening_seconds: f64,
    /// Until the first object was read.
    first_get_seconds: f64,
    /// Until all devices have their objects, and all reads were answered.
    pub(super) served_seconds: f64,
    /// By the log: of each device, what was read behind its checkpoint, and milliseconds.
    opened: Vec<Opened>,
}

#[derive(Serialize)]
struct Opened {
    replayed: u64,
    milliseconds: u64,
}

impl Opened {
    fn of(line: &str) -> Opened {
        let field = |name: &str| {
            let mut words = line.split_whitespace();
            let value = words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            value.and_then(|value| value.parse().ok()).unwrap_or(0)
        };
        Opened {
            replayed: field("replayed"),
            milliseconds: field("milliseconds"),
        }
    }
}

impl Part {
    /// Starts the store, with nothing in the page cache.
    pub(super) fn started(&mut self, records: u64, how: &'static str) -> Result<Start> {
        drop_caches()?;
        let begun = Instant::now();
        self.store.start(Spread::OneProcess)?;
        let listening_seconds = begun.elapsed().as_secs_f64();
        let mut account = self.store.account()?;
        let mut random = Random::new(1);
        let mut first_get_seconds = None;
        for _ in 0..READS {
            let object = random.below(records / super::REPLICAS);
            let path = format!("/bench-{}/o{object:010}", object % CONTAINERS);
            let answer = account.call("GET", &path, "", &[], b"")?;
            ensure!(answer.status == 200, "GET {path}: {}", answer.status);
            first_get_seconds.get_or_insert_with(|| begun.elapsed().as_secs_f64());
        }
        wait_for("all devices", SECONDS_MAX, || {
            Ok(self.figure("cairn_pebbles_objects")? >= records)
        })?;
        let start = Start {
            how,
            listening_seconds,
            first_get_seconds: first_get_seconds.unwrap_or(0.0),
            served_seconds: begun.elapsed().as_secs_f64(),
            opened: self.opened()?,
        };
        println!(
            "start, {how}: listens after {:.2} s, first GET after {:.2} s, all devices after {:.2} s",
            start.listening_seconds, start.first_get_seconds, start.served_seconds
        );
        for opened in &start.opened {
            println!(
                "    a device: {} records replayed, {} ms",
                opened.replayed, opened.milliseconds
            );
        }
        Ok(start)
    }

    /// The last opening of each device, by the log.
    fn opened(&self) -> Result<Vec<Opened>> {
        let lines = self.process()?.log_lines("volumes opened");
        let before = lines.len().saturating_sub(self.store.devices()?.len());
        Ok(lines[before..]
            .iter()
            .map(|line| Opened::of(line))
            .collect())
    }
}
