//! Download of a run folder as a tar file, generated while it is sent.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use cairn_http::{Body, BodyError, BodySender, Response};
use tokio::runtime::Handle;

use crate::{files, status};

const CHUNK_BYTES: usize = 64 * 1024;

/// A response with the files of `folder`, below the name `id`.
pub(crate) fn tar(folder: PathBuf, id: String) -> Response {
    let (sender, body) = Body::channel(None, 4);
    let name = format!("{id}.tar");
    tokio::task::spawn_blocking(move || {
        let runtime = Handle::current();
        let mut chunks = Chunks {
            sender: &sender,
            runtime: &runtime,
            buffer: BytesMut::with_capacity(CHUNK_BYTES),
        };
        match write(&folder, &id, &mut chunks) {
            Ok(()) => {
                runtime.block_on(sender.finish());
            }
            Err(error) => runtime.block_on(sender.fail(BodyError::Source(error.to_string()))),
        }
    });
    let mut response = status::content("application/x-tar", body);
    files::disposition(&mut response, &name, true);
    status::no_store(&mut response);
    response
}

/// Writes the archive. Blocks.
fn write(folder: &Path, id: &str, out: &mut Chunks<'_>) -> io::Result<()> {
    let mut tar = tar::Builder::new(&mut *out);
    for entry in files::list(folder) {
        // Entries that have disappeared or changed their type since the listing are omitted.
        if let Some(path) = files::inside(folder, &entry.path) {
            let mut file = std::fs::File::open(path)?;
            tar.append_file(Path::new(id).join(&entry.path), &mut file)?;
        }
    }
    tar.finish()?;
    drop(tar);
    out.flush()
}

struct Chunks<'a> {
    sender: &'a BodySender,
    runtime: &'a Handle,
    buffer: BytesMut,
}

impl Write for Chunks<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= CHUNK_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let chunk: Bytes = self.buffer.split().freeze();
        if chunk.is_empty() || self.runtime.block_on(self.sender.send(chunk)) {
            Ok(())
        } else {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    }
}
