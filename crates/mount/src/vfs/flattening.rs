//! Background flattening of files with many small parts, once they have not been written for a
//! while.

use std::sync::Arc;
use std::time::Duration;

use super::Vfs;
use super::tree::Node;
use crate::commit::Committer;
use crate::content::Content;
use crate::flatten::{Flattened, Share};
use crate::store::{Form, Result, Store, Why};

/// Number of checks after which a file that is written continuously is flattened all the same.
const CHECKS_MAX: u32 = 30;
/// Time without a commit after which a file is quiet, as a multiple of what a merge takes.
const QUIET_MERGES: u32 = 4;
const QUIET_MAX: Duration = Duration::from_secs(10);
/// Number of checks after which other mounts' share is flattened here.
const OTHERS_CHECKS_MAX: u32 = 10;

impl<S: Store> Vfs<S> {
    /// Flattens a file once it is quiet, if its layout needs that.
    pub(super) fn flatten_later(&self, node: &Arc<Node>) {
        let Some(quiet) = self
            .options
            .flatten_after
            .filter(|_| !self.options.is_read_only)
        else {
            return;
        };
        let Some(path) = self.tree.lock().path(node.ino) else {
            return;
        };
        {
            let mut state = node.state.lock();
            let is_due = self.committer.is_fragmented(state.content.base());
            if !is_due || std::mem::replace(&mut state.is_flattening, true) {
                return;
            }
        }
        let (committer, node) = (self.committer.clone(), node.clone());
        let mut flattening = self.flattening.lock();
        while flattening.try_join_next().is_some() {}
        flattening.spawn(async move {
            if let Err(error) = flatten(&committer, &node, &path, quiet).await
                && error.why != Why::NotFound
                && committer.check_end().is_ok()
            {
                tracing::warn!(path, %error, "small parts of a file stay as they are");
            }
            node.state.lock().is_flattening = false;
        });
    }
}

async fn flatten<S: Store>(
    committer: &Committer<S>,
    node: &Node,
    path: &str,
    quiet: Duration,
) -> Result<()> {
    let mut last = None;
    for _ in 0..CHECKS_MAX {
        // Those of others take as long as those of this mount.
        let merges = node.state.lock().merges.took * QUIET_MERGES;
        committer.pause(quiet.max(merges.min(QUIET_MAX))).await?;
        let etag = Some(committer.store.head_newest(path).await?.etag);
        // Local writes go to the store soon, and make small parts anew.
        let is_written = {
            let state = node.state.lock();
            state.writers > 0 && state.content.is_dirty()
        };
        if std::mem::replace(&mut last, etag.clone()) == etag && !is_written {
            break;
        }
    }
    let mut share = Share::Own;
    for look in 0.. {
        if flatten_once(committer, node, path, share).await? == 0 {
            break;
        }
        if look == OTHERS_CHECKS_MAX {
            share = Share::All;
        }
        committer.pause(quiet).await?;
    }
    Ok(())
}

/// Number of nested manifests left to others.
async fn flatten_once<S: Store>(
    committer: &Committer<S>,
    node: &Node,
    path: &str,
    share: Share,
) -> Result<usize> {
    committer.check_end()?;
    // On a store that does not evaluate conditions, no commit of this mount may come in between.
    let turn = match committer.store.decides() {
        true => None,
        false => Some(node.mutation.lock().await),
    };
    let outcome = committer.flatten(path, share).await?;
    if let Some(flattened) = outcome.flattened {
        let _turn = match turn {
            Some(turn) => turn,
            None => node.mutation.lock().await,
        };
        take_over(node, flattened);
    }
    Ok(outcome.left)
}

/// Takes over a version with the same bytes: open handles see no change. The caller holds the
/// node's `mutation`.
fn take_over(node: &Node, flattened: Flattened) {
    let mut state = node.state.lock();
    let is_it = state.etag.as_ref() == Some(&flattened.before);
    if !is_it || !state.is_loaded || state.is_local() {
        return;
    }
    if state.kernel_has.as_ref() == Some(&flattened.before) {
        state.kernel_has = Some(flattened.after.clone());
    }
    state.etag = Some(flattened.after);
    state.form = Form::Manifest;
    state.content = Content::of(flattened.layout);
}
