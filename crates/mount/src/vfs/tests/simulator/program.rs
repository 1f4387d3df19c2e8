//! Programs on a mount: sessions with a file, and calls on names.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use super::super::{APPEND, OWNER, READ, WRITE};
use super::link::Link;
use super::model::Id;
use super::names::Intent;
use super::ops::Change;
use super::{World, shown_error};
use crate::error::{FsError, FsResult};
use crate::store::Why;
use crate::vfs::{Changes, OpenMode, ROOT, Vfs};

const FILES: [&str; 8] = [
    "places", "log", "d/log", "more", "d/places", "logs", "e/log", "e/places",
];
const DIRECTORIES: [&str; 2] = ["d", "e"];
/// The kernel opens a stale file once more.
const OPENS_MAX: u32 = 3;
/// Names that are tried until one is there and gets another.
const LINKS_MAX: u32 = 5;
/// Bytes of a file beyond which nothing is written at an offset.
const PLACES_BYTES: u64 = 700;

/// Locks that the kernel has: those of directories, by path, and those of files, by number.
#[derive(Default)]
pub(super) struct Locks {
    directories: Mutex<BTreeMap<String, Arc<RwLock<()>>>>,
    files: Mutex<BTreeMap<u64, Arc<RwLock<()>>>>,
}

/// Locks of directories in which names are made or removed.
type Held = Vec<OwnedRwLockWriteGuard<()>>;

impl Locks {
    fn directory(&self, path: &str) -> Arc<RwLock<()>> {
        let mut directories = self.directories.lock();
        directories.entry(path.to_owned()).or_default().clone()
    }

    async fn looked_up(&self, path: &str) -> OwnedRwLockReadGuard<()> {
        self.directory(path).read_owned().await
    }

    async fn changed(&self, mut paths: Vec<&str>) -> Held {
        paths.sort_unstable();
        paths.dedup();
        let mut held = Held::new();
        for path in paths {
            held.push(self.directory(path).write_owned().await);
        }
        held
    }

    fn file(&self, ino: u64) -> Arc<RwLock<()>> {
        self.files.lock().entry(ino).or_default().clone()
    }
}

pub(super) struct Program {
    pub(super) world: Arc<World>,
    pub(super) mount: usize,
    pub(super) vfs: Arc<Vfs<Link>>,
    pub(super) locks: Arc<Locks>,
    pub(super) random: Mutex<StdRng>,
}

/// An open file of a program.
struct Open {
    id: Id,
    handle: u64,
    /// The moment before it was opened.
    since: u64,
    appends: bool,
    is_writer: bool,
}

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

impl Program {
    fn roll(&self, below: u64) -> u64 {
        self.random.lock().random_range(0..below)
    }

