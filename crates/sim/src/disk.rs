//! A node's disk: real files, and a model of what survives a power cut.
//!
//! Every fsync of object files is recorded here with what it makes durable: a file's content and
//! attributes, or a directory's names. A power cut keeps that; each other part is kept or lost at
//! random: a name not synced, a removal not synced, content not synced (complete, or empty). A file
//! renamed within its folder has its old name or its new one. Nothing is ordered except by syncs,
//! which is less than file systems guarantee.
//!
//! A database survives as its files were at its last synced commit, or as they are now, and so does
//! its pending file, independently; SQLite's own recovery from torn writes is trusted. After a
//! failed sync the pages to be written are lost (`lost.rs`). The durable creation and removal of
//! databases' folders is trusted too.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_types::Timestamp;
use rustix::fs::{AtFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use crate::lost::Lost;
use crate::shared::Dice;

type Bytes = Arc<Vec<u8>>;

/// Folders of databases, under a device.
const DATABASES: [&str; 2] = ["accounts", "containers"];

/// A file's content and attributes.
#[derive(Clone, Default)]
struct Content {
    bytes: Bytes,
    attributes: Vec<(String, Bytes)>,
    /// Modification time in seconds; for synced files by the node's clock.
    modified: i64,
}

/// An entry of a disk after a power cut.
enum Entry {
    File(Content),
    Folder(BTreeMap<String, Entry>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Name {
    inode: u64,
    is_folder: bool,
}

/// State synced since the device was mounted, including all it held then.
#[derive(Default)]
pub(crate) struct Durable {
    files: HashMap<u64, Content>,
    folders: HashMap<u64, BTreeMap<String, Name>>,
    /// By a database's folder: its files at the last synced commit, and its pending file at that
    /// one's last sync.
    databases: BTreeMap<PathBuf, [Option<Synced>; 2]>,
    /// SQLite's logs as they were when the device was mounted.
    mounted_logs: BTreeMap<PathBuf, (u64, Bytes)>,
    pub(crate) lost: Lost,
}

/// Files by name, with their inodes.
type Synced = BTreeMap<String, (u64, Content)>;

/// Parts that are synced independently: the database with SQLite's log, and the pending file.
const PARTS: [&[&str]; 2] = [&[".db", ".db-wal"], &[".db.pending"]];

fn is_of(part: usize, name: &str) -> bool {
    PARTS[part].iter().any(|end| name.ends_with(end))
}

/// A disk's content after a crash.
pub(crate) struct Image(BTreeMap<String, Entry>);

pub(crate) fn path_of(fd: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

fn content_at(path: &Path) -> io::Result<Content> {
    let bytes = Arc::new(fs::read(path)?);
    let mut names = vec![0; 4096];
    let length = rustix::fs::listxattr(path, &mut names).unwrap_or(0);
    let mut attributes = Vec::new();
    for name in names[..length].split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let Ok(name) = std::str::from_utf8(name) else {
            continue;
        };
        let mut value = vec![0; 4096];
        let length = match rustix::fs::getxattr(path, name, &mut value) {
            Err(Errno::RANGE) => {
                value.resize(65_536, 0);
                rustix::fs::getxattr(path, name, &mut value)?
            }
            other => other?,
        };
        value.truncate(length);
        attributes.push((name.to_owned(), Arc::new(value)));
    }
    attributes.sort();
    Ok(Content {
        bytes,
        attributes,
        modified: fs::metadata(path)?.mtime(),
    })
}

fn times(modified: i64) -> Timestamps {
    let at = Timespec {
        tv_sec: modified,
        tv_nsec: 0,
    };
    Timestamps {
        last_access: at,
        last_modification: at,
    }
}

fn names_in(path: &Path) -> io::Result<BTreeMap<String, Name>> {
    let mut names = BTreeMap::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let Ok(meta) = entry.metadata() else { continue };
        let name = Name {
            inode: meta.ino(),
            is_folder: meta.is_dir(),
        };
        names.insert(entry.file_name().to_string_lossy().into_owned(), name);
    }
    Ok(names)
}

/// Decides for files renamed in their folder whether each has its old name or its new one. True if
/// the name exists.
fn renamed<'a>(
    now: &'a BTreeMap<String, Name>,
    synced: &'a BTreeMap<String, Name>,
    dice: &Dice,
) -> BTreeMap<&'a String, bool> {
    let mut renamed = BTreeMap::new();
    let is_file = |is: &Name| !is.is_folder;
    for (new, is) in now
        .iter()
        .filter(|(name, is)| is_file(is) && !synced.contains_key(*name))
    {
        let old = synced.iter();
        let mut old = old.filter(|(name, was)| *was == is && !now.contains_key(*name));
        if let Some((old, _)) = old.next() {
            let has_new = dice.coin();
            renamed.insert(new, has_new);
            renamed.insert(old, !has_new);
        }
    }
    renamed
}

