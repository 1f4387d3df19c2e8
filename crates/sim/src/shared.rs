//! State shared by all parts of a simulated cluster: random generators, log, clock, current faults.

use std::collections::BTreeSet;
use std::time::Duration;

use cairn_types::{SplitMix, Timestamp};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::lost::Lost;
use crate::manner::Manner;

/// Storage nodes, each with one device.
pub(crate) const NODES: usize = 4;
/// Proxies, each on a machine of its own without disks.
pub(crate) const PROXIES: usize = 2;
/// Machines on the network: the nodes, then the proxies.
pub(crate) const MACHINES: usize = NODES + PROXIES;
/// Start of every cluster's time, in seconds.
const EPOCH: u64 = 1_700_000_000;

/// A seeded random generator.
pub(crate) struct Dice(Mutex<SplitMix>);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Dice(Mutex::new(SplitMix::new(seed)))
    }

    pub(crate) fn number(&self) -> u64 {
        self.0.lock().number()
    }

    /// From 0 up to, and without, `below`.
    pub(crate) fn below(&self, below: u64) -> u64 {
        self.number() % below.max(1)
    }

    pub(crate) fn index(&self, below: usize) -> usize {
        self.below(below as u64) as usize
    }

    /// True with a probability of `chance` per mille.
    pub(crate) fn per_mille(&self, chance: u64) -> bool {
        self.below(1000) < chance
    }

    pub(crate) fn coin(&self) -> bool {
        self.number() & 1 == 1
    }

    pub(crate) fn micros(&self, most: u64) -> Duration {
        Duration::from_micros(self.below(most))
    }
}

/// Events in order: a hash over all, and optionally their lines.
pub(crate) struct Log {
    hash: u64,
    lines: Option<Vec<String>>,
    events: u64,
}

/// Network faults, per mille of messages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NetworkFaults {
    pub(crate) drop: u64,
    pub(crate) duplicate: u64,
    pub(crate) break_off: u64,
    /// Maximum delay of a message, in microseconds.
    pub(crate) delay: u64,
}

/// Faults of one node's disk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DiskFaults {
    pub(crate) full: bool,
    pub(crate) slow: bool,
    /// The next fsync fails.
    pub(crate) fail_sync: bool,
    /// Number of syncs of databases that will fail.
    pub(crate) fail_commits: u64,
    /// Number of fsyncs until the power fails.
    pub(crate) power_fails_at: Option<u64>,
}

pub(crate) struct Shared {
    seed: u64,
    start: Instant,
    pub(crate) network_dice: Dice,
    pub(crate) disk_dice: Dice,
    pub(crate) load_dice: Dice,
    pub(crate) fault_dice: Dice,
    /// Whether one of the containers has an erasure-coded policy.
    pub(crate) has_fragments: bool,
    pub(crate) manner: Manner,
    /// Error of each machine's clock, in microseconds.
    skew: [i64; MACHINES],
    pub(crate) network: Mutex<NetworkFaults>,
    pub(crate) disks: Mutex<[DiskFaults; NODES]>,
    /// Pages of a killed node's files that only the page cache has.
    pub(crate) lost: Mutex<[Lost; NODES]>,
    /// Whether messages from one machine to the other are dropped.
    pub(crate) cut: Mutex<[[bool; MACHINES]; MACHINES]>,
    /// Time of a disk's replacement, by the cluster's clock.
    pub(crate) replaced: Mutex<Option<Timestamp>>,
    /// Rotted content: node, hash of the object's name, and the file's name.
    pub(crate) rotten: Mutex<BTreeSet<(usize, String, String)>>,
    log: Mutex<Log>,
}

impl Shared {
    pub(crate) fn new(seed: u64, manner: Manner, has_fragments: bool) -> Self {
        let dice = |salt: u64| Dice::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ (salt << 56));
        let skews = dice(9);
        // Half of all clusters have accurate clocks.
        let range = match (skews.coin(), manner.is_conditional) {
            (false, _) => 500,
            (true, false) => 2_000_000,
            // The maximum that promises tolerate.
            (true, true) => 4_900_000,
        };
        let skew = std::array::from_fn(|_| skews.below(range) as i64 - range as i64 / 2);
        Shared {
            seed,
            start: Instant::now(),
            network_dice: dice(1),
            disk_dice: dice(2),
            load_dice: dice(3),
            fault_dice: dice(4),
            has_fragments,
            manner,
            skew,
            network: Mutex::default(),
            disks: Mutex::default(),
            lost: Mutex::default(),
            cut: Mutex::default(),
            replaced: Mutex::default(),
            rotten: Mutex::default(),
            log: Mutex::new(Log {
                hash: 0xcbf2_9ce4_8422_2325,
                lines: manner.is_verbose.then(Vec::new),
                events: 0,
            }),
        }
    }

    /// The time by a machine's clock.
    pub(crate) fn now(&self, machine: usize) -> Timestamp {
        let micros = self.start.elapsed().as_micros() as i64 + self.skew[machine];
        let since = Duration::from_secs(EPOCH) + Duration::from_micros(3_600_000_000);
        let at = since.as_micros() as i64 + micros;
        Timestamp::from_unix(Duration::from_micros(at.max(0) as u64))
    }

    /// Whether nodes stay up, and so remember their promises; in half of all seeds with conditional
    /// writes.
    pub(crate) fn keeps_nodes(&self) -> bool {
        self.manner.is_conditional && self.seed % 2 == 1
    }

    /// Whether devices are so slow that operations meet there, in batches and group syncs; in a
    /// third of all seeds.
    pub(crate) fn has_slow_devices(&self) -> bool {
        self.seed.is_multiple_of(3)
    }

    /// Records an event.
    pub(crate) fn log(&self, event: impl FnOnce() -> String) {
        let at = self.start.elapsed().as_micros() as u64;
        let text = event();
        let mut log = self.log.lock();
        let bytes = at.to_le_bytes();
        for byte in bytes.iter().chain(text.as_bytes()) {
            // FNV-1a.
            log.hash = (log.hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        log.events += 1;
        if let Some(lines) = &mut log.lines {
            lines.push(format!("{:>12.6} {text}", at as f64 / 1e6));
        }
    }

    /// The hash of all events, their number, and their lines.
    pub(crate) fn take_log(&self) -> (u64, u64, Vec<String>) {
        let mut log = self.log.lock();
        let lines = log.lines.as_mut().map(std::mem::take);
        (log.hash, log.events, lines.unwrap_or_default())
    }
}
