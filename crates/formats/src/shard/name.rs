//! Names of shard containers: `<account>/<root>-<MD5 of the parent's name>-<time>-<index>`.

use cairn_types::Timestamp;

use super::{Bounded, ShardRange};

/// The parts of a shard container's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardName<'a> {
    pub account: &'a str,
    /// The root container, which clients know.
    pub root: &'a str,
    /// Hex MD5 of the name of the container that was sharded into this one.
    pub parent_hash: &'a str,
    pub timestamp: Timestamp,
    pub index: u64,
}

impl<'a> ShardName<'a> {
    /// Parses a name; `None` if it is not that of a shard.
    pub fn parse(name: &'a str) -> Option<Self> {
        let (account, container) = name.split_once('/')?;
        let mut parts = container.rsplitn(4, '-');
        let index = parts.next()?.parse().ok()?;
        let timestamp = Timestamp::parse(parts.next()?).ok()?;
        let parent_hash = parts.next()?;
        let root = parts.next()?;
        Some(ShardName {
            account,
            root,
            parent_hash,
            timestamp,
            index,
        })
    }

    /// `parent_hash` is the hex MD5 of the parent's name.
    pub fn make(
        account: &str,
        root: &str,
        parent_hash: &str,
        timestamp: Timestamp,
        index: usize,
    ) -> String {
        format!(
            "{account}/{root}-{parent_hash}-{}-{index}",
            timestamp.normal()
        )
    }
}

/// Function that computes the hex MD5 of a container's name; passed in because this crate has no
/// digests.
pub type HashName = fn(&str) -> String;

impl ShardRange {
    /// Was this shard created by sharding `parent`? Decided by the names alone.
    pub fn is_child_of(&self, parent: &ShardRange, hash: HashName) -> bool {
        let Some(own) = ShardName::parse(&self.name) else {
            return false;
        };
        let container = parent.place().1;
        let root = ShardName::parse(&parent.name).map_or(container, |parent| parent.root);
        own.root == root && own.parent_hash == hash(container)
    }

    pub fn find_root<'r>(&self, ranges: &'r [ShardRange]) -> Option<&'r ShardRange> {
        let own = ShardName::parse(&self.name)?;
        ranges.iter().find(|range| range.place().1 == own.root)
    }

    /// Names of its parent, the parent's parent and so on, as far as `ranges` contains them, and of
    /// the root.
    pub fn ancestors(&self, ranges: &[ShardRange], hash: HashName) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        let mut child = self;
        loop {
            if ShardName::parse(&child.name).is_none() {
                return names;
            }
            let parent = ranges.iter().find(|range| child.is_child_of(range, hash));
            match parent {
                // A name that contains its own hash would never end the loop.
                Some(parent) if !names.contains(&parent.name) => {
                    names.push(parent.name.clone());
                    child = parent;
                }
                _ => {
                    names.extend(child.find_root(ranges).map(|root| root.name.clone()));
                    return names;
                }
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn hash(name: &str) -> String {
        format!("hash_of_{}", name.len())
    }

    fn range(name: &str) -> ShardRange {
        ShardRange {
            name: name.into(),
            ..ShardRange::default()
        }
    }

    #[test]
    fn names_and_families() {
        let time = Timestamp::from_secs(1);
        let child = ShardName::make(".shards_a", "c-d", &hash("c-d"), time, 3);
        assert_eq!(child, ".shards_a/c-d-hash_of_3-0000000001.00000-3");
        let parsed = ShardName::parse(&child).unwrap();
        assert_eq!((parsed.root, parsed.index), ("c-d", 3));
        assert!(ShardName::parse("a/c").is_none());

        let (root, child) = (range("a/c-d"), range(&child));
        let container = child.place().1.to_owned();
        let grandchild = ShardName::make(".shards_a", "c-d", &hash(&container), time, 0);
        let grandchild = range(&grandchild);
        assert!(child.is_child_of(&root, hash));
        assert!(grandchild.is_child_of(&child, hash) && !grandchild.is_child_of(&root, hash));
        let all = [root.clone(), child.clone()];
        assert_eq!(grandchild.ancestors(&all, hash), [child.name, root.name]);
        assert!(range("a/c").ancestors(&all, hash).is_empty());
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_name_is_read_or_refused(name in "[.a-z]{0,9}/[a-z-]{0,9}-[0-9a-f]{0,32}-[0-9.]{0,18}-[0-9]{0,21}|.{0,60}") {
            let _ = ShardName::parse(&name);
        }
    }
}
