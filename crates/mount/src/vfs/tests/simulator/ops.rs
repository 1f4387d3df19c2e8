//! Changes of a file, and what they make of a version.

use bytes::Bytes;

/// A change that a mount has accepted.
#[derive(Clone, Debug)]
pub(super) struct Op {
    pub(super) change: Change,
    /// Its place among all changes of the node.
    pub(super) number: u64,
    /// The moment at which it was accepted.
    pub(super) since: u64,
    /// It was in a version.
    pub(super) is_stored: bool,
    /// The call has not ended.
    pub(super) is_running: bool,
    /// The call has not ended, or has failed.
    pub(super) is_maybe: bool,
    /// The moment at which it was acknowledged.
    pub(super) acknowledged: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) enum Change {
    Write { offset: usize, bytes: Bytes },
    Append { bytes: Bytes },
    Resize { size: usize },
}

/// Puts one change over a file.
fn apply(change: &Change, content: &mut Vec<u8>) {
    match change {
        Change::Write { offset, bytes } => {
            let end = offset + bytes.len();
            content.resize(content.len().max(end), 0);
            content[*offset..end].copy_from_slice(bytes);
        }
        Change::Append { bytes } => content.extend_from_slice(bytes),
        Change::Resize { size } => content.resize(*size, 0),
    }
}

/// The changes that were in a version already, and are made once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    None,
    /// All that are no appends.
    Placed,
    All,
}

/// Is `content` what changes make of `base`?
fn makes(base: Vec<u8>, ops: &[&Op], again: Again, content: &[u8]) -> bool {
    let Some((op, rest)) = ops.split_first() else {
        return base == content;
    };
    let is_append = matches!(op.change, Change::Append { .. });
    let is_left_out = match again {
        Again::None => op.is_stored,
        Again::Placed => op.is_stored && is_append,
        Again::All => false,
    };
    if is_left_out {
        return makes(base, rest, again, content);
    }
    if op.is_maybe && makes(base.clone(), rest, again, content) {
        return true;
    }
    if let Change::Resize { size } = op.change {
        // A file that was shorter then has been extended.
        let mut longer = base.clone();
        longer.resize(base.len().max(size), 0);
        if longer.len() != size && makes(longer, rest, again, content) {
            return true;
        }
    }
    let mut changed = base;
    apply(&op.change, &mut changed);
    makes(changed, rest, again, content)
}

/// Is `content` the next version? Changes that were stored and not acknowledged may be made again, but
/// no append.
pub(super) fn is_next(base: &[u8], ops: &[&Op], content: &[u8]) -> bool {
    let has_stored = ops.iter().any(|op| op.is_stored);
    makes(base.to_vec(), ops, Again::None, content)
        || has_stored && makes(base.to_vec(), ops, Again::Placed, content)
}

/// Is `content` a version as a mount shows it? The version may be one before changes that are
/// stored.
pub(super) fn is_shown(base: &[u8], ops: &[&Op], content: &[u8]) -> bool {
    let has_stored = ops.iter().any(|op| op.is_stored);
    is_next(base, ops, content) || has_stored && makes(base.to_vec(), ops, Again::All, content)
}
