//! The simulated machine of the devices, from `cairn_device`.

pub(crate) use cairn_device::wall_clock;
pub use cairn_device::{AtOnce, Employer, Machine};

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io;
    use std::os::fd::{AsRawFd, BorrowedFd};
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

    /// Runs jobs at once, and records the synced files.
    #[derive(Debug, Default)]
    pub(crate) struct Noting(Mutex<Vec<String>>);

    /// Records, at each sync of a `hashes.invalid`, its content and whether a path exists.
    #[derive(Debug, Default)]
    pub(crate) struct Watching {
        pub(crate) path: Mutex<PathBuf>,
        /// The lines, and whether the path existed.
        pub(crate) notes: Mutex<Vec<(String, bool)>>,
    }

    impl Machine for Watching {
        fn employer(&self) -> Option<&dyn Employer> {
            Some(&AtOnce)
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

        fn now(&self) -> i64 {
            2_000_000_000
        }
    }

    impl Machine for Noting {
        fn employer(&self) -> Option<&dyn Employer> {
            Some(&AtOnce)
        }

        fn sync(&self, file: BorrowedFd<'_>) -> io::Result<()> {
            let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            self.0.lock().unwrap().push(name.into_owned());
            Ok(())
        }

        fn now(&self) -> i64 {
            2_000_000_000
        }
    }

    #[test]
    fn content_then_the_note_of_its_suffix_then_its_names() {
        let root = tempfile::tempdir().unwrap();
        // A partition made by a lock or a replicator, whose name was not synced.
        std::fs::create_dir_all(root.path().join("d/objects/7")).unwrap();
        let probe = std::fs::File::create(root.path().join("probe")).unwrap();
        if rustix::fs::fsetxattr(&probe, "user.x", b"x", rustix::fs::XattrFlags::empty()).is_err() {
            println!("skipped: no user extended attributes in the temporary directory");
            return;
        }
        let noting = Arc::new(Noting::default());
        let mut config = DevicesConfig::new(root.path());
        config.mount_check = false;
        config.machine = Some(noting.clone());
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
        let length = ("Content-Length", "1".to_owned());
        let metadata: Metadata = [("X-Timestamp", time.internal()), length]
            .into_iter()
            .collect();
        let body = Bytes::from_static(b"x");
        let put = device
            .commit(move |disk| engine.put_small(disk, &key, body, metadata, Durability::AtOnce));
        block_on(put).unwrap();
        let synced = noting.0.lock().unwrap().clone();
        let suffix = hash.suffix();
        let names = ["hashes.invalid", &hash.hex(), &suffix, "7", "objects", "d"];
        // The first is the content, which has no name yet.
        assert_eq!(synced[1..], names, "{synced:?}");
    }
}
