//! Conversion of host samples to named series: CPU, memory, network, disks, processes, and
//! distances on disk.

use std::collections::BTreeMap;

use super::model::{Distances, Resource};
use crate::record::ResourceSample;

/// Series of CPU, memory, network, disks and processes, over seconds since the run's start.
pub(super) fn resource_series(samples: &[&ResourceSample], started: f64) -> Vec<Resource> {
    let mut series: BTreeMap<(&'static str, String), Vec<(f64, f64)>> = BTreeMap::new();
    for sample in samples {
        let second = sample.at - started;
        let mut add = |quantity, of: String, value: f64| {
            let points: &mut Vec<(f64, f64)> = series.entry((quantity, of)).or_default();
            points.push((second, value));
        };
        let host = &sample.host;
        for (part, value) in [
            ("user", sample.cpu.user),
            ("system", sample.cpu.system),
            ("waiting for disks", sample.cpu.iowait),
            ("steal", sample.cpu.steal),
        ] {
            add("CPU (cores)", format!("{host} {part}"), value);
        }
        let bytes = sample.memory_used_bytes as f64;
        add("Memory (bytes)", format!("{host} used"), bytes);
        let bytes = sample.memory_cached_bytes as f64;
        add("Memory (bytes)", format!("{host} cached"), bytes);
        for (interface, network) in &sample.network {
            let name = |way| format!("{host} {interface} {way}");
            add("Network (bytes/s)", name("in"), network.received_bytes);
            add("Network (bytes/s)", name("out"), network.sent_bytes);
        }
        for (device, disk) in &sample.disks {
            let name = |way| format!("{host} {device} {way}");
            add("Disk operations (1/s)", name("reads"), disk.reads);
            add("Disk operations (1/s)", name("writes"), disk.writes);
            add("Disk operations (1/s)", name("flushes"), disk.flushes);
            add("Disk transfer (bytes/s)", name("read"), disk.read_bytes);
            add(
                "Disk transfer (bytes/s)",
                name("written"),
                disk.written_bytes,
            );
            add(
                "Disk queue (requests)",
                format!("{host} {device}"),
                disk.queue,
            );
        }
        for process in &sample.processes {
            let name = format!("{} ({})", process.name, process.pid);
            add("Process CPU (cores)", name.clone(), process.cpu_cores);
            add(
                "Process memory (bytes)",
                name,
                process.resident_bytes as f64,
            );
        }
    }
    // Series of idle disks and interfaces are omitted.
    series.retain(|_, points| points.iter().any(|(_, value)| *value != 0.0));
    series
        .into_iter()
        .map(|((quantity, of), points)| Resource {
            of,
            quantity: quantity.to_owned(),
            points,
        })
        .collect()
}

/// Histograms of distances between successive operations, summed by device.
pub(super) fn distances(samples: &[&ResourceSample]) -> Vec<Distances> {
    let mut sums: BTreeMap<String, Distances> = BTreeMap::new();
    for sample in samples {
        for (device, distance) in &sample.distances {
            let name = format!("{} {device}", sample.host);
            let sum = sums.entry(name.clone()).or_insert(Distances {
                device: name,
                buckets: Vec::new(),
                beyond_125k: 0,
                beyond_2500k: 0,
            });
            sum.beyond_125k += distance.beyond_125k;
            sum.beyond_2500k += distance.beyond_2500k;
            for (index, count) in distance.counts.iter().take(64).enumerate() {
                if sum.buckets.len() <= index {
                    // Bucket n begins at 2^(n-1); the first is distance 0.
                    let from = if index == 0 { 0 } else { 1u64 << (index - 1) };
                    sum.buckets.push((from, 0));
                }
                sum.buckets[index].1 += count;
            }
        }
    }
    sums.retain(|_, sum| sum.total() > 0);
    sums.into_values().collect()
}
