//! Repair of a device with volumes, which have no files to count: the number of its objects is the
//! engine's own (`/metrics`), and they are all back when the device answers REPLICATE for every
//! partition as the other replicas do.
//!
//! Volumes are for one process at a time, so the replicators run in that of the servers, a pass a
//! second after the last one; the clock runs from the loss until all is back, passes that had begun
//! before and the asking included. OpenStack Swift's part is that without `--engine`.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::super::Options;
use super::{Clients, DEVICES, Repaired, Setup};
use crate::engine::EngineName;
use cairn_testkit::process::wait_for;
use cairn_testkit::venv::Venv;
use cairn_testkit::wire::Connection;

const REPLICATOR: &str = "[object-replicator]\nsync_method = ssync\ninterval = 1\n";
const REPLICAS: usize = 3;
/// A client's write may be on its way to the last of its replicas.
const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(50);
/// A dictionary without an entry is shorter than any with one.
const NO_HASHES_BYTES: usize = 16;
const SECONDS_MAX: u64 = 3600;

/// Fills a cluster with volumes, wipes a device and waits until its objects are back.
pub(super) fn repaired(
    venv: &Venv,
    cairn: &Path,
    dir: &Path,
    options: &Options,
) -> Result<Repaired> {
    let dir = dir.join("volumes");
    fs::create_dir_all(&dir)?;
    let mut setup = Setup::create(venv, &dir, options, Some(EngineName::Pebbles))?;
    let mut store = setup.start_cairn(cairn)?;
    setup.fill()?;
    store.stop()?;
    setup.swift.stop();
    for device in 1..=DEVICES {
        let conf = setup.swift.server_conf("object", device);
        fs::write(&conf, fs::read_to_string(&conf)? + REPLICATOR)?;
    }
    let mut store = setup.start_cairn(cairn)?;
    wait_for("replicas in step", SECONDS_MAX, || setup.is_in_step())?;
    let repaired = setup.repaired_volumes()?;
    println!("{}", repaired.line());
    store.stop()?;
    setup.swift.stop();
    Ok(repaired)
}

impl Setup {
    fn repaired_volumes(&mut self) -> Result<Repaired> {
        let clients = Clients::start(self, "before")?;
        std::thread::sleep(Duration::from_secs(5));
        let before = clients.stop()?;
        let lost = self.objects_of_first()?;
        ensure!(lost > 0, "nothing is on the device");
        self.replaced += 1;
        let image = self.dir.join("d1-lost.img");
        self.disks[0].replace(&image)?;
        let begun = Instant::now();
        let clients = Clients::start(self, "beside")?;
        wait_for("all objects", SECONDS_MAX, || {
            Ok(self.objects_of_first()? >= lost && self.is_in_step()?)
        })?;
        let seconds = begun.elapsed().as_secs_f64();
        Ok(Repaired {
            store: "Cairn, volumes",
            files: lost,
            back: lost,
            seconds,
            passes: None,
            before,
            meanwhile: clients.stop()?,
        })
    }

    /// The number of objects on the first device, by its engine.
    fn objects_of_first(&self) -> Result<usize> {
        let mut proxy = Connection::new(self.swift.port);
        let answer = proxy.call("GET", "/metrics", &[], b"")?;
        ensure!(answer.status == 200, "/metrics: {}", answer.status);
        let text = answer.text();
        Ok(objects_in(&text, "d1/pebbles").unwrap_or(0))
    }

    /// Whether all replicas of each partition are equal.
    fn is_in_step(&self) -> Result<bool> {
        let ports = (1..=DEVICES).map(|device| self.swift.port_of("object", device));
        let mut servers: Vec<Connection> = ports.map(Connection::new).collect();
        for partition in 0..1u32 << self.part_power {
            let mut attempt = 0;
            while !is_whole(&mut servers, partition)? {
                attempt += 1;
                if attempt == ATTEMPTS {
                    return Ok(false);
                }
                std::thread::sleep(PAUSE);
            }
        }
        Ok(true)
    }
}

/// Whether as many devices as there are replicas have the same of a partition, and none has
/// anything else; or all have nothing.
fn is_whole(servers: &mut [Connection], partition: u32) -> Result<bool> {
    let mut found = Vec::new();
    for (server, device) in servers.iter_mut().zip(1..) {
        let path = format!("/d{device}/{partition}");
        let answer = server.call("REPLICATE", &path, &[], b"");
        let answer = answer.with_context(|| format!("REPLICATE of {path}"))?;
        // The device may be away just now.
        if !answer.is_success() {
            return Ok(false);
        }
        if answer.body.len() >= NO_HASHES_BYTES {
            found.push(answer.body);
        }
    }
    let is_complete = found.is_empty() || found.len() == REPLICAS;
    Ok(is_complete && found.windows(2).all(|pair| pair[0] == pair[1]))
}

/// The objects of a store in figures of a process.
fn objects_in(figures: &str, store: &str) -> Option<usize> {
    let name = format!("cairn_pebbles_objects{{store=\"{store}\"}} ");
    let line = figures.lines().find_map(|line| line.strip_prefix(&name))?;
    // A gauge is no whole number to whoever shows it.
    Some(line.trim().parse::<f64>().ok()? as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_those_of_the_store() {
        let figures = "cairn_pebbles_objects{store=\"d2/pebbles\"} 7\n\
                       cairn_pebbles_objects{store=\"d1/pebbles\"} 1234.0\n";
        assert_eq!(objects_in(figures, "d1/pebbles"), Some(1234));
        assert_eq!(objects_in(figures, "d3/pebbles"), None);
    }
}
