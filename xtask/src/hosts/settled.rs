//! Check whether every replica is where its ring wants it, and nowhere else, by reading the disks:
//! each object, tombstone and database must be on all primaries of its partition, with equal files
//! on each, and on no other device. Where objects are in volumes, their servers are asked instead.

mod asked;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};

use super::cluster::Cluster;
use super::layout::{FRAGMENTS, OBJECT_PORT, SECOND};

/// Age below which files are ignored: an upload's last replica may still be in progress.
const YOUNG: Duration = Duration::from_secs(3);

/// The devices of each partition in each ring.
pub(super) struct Settled {
    assigned: BTreeMap<(&'static str, String), BTreeSet<u32>>,
}

/// Deviations from the intended state.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(super) struct Amiss {
    /// Primaries that lack an object, tombstone or database, or its latest version.
    pub(super) lacking: usize,
    /// Replicas on devices that are not primaries.
    pub(super) handoffs: usize,
}

impl Amiss {
    fn is_none(&self) -> bool {
        *self == Amiss::default()
    }
}

/// Everything on disk for one ring: file names by hash and device.
pub(super) type Found = BTreeMap<(u32, String), BTreeMap<String, BTreeSet<String>>>;

/// Reads everything on disk for a ring.
fn found(cluster: &Cluster, ring: &str) -> Found {
    let folder = match ring {
        "object" => "objects",
        SECOND => "objects-1",
        FRAGMENTS => "objects-2",
        "container" => "containers",
        _ => "accounts",
    };
    let mut found = Found::new();
    for disk in cluster.storage.iter().flat_map(|node| &node.disks) {
        collect(&disk.path.join(folder), &disk.name, &mut found);
    }
    found
}

impl Settled {
    pub(super) fn of(cluster: &Cluster) -> Result<Settled> {
        let assigned = cluster.layout.all_assigned(&cluster.storage)?;
        Ok(Settled { assigned })
    }

    /// The current deviations.
    pub(super) fn look(&self, cluster: &Cluster) -> Result<Amiss> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let old = (now - YOUNG).as_secs_f64();
        let mut amiss = Amiss::default();
        for (ring, port, _) in cluster.layout.rings() {
            if port == OBJECT_PORT && cluster.layout.has_volumes() {
                self.ask(cluster, ring, &mut amiss)?;
                continue;
            }
            for ((partition, _), holders) in &found(cluster, ring) {
                self.judge(ring, *partition, holders, old, &mut amiss);
            }
        }
        Ok(amiss)
    }

    fn is_primary(&self, ring: &'static str, device: &str, partition: u32) -> bool {
        let of_device = self.assigned.get(&(ring, device.to_owned()));
        of_device.is_some_and(|parts| parts.contains(&partition))
    }

    fn judge(
        &self,
        ring: &'static str,
        partition: u32,
        holders: &BTreeMap<String, BTreeSet<String>>,
        old: f64,
        amiss: &mut Amiss,
    ) {
        let files: BTreeSet<&String> = holders.values().flatten().collect();
        if files.iter().any(|file| stamp(file) > old) {
            return;
        }
        let fragments = ring == FRAGMENTS;
        let primaries = self
            .assigned
            .iter()
            .filter(|((name, _), parts)| *name == ring && parts.contains(&partition))
            .map(|((_, device), _)| device);
        let mut belongs = BTreeSet::new();
        let current = current(&files);
        for device in primaries {
            belongs.insert(device);
            let right = holders.get(device).is_some_and(|own| {
                // Names of fragments differ between devices.
                let has = |wanted: &&String| match fragments {
                    true => own.iter().any(|f| stamp(f) == stamp(wanted)),
                    false => own.contains(*wanted),
                };
                current.iter().all(has)
            });
            amiss.lacking += usize::from(!right);
        }
        let strangers = holders.keys().filter(|d| !belongs.contains(d)).count();
        amiss.handoffs += strangers;
    }

    /// Waits until there are no deviations in two consecutive checks; returns the duration.
    pub(super) fn wait(&self, cluster: &Cluster, most: Duration) -> Result<Duration> {
        let start = std::time::Instant::now();
        let mut first_right = None;
        loop {
            let amiss = self.look(cluster)?;
            match (amiss.is_none(), first_right) {
                (true, Some(at)) => return Ok(at),
                (true, None) => first_right = Some(start.elapsed()),
                (false, _) => first_right = None,
            }
            if start.elapsed() > most {
                bail!("not every replica is back after {most:?}: {amiss:?}");
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}

/// The current files of an object: the latest content or tombstone, and the latest metadata since;
/// for a database all files.
fn current<'a>(files: &BTreeSet<&'a String>) -> Vec<&'a String> {
    let latest = |of: &dyn Fn(&str) -> bool| {
        let of = files.iter().filter(|file| of(file));
        of.map(|file| stamp(file)).fold(0.0, f64::max)
    };
    let base = latest(&|file| !file.ends_with(".meta"));
    let meta = latest(&|file| file.ends_with(".meta"));
    let is_current = |file: &&&String| match file.ends_with(".meta") {
        true => stamp(file) == meta && meta > base,
        false => stamp(file) == base,
    };
    files.iter().filter(is_current).copied().collect()
}

/// The timestamp in an object file's name; 0 for databases.
fn stamp(file: &str) -> f64 {
    if file.ends_with(".db") {
        return 0.0;
    }
    let end = file.find(['.', '_', '#', '-']).map_or(file.len(), |dot| {
        // In 1234567890.12345_… the first dot is part of the timestamp.
        let rest = &file[dot + 1..];
        let decimals = rest.bytes().take_while(u8::is_ascii_digit).count();
        dot + 1 + decimals
    });
    file[..end].trim_end_matches('.').parse().unwrap_or(0.0)
}

/// All hash folders below `folder` (`partition/suffix/hash`) with their files.
fn collect(folder: &Path, device: &str, found: &mut Found) {
    for partition in entries(folder) {
        let Ok(number) = partition.parse::<u32>() else {
            continue;
        };
        let partition = folder.join(partition);
        for suffix in entries(&partition) {
            let suffix = partition.join(suffix);
            for hash in entries(&suffix) {
                let files = entries(&suffix.join(&hash))
                    .into_iter()
                    .filter(|f| is_replica(f));
                let files: BTreeSet<String> = files.collect();
                if !files.is_empty() {
                    let of_hash = found.entry((number, hash)).or_default();
                    of_hash.insert(device.to_owned(), files);
                }
            }
        }
    }
}

fn is_replica(file: &str) -> bool {
    [".data", ".meta", ".ts", ".db"]
        .iter()
        .any(|end| file.ends_with(end))
}

/// Names in a folder; empty if it does not exist or disappears meanwhile.
fn entries(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_states_do_not_count() {
        let files: Vec<String> = ["3.00000.data", "2.00000.meta", "4.00000.meta", "1.00000.ts"]
            .map(str::to_owned)
            .into();
        let all = files.iter().collect();
        assert_eq!(current(&all), ["3.00000.data", "4.00000.meta"]);
    }

    #[test]
    fn timestamps_of_files() {
        assert_eq!(stamp("1700000000.50000.data"), 1_700_000_000.5);
        assert_eq!(
            stamp("1700000000.50000_0000000000000001.ts"),
            1_700_000_000.5
        );
        assert_eq!(stamp("1700000000.50000#3#d.data"), 1_700_000_000.5);
        assert_eq!(stamp("d41d8cd98f00b204e9800998ecf8427e.db"), 0.0);
    }
}
