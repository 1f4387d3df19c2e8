//! Object servers' own words about their replicas, as replicators ask for them (REPLICATE): hashes of
//! a partition's objects, equal wherever the objects are. It is all that an engine tells that keeps no
//! files.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::super::cluster::Cluster;
use super::super::layout::{PARTITION_POWER, SECOND};
use super::{Amiss, Settled};
use cairn_testkit::wire::Connection;

/// A write may be on its way to the last of its replicas.
const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(200);
/// A dictionary without an entry is shorter than any with one.
const NO_HASHES_BYTES: usize = 16;

/// Servers that are asked, each by one connection.
#[derive(Default)]
struct Servers(BTreeMap<SocketAddr, Connection>);

impl Servers {
    /// The hashes of a partition on a device; empty where it has none.
    fn ask(
        &mut self,
        address: SocketAddr,
        device: &str,
        partition: u32,
        policy: &str,
    ) -> Result<Vec<u8>> {
        let server = self.0.entry(address);
        let server = server.or_insert_with(|| Connection::to(address));
        let headers = [("X-Backend-Storage-Policy-Index", policy)];
        let answer = server.call(
            "REPLICATE",
            &format!("/{device}/{partition}"),
            &headers,
            b"",
        )?;
        ensure!(
            answer.is_success(),
            "REPLICATE of {device}/{partition}: {}",
            answer.status
        );
        Ok(match answer.body.len() {
            ..NO_HASHES_BYTES => Vec::new(),
            _ => answer.body,
        })
    }
}

impl Settled {
    /// Adds what is amiss in an object ring by what its servers say.
    pub(super) fn ask(
        &self,
        cluster: &Cluster,
        ring: &'static str,
        amiss: &mut Amiss,
    ) -> Result<()> {
        let power: u32 = PARTITION_POWER.parse().context("the partition power")?;
        let mut servers = Servers::default();
        for partition in 0..1 << power {
            let mut found = Amiss::default();
            for attempt in 0..ATTEMPTS {
                if attempt > 0 {
                    std::thread::sleep(PAUSE);
                }
                found = self.partition(cluster, &mut servers, ring, partition);
                if found.is_none() {
                    break;
                }
            }
            amiss.lacking += found.lacking;
            amiss.handoffs += found.handoffs;
            if amiss.lacking > 0 {
                // It is not settled, and the rest takes long to ask.
                break;
            }
        }
        Ok(())
    }

    fn partition(
        &self,
        cluster: &Cluster,
        servers: &mut Servers,
        ring: &'static str,
        partition: u32,
    ) -> Amiss {
        let policy = if ring == SECOND { "1" } else { "0" };
        let (mut primaries, mut amiss) = (Vec::new(), Amiss::default());
        for node in &cluster.storage {
            for disk in &node.disks {
                let address = (node.host.address, 6200).into();
                let hashes = servers.ask(address, &disk.name, partition, policy);
                let is_primary = self.is_primary(ring, &disk.name, partition);
                match (is_primary, hashes) {
                    (true, hashes) => primaries.push(hashes.ok()),
                    (false, Ok(hashes)) => amiss.handoffs += usize::from(!hashes.is_empty()),
                    // A server that does not answer has nothing to show for itself.
                    (false, Err(_)) => amiss.handoffs += 1,
                }
            }
        }
        let is_like_first =
            |hashes: &&Option<Vec<u8>>| hashes.is_some() && **hashes == primaries[0];
        amiss.lacking = primaries.len() - primaries.iter().filter(is_like_first).count();
        amiss
    }
}
