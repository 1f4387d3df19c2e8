//! Turns of mounts whose merges of one file would be lost to each other: a merge that writes many indexes
//! writes all of them for nothing if another mount's swap comes first, and of *n* mounts that merge at
//! once all but one lose, again and again.
//!
//! A turn is an object of the file, made on the condition that there is none, and removed behind the
//! merge. It is advice, and no lock: the swap alone decides, as between mounts that know no turns. One
//! that was left by a mount that is gone is taken away by the next one after some seconds.

use std::time::Duration;

use bytes::Bytes;
use cairn_types::hex;
use sha2::{Digest, Sha256};

use crate::chance;
use crate::commit::{Committer, random_id};
use crate::store::{Expect, Headers, SEGMENTS, Store, Why};
use crate::time::Instant;

/// The last part of its name.
pub(crate) const NAME: &str = "turn";
/// Time after which another mount's turn has been left, beside a multiple of what a merge takes here.
const LEFT_AFTER: Duration = Duration::from_secs(2);
const LEFT_AFTER_MERGES: u32 = 10;
/// Maximum wait for a turn.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Pauses between two looks, at random.
const PAUSE: Duration = Duration::from_millis(40);

/// A turn of this mount.
pub(crate) struct Turn {
    name: String,
    etag: String,
}

/// The name of a file's turn: by its path, since mounts do not share ids of new files.
fn name_of(path: &str) -> String {
    let digest = Sha256::digest(path);
    let hash = hex::encode(&digest[..16]);
    format!("{SEGMENTS}/{hash}/{NAME}")
}

impl<S: Store> Committer<S> {
    /// Waits for a turn to merge a file; `None` if it is better to merge without.
    pub(crate) async fn take_turn(&self, path: &str, merge: Duration) -> Option<Turn> {
        if !self.store.decides() {
            return None;
        }
        let (name, start) = (name_of(path), Instant::now());
        let headers = Headers::new("application/octet-stream");
        let body = Bytes::from(random_id());
        let left_after = (merge * LEFT_AFTER_MERGES).max(LEFT_AFTER);
        let mut seen: Option<(String, Instant)> = None;
        while start.elapsed() < WAIT_MAX {
            let put = self
                .store
                .put(&name, &headers, vec![body.clone()], Expect::Nothing);
            match put.await {
                Ok(etag) => return Some(Turn { name, etag }),
                Err(error) if error.why == Why::Changed && !error.is_in_doubt => {}
                Err(_) => return None,
            }
            loop {
                let etag = match self.store.head_newest(&name).await {
                    Ok(stat) => stat.etag,
                    Err(error) if error.why == Why::NotFound => break,
                    Err(_) => return None,
                };
                let since = match &seen {
                    Some((before, since)) if *before == etag => *since,
                    _ => Instant::now(),
                };
                if since.elapsed() >= left_after {
                    let turn = Turn { name, etag };
                    self.end_turn(turn).await;
                    return None;
                }
                seen = Some((etag, since));
                tokio::time::sleep(PAUSE.mul_f64(chance::part())).await;
            }
        }
        None
    }

    /// Ends a turn. One that stays costs others some seconds, once.
    pub(crate) async fn end_turn(&self, turn: Turn) {
        let Turn { name, etag } = turn;
        if let Err(error) = self.store.delete(&name, Expect::Version(&etag)).await
            && error.why != Why::Changed
        {
            tracing::debug!(turn = name, %error, "a turn stays");
        }
    }
}
