//! Readings of /proc, and the rates between two of them.

use std::collections::BTreeMap;
use std::fs;

use crate::record::{CpuSample, DiskSample, NetworkSample, ProcessSample, ResourceSample};

/// A host's counters at one moment.
#[derive(Debug, Default)]
pub(super) struct Reading {
    cpu: [u64; 8],
    memory: (u64, u64, u64),
    network: BTreeMap<String, [u64; 4]>,
    disks: BTreeMap<String, Disk>,
    processes: BTreeMap<u32, Process>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Disk {
    reads: u64,
    read_sectors: u64,
    writes: u64,
    written_sectors: u64,
    busy_ms: u64,
    queue_ms: u64,
    flushes: u64,
}

#[derive(Debug, Default, Clone)]
struct Process {
    name: String,
    ticks: u64,
    resident_bytes: u64,
    read_bytes: u64,
    written_bytes: u64,
    threads: u32,
}

/// Clock ticks per second in /proc, constant for user space on Linux.
const TICKS_PER_SECOND: f64 = 100.0;
const SECTOR: f64 = 512.0;
/// Maximum number of processes sampled.
const PROCESSES_MAX: usize = 64;

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn numbers(text: &str) -> impl Iterator<Item = u64> + '_ {
    text.split_ascii_whitespace()
        .map(|word| word.parse().unwrap_or(0))
}

/// Total, used and cached memory in bytes.
pub(super) fn memory() -> (u64, u64, u64) {
    let text = read("/proc/meminfo");
    let kib = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let (total, available) = (kib("MemTotal"), kib("MemAvailable"));
    (
        total * 1024,
        total.saturating_sub(available) * 1024,
        kib("Cached") * 1024,
    )
}

impl Reading {
    /// Reads the counters of the host, of this process and of those whose command name is watched.
    pub(super) fn take(watched: &[String]) -> Self {
        let mut reading = Self {
            memory: memory(),
            ..Self::default()
        };
        let stat = read("/proc/stat");
        if let Some(line) = stat.lines().next() {
            for (slot, value) in reading.cpu.iter_mut().zip(numbers(line).skip(1)) {
                *slot = value;
            }
        }
        for line in read("/proc/net/dev").lines() {
            let Some((name, rest)) = line.split_once(':') else {
                continue;
            };
            let fields: Vec<u64> = numbers(rest).collect();
            if let [received, packets, _, _, _, _, _, _, sent, sent_packets, ..] = fields[..] {
                let counts = [received, sent, packets, sent_packets];
                reading.network.insert(name.trim().to_owned(), counts);
            }
        }
        reading.disks = disks();
        reading.processes = processes(watched);
        reading
    }

    pub(super) fn since(&self, before: &Self, seconds: f64) -> ResourceSample {
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        let cores = |index: usize| rate(self.cpu[index], before.cpu[index]) / TICKS_PER_SECOND;
        let mut sample = ResourceSample {
            seconds,
            cpu: CpuSample {
                user: cores(0) + cores(1),
                system: cores(2) + cores(5) + cores(6),
                iowait: cores(4),
                steal: cores(7),
            },
            memory_used_bytes: self.memory.1,
            memory_cached_bytes: self.memory.2,
            ..ResourceSample::default()
        };
        for (name, now) in &self.network {
            let Some(then) = before.network.get(name) else {
                continue;
            };
            sample.network.insert(
                name.clone(),
                NetworkSample {
                    received_bytes: rate(now[0], then[0]),
                    sent_bytes: rate(now[1], then[1]),
                    received_packets: rate(now[2], then[2]),
                    sent_packets: rate(now[3], then[3]),
                },
            );
        }
        for (name, now) in &self.disks {
            let Some(then) = before.disks.get(name) else {
                continue;
            };
            sample.disks.insert(
                name.clone(),
                DiskSample {
                    reads: rate(now.reads, then.reads),
                    writes: rate(now.writes, then.writes),
                    read_bytes: rate(now.read_sectors, then.read_sectors) * SECTOR,
                    written_bytes: rate(now.written_sectors, then.written_sectors) * SECTOR,
                    flushes: rate(now.flushes, then.flushes),
                    queue: rate(now.queue_ms, then.queue_ms) / 1000.0,
                    busy: (rate(now.busy_ms, then.busy_ms) / 1000.0).min(1.0),
                },
            );
        }
        for (pid, now) in &self.processes {
            let then = before
                .processes
                .get(pid)
                .cloned()
                .unwrap_or_else(|| now.clone());
            sample.processes.push(ProcessSample {
                name: now.name.clone(),
                pid: *pid,
                cpu_cores: rate(now.ticks, then.ticks) / TICKS_PER_SECOND,
                resident_bytes: now.resident_bytes,
                read_bytes: rate(now.read_bytes, then.read_bytes),
                written_bytes: rate(now.written_bytes, then.written_bytes),
                threads: now.threads,
            });
        }
        sample
    }
}