/// Whether a path is that of a database's file or folder, on this device.
pub(crate) fn is_of_databases(device: &Path, path: &Path) -> bool {
    let below = path.strip_prefix(device);
    below.is_ok_and(|below| DATABASES.iter().any(|name| below.starts_with(name)))
}

fn is_database(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "db")
}

impl Durable {
    /// Records an fsync, at `now` by the node's clock.
    pub(crate) fn sync(&mut self, fd: BorrowedFd<'_>, now: Timestamp) -> io::Result<()> {
        let stat = rustix::fs::fstat(fd)?;
        let path = path_of(fd);
        if fs::metadata(&path)?.is_dir() {
            self.folders.insert(stat.st_ino, names_in(&path)?);
        } else {
            rustix::fs::futimens(fd, &times(now.secs() as i64))?;
            self.files.insert(stat.st_ino, content_at(&path)?);
        }
        Ok(())
    }

    /// Records a sync of a database's file or SQLite's log, of its pending file, or of its folder,
    /// which names a new database.
    pub(crate) fn sync_database(&mut self, synced: BorrowedFd<'_>) -> io::Result<()> {
        let place = fs::read_link(path_of(synced))?;
        if place.is_dir() {
            let is_known = |noted: &[Option<Synced>; 2]| noted[0].is_some();
            return match self.databases.get(&place).is_some_and(is_known) {
                true => Ok(()),
                false => self.note_part(&place, 0),
            };
        }
        let folder = place.parent().unwrap_or(&place);
        let is_pending = is_of(1, &place.to_string_lossy());
        self.note_part(folder, usize::from(is_pending))
    }

    /// Records that such a sync failed; returns the number of lost pages.
    pub(crate) fn lose(&mut self, synced: BorrowedFd<'_>) -> io::Result<usize> {
        let place = fs::read_link(path_of(synced))?;
        // The log was read from the disk before it was merged into the database's file, so it has
        // all pages lost there. Names are not lost.
        if is_database(&place) || place.is_dir() {
            return Ok(0);
        }
        let folder = place.parent().unwrap_or(&place);
        let end = match is_of(1, &place.to_string_lossy()) {
            true => ".db.pending",
            false => ".db-wal",
        };
        let mut count = 0;
        for (name, is) in names_in(folder)?.iter().filter(|(n, _)| n.ends_with(end)) {
            let path = folder.join(name);
            let noted = self.databases.get(folder).into_iter().flatten().flatten();
            let mut noted = noted.filter_map(|part| part.get(name));
            let synced = noted.next().filter(|(inode, _)| *inode == is.inode);
            let mounted = self.mounted_logs.get(&path);
            let mounted = mounted.filter(|(inode, _)| *inode == is.inode);
            let on_disk = synced.map(|(_, content)| &content.bytes);
            let on_disk = on_disk.or(mounted.map(|(_, bytes)| bytes));
            let on_disk = on_disk.map_or(&[][..], |bytes| bytes);
            count += self.lost.lose(&path, is.inode, &fs::read(&path)?, on_disk);
        }
        Ok(count)
    }

    /// Drops a file from the page cache.
    pub(crate) fn read_from_disk(&mut self, path: &Path) -> io::Result<bool> {
        let (inode, read) = (fs::metadata(path)?.ino(), fs::read(path)?);
        let on_disk = self.lost.on_disk(path, inode, &read);
        self.lost.forget(path);
        if let Some(content) = &on_disk {
            let file = OpenOptions::new().write(true).open(path)?;
            file.write_all_at(content, 0)?;
        }
        Ok(on_disk.is_some())
    }

