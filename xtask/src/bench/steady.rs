//! Benchmark of volumes on full devices: PUTs a second when every volume was used again at least once,
//! beside those of the same store while it was empty, and what was written to the devices meanwhile.
//!
//! Four devices of bounded size, each a file system of its own in a file, three replicas, `cairn up`'s
//! daemons. The mix is the same in both measurements: of six requests four overwrite an object drawn by
//! lot, one deletes such an object, and one creates another in its place. The store is filled to
//! `FULL_SHARE` of the fullest device in between. At the end every object is read and held against
//! what was acknowledged.

mod mix;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;

use super::disk::{Disk, FileSystem, Traffic};
use super::{CONTAINERS, Options, with_containers};
use crate::engine::EngineName;
use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::workspace;
use mix::{Clients, Counts};

const REPLICAS: u64 = 3;
const FULL_SHARE: f64 = 0.8;
/// The first objects, which an empty store is measured with.
const FIRST_OBJECTS: u64 = 10_000;
const OBJECT_BYTES: u64 = 4000;
const VOLUME_BYTES: &str = "16777216";
/// Bytes of a volume that change when it is used anew: its head.
const HEAD_BYTES: usize = 4096;
/// The longest that volumes may take to be used again.
const PATIENCE: Duration = Duration::from_secs(3600);

const WANTED_PUTS: f64 = 0.5;

#[derive(Serialize)]
struct Results {
    device_bytes: u64,
    object_bytes: u64,
    empty: Measured,
    filled_objects: u64,
    filled_share: f64,
    /// From when it was full until all volumes were used again.
    settling: Measured,
    steady: Measured,
    share_at_end: f64,
    /// Objects that were read at the end.
    verified: u64,
}

/// The mix over some time.
#[derive(Serialize)]
struct Measured {
    seconds: f64,
    counts: Counts,
    puts_per_second: f64,
    /// Bytes written to all devices, and of the objects put, of all replicas.
    device_bytes: u64,
    replica_bytes: u64,
}

struct Setup {
    store: Cairn,
    disks: Vec<Disk>,
    size: u64,
}

pub(super) fn run(options: &Options) -> Result<()> {
    ensure!(
        options.engine != Some(EngineName::Files),
        "`steady` has one engine"
    );
    let lab = workspace::build_cairn()?;
    let dir = workspace::scratch("steady")?;
    let mut setup = Setup::create(dir.path(), &lab, options)?;
    setup.store.start(Spread::OneProcess)?;
    let account = with_containers(setup.store.port())?;
    let connections = options.connections.first().copied().unwrap_or(64);
    let seconds = Duration::from_secs(options.seconds.unwrap_or(20));
    let mut clients = Clients::new(&account, connections, setup.size);
    clients.fill(FIRST_OBJECTS, || Ok(false))?;
    // The upkeep of what was written is not that of the mix.
    std::thread::sleep(Duration::from_secs(5));
    let empty = setup.measure(&mut clients, "empty", |begun| Ok(begun.elapsed() < seconds))?;
    clients.fill(u64::MAX, || Ok(setup.share()? >= FULL_SHARE))?;
    let (filled_objects, filled_share) = (clients.objects(), setup.share()?);
    println!(
        "{filled_objects} objects, {:.0} % full",
        filled_share * 100.0
    );
    let heads = setup.heads()?;
    let settling = setup.measure(&mut clients, "until volumes were used again", |begun| {
        ensure!(begun.elapsed() < PATIENCE, "volumes are not used again");
        Ok(is_any_left(&heads, &setup.heads()?))
    })?;
    let steady = setup.measure(&mut clients, "steady", |begun| {
        Ok(begun.elapsed() < 3 * seconds)
    })?;
    let share_at_end = setup.share()?;
    let verified = clients.verify()?;
    println!(
        "{verified} objects are as acknowledged; {:.0} % full",
        share_at_end * 100.0
    );
    setup.store.stop()?;
    let results = Results {
        device_bytes: options.device_bytes,
        object_bytes: setup.size,
        empty,
        filled_objects,
        filled_share,
        settling,
        steady,
        share_at_end,
        verified,
    };
    workspace::keep("bench", "steady.json", &results)?;
    results.verdict()
}

