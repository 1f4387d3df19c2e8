//! Fills the volumes of a store's devices with small objects, faster than any server: `cargo xtask bench
//! volumes` measures what is full then. Records, batches, checkpoints and places by the ring are those
//! of the object server, over the same engine; requests, replication and containers' rows are left out.
//!
//! Arguments: the folder of swift.conf and rings, the bytes of a volume, the account, the number of
//! containers, the number of objects, the bytes of each, and the devices' folders. The objects are
//! `/ACCOUNT/bench-N/o0000000000` and on. It prints the number of records.

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use cairn_disk::Metadata;
use cairn_pebbles::format::{Class, Kind, NewRecord};
use cairn_pebbles::index::Grouping;
use cairn_pebbles::medium::Folder;
use cairn_pebbles::object::Rules;
use cairn_pebbles::{Change, Config, Store, Upkeep};
use cairn_ring::Ring;
use cairn_types::{HashPath, ObjectHash, Timestamp};
use md5::{Digest, Md5};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Records that are handed to the engine at once.
const BATCH_RECORDS: usize = 4096;
/// As the object server has it.
const CHECKPOINT_BYTES: u64 = 32 << 20;
const COMPACT_BELOW: f64 = 0.5;

struct Plan {
    ring: Ring,
    hash_path: HashPath,
    volume_bytes: u64,
    account: String,
    containers: u64,
    objects: u64,
    body: Bytes,
    metadata: Bytes,
    timestamp: Timestamp,
}

fn main() -> Result<()> {
    // Cargo adds an option.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let arguments = arguments.strip_suffix(&["--bench"]).unwrap_or(&arguments);
    let [
        dir,
        volume_bytes,
        account,
        containers,
        objects,
        bytes,
        devices @ ..,
    ] = arguments
    else {
        println!("arguments are missing: `cargo xtask bench volumes` gives them");
        return Ok(());
    };
    let plan = Plan::read(Path::new(dir), bytes.parse()?)?;
    let plan = Plan {
        volume_bytes: volume_bytes.parse()?,
        account: (*account).to_owned(),
        containers: containers.parse()?,
        objects: objects.parse()?,
        ..plan
    };
    let filled = std::thread::scope(|scope| {
        let fill = |device: &&str| {
            let (device, plan) = (PathBuf::from(device), &plan);
            scope.spawn(move || plan.fill(&device))
        };
        let threads: Vec<_> = devices.iter().map(fill).collect();
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(filled) => filled,
            Err(_) => Err("a thread panicked".into()),
        });
        ended.collect::<Result<Vec<u64>>>()
    })?;
    println!("{}", filled.iter().sum::<u64>());
    Ok(())
}

impl Plan {
    fn read(dir: &Path, bytes: usize) -> Result<Plan> {
        let conf = std::fs::read_to_string(dir.join("swift.conf"))?;
        let option = |name: &str| {
            let mut lines = conf.lines().filter_map(|line| line.split_once('='));
            let value = lines.find(|(option, _)| option.trim() == name);
            value.map_or("", |(_, value)| value.trim())
        };
        let body = Bytes::from(vec![b'x'; bytes]);
        let timestamp =
            Timestamp::from_secs(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs());
        let metadata: Metadata = [
            ("X-Timestamp", timestamp.internal()),
            ("Content-Type", "application/octet-stream".to_owned()),
            ("Content-Length", bytes.to_string()),
            ("ETag", ObjectHash(Md5::digest(&body).into()).hex()),
        ]
        .into_iter()
        .collect();
        Ok(Plan {
            ring: Ring::from_bytes(&std::fs::read(dir.join("object.ring.gz"))?)?,
            hash_path: HashPath::new(
                option("swift_hash_path_prefix"),
                option("swift_hash_path_suffix"),
            ),
            volume_bytes: 0,
            account: String::new(),
            containers: 1,
            objects: 0,
            body,
            metadata: metadata.to_pickle().into(),
            timestamp,
        })
    }

    /// The partitions that a device has.
    fn partitions_of(&self, device: &str) -> Vec<bool> {
        let has = |partition| {
            let mut nodes = self.ring.primaries(partition).into_iter();
            nodes.any(|node| node.device.device == device)
        };
        (0..self.ring.partition_count()).map(has).collect()
    }

    /// Writes a device's part of the objects.
    fn fill(&self, device: &Path) -> Result<u64> {
        let name = device.file_name().unwrap_or_default().to_string_lossy();
        let partitions = self.partitions_of(&name);
        let store = self.open(&device.join("pebbles"))?;
        let mut upkeep = Upkeep::new(store.clone());
        let (mut batch, mut filled) = (Vec::with_capacity(BATCH_RECORDS), 0);
        let mut write = |batch: Vec<Change>| -> Result<()> {
            filled += batch.len() as u64;
            for ended in store.commit(Class::Fresh, batch) {
                ended?;
            }
            while upkeep.step()?.is_some() {}
            Ok(())
        };
        for number in 0..self.objects {
            let container = format!("bench-{}", number % self.containers);
            let object = format!("o{number:010}");
            let hash = self
                .hash_path
                .hash(&self.account, Some(&container), Some(&object));
            let partition = self.ring.partition(hash);
            if partitions[partition as usize] {
                let name = format!("/{}/{container}/{object}", self.account);
                batch.push(Change::Write(self.record(name, partition, hash)));
            }
            if batch.len() == BATCH_RECORDS {
                write(std::mem::take(&mut batch))?;
            }
        }
        write(batch)?;
        while upkeep.checkpoint()? {}
        Ok(filled)
    }

    fn record(&self, name: String, partition: u32, hash: ObjectHash) -> NewRecord {
        NewRecord {
            kind: Kind::Data,
            partition,
            hash,
            timestamp: self.timestamp,
            fragment: None,
            is_durable: false,
            is_external: false,
            owes_row: false,
            is_lasting: true,
            name: name.into(),
            metadata: self.metadata.clone(),
            body: self.body.clone(),
        }
    }

    fn open(&self, folder: &Path) -> Result<Arc<Store>> {
        let medium = Folder::open(folder, false)?;
        let random = || RandomState::new().hash_one(0u64);
        medium.lock([random(), random()])?;
        let now = || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            Timestamp::from_secs(now.unwrap_or_default().as_secs())
        };
        let config = Config {
            rules: Rules {
                unique_fragments: None,
            },
            grouping: Grouping::ByHash,
            volume_bytes: self.volume_bytes,
            reclaim_age: Duration::from_secs(7 * 24 * 3600),
            now: Box::new(now),
            entropy: Box::new(random),
            checkpoint_bytes: CHECKPOINT_BYTES,
            keep_free: Box::new(|_| 0),
            compact_below: COMPACT_BELOW,
            external_gone: Box::new(|_| {}),
            read_errors: Arc::default(),
        };
        Ok(Store::open(Arc::new(medium), config)?.0)
    }
}
