//! Snapshot of a device for comparison: every object's files, their metadata and content.

use std::collections::BTreeMap;
use std::path::Path;

use cairn_disk::Metadata;

/// A file's metadata, sorted, and its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) content: Vec<u8>,
}

/// Hash directory and file name of everything in a partition.
pub(crate) type Tree = BTreeMap<String, Stored>;

pub(crate) fn read(partition: &Path) -> Tree {
    let mut tree = Tree::new();
    for suffix in folders(partition) {
        for hash in folders(&suffix) {
            for file in std::fs::read_dir(&hash).unwrap() {
                let file = file.unwrap();
                let hash = hash.file_name().unwrap().to_str().unwrap();
                let name = format!("{hash}/{}", file.file_name().to_str().unwrap());
                tree.insert(name, stored(&file.path()));
            }
        }
    }
    tree
}

fn folders(path: &Path) -> Vec<std::path::PathBuf> {
    let Ok(entries) = std::fs::read_dir(path) else {
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.is_dir()).collect()
}

fn stored(path: &Path) -> Stored {
    let mut pickle = Vec::new();
    for part in 0.. {
        let name = match part {
            0 => "user.swift.metadata".to_owned(),
            part => format!("user.swift.metadata{part}"),
        };
        let mut value = vec![0; 1 << 16];
        let Ok(length) = rustix::fs::getxattr(path, &*name, &mut value) else {
            break;
        };
        pickle.extend_from_slice(&value[..length]);
    }
    let metadata = Metadata::from_pickle(&pickle).unwrap();
    let metadata = metadata.iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value).into_owned();
        (name.to_owned(), value)
    });
    Stored {
        metadata: metadata.collect(),
        content: std::fs::read(path).unwrap(),
    }
}
