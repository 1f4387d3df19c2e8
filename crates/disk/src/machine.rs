//! What may stand in for a device's threads, syncs, free space and clock: the cluster simulator's
//! own, so that a crash loses what was not synced and a seed replays exactly. Servers have none.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{SystemTime, UNIX_EPOCH};

/// Work that a thread of the device would have done.
pub type Job = Box<dyn FnOnce() + Send>;

/// A simulated machine under a device.
pub trait Machine: Debug + Send + Sync {
    /// Takes a job, to be run later on the caller's own thread, or never.
    fn run(&self, job: Job);

    /// Stands for an fsync of a file or directory.
    fn sync(&self, file: BorrowedFd<'_>) -> io::Result<()>;

    /// Asked before so many bytes are written; an error is that of the write.
    fn write(&self, bytes: u64) -> io::Result<()>;

    /// Seconds since the epoch.
    fn now(&self) -> i64;
}

/// Seconds since the epoch by this computer's clock.
pub(crate) fn wall_clock() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |d| d.as_secs() as i64)
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::fd::AsRawFd;
    use std::path::PathBuf;
    use std::sync::{Arc, Mutex};

    use bytes::Bytes;
    use cairn_types::{HashPath, PolicyIndex, PolicySet, Timestamp};

    use super::*;
    use crate::device_pool::{Devices, DevicesConfig};
    use crate::diskfile::{DiskFileConfig, DiskFileEngine};
    use crate::engine::{Durability, ObjectEngine, ObjectKey};
    use crate::metadata::Metadata;
    use crate::reader::block_on;

    /// Works at once, and notes what is synced.
    #[derive(Debug, Default)]
    pub(crate) struct Noting(Mutex<Vec<String>>);

    /// Looks, whenever a `hashes.invalid` is synced, what it says and what is at a path.
    #[derive(Debug, Default)]
    pub(crate) struct Watching {
        pub(crate) path: Mutex<PathBuf>,
        /// The lines, and whether something was at the path.
        pub(crate) notes: Mutex<Vec<(String, bool)>>,
    }

    impl Machine for Arc<Watching> {
        fn run(&self, job: Job) {
            job();
        }

        fn sync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
            let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
            if path.ends_with("hashes.invalid") {
                let is_there = self.path.lock().unwrap().exists();
                let lines = std::fs::read_to_string(path)?;
                self.notes.lock().unwrap().push((lines, is_there));
            }
            Ok(())
        }

        fn write(&self, _bytes: u64) -> io::Result<()> {
            Ok(())
        }

        fn now(&self) -> i64 {
            2_000_000_000
        }
    }

    impl Machine for Arc<Noting> {
        fn run(&self, job: Job) {
            job();
        }

        fn sync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
            let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            self.0.lock().unwrap().push(name.into_owned());
            Ok(())
        }

        fn write(&self, _bytes: u64) -> io::Result<()> {
            Ok(())
        }

        fn now(&self) -> i64 {
            2_000_000_000
        }
    }

    #[test]
    fn content_then_the_note_of_its_suffix_then_its_names() {
        let root = tempfile::tempdir().unwrap();
        // A lock or a replicator made the partition, and did not sync its name.
        std::fs::create_dir_all(root.path().join("d/objects/7")).unwrap();
        let probe = std::fs::File::create(root.path().join("probe")).unwrap();
        if rustix::fs::fsetxattr(&probe, "user.x", b"x", rustix::fs::XattrFlags::empty()).is_err() {
            println!("skipped: no user extended attributes in the temporary directory");
            return;
        }
        let noting = Arc::new(Noting::default());
        let mut config = DevicesConfig::new(root.path());
        config.mount_check = false;
        config.machine = Some(Arc::new(noting.clone()));
        let device = Devices::new(config).get("d").unwrap();
        let hash_path = HashPath::new("", "endcap");
        let hash = hash_path.hash("a", Some("c"), Some("o"));
        let key = ObjectKey {
            policy: PolicyIndex(0),
            partition: 7,
            hash,
            name: "/a/c/o".into(),
        };
        let engine =
            DiskFileEngine::new(hash_path, &PolicySet::single(), DiskFileConfig::default());
        let time = Timestamp::from_secs(2_000_000_000);
        let metadata: Metadata = [("X-Timestamp", time.internal())].into_iter().collect();
        let body = Bytes::from_static(b"x");
        let put = device
            .commit(move |disk| engine.put_small(disk, &key, body, metadata, Durability::AtOnce));
        block_on(put).unwrap();
        let synced = noting.0.lock().unwrap().clone();
        let suffix = hash.suffix();
        let names = ["hashes.invalid", &hash.hex(), &suffix, "7", "objects", "d"];
        // The first is the content, under no name yet.
        assert_eq!(synced[1..], names, "{synced:?}");
    }
}
