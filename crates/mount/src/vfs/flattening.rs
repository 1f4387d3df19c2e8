//! Flattening in the background: of a file of many small parts, when nobody has written it for a while.

use std::sync::Arc;
use std::time::Duration;

use super::Vfs;
use super::tree::Node;
use crate::commit::Committer;
use crate::content::Content;
use crate::flatten::{Flattened, Share};
use crate::store::{Form, Result, Store, Why};

/// Looks at a file that is written all the time, before it is flattened all the same.
const LOOKS_MAX: u32 = 30;
/// Looks at what is left to other mounts, before it is done here.
const PATIENCE_LOOKS: u32 = 10;

impl<S: Store> Vfs<S> {
    /// Flattens a file once it is quiet, where its layout asks for it.
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
    for _ in 0..LOOKS_MAX {
        committer.pause(quiet).await?;
        let etag = Some(committer.store.head_newest(path).await?.etag);
        if std::mem::replace(&mut last, etag.clone()) == etag {
            break;
        }
    }
    let mut share = Share::Own;
    for look in 0.. {
        if flatten_once(committer, node, path, share).await? == 0 {
            break;
        }
        if look == PATIENCE_LOOKS {
            share = Share::All;
        }
        committer.pause(quiet).await?;
    }
    Ok(())
}

/// How many nested manifests are left to others.
async fn flatten_once<S: Store>(
    committer: &Committer<S>,
    node: &Node,
    path: &str,
    share: Share,
) -> Result<usize> {
    committer.check_end()?;
    // On a store that decides no conditions no commit of this mount may come in between.
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

/// The same bytes in another version: nothing has changed for who has the file open. The caller holds the
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
