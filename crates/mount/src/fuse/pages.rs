//! Notices to the kernel of what to forget of a file.

use std::sync::{Arc, OnceLock};

use fuser::{INodeNo, Notifier};
use tokio::sync::Semaphore;

use crate::vfs::Overwrite;

/// Offset of an invalidation that keeps the page cache.
const ATTRIBUTES_ALONE: i64 = -1;
/// Threads that wait for the kernel at once.
static WAITING: Semaphore = Semaphore::const_new(16);

/// Has the kernel ask for a file's attributes again; its pages stay.
pub(super) fn forget_attributes(notifier: &OnceLock<Notifier>, ino: INodeNo) {
    if let Some(notifier) = notifier.get()
        && let Err(error) = notifier.inval_inode(ino, ATTRIBUTES_ALONE, 0)
    {
        tracing::debug!(%error, "attributes stay in the kernel");
    }
}

/// Has the kernel drop its pages from before a write. It sends those that were changed before, and waits for
/// those that it is reading: in a thread that takes no calls.
pub(super) async fn drop_pages(
    notifier: Arc<OnceLock<Notifier>>,
    ino: INodeNo,
    overwrite: Overwrite,
) {
    if notifier.get().is_none() {
        return;
    }
    let _turn = WAITING.acquire().await;
    let range = overwrite.range.clone();
    let dropping = tokio::task::spawn_blocking(move || {
        let (offset, length) = (range.start as i64, (range.end - range.start) as i64);
        let told = notifier
            .get()
            .map(|notifier| notifier.inval_inode(ino, offset, length));
        if let Some(Err(error)) = told {
            tracing::debug!(%error, "pages stay in the kernel");
        }
    });
    let _ = dropping.await;
}