    /// A file's content on the disk, except for what was never synced.
    fn content_on_disk(&self, path: &Path, inode: u64) -> io::Result<Content> {
        let mut content = content_at(path)?;
        if let Some(bytes) = self.lost.on_disk(path, inode, &content.bytes) {
            content.bytes = Arc::new(bytes);
        }
        Ok(content)
    }

    fn note_part(&mut self, folder: &Path, part: usize) -> io::Result<()> {
        let mut kept = Synced::new();
        for (name, is) in names_in(folder)? {
            if is_of(part, &name) {
                let path = folder.join(&name);
                let read = fs::read(&path)?;
                self.lost.forget_rewritten(&path, is.inode, &read);
                let content = self.content_on_disk(&path, is.inode)?;
                kept.insert(name.clone(), (is.inode, content));
            }
        }
        let noted = self.databases.entry(folder.to_owned()).or_default();
        noted[part] = Some(kept);
        Ok(())
    }

    /// Takes the current content as durable: the initial state of a machine. `lost` are pages only
    /// in the page cache, of a machine whose process was killed.
    pub(crate) fn mount(root: &Path, lost: Lost) -> io::Result<Self> {
        let inode_of = |path: &Path| fs::metadata(path).ok().map(|meta| meta.ino());
        let mut durable = Durable {
            lost: lost.found_again(inode_of),
            ..Durable::default()
        };
        durable.take_all(root, true)?;
        Ok(durable)
    }

    fn take_all(&mut self, folder: &Path, is_root: bool) -> io::Result<()> {
        let names = names_in(folder)?;
        for (name, is) in &names {
            let path = folder.join(name);
            if is_root && DATABASES.contains(&name.as_str()) {
                self.take_pending(&path)?;
                continue;
            }
            if is.is_folder {
                self.take_all(&path, false)?;
            } else {
                self.files.insert(is.inode, content_at(&path)?);
            }
        }
        self.folders.insert(fs::metadata(folder)?.ino(), names);
        Ok(())
    }

    fn take_pending(&mut self, folder: &Path) -> io::Result<()> {
        let names = names_in(folder)?;
        if names.keys().any(|name| is_of(1, name)) {
            self.note_part(folder, 1)?;
        }
        for (name, is) in names.iter().filter(|(n, _)| n.ends_with(".db-wal")) {
            let path = folder.join(name);
            let bytes = self.content_on_disk(&path, is.inode)?.bytes;
            self.mounted_logs.insert(path, (is.inode, bytes));
        }
        let mut folders = names.iter().filter(|(_, is)| is.is_folder);
        folders.try_for_each(|(name, _)| self.take_pending(&folder.join(name)))
    }

    /// The content after a power cut.
    pub(crate) fn after_power_cut(&self, root: &Path, dice: &Dice) -> io::Result<Image> {
        let inode = fs::metadata(root)?.ino();
        let mut kept = self.folder(Some(root), inode, dice)?;
        for name in DATABASES {
            if root.join(name).is_dir() {
                let now = self.databases(&root.join(name), dice)?;
                kept.insert(name.to_owned(), Entry::Folder(now));
            }
        }
        Ok(Image(kept))
    }

    /// Content of a folder; `path` is its current path, unless it is gone.
    fn folder(
        &self,
        path: Option<&Path>,
        inode: u64,
        dice: &Dice,
    ) -> io::Result<BTreeMap<String, Entry>> {
        let nothing = BTreeMap::new();
        let synced = self.folders.get(&inode).unwrap_or(&nothing);
        let now = match path {
            Some(path) => names_in(path)?,
            None => BTreeMap::new(),
        };
        let mut kept = BTreeMap::new();
        let renamed = renamed(&now, synced, dice);
        let all: BTreeSet<&String> = now.keys().chain(synced.keys()).collect();
        for name in all {
            if DATABASES.contains(&name.as_str()) {
                continue;
            }
            let (is, was) = (now.get(name), synced.get(name));
            let chosen = match renamed.get(name) {
                Some(true) => is.or(was),
                Some(false) => None,
                None if is == was || dice.coin() => is,
                None => was,
            };
            let Some(chosen) = chosen else { continue };
            let at = path.map(|path| path.join(name));
            let at = at.filter(|_| is == Some(chosen));
            let entry = if chosen.is_folder {
                Entry::Folder(self.folder(at.as_deref(), chosen.inode, dice)?)
            } else {
                Entry::File(self.file(at.as_deref(), chosen.inode, dice)?)
            };
            kept.insert(name.clone(), entry);
        }
        Ok(kept)
    }

