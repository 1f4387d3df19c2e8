//! Listing and download of the files in a run folder. A request's path cannot leave the folder:
//! only plain names are allowed, and no symbolic links.

use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use cairn_http::{Body, BodyError, BodySender, Response};
use http::header::{
    CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use crate::status::{self, Answer, Refusal};

const FILES_MAX: usize = 5000;
const DEPTH_MAX: usize = 6;
const CHUNK_BYTES: usize = 64 * 1024;
/// Content security policy for files: a run's report may run its own script and nothing else. The
/// sandbox makes it a separate origin, so that names in a workload or a store cannot act for the
/// signed-in user.
const SANDBOX: &str = "sandbox allow-scripts allow-popups allow-downloads; default-src 'none'; \
                       style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:; \
                       font-src data:";
/// Characters that need no encoding in `Content-Disposition` (RFC 8187).
const NAME: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'.')
    .remove(b'-')
    .remove(b'_')
    .remove(b'~');

#[derive(Serialize, Debug)]
pub(crate) struct FileEntry {
    pub(crate) path: String,
    pub(crate) size: u64,
}

/// All files below `folder`, sorted by name. Blocks.
pub(crate) fn list(folder: &Path) -> Vec<FileEntry> {
    let mut found = Vec::new();
    let mut folders = vec![(folder.to_owned(), 0)];
    while let Some((next, depth)) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&next) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(meta) = path.symlink_metadata() else {
                continue;
            };
            if meta.is_dir() && depth < DEPTH_MAX {
                folders.push((path, depth + 1));
            } else if let (true, Ok(name)) = (meta.is_file(), path.strip_prefix(folder)) {
                found.push(FileEntry {
                    path: name.to_string_lossy().into_owned(),
                    size: meta.len(),
                });
            }
            if found.len() >= FILES_MAX {
                break;
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// The file named by `path` below `folder`; `None` if it is not a regular file there.
pub(crate) fn inside(folder: &Path, path: &str) -> Option<PathBuf> {
    let mut full = folder.to_owned();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => full.push(name),
            _ => return None,
        }
        if full.symlink_metadata().ok()?.is_symlink() {
            return None;
        }
    }
    full.symlink_metadata().ok()?.is_file().then_some(full)
}

/// Serves one file; with `download`, to be saved whatever its type.
pub(crate) async fn serve(folder: PathBuf, path: String, download: bool) -> Answer {
    let opened = tokio::task::spawn_blocking({
        let path = path.clone();
        move || {
            let full = inside(&folder, &path)?;
            let file = File::open(full).ok()?;
            let length = file.metadata().ok()?.len();
            Some((file, length))
        }
    });
    let (file, length) = opened
        .await
        .ok()
        .flatten()
        .ok_or_else(|| Refusal::not_found(format!("the file {path:?}")))?;
    let name = path.rsplit('/').next().unwrap_or_default();
    let content_type = content_type(name);
    let (sender, body) = Body::channel(Some(length), 4);
    tokio::task::spawn_blocking(move || send_file(file, length, sender));
    let mut response = status::content(content_type, body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, length.into());
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(SANDBOX));
    disposition(&mut response, name, download);
    // The file of an active run still changes.
    status::no_store(&mut response);
    Ok(response)
}

/// Sets `Content-Disposition` with the unchanged name.
pub(crate) fn disposition(response: &mut Response, name: &str, download: bool) {
    let kind = if download { "attachment" } else { "inline" };
    let name = utf8_percent_encode(name, NAME);
    let text = format!("{kind}; filename*=UTF-8''{name}");
    if let Ok(value) = HeaderValue::try_from(text) {
        response.headers_mut().insert(CONTENT_DISPOSITION, value);
    }
    response
        .headers_mut()
        .entry(HeaderName::from_static("x-content-type-options"))
        .or_insert(HeaderValue::from_static("nosniff"));
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "json" => "application/json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "csv" | "txt" | "log" | "hlog" | "toml" | "conf" | "scenario" | "xml" | "jsonl" => {
            "text/plain; charset=utf-8"
        }
        _ => "application/octet-stream",
    }
}

/// Sends the file from a thread of its own, and stops if the reader is dropped. Blocks.
fn send_file(mut file: File, length: u64, sender: BodySender) {
    let runtime = tokio::runtime::Handle::current();
    // A growing file is sent up to its length at opening.
    let mut left = length;
    while left > 0 {
        let mut chunk = vec![0; CHUNK_BYTES.min(usize::try_from(left).unwrap_or(CHUNK_BYTES))];
        match file.read(&mut chunk) {
            Ok(0) => return,
            Ok(n) => {
                chunk.truncate(n);
                left -= n as u64;
                if !runtime.block_on(sender.send(Bytes::from(chunk))) {
                    return;
                }
            }
            Err(error) => {
                runtime.block_on(sender.fail(BodyError::Source(error.to_string())));
                return;
            }
        }
    }
    runtime.block_on(sender.finish());
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_path_never_leaves_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("run");
        std::fs::create_dir_all(folder.join("plots")).unwrap();
        std::fs::write(dir.path().join("secret"), "s").unwrap();
        std::fs::write(folder.join("plots/a.svg"), "<svg/>").unwrap();
        std::os::unix::fs::symlink("../secret", folder.join("link")).unwrap();
        std::os::unix::fs::symlink("..", folder.join("up")).unwrap();
        assert!(inside(&folder, "plots/a.svg").is_some());
        for bad in [
            "../secret",
            "/etc/passwd",
            "link",
            "up/secret",
            "plots",
            "",
            "plots/../../secret",
        ] {
            assert!(inside(&folder, bad).is_none(), "{bad}");
        }
        let listed = list(&folder);
        assert_eq!(listed.len(), 1);
        assert_eq!((&*listed[0].path, listed[0].size), ("plots/a.svg", 6));
    }
}
