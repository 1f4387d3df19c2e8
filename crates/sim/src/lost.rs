//! Pages lost in a failed sync: they are marked clean, so reads return the new content until the
//! page cache drops them, and no later sync writes them. The disk has their old content, which a
//! power cut leaves. A page written again with other content is an ordinary one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const PAGE_BYTES: usize = 4096;

/// Lost pages of one disk, by file.
#[derive(Clone, Default)]
pub(crate) struct Lost(BTreeMap<PathBuf, LostPages>);

#[derive(Clone)]
struct LostPages {
    inode: u64,
    pages: BTreeMap<usize, LostPage>,
}

#[derive(Clone)]
struct LostPage {
    read: Vec<u8>,
    on_disk: Vec<u8>,
}

impl Lost {
    /// Records a failed sync: pages that differ from the disk are lost.
    pub(crate) fn lose(&mut self, path: &Path, inode: u64, read: &[u8], on_disk: &[u8]) -> usize {
        let lost = self.0.entry(path.to_owned());
        let lost = lost.or_insert_with(|| LostPages {
            inode,
            pages: BTreeMap::new(),
        });
        if lost.inode != inode {
            lost.pages.clear();
            lost.inode = inode;
        }
        for (number, read) in read.chunks(PAGE_BYTES).enumerate() {
            let known = lost.pages.get(&number).filter(|page| page.read == read);
            let place = number * PAGE_BYTES..number * PAGE_BYTES + read.len();
            let mut was = vec![0; read.len()];
            let there = on_disk.get(place.start..on_disk.len().min(place.end));
            was[..there.map_or(0, <[u8]>::len)].copy_from_slice(there.unwrap_or_default());
            if known.is_none() && was != read {
                let page = LostPage {
                    read: read.to_vec(),
                    on_disk: was,
                };
                lost.pages.insert(number, page);
            }
        }
        lost.pages.len()
    }

    /// The disk's content of a file, given what reads return.
    pub(crate) fn on_disk(&self, path: &Path, inode: u64, read: &[u8]) -> Option<Vec<u8>> {
        let lost = self.0.get(path).filter(|lost| lost.inode == inode)?;
        let mut content = read.to_vec();
        let mut is_other = false;
        for (number, page) in content.chunks_mut(PAGE_BYTES).enumerate() {
            let lost = lost.pages.get(&number);
            if let Some(lost) = lost.filter(|lost| lost.read == page) {
                page.copy_from_slice(&lost.on_disk);
                is_other = true;
            }
        }
        is_other.then_some(content)
    }

    /// Drops pages that were written again since.
    pub(crate) fn forget_rewritten(&mut self, path: &Path, inode: u64, read: &[u8]) {
        if let Some(lost) = self.0.get_mut(path).filter(|lost| lost.inode == inode) {
            let page_at = |number: usize| read.chunks(PAGE_BYTES).nth(number);
            lost.pages
                .retain(|number, page| page_at(*number) == Some(&page.read));
        }
    }

    /// Drops a file's pages: the page cache has dropped them.
    pub(crate) fn forget(&mut self, path: &Path) {
        self.0.remove(path);
    }

    /// Finds the files after a kill, where they have other inodes.
    pub(crate) fn found_again(mut self, inode_of: impl Fn(&Path) -> Option<u64>) -> Self {
        self.0.retain(|path, lost| match inode_of(path) {
            Some(inode) => {
                lost.inode = inode;
                true
            }
            None => false,
        });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_until_it_is_written_again_or_read_from_the_disk() {
        let path = Path::new("wal");
        let page = |byte: u8| vec![byte; PAGE_BYTES];
        let file = |pages: &[u8]| pages.iter().flat_map(|b| page(*b)).collect::<Vec<_>>();
        let mut lost = Lost::default();
        assert_eq!(lost.lose(path, 1, &file(&[1, 2, 3]), &file(&[1, 9])), 2);
        let on_disk = |lost: &Lost, pages: &[u8]| lost.on_disk(path, 1, &file(pages));
        assert_eq!(on_disk(&lost, &[1, 2, 3, 4]), Some(file(&[1, 9, 0, 4])));
        assert_eq!(on_disk(&lost, &[1, 5, 3]), Some(file(&[1, 5, 0])));
        lost.forget_rewritten(path, 1, &file(&[1, 5, 3]));
        assert_eq!(on_disk(&lost, &[1, 2, 3]), Some(file(&[1, 2, 0])));
        assert_eq!(lost.on_disk(path, 2, &file(&[1, 2, 3])), None);
        let again = lost.clone().found_again(|_| Some(2));
        assert!(again.on_disk(path, 2, &file(&[1, 2, 3])).is_some());
        lost.forget(path);
        assert_eq!(on_disk(&lost, &[1, 2, 3]), None);
    }
}
