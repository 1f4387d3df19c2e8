//! A folder of a mounted file system: how it takes files from many writers.
//!
//! Layout `n-n`: a file per object, `PATH/container/object`. Layout `n-1`: a file per container,
//! `PATH/container.shared`, in which object number k has the bytes from k × `object_bytes` on (by
//! default its own size), as ranks write a checkpoint. Content is moved in blocks; `fsync` is `none`, `close` (once, before the
//! file is closed) or `block` (after each block).

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind as Io};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::time::Instant;

use super::content::{self, Checker};
use super::{Done, Failure, Request, TargetError, Verb, number};
use crate::plan::Settings;
use crate::record::ErrorKind;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sync {
    None,
    Close,
    Block,
}

#[derive(Debug)]
pub struct Dir {
    path: PathBuf,
    shared: bool,
    block: usize,
    sync: Sync,
    /// Distance in bytes between the starts of objects in a shared file.
    object_bytes: Option<u64>,
}

/// A block larger than this would only cost memory.
const BLOCK_MAX: u64 = 1 << 30;

impl Dir {
    pub(crate) fn open(settings: &Settings) -> Result<Self, TargetError> {
        let config = &settings.config;
        let path =
            config
                .get("path")
                .filter(|path| !path.is_empty())
                .ok_or(TargetError::Missing {
                    part: "storage",
                    key: "path",
                    option: "--target file:///PATH",
                })?;
        let wrong = |key: &str, value: &str, why: &str| TargetError::Setting {
            key: key.into(),
            value: value.into(),
            why: why.into(),
        };
        let setting = |key: &str| config.get(key).map_or("", String::as_str);
        let shared = match setting("layout") {
            "" | "n-n" => false,
            "n-1" => true,
            other => return Err(wrong("layout", other, "it is n-n or n-1")),
        };
        let sync = match setting("fsync") {
            "" | "none" => Sync::None,
            "close" => Sync::Close,
            "block" => Sync::Block,
            other => return Err(wrong("fsync", other, "it is none, close or block")),
        };
        let block = number(config, "block")?.unwrap_or(1 << 20);
        if block == 0 || block > BLOCK_MAX {
            return Err(wrong(
                "block",
                &block.to_string(),
                "it is 1 to 1073741824 bytes",
            ));
        }
        std::fs::create_dir_all(path).map_err(|error| wrong("path", path, &error.to_string()))?;
        let object_bytes = number(config, "object_bytes")?;
        Ok(Self {
            object_bytes,
            path: path.into(),
            shared,
            block: block as usize,
            sync,
        })
    }

    pub(crate) fn describe(&self) -> String {
        let layout = if self.shared { "n-1" } else { "n-n" };
        format!(
            "file {} {layout} block={} fsync={:?}",
            self.path.display(),
            self.block,
            self.sync
        )
        .to_lowercase()
    }

    /// Has each object a file that can be copied?
    pub(crate) fn copies(&self) -> bool {
        !self.shared
    }

    pub(crate) fn session(self: &Arc<Self>) -> Session {
        Session {
            dir: self.clone(),
            buffer: Vec::new(),
            shared: None,
        }
    }
}

/// One worker's side.
#[derive(Debug)]
pub struct Session {
    dir: Arc<Dir>,
    buffer: Vec<u8>,
    /// The shared file last used, kept open as a rank would.
    shared: Option<(String, File)>,
}

/// A name of the workload is one file name, not a way out of the folder.
fn checked(name: &str) -> io::Result<&str> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(Io::InvalidInput.into());
    }
    Ok(name)
}

impl Session {
    pub(crate) fn perform(&mut self, request: &Request<'_>) -> Result<Done, Failure> {
        match request.verb {
            Verb::Write => Ok(self.write(request)?),
            Verb::Read => self.read(request),
            Verb::Head => {
                let path = self.file_path(request)?;
                std::fs::metadata(path)?;
                Ok(done(0))
            }
            Verb::Delete if self.dir.shared => Ok(done(0)),
            Verb::Delete => {
                std::fs::remove_file(self.file_path(request)?)?;
                Ok(done(0))
            }
            Verb::Copy => {
                let [from, to] = [(request.container, request.object), request.to];
                let path = |(container, object)| -> io::Result<PathBuf> {
                    let folder = self.dir.path.join(checked(container)?);
                    Ok(folder.join(checked(object)?))
                };
                let to = path(to)?;
                std::fs::copy(path(from)?, &to)?;
                if self.dir.sync != Sync::None {
                    File::open(&to)?.sync_all()?;
                }
                Ok(done(0))
            }
            Verb::BulkDelete if self.dir.shared => Ok(done(0)),
            Verb::BulkDelete => {
                for (container, object) in request.batch {
                    let folder = self.dir.path.join(checked(container)?);
                    std::fs::remove_file(folder.join(checked(object)?))?;
                }
                Ok(done(0))
            }
            // Refused before the work begins.
            Verb::Post | Verb::Versions => Err(ErrorKind::Other("not of a folder".into()).into()),
            Verb::List => {
                let entries = std::fs::read_dir(self.dir.path.join(checked(request.container)?))?;
                let bytes = entries
                    .flatten()
                    .map(|entry| entry.file_name().len() as u64)
                    .sum();
                Ok(done(bytes))
            }
            Verb::MakeContainer => {
                let path = self.dir.path.join(checked(request.container)?);
                match std::fs::create_dir(path) {
                    Err(error) if error.kind() != Io::AlreadyExists => Err(error.into()),
                    _ => Ok(done(0)),
                }
            }
            Verb::DropContainer => {
                self.shared = None;
                let path = self.dir.path.join(checked(request.container)?);
                if self.dir.shared {
                    // Not there when nothing was written.
                    let _ = std::fs::remove_file(path.with_extension("shared"));
                }
                match std::fs::remove_dir(path) {
                    Err(error) if error.kind() == Io::DirectoryNotEmpty => {
                        Err(ErrorKind::Status(409).into())
                    }
                    result => Ok(result.map(|()| done(0))?),
                }
            }
        }
    }

