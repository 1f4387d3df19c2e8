//! Directories of which a listing is known to be complete: a name that is not in the inode table either is
//! not there. A listing is read page by page, and what of it has been forgotten again before its end, or
//! has appeared since, is missing: then it is not complete.

use std::collections::HashMap;

use crate::time::Instant;

#[derive(Clone, Copy)]
enum Listing {
    /// It is being read, by the reader of this number.
    Reading(u64),
    CompleteUntil(Instant),
}

/// Listings by the path of the directory.
#[derive(Default)]
pub(crate) struct Listings {
    by_path: HashMap<String, Listing>,
    begun: u64,
}

impl Listings {
    /// The first page is about to be requested; returns the reader's number. A reader that was under way is
    /// not the one that completes it: what it has seen may be forgotten already.
    pub(crate) fn begin(&mut self, directory: &str) -> u64 {
        self.begun += 1;
        let reading = Listing::Reading(self.begun);
        self.by_path.insert(directory.to_owned(), reading);
        self.begun
    }

    /// The last page has arrived. The listing is complete unless it was forgotten since it began.
    pub(crate) fn end(&mut self, directory: &str, reader: u64, until: Instant) {
        if let Some(listing) = self.by_path.get_mut(directory)
            && matches!(listing, Listing::Reading(number) if *number == reader)
        {
            *listing = Listing::CompleteUntil(until);
        }
    }

    pub(crate) fn is_complete(&self, directory: &str) -> bool {
        let listing = self.by_path.get(directory);
        matches!(listing, Some(Listing::CompleteUntil(until)) if *until > Instant::now())
    }

    /// A name in the directory is not known any more, or has appeared.
    pub(crate) fn forget(&mut self, directory: &str) {
        self.by_path.remove(directory);
    }

    pub(crate) fn forget_all(&mut self) {
        self.by_path.clear();
    }

    /// Removes what is complete no longer, and what nobody may be reading any more.
    pub(crate) fn sweep(&mut self, now: Instant) {
        self.by_path
            .retain(|_, listing| matches!(listing, Listing::CompleteUntil(until) if *until > now));
    }
}
