//! The file of revoked tokens: lines, appended and synced one revocation at a time.
//!
//! ```text
//! AUDIT-ID EXPIRY USER LOGIN     a revoked token; USER is a digest, LOGIN the second of the login
//! * EXPIRY USER LOGIN            all tokens of this user whose login was not after LOGIN
//! AUDIT-ID EXPIRY                as earlier versions wrote it
//! ```
//!
//! Readers accept only complete lines, so a line truncated by a crash is ignored. The file is
//! rewritten when most of its lines have expired, under the lock that also serialises appends.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Maximum bytes read of the file.
const FILE_MAX: u64 = 64 << 20;
use super::NO_USER;

/// One line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Token {
        id: String,
        expires: u64,
        user: String,
        login: u64,
    },
    Watermark {
        expires: u64,
        user: String,
        login: u64,
    },
}

impl Line {
    pub(super) fn parse(text: &str) -> Option<Line> {
        let words: Vec<&str> = text.split(' ').collect();
        let (id, expires, user, login) = match words[..] {
            [id, expires] => (id, expires, NO_USER, "0"),
            [id, expires, user, login] => (id, expires, user, login),
            _ => return None,
        };
        let (expires, login) = (expires.parse().ok()?, login.parse().ok()?);
        let user = user.to_owned();
        Some(match id {
            "" => return None,
            "*" => Line::Watermark {
                expires,
                user,
                login,
            },
            id => Line::Token {
                id: id.to_owned(),
                expires,
                user,
                login,
            },
        })
    }

    fn text(&self) -> String {
        match self {
            Line::Token {
                id,
                expires,
                user,
                login,
            } => format!("{id} {expires} {user} {login}\n"),
            Line::Watermark {
                expires,
                user,
                login,
            } => format!("* {expires} {user} {login}\n"),
        }
    }
}

/// The file, and the part of it that has been read.
pub(super) struct ListFile {
    pub(super) path: PathBuf,
    /// Device, inode and length at the last read.
    seen: Option<(u64, u64, u64)>,
    /// Number of bytes read, in complete lines.
    read: u64,
    pub(super) lines: usize,
}

impl ListFile {
    pub(super) fn new(path: PathBuf) -> ListFile {
        ListFile {
            path,
            seen: None,
            read: 0,
            lines: 0,
        }
    }

    /// The lock that serialises appends, a separate file: the list's file is replaced at times.
    pub(super) fn lock(&self) -> io::Result<File> {
        let mut name = self.path.clone().into_os_string();
        name.push(".lock");
        let lock = private()
            .create(true)
            .append(true)
            .open(PathBuf::from(name))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        Ok(lock)
    }

    /// Reads the lines written since the last check.
    pub(super) fn news(&mut self) -> io::Result<Vec<Line>> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                *self = ListFile::new(std::mem::take(&mut self.path));
                return Ok(Vec::new());
            }
            Err(error) => return Err(error),
        };
        let meta = file.metadata()?;
        let now = (meta.dev(), meta.ino(), meta.len());
        if self.seen == Some(now) {
            return Ok(Vec::new());
        }
        let is_same = self
            .seen
            .is_some_and(|(dev, ino, len)| (dev, ino) == (now.0, now.1) && len <= now.2);
        if !is_same {
            (self.read, self.lines) = (0, 0);
        }
        file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = Vec::new();
        file.take(FILE_MAX).read_to_end(&mut bytes)?;
        let complete = bytes
            .iter()
            .rposition(|b| *b == b'\n')
            .map_or(0, |at| at + 1);
        bytes.truncate(complete);
        self.read += complete as u64;
        self.seen = Some(now);
        let text = String::from_utf8_lossy(&bytes);
        self.lines += text.lines().count();
        Ok(text.lines().filter_map(Line::parse).collect())
    }

    pub(super) fn append(&mut self, lines: &[Line]) -> io::Result<()> {
        let is_new = !self.path.exists();
        let mut file = private().create(true).append(true).open(&self.path)?;
        let length = file.metadata()?.len();
        // A truncated line before must not merge with ours.
        let mut text = String::new();
        if length > self.read {
            text.push('\n');
        }
        text.extend(lines.iter().map(Line::text));
        if let Err(error) = file.write_all(text.as_bytes()) {
            // On failure the partial line has no line end, or is truncated here.
            let _ = file.set_len(length);
            return Err(error);
        }
        file.sync_all()?;
        if is_new {
            sync_folder(&self.path)?;
        }
        Ok(())
    }

    /// Writes a temporary file, syncs it and renames it into place.
    pub(super) fn replace(&mut self, lines: &[Line]) -> io::Result<()> {
        let text: String = lines.iter().map(Line::text).collect();
        let mut name = self.path.clone().into_os_string();
        name.push(".new");
        let staged = PathBuf::from(name);
        let mut file = private()
            .create(true)
            .write(true)
            .truncate(true)
            .open(&staged)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&staged, &self.path)?;
        sync_folder(&self.path)?;
        let meta = file.metadata()?;
        self.seen = Some((meta.dev(), meta.ino(), meta.len()));
        (self.read, self.lines) = (meta.len(), lines.len());
        Ok(())
    }
}

/// Options for files that only their owner can access.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}