    fn file_path(&self, request: &Request<'_>) -> io::Result<PathBuf> {
        let container = self.dir.path.join(checked(request.container)?);
        if self.dir.shared {
            return Ok(container.with_extension("shared"));
        }
        Ok(container.join(checked(request.object)?))
    }

    /// The shared file, opened once.
    fn shared_file(&mut self, request: &Request<'_>) -> io::Result<&File> {
        let fits = self
            .shared
            .as_ref()
            .is_some_and(|(name, _)| name == request.container);
        if !fits {
            let path = self.file_path(request)?;
            let mut options = OpenOptions::new();
            let file = options
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)?;
            self.shared = Some((request.container.to_owned(), file));
        }
        match &self.shared {
            Some((_, file)) => Ok(file),
            None => Err(Io::NotFound.into()),
        }
    }

    fn write(&mut self, request: &Request<'_>) -> io::Result<Done> {
        let (block, sync) = (self.dir.block, self.dir.sync);
        let mut buffer = std::mem::take(&mut self.buffer);
        let own;
        let (file, start) = if self.dir.shared {
            let start = request
                .number
                .checked_mul(self.dir.object_bytes.unwrap_or(request.size))
                .ok_or(Io::InvalidInput)?;
            (self.shared_file(request)?, start)
        } else {
            own = File::create(self.file_path(request)?)?;
            (&own, 0)
        };
        let key = content::key(request.container, request.object);
        let mut written = 0;
        while written < request.size {
            let take = (request.size - written).min(block as u64) as usize;
            buffer.resize(take, 0);
            content::fill(request.content, key, written, &mut buffer);
            file.write_all_at(&buffer, start + written)?;
            if sync == Sync::Block {
                file.sync_data()?;
            }
            written += take as u64;
        }
        if sync == Sync::Close {
            file.sync_all()?;
        }
        self.buffer = buffer;
        Ok(done(written))
    }

    fn read(&mut self, request: &Request<'_>) -> Result<Done, Failure> {
        let block = self.dir.block;
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(block, 0);
        let own;
        let shared = self.dir.shared;
        let (file, start, size) = if shared {
            let start = request
                .number
                .checked_mul(self.dir.object_bytes.unwrap_or(request.size))
                .ok_or(ErrorKind::Protocol)?;
            let size = self.dir.object_bytes.unwrap_or(request.size);
            (self.shared_file(request)?, start, size)
        } else {
            own = File::open(self.file_path(request)?)?;
            (&own, 0, u64::MAX)
        };
        let (offset, length) = request.range.unwrap_or((0, size));
        let key = content::key(request.container, request.object);
        let mut checker = request
            .check
            .then(|| Checker::new(request.content, key, offset));
        let mut first_byte = None;
        let mut read = 0;
        while read < length {
            let take = (length - read).min(block as u64) as usize;
            let got = file.read_at(&mut buffer[..take], start + offset + read)?;
            first_byte.get_or_insert_with(Instant::now);
            if got == 0 {
                break;
            }
            if let Some(checker) = &mut checker {
                checker.take(&buffer[..got]);
            }
            read += got as u64;
        }
        self.buffer = buffer;
        match &checker {
            Some(checker) if !checker.is_right() => Err(ErrorKind::Integrity.into()),
            _ => Ok(Done {
                first_byte: first_byte.unwrap_or_else(Instant::now),
                bytes: read,
                checked: checker.is_some(),
            }),
        }
    }
}

fn done(bytes: u64) -> Done {
    Done {
        first_byte: Instant::now(),
        bytes,
        checked: false,
    }
}
