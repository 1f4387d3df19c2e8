//! Count of the merges of one file by this mount, by which calls know whether one that began after them
//! is stored, and who waits for the next one.

use std::time::Duration;

use tokio::sync::watch;

use crate::error::{FsError, FsResult};

/// The merges of a file by this mount, and the calls that wait for one.
#[derive(Debug, Default)]
pub(crate) struct Merges {
    /// Number of merges that have begun, and the last of them that was stored.
    begun: u64,
    stored: u64,
    /// The last merge that has failed, until one is stored.
    failed: Option<(u64, FsError)>,
    /// Duration of the last merge, from when it had the version that it was made over.
    pub(crate) took: Duration,
    /// The last merge has lost a swap to another mount.
    pub(crate) is_contended: bool,
    /// Number of changes of the content.
    pub(crate) changes: u64,
    /// Calls that wait for a merge.
    pub(crate) waiting: u32,
    /// Does a call wait for others? They wait until its merge begins.
    pub(crate) is_gathering: bool,
    /// Number of merges before which calls have waited for others.
    pub(crate) gathered: watch::Sender<u64>,
}

impl Merges {
    /// Begins a merge of all writes until now; its number. The caller holds the node's `mutation`.
    pub(crate) fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.begun
    }

    /// Number of the merge that has what is written now.
    pub(crate) fn next(&self) -> u64 {
        self.begun + 1
    }

    /// Is a merge stored, or a later one?
    pub(crate) fn has(&self, number: u64) -> bool {
        self.stored >= number
    }

    /// The end of a merge, or of a later one: a call that waits for it has the same result, since another
    /// try of each would have them wait for a store that is away one after the other. `None` while it is
    /// not over, or if it was given up.
    pub(crate) fn result(&self, number: u64) -> Option<FsResult<()>> {
        if self.has(number) {
            return Some(Ok(()));
        }
        let failed = self.failed.as_ref();
        let failed = failed.filter(|(failed, _)| *failed >= number);
        failed.map(|(_, error)| Err(error.clone()))
    }

    pub(crate) fn ended(&mut self, number: u64, result: &FsResult<()>) {
        match result {
            Ok(()) => (self.stored, self.failed) = (number, None),
            Err(error) => self.failed = Some((number, error.clone())),
        }
    }
}