impl Setup {
    fn create(dir: &Path, binary: &Path, options: &Options) -> Result<Setup> {
        let store = Cairn::create(binary, &dir.join("data"), None)?;
        EngineName::set(Some(EngineName::Pebbles), &store)?;
        store.set("object", "DEFAULT", "pebbles_volume_bytes", VOLUME_BYTES)?;
        let kind = match options.file_system {
            FileSystem::Workspace => FileSystem::Ext4,
            other => other,
        };
        let mut disks = Vec::new();
        for (device, number) in store.devices()?.iter().zip(1..) {
            let image = dir.join(format!("d{number}.img"));
            disks.push(Disk::sized(
                device,
                &image,
                kind,
                Some(options.device_bytes),
            )?);
        }
        Ok(Setup {
            store,
            disks,
            size: options.sizes.first().copied().unwrap_or(OBJECT_BYTES),
        })
    }

    /// The share of the fullest device that is taken.
    fn share(&self) -> Result<f64> {
        let mut most = 0.0;
        for disk in &self.disks {
            let room = rustix::fs::statvfs(disk.path())?;
            most = f64::max(most, 1.0 - room.f_bavail as f64 / room.f_blocks as f64);
        }
        Ok(most)
    }

    fn written(&self) -> Result<u64> {
        let of = |disk: &Disk| Ok(Traffic::below(disk.path())?.written_bytes);
        self.disks.iter().map(of).sum()
    }

    /// The heads of all volumes that hold something.
    fn heads(&self) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
        let mut heads = BTreeMap::new();
        for disk in &self.disks {
            for entry in std::fs::read_dir(disk.path().join("pebbles"))? {
                let path = entry?.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                if !name.starts_with("volume-") {
                    continue;
                }
                // One that compaction has removed was used up as well.
                let Ok(bytes) = head_of(&path) else { continue };
                heads.insert(path, bytes);
            }
        }
        ensure!(!heads.is_empty(), "there are no volumes");
        Ok(heads)
    }

    /// Has the mix run for as long as `goes_on` says.
    fn measure(
        &self,
        clients: &mut Clients,
        name: &str,
        mut goes_on: impl FnMut(Instant) -> Result<bool>,
    ) -> Result<Measured> {
        let (before, begun) = (self.written()?, Instant::now());
        let counts = clients.mix(|| goes_on(begun))?;
        let seconds = begun.elapsed().as_secs_f64();
        // Acknowledged writes are on the devices by now, and upkeep writes beside them.
        let device_bytes = self.written()? - before;
        let puts = counts.overwrites + counts.creates;
        let measured = Measured {
            seconds,
            puts_per_second: puts as f64 / seconds,
            device_bytes,
            replica_bytes: puts * self.size * REPLICAS,
            counts,
        };
        println!("{name}: {}", measured.line());
        Ok(measured)
    }
}

fn head_of(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; HEAD_BYTES];
    std::fs::File::open(path)?.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Whether a volume is what it was.
fn is_any_left(before: &BTreeMap<PathBuf, Vec<u8>>, now: &BTreeMap<PathBuf, Vec<u8>>) -> bool {
    before
        .iter()
        .any(|(path, head)| now.get(path) == Some(head))
}

impl Measured {
    fn amplification(&self) -> f64 {
        self.device_bytes as f64 / self.replica_bytes.max(1) as f64
    }

    fn line(&self) -> String {
        let counts = &self.counts;
        format!(
            "{:.0} PUT/s in {:.0} s ({} overwrites, {} creates, {} deletions, {} refused as full), \
             PUT p50 {:.1} ms, p99 {:.1} ms, at most {:.0} ms; {:.2} bytes written a byte of a replica",
            self.puts_per_second,
            self.seconds,
            counts.overwrites,
            counts.creates,
            counts.deletes,
            counts.refused,
            counts.p50_ms,
            counts.p99_ms,
            counts.max_ms,
            self.amplification()
        )
    }
}

impl Results {
    fn verdict(&self) -> Result<()> {
        let ratio = self.steady.puts_per_second / self.empty.puts_per_second;
        let word = if ratio >= WANTED_PUTS {
            "met"
        } else {
            "missed"
        };
        println!("PUT of the empty store's: {ratio:.2}, bar {WANTED_PUTS}: {word}");
        ensure!(ratio >= WANTED_PUTS, "the bar is missed");
        ensure!(self.steady.counts.refused == 0, "requests were refused");
        Ok(())
    }
}

/// The path of an object below the account.
fn path_of(number: u64) -> String {
    format!("/bench-{}/o{number:010}", number % CONTAINERS)
}