    fn file(&self, path: Option<&Path>, inode: u64, dice: &Dice) -> io::Result<Content> {
        let synced = self.files.get(&inode).cloned();
        let now = path.map(content_at).transpose()?;
        Ok(match (now, synced) {
            (Some(now), Some(synced)) if now.bytes != synced.bytes => {
                if dice.coin() {
                    now
                } else {
                    synced
                }
            }
            (_, Some(synced)) => synced,
            // Never synced: its content may be on disk, or none of it.
            (Some(now), None) if dice.coin() => now,
            _ => Content::default(),
        })
    }

    /// Folders of databases as they are, each database as of a synced commit or as it is.
    fn databases(&self, folder: &Path, dice: &Dice) -> io::Result<BTreeMap<String, Entry>> {
        let mut kept = BTreeMap::new();
        let mut now = names_in(folder)?;
        for (part, synced) in self.databases.get(folder).into_iter().flatten().enumerate() {
            let Some(synced) = synced else { continue };
            let same = |(name, (inode, _)): (&String, &(u64, Content))| {
                name.ends_with("-wal") || now.get(name).is_some_and(|is| is.inode == *inode)
            };
            if synced.iter().all(same) && dice.coin() {
                now.retain(|name, _| !is_of(part, name));
                for (name, (_, content)) in synced {
                    kept.insert(name.clone(), Entry::File(content.clone()));
                }
            }
        }
        for (name, is) in now {
            let path = folder.join(&name);
            let entry = if is.is_folder {
                Entry::Folder(self.databases(&path, dice)?)
            } else {
                Entry::File(self.content_on_disk(&path, is.inode)?)
            };
            kept.insert(name, entry);
        }
        Ok(kept)
    }
}

/// The content after a process is killed: all that there is.
pub(crate) fn after_kill(root: &Path) -> io::Result<Image> {
    fn all(folder: &Path) -> io::Result<BTreeMap<String, Entry>> {
        let mut kept = BTreeMap::new();
        for (name, is) in names_in(folder)? {
            let path = folder.join(&name);
            let entry = match is.is_folder {
                true => Entry::Folder(all(&path)?),
                false => Entry::File(content_at(&path)?),
            };
            kept.insert(name, entry);
        }
        Ok(kept)
    }
    all(root).map(Image)
}

impl Image {
    /// A new, empty disk.
    pub(crate) fn empty() -> Self {
        Image(BTreeMap::new())
    }

    /// Replaces the content at `root`.
    pub(crate) fn write(&self, root: &Path) -> io::Result<()> {
        fs::remove_dir_all(root)?;
        write_folder(root, &self.0)
    }

    /// Number of files and folders.
    pub(crate) fn count(&self) -> usize {
        fn count(folder: &BTreeMap<String, Entry>) -> usize {
            let inner = |entry: &Entry| match entry {
                Entry::File(_) => 1,
                Entry::Folder(folder) => 1 + count(folder),
            };
            folder.values().map(inner).sum()
        }
        count(&self.0)
    }
}

fn write_folder(path: &Path, entries: &BTreeMap<String, Entry>) -> io::Result<()> {
    fs::create_dir(path)?;
    for (name, entry) in entries {
        let path = path.join(name);
        match entry {
            Entry::Folder(entries) => write_folder(&path, entries)?,
            Entry::File(content) => {
                fs::write(&path, &*content.bytes)?;
                for (name, value) in &content.attributes {
                    rustix::fs::setxattr(&path, name.as_str(), value, XattrFlags::empty())?;
                }
                let times = times(content.modified);
                rustix::fs::utimensat(rustix::fs::CWD, &path, &times, AtFlags::empty())?;
            }
        }
    }
    Ok(())
}
