//! Disk reads of a GET whose object is in no cache: the store runs, the kernel's page cache was
//! dropped, and each object is read once, one after the other. The first ones also read where on the
//! file system a volume is, which the kernel forgets at no other time than when it is told to; those
//! that follow, of other objects, are what counts.

use std::time::Instant;

use anyhow::{Result, ensure};
use serde::Serialize;

use super::{CONTAINERS, OBJECT_BYTES, Part};
use crate::bench::disk::{Traffic, drop_caches};
use cairn_testkit::figures::median;
use cairn_testkit::random::Random;
use cairn_testkit::wire::Account;

const GETS: u64 = 2000;
/// Rounds of these before: so that every volume was read from, of some hundreds.
const FIRST_ROUNDS: u64 = 4;

#[derive(Serialize)]
pub(super) struct ColdGets {
    gets: u64,
    /// Counted by the block device of the store's devices.
    traffic: Traffic,
    pub(super) reads_a_get: f64,
    /// Bytes that the process had read from disks, by the kernel.
    process_bytes_a_get: f64,
    p50_ms: f64,
    /// Those before, when the file system's own blocks were in no cache either.
    first_reads_a_get: f64,
}

impl ColdGets {
    pub(super) fn line(&self) -> String {
        format!(
            "cold GET: {:.3} disk reads ({:.3} just after the drop) of {:.0} bytes in all ({:.0} bytes \
             by the process's own count), p50 {:.2} ms",
            self.reads_a_get,
            self.first_reads_a_get,
            self.traffic.read_bytes as f64 / self.gets as f64,
            self.process_bytes_a_get,
            self.p50_ms
        )
    }
}

impl Part {
    pub(super) fn cold_gets(&self, objects: u64) -> Result<ColdGets> {
        let mut account = self.store.account()?;
        let mut random = Random::new(2);
        drop_caches()?;
        // Blocks of the containers' databases are read before.
        for container in 0..CONTAINERS {
            let path = format!("/bench-{container}/o{container:010}");
            let answer = account.call("GET", &path, "", &[], b"")?;
            ensure!(answer.status == 200, "GET {path}: {}", answer.status);
        }
        let before = Traffic::below(self.disk.path())?;
        for _ in 0..FIRST_ROUNDS {
            Part::read_by_lot(&mut account, &mut random, objects)?;
        }
        let first = Traffic::below(self.disk.path())?.since(before);
        let (before, process_before) = (Traffic::below(self.disk.path())?, self.read_bytes()?);
        let times = Part::read_by_lot(&mut account, &mut random, objects)?;
        let traffic = Traffic::below(self.disk.path())?.since(before);
        let process = self.read_bytes()? - process_before;
        Ok(ColdGets {
            gets: GETS,
            traffic,
            reads_a_get: traffic.reads as f64 / GETS as f64,
            process_bytes_a_get: process as f64 / GETS as f64,
            p50_ms: median(times).unwrap_or(0.0),
            first_reads_a_get: first.reads as f64 / (FIRST_ROUNDS * GETS) as f64,
        })
    }

    /// Reads objects drawn by lot; returns milliseconds.
    fn read_by_lot(account: &mut Account, random: &mut Random, objects: u64) -> Result<Vec<f64>> {
        let mut times = Vec::new();
        for _ in 0..GETS {
            let object = random.below(objects);
            let path = format!("/bench-{}/o{object:010}", object % CONTAINERS);
            let begun = Instant::now();
            let answer = account.call("GET", &path, "", &[], b"")?;
            times.push(begun.elapsed().as_secs_f64() * 1000.0);
            let is_whole = answer.body.len() as u64 == OBJECT_BYTES;
            ensure!(
                answer.status == 200 && is_whole,
                "GET {path}: {}",
                answer.status
            );
        }
        Ok(times)
    }

    /// Bytes that the process has had read from disks.
    fn read_bytes(&self) -> Result<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/io", self.process()?.id()))?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("read_bytes: "));
        Ok(line.and_then(|line| line.parse().ok()).unwrap_or(0))
    }
}
