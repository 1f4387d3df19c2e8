//! An object in volumes, for `swift-object-info`.

use std::io::{Cursor, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};
use cairn_disk::Metadata;
use cairn_disk::metadata::NAME;
use cairn_pebbles::inspect;
use cairn_types::{HashPath, ObjectHash, PolicyIndex};

/// The newest content of an object, with its own metadata: a POST's is in a record of its own, as it is in a file
/// of its own elsewhere.
pub(super) struct Found {
    pub(super) policy: PolicyIndex,
    pub(super) metadata: Metadata,
    pub(super) content: Box<dyn Read>,
    pub(super) size: u64,
}

/// Finds what a path names; `None`: it is not in a folder of volumes.
///
/// # Errors
/// The volumes or the record cannot be read, or there is no such object.
pub(super) fn find(path: &Path, hash_path: &HashPath) -> Result<Option<Found>> {
    let Some((folder, object)) = split(path) else {
        return Ok(None);
    };
    let hash = hash_of(object, hash_path);
    let hash = hash.with_context(|| {
        format!(
            "{object:?} is no object: expected a hash of 32 hex digits, or account/container/object"
        )
    })?;
    let device = folder.parent().unwrap_or(folder);
    let stores = inspect::open_in_turn(device);
    let stores = stores.with_context(|| format!("cannot read {}", folder.display()))?;
    let mut of_folder = stores.iter().filter(|store| store.path == folder);
    let store = of_folder
        .next()
        .with_context(|| format!("{} has no volumes", folder.display()))?;
    let (partition, entries) = store.object(hash).unwrap_or_default();
    let newest = entries.iter().filter(|entry| entry.is_content());
    let Some(entry) = newest.max_by_key(|entry| entry.timestamp) else {
        bail!("{} has no content of {object}", folder.display());
    };
    let stored = store.store.read(partition, hash, entry.place);
    let stored = stored.with_context(|| format!("the record of {object}"))?;
    let mut metadata = Metadata::from_pickle(&stored.metadata).context("its metadata")?;
    metadata.set(NAME, &stored.name[..]);
    let (content, size): (Box<dyn Read>, _) = match store.large(entry)? {
        Some(file) => {
            let size = file.metadata()?.len();
            (Box::new(file), size)
        }
        None => {
            let size = stored.body.len() as u64;
            (Box::new(Cursor::new(stored.body)), size)
        }
    };
    Ok(Some(Found {
        policy: policy_of(folder),
        metadata,
        content,
        size,
    }))
}

/// The folder of volumes in a path, and what is named in it.
fn split(path: &Path) -> Option<(&Path, &str)> {
    let is_folder = |folder: &&Path| {
        let name = folder
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or("");
        let number = name.strip_prefix("pebbles");
        number.is_some_and(|number| number.is_empty() || number.starts_with('-')) && folder.is_dir()
    };
    // The first one from the root: an object's name may have such a part too.
    let folder = path.ancestors().skip(1).filter(is_folder).last()?;
    let object = path.strip_prefix(folder).ok()?.to_str()?;
    (!path.is_file()).then_some((folder, object))
}

fn hash_of(object: &str, hash_path: &HashPath) -> Option<ObjectHash> {
    let mut parts = object.splitn(3, '/');
    match (parts.next()?, parts.next(), parts.next()) {
        (hash, None, None) => ObjectHash::from_hex(hash),
        (account, Some(container), Some(object)) => {
            Some(hash_path.hash(account, Some(container), Some(object)))
        }
        _ => None,
    }
}

fn policy_of(folder: &Path) -> PolicyIndex {
    let name = folder
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or("");
    let number = name
        .rsplit_once('-')
        .and_then(|(_, number)| number.parse().ok());
    PolicyIndex(number.unwrap_or(0))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_path_below_a_folder_of_volumes_names_an_object() {
        let device = tempfile::tempdir().unwrap();
        let folder = device.path().join("pebbles-2");
        std::fs::create_dir(&folder).unwrap();
        let at = |path: &str| device.path().join(path);
        let (path, hash_path) = (at("pebbles-2/a/c/pebbles/o"), HashPath::new("", "x"));
        let (found, object) = split(&path).unwrap();
        assert_eq!((found, object), (&*folder, "a/c/pebbles/o"));
        assert_eq!(policy_of(found), PolicyIndex(2));
        let hash = hash_path.hash("a", Some("c"), Some("pebbles/o"));
        assert_eq!(hash_of(object, &hash_path), Some(hash));
        assert_eq!(hash_of(&hash.hex(), &hash_path), Some(hash));
        assert_eq!(hash_of("a/c", &hash_path), None);
        assert!(split(&at("objects/1/abc/hash/1.data")).is_none());
        // Nothing was written there.
        assert!(find(&path, &hash_path).is_err());
    }
}