    fn pick<'a>(&self, all: &[&'a str]) -> &'a str {
        all[self.roll(all.len() as u64) as usize]
    }

    /// A pause, of a minute or two where sweeps remove what is old.
    async fn pause(&self, millis: u64) {
        let pause = match self.world.sweeps > 0 && self.roll(6) == 0 {
            true => 1000 * self.roll(150),
            false => self.roll(millis),
        };
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }

    pub(super) async fn run(&self, sessions: u32) {
        let more = if self.world.has_links { 2 } else { 1 };
        for _ in 0..sessions * more {
            self.pause(60).await;
            match self.roll(10) {
                // Files need several names before these are removed.
                3 | 4 if self.world.has_links => self.change_names().await,
                0 | 1 if self.world.has_names => self.change_names().await,
                2 if self.world.has_names => self.list().await,
                _ => {
                    let file = self.pick(&FILES[..self.world.files]);
                    self.session(file).await;
                }
            }
        }
    }

    fn now(&self) -> u64 {
        self.world.model.lock().now()
    }

    /// Is a failure explained by the store's, or by others that move names? The rest is wrong.
    fn excuse(&self, call: &str, since: u64, error: &FsError, has_churned: bool) {
        self.world.note(format!("{}: {call}: {error}", self.mount));
        let is_excused = match error {
            // A request may have failed before, for another call.
            FsError::Store(error) if matches!(error.why, Why::Timeout | Why::Unavailable) => {
                self.world.has_failed(self.mount, 0)
            }
            FsError::Store(error) if matches!(error.why, Why::NotFound | Why::Changed) => {
                has_churned || self.world.has_failed(self.mount, since)
            }
            FsError::Store(_) => self.world.has_failed(self.mount, since),
            FsError::NotFound | FsError::Stale => has_churned,
            _ => false,
        };
        if !is_excused {
            let text = format!("mount {}: {call}: {}", self.mount, shown_error(error));
            self.world.model.lock().blame(text);
        }
    }

    fn excuse_file(&self, call: &str, since: u64, error: &FsError, open: &Open) {
        let has_moved = self.world.model.lock().has_moved(open.id);
        self.excuse(call, since, error, has_moved);
    }

    fn excuse_names(&self, call: &str, since: u64, error: &FsError, names: &[&str]) {
        let has_churned = {
            let model = self.world.model.lock();
            names.iter().any(|name| model.has_churned(name, 0))
        };
        self.excuse(call, since, error, has_churned);
    }

    async fn directory(&self, path: &str) -> FsResult<u64> {
        match path {
            "" => Ok(ROOT),
            path => {
                let _lock = self.locks.looked_up("").await;
                self.vfs.lookup(ROOT, path).await.map(|attr| attr.ino)
            }
        }
    }

    /// Has a directory that was looked up its name still? Another program may have moved it.
    fn is_at(&self, ino: u64, path: &str) -> bool {
        self.vfs.path(ino).is_ok_and(|now| now == path)
    }

    /// Opens a file like the kernel: it is looked up first, and made where it is not there.
    async fn try_open(&self, file: &str, mode: OpenMode, open: &mut Open) -> FsResult<()> {
        let (directory, name) = split(file);
        let parent = self.directory(directory).await?;
        let ino = {
            let (_shared, _alone) = match mode.is_writer {
                true => (None, Some(self.locks.changed(vec![directory]).await)),
                false => (Some(self.locks.looked_up(directory).await), None),
            };
            if !self.is_at(parent, directory) {
                return Err(FsError::NotFound);
            }
            let since = self.now();
            let found = self.vfs.lookup(parent, name).await;
            self.world.looked_up(self.mount, file, since, &found);
            match found {
                Ok(attr) => attr.ino,
                Err(FsError::NotFound) if mode.is_writer => {
                    let intent = Intent::Empty(file.to_owned());
                    let intent = self.world.model.lock().begin(self.mount, intent);
                    let created = self.vfs.create(parent, name, OWNER, mode, false).await;
                    let (attr, handle) = created?;
                    let mut model = self.world.model.lock();
                    model.done(intent);
                    open.id.1 = attr.ino;
                    open.handle = handle;
                    let path = self.vfs.path(attr.ino).unwrap_or(file.to_owned());
                    model.named(open.id, &path, open.since);
                    if mode.truncates {
                        model.is_local(open.id);
                    }
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        };
        open.id.1 = ino;
        {
            let path = self.vfs.path(ino).unwrap_or(file.to_owned());
            let mut model = self.world.model.lock();
            model.named(open.id, &path, open.since);
        }
        let lock = self.locks.file(ino);
        let _alone = match mode.truncates {
            true => Some(lock.write().await),
            false => None,
        };
        let change = Change::Resize { size: 0 };
        let truncation = mode.truncates.then(|| {
            let mut model = self.world.model.lock();
            model.accept(open.id, change, true)
        });
        let opened = self.vfs.open(ino, mode).await;
        {
            let mut model = self.world.model.lock();
            match (truncation, &opened) {
                (Some(truncation), Ok(_)) => model.made(open.id, truncation),
                (Some(truncation), Err(_)) => model.is_open(open.id, truncation),
                (None, _) => {}
            }
            // Another host may have made it a hard link meanwhile.
            if let (Ok(_), Ok(path)) = (&opened, self.vfs.path(ino)) {
                model.named(open.id, &path, open.since);
            }
        }
        open.handle = opened?.0;
        Ok(())
    }

    async fn open(&self, file: &str, mode: OpenMode) -> Option<Open> {
        let since = self.now();
        let mut open = Open {
            id: (self.mount, 0),
            handle: 0,
            since,
            appends: mode.is_append,
            is_writer: mode.is_writer,
        };
        self.world
            .note(format!("{}: open {file} {mode:?}", self.mount));
        let mut opened = Err(FsError::Stale);
        for _ in 0..OPENS_MAX {
            opened = self.try_open(file, mode, &mut open).await;
            if !matches!(opened, Err(FsError::Stale)) {
                break;
            }
        }
        match opened {
            Ok(()) => Some(open),
            // It is not there, or its directory.
            Err(FsError::NotFound) if !mode.is_writer || file.contains('/') => None,
            Err(error) => {
                self.excuse_names(&format!("open {file}"), since, &error, &[file]);
                None
            }
        }
    }

    async fn session(&self, file: &str) {
        let mut mode = match self.roll(4) {
            0 => READ,
            _ if file.contains("log") => APPEND,
            _ => WRITE,
        };
        mode.truncates = mode.is_writer && self.world.truncates && self.roll(6) == 0;
        let Some(open) = self.open(file, mode).await else {
            return;
        };
        for _ in 0..self.roll(7) {
            match self.roll(9) {
                0 | 1 => self.read(&open).await,
                2 => drop(self.sync(&open).await),
                3 => self.pause(80).await,
                4 if self.world.truncates && open.is_writer && self.roll(3) == 0 => {
                    self.resize(&open).await;
                }
                _ if open.is_writer => self.write(&open).await,
                _ => self.read(&open).await,
            }
        }
        self.close(&open).await;
    }

    async fn write(&self, open: &Open) {
        let since = self.now();
        let often = if self.world.sweeps > 0 { 3 } else { 6 };
        let length = match self.roll(often) {
            0 => self.roll(400) + 1,
            _ => self.roll(30) + 1,
        };
        let offset = self.roll(PLACES_BYTES);
        let bytes = self.world.record(self.mount, length as usize);
        let lock = self.locks.file(open.id.1);
        let _shared = lock.read().await;
        let written = self.vfs.write(open.handle, offset, bytes.clone(), false);
        match written.await {
            Ok(_) => {
                let offset = offset as usize;
                let change = match open.appends {
                    true => Change::Append { bytes },
                    false => Change::Write { offset, bytes },
                };
                self.world.note(format!("{:?}: {change:?}", open.id));
                self.world.model.lock().accept(open.id, change, false);
            }
            Err(error) => self.excuse_file("write", since, &error, open),
        }
    }

    /// Resizes a file whose writes are on the store: it is shorter or longer than others made it.
    async fn resize(&self, open: &Open) {
        let lock = self.locks.file(open.id.1);
        let _alone = lock.write().await;
        if !self.sync(open).await {
            return;
        }
        let size = match open.appends {
            true => 0,
            false => self.roll(PLACES_BYTES),
        };
        let since = self.now();
        let change = Change::Resize {
            size: size as usize,
        };
        let number = self.world.model.lock().accept(open.id, change, true);
        let changes = Changes {
            size: Some(size),
            ..Changes::default()
        };
        match self.vfs.setattr(open.id.1, changes).await {
            Ok(_) => {
                let node = self.vfs.tree.lock().node(open.id.1);
                let is_dirty = node.is_some_and(|node| node.state.lock().is_dirty());
                let mut model = self.world.model.lock();
                model.made(open.id, number);
                if !is_dirty {
                    model.had(open.id, number);
                }
            }
            Err(error) => {
                self.world.model.lock().is_open(open.id, number);
                self.excuse_file("truncate", since, &error, open);
            }
        }
    }

    async fn read(&self, open: &Open) {
        let since = self.now();
        match self.vfs.read(open.handle, 0, 1 << 20).await {
            Ok(pieces) => {
                let content = pieces.concat();
                let mut model = self.world.model.lock();
                model.read(open.id, open.since, since, &content);
            }
            Err(error) => self.excuse_file("read", since, &error, open),
        }
    }

    /// Was everything stored?
    async fn sync(&self, open: &Open) -> bool {
        let (since, mark) = {
            let mut model = self.world.model.lock();
            (model.now(), model.mark(open.id))
        };
        let synced = self.vfs.sync(open.handle).await;
        self.world.note(format!("{:?}: sync: {synced:?}", open.id));
        match &synced {
            Ok(()) => self.world.model.lock().acknowledged(open.id, mark),
            Err(error) => self.excuse_file("sync", since, error, open),
        }
        synced.is_ok()
    }

    async fn close(&self, open: &Open) {
        let (since, mark) = {
            let mut model = self.world.model.lock();
            (model.now(), model.mark(open.id))
        };
        match self.vfs.flush(open.handle).await {
            Ok(()) if open.is_writer => self.world.model.lock().acknowledged(open.id, mark),
            Ok(()) => {}
            Err(error) => self.excuse_file("close", since, &error, open),
        }
        if let Err(error) = self.vfs.release(open.handle).await {
            self.excuse_file("release", since, &error, open);
        }
    }

    async fn change_names(&self) {
        let files = &FILES[..self.world.files];
        let (one, two) = (self.pick(files), self.pick(files));
        // Appended bytes stay apart from what has places.
        let is_like = one.contains("log") == two.contains("log");
        match self.roll(if self.world.has_links { 18 } else { 8 }) {
            8.. => {
                for _ in 0..LINKS_MAX {
                    let (from, to) = (self.pick(files), self.pick(files));
                    if from.contains("log") == to.contains("log") && self.link(from, to).await {
                        break;
                    }
                }
            }
            0 | 1 => self.unlink(one).await,
            2..=4 => {
                if is_like {
                    self.rename(one, two).await;
                }
            }
            5 => self.mkdir(self.pick(&DIRECTORIES)).await,
            6 => self.rmdir(self.pick(&DIRECTORIES)).await,
            _ => {
                self.rename(DIRECTORIES[self.roll(2) as usize], self.pick(&DIRECTORIES))
                    .await
            }
        }
    }

    /// The result of a call on names, which may be refused by what is there.
    fn ended(&self, call: &str, since: u64, result: FsResult<()>, names: &[&str]) -> bool {
        match result {
            Ok(()) => true,
            Err(FsError::NotFound | FsError::Exists | FsError::NotEmpty | FsError::Stale) => false,
            Err(error) => {
                self.excuse_names(call, since, &error, names);
                false
            }
        }
    }

    fn begin(&self, intent: Intent) -> (u64, usize) {
        let mut model = self.world.model.lock();
        (model.now(), model.begin(self.mount, intent))
    }

    async fn unlink(&self, file: &str) {
        let (directory, name) = split(file);
        let Ok(parent) = self.directory(directory).await else {
            return;
        };
        let _lock = self.locks.changed(vec![directory]).await;
        if !self.is_at(parent, directory) {
            return;
        }
        let (since, intent) = self.begin(Intent::Remove(file.to_owned()));
        let removed = self.vfs.unlink(parent, name).await;
        self.world
            .note(format!("{}: unlink {file}: {removed:?}", self.mount));
        if self.ended("unlink", since, removed, &[file]) {
            self.world.removed(file, since, intent);
        }
    }

    async fn rmdir(&self, directory: &str) {
        let _lock = self.locks.changed(vec!["", directory]).await;
        let (since, intent) = self.begin(Intent::Remove(directory.to_owned()));
        let removed = self.vfs.rmdir(ROOT, directory).await;
        if self.ended("rmdir", since, removed, &[directory]) {
            self.world.removed(directory, since, intent);
        }
    }

    async fn mkdir(&self, directory: &str) {
        let _lock = self.locks.changed(vec![""]).await;
        let since = self.now();
        let made = self.vfs.mkdir(ROOT, directory, OWNER).await.map(drop);
        if self.ended("mkdir", since, made, &[directory]) {
            self.world.made(directory, since);
        }
    }

    async fn rename(&self, from: &str, to: &str) {
        let ((old, name), (new, new_name)) = (split(from), split(to));
        let (Ok(parent), Ok(new_parent)) = (self.directory(old).await, self.directory(new).await)
        else {
            return;
        };
        if from == to {
            return;
        }
        let _lock = self.locks.changed(vec![old, new, from, to]).await;
        if !self.is_at(parent, old) || !self.is_at(new_parent, new) {
            return;
        }
        let (since, intent) = self.begin(Intent::Rename {
            from: from.to_owned(),
            to: to.to_owned(),
        });
        let renamed = self
            .vfs
            .rename((parent, name), (new_parent, new_name), false);
        let renamed = renamed.await;
        self.world
            .note(format!("{}: rename {from} {to}: {renamed:?}", self.mount));
        if !self.ended("rename", since, renamed, &[from, to]) {
            return;
        }
        {
            let mut model = self.world.model.lock();
            if model.have_been_one(from, to, since) {
                return model.done(intent);
            }
        }
        self.world.made(to, since);
        self.world.removed(from, since, intent);
    }

    /// Returns false if there is no such file.
    async fn link(&self, from: &str, to: &str) -> bool {
        let ((old, name), (new, new_name)) = (split(from), split(to));
        let (Ok(parent), Ok(new_parent)) = (self.directory(old).await, self.directory(new).await)
        else {
            return false;
        };
        let found = {
            let _lock = self.locks.looked_up(old).await;
            if !self.is_at(parent, old) {
                return false;
            }
            let since = self.now();
            let found = self.vfs.lookup(parent, name).await;
            self.world.looked_up(self.mount, from, since, &found);
            found
        };
        let Ok(attr) = found else {
            return false;
        };
        let _lock = self.locks.changed(vec![new]).await;
        if !self.is_at(new_parent, new) {
            return false;
        }
        let file = self.locks.file(attr.ino);
        let _alone = file.write().await;
        let (since, intent) = self.begin(Intent::Link {
            node: (self.mount, attr.ino),
            from: from.to_owned(),
            to: to.to_owned(),
        });
        let linked = self.vfs.link(attr.ino, new_parent, new_name).await;
        let linked = linked.map(drop);
        self.world
            .note(format!("{}: link {from} {to}: {linked:?}", self.mount));
        if self.ended("link", since, linked, &[from, to]) {
            self.world.made(to, since);
            self.world.model.lock().done(intent);
        }
        true
    }

    async fn list(&self) {
        let directory = ["", "", "d", "e"][self.roll(4) as usize];
        let Ok(ino) = self.directory(directory).await else {
            return;
        };
        let _lock = self.locks.looked_up(directory).await;
        let since = self.now();
        let listed = self.names(ino).await;
        match listed {
            Ok(names) => self.world.listed(self.mount, directory, since, &names),
            Err(error) => self.excuse_names("list", since, &error, &[directory]),
        }
    }

    async fn names(&self, ino: u64) -> FsResult<Vec<String>> {
        let stream = self.vfs.opendir(ino).await?;
        let mut names = Vec::new();
        let mut result = Ok(());
        loop {
            match self.vfs.readdir(ino, stream, names.len() as u64).await {
                Ok(page) if page.is_empty() => break,
                Ok(page) => names.extend(page.into_iter().map(|entry| entry.name)),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        self.vfs.releasedir(stream);
        result.map(|()| names.split_off(2))
    }
}
