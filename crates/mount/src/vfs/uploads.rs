//! Uploads of segments during writing, which bound the memory for unstored data.

use std::sync::Arc;
use std::time::Duration;

use super::Vfs;
use super::tree::Node;
use crate::commit::pack;
use crate::content::{Content, FileSource};
use crate::error::FsResult;
use crate::extents::Span;
use crate::store::{Segment, Store, StoreError, Why};

/// Maximum concurrent uploads of a file during writing; its writers wait beyond that.
const UPLOADS_MAX: usize = 2;
/// Interval of checking whether memory has become free.
const RELIEF_PAUSE: Duration = Duration::from_millis(10);

impl<S: Store> Vfs<S> {
    /// Uploads segments during writing, and waits while too much data is only in memory.
    pub(super) async fn relieve(&self, node: &Arc<Node>) -> FsResult<()> {
        let segment_bytes = self.options.limits.segment_bytes;
        let is_due = node.state.lock().unsent >= segment_bytes;
        if is_due {
            self.start_uploads(node, false);
            loop {
                let oldest = {
                    let mut state = node.state.lock();
                    state.uploads.retain(|upload| !upload.is_finished());
                    let is_over = state.uploads.len() > UPLOADS_MAX;
                    is_over.then(|| state.uploads.remove(0))
                };
                let Some(oldest) = oldest else { break };
                ended(oldest.await)?;
            }
        }
        while self.budget.used() > self.options.unwritten_bytes {
            let unsent = |node: &Arc<Node>| {
                let pieces = node.state.lock().content.in_memory();
                pieces.iter().map(|(_, length, _)| length).sum::<u64>()
            };
            let written = self.tree.lock().written();
            let largest = written.into_iter().max_by_key(unsent);
            let Some(largest) = largest.filter(|node| unsent(node) > 0) else {
                break;
            };
            self.start_uploads(&largest, true);
            match self.await_uploads(&largest).await {
                // Another caller waits for them.
                Ok(0) => tokio::time::sleep(RELIEF_PAUSE).await,
                Ok(_) => {}
                Err(error) if Arc::ptr_eq(&largest, node) => return Err(error),
                // Another file's error does not matter, as long as this one's data can be uploaded.
                Err(error) => {
                    self.start_uploads(node, true);
                    if self.await_uploads(node).await? == 0 {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Starts uploading data in memory in full segments; with `all`, the rest too.
    fn start_uploads(&self, node: &Arc<Node>, all: bool) {
        let mut state = node.state.lock();
        state.unsent = 0;
        let pieces = state.content.in_memory();
        let is_waiting = |source: &FileSource| match source {
            FileSource::Memory { chunk, .. } => !chunk.is_sending(),
            _ => false,
        };
        let spans: Vec<Span<FileSource>> = pieces
            .into_iter()
            .filter(|(_, _, source)| is_waiting(source))
            .map(|(offset, length, source)| Span {
                offset,
                length,
                source: Some(source),
            })
            .collect();
        let segment_bytes = self.options.limits.segment_bytes;
        let mut objects = pack(spans, segment_bytes);
        if !all {
            let bytes =
                |object: &[Span<FileSource>]| object.iter().map(|span| span.length).sum::<u64>();
            let is_full = |object: &Vec<Span<FileSource>>| bytes(object) == segment_bytes;
            let (full, rest): (Vec<_>, Vec<_>) = objects.into_iter().partition(is_full);
            state.unsent = rest.iter().map(|object| bytes(object)).sum();
            objects = full;
        }
        for object in objects {
            mark(&object, true);
            let (committer, node, file_id) = (
                self.committer.clone(),
                node.clone(),
                state.file_id().to_owned(),
            );
            let upload = tokio::spawn(async move {
                let body = object
                    .iter()
                    .filter_map(|span| span.source.as_ref()?.bytes(span.length));
                let uploaded = committer.upload(&file_id, body.collect()).await;
                mark(&object, false);
                let segment = uploaded?;
                let mut state = node.state.lock();
                state.made.push(segment.clone());
                sent(&mut state.content, &object, &segment);
                Ok::<(), StoreError>(())
            });
            state.uploads.push(upload);
        }
    }

    /// Waits for a file's uploads; returns their number.
    pub(super) async fn await_uploads(&self, node: &Node) -> FsResult<usize> {
        let uploads = std::mem::take(&mut node.state.lock().uploads);
        let mut result = Ok(uploads.len());
        for upload in uploads {
            let ended = ended(upload.await);
            result = result.and_then(|count| ended.map(|()| count));
        }
        result
    }
}

fn ended(upload: Result<Result<(), StoreError>, tokio::task::JoinError>) -> FsResult<()> {
    match upload {
        Ok(result) => Ok(result?),
        Err(error) => Err(StoreError::new(Why::Unavailable, error.to_string()).into()),
    }
}

/// Records that `segment` has the bytes of `object`, one span after the other.
fn sent(content: &mut Content, object: &[Span<FileSource>], segment: &Arc<Segment>) {
    let mut offset = 0;
    for span in object {
        if let Some(from) = &span.source {
            let to = FileSource::Segment {
                segment: segment.clone(),
                offset,
            };
            content.uploaded(span.offset, span.length, from, &to);
        }
        offset += span.length;
    }
}

/// Marks bytes as being uploaded, so that they are not uploaded twice.
fn mark(object: &[Span<FileSource>], is_sending: bool) {
    for span in object {
        if let Some(FileSource::Memory { chunk, .. }) = &span.source {
            chunk.set_sending(is_sending);
        }
    }
}