/// Whole devices: those in /sys/block, without loop devices and RAM disks.
fn disks() -> BTreeMap<String, Disk> {
    let whole: Vec<String> = fs::read_dir("/sys/block")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with("loop") && !name.starts_with("ram"))
        .collect();
    let mut disks = BTreeMap::new();
    for line in read("/proc/diskstats").lines() {
        let mut words = line.split_ascii_whitespace().skip(2);
        let Some(name) = words
            .next()
            .filter(|name| whole.iter().any(|known| known == name))
        else {
            continue;
        };
        let fields: Vec<u64> = words.map(|word| word.parse().unwrap_or(0)).collect();
        let field = |index: usize| fields.get(index).copied().unwrap_or(0);
        let disk = Disk {
            reads: field(0),
            read_sectors: field(2),
            writes: field(4),
            written_sectors: field(6),
            busy_ms: field(9),
            queue_ms: field(10),
            flushes: field(15),
        };
        disks.insert(name.to_owned(), disk);
    }
    disks
}

fn processes(watched: &[String]) -> BTreeMap<u32, Process> {
    let own = std::process::id();
    let mut found = BTreeMap::new();
    if let Some(process) = process(own) {
        found.insert(own, process);
    }
    if watched.is_empty() {
        return found;
    }
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids {
        if found.len() >= PROCESSES_MAX {
            break;
        }
        let name = read(&format!("/proc/{pid}/comm"));
        if watched.iter().any(|watched| watched == name.trim())
            && let Some(process) = process(pid)
        {
            found.insert(pid, process);
        }
    }
    found
}

/// Reads a process; `None` if it has ended.
fn process(pid: u32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain anything, including parentheses: the numbers follow the last one.
    let (start, rest) = stat.rsplit_once(')')?;
    let name = start.split_once('(')?.1.to_owned();
    let fields: Vec<u64> = numbers(rest).collect();
    let io = read(&format!("/proc/{pid}/io"));
    let io = |name: &str| {
        let value = io
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    };
    let page = rustix::param::page_size() as u64;
    Some(Process {
        name,
        ticks: fields.get(11)? + fields.get(12)?,
        threads: u32::try_from(*fields.get(17)?).unwrap_or(u32::MAX),
        resident_bytes: fields.get(21)? * page,
        read_bytes: io("read_bytes"),
        written_bytes: io("write_bytes"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen() {
        let before = Reading::take(&[]);
        let block = vec![1u8; 32 << 20];
        let after = Reading::take(&[]);
        let sample = after.since(&before, 1.0);
        assert_eq!(sample.processes.len(), 1);
        let own = &sample.processes[0];
        assert!(own.resident_bytes > block.len() as u64 / 2, "{own:?}");
        assert!(own.threads >= 1);
        assert!(sample.network.contains_key("lo"));
        assert!(sample.memory_used_bytes > 0);
    }
}
