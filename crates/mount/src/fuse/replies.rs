//! Replies shared by several calls.

use std::cell::RefCell;
use std::time::Duration;

use bytes::Bytes;
use fuser::{Errno, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyStatfs, ReplyXattr};

use super::GENERATION;
use super::convert::file_attr;
use crate::store::Usage;
use crate::vfs::Attr;

const BLOCK_BYTES: u32 = 4096;
/// Size reported for a file system without a limit.
const SPACE_BYTES: u64 = 1 << 50;
const FILES_MAX: u64 = 1 << 40;

/// A reply with an entry, for calls that create or find one.
pub(super) fn entry(reply: ReplyEntry, ttl: Duration) -> impl FnOnce(Result<Attr, Errno>) + Send {
    move |result| match result {
        Ok(attr) => reply.entry(&ttl, &file_attr(&attr), GENERATION),
        Err(errno) => reply.error(errno),
    }
}

pub(super) fn attr(reply: ReplyAttr, ttl: Duration) -> impl FnOnce(Result<Attr, Errno>) + Send {
    move |result| match result {
        Ok(attr) => reply.attr(&ttl, &file_attr(&attr)),
        Err(errno) => reply.error(errno),
    }
}

thread_local! {
    /// Buffer for replies in one piece: reused, so that it need not be mapped again.
    static WHOLE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A reply with bytes in pieces.
pub(super) fn data(reply: ReplyData) -> impl FnOnce(Result<Vec<Bytes>, Errno>) + Send {
    move |result| match result {
        Ok(pieces) if pieces.len() == 1 => reply.data(&pieces[0]),
        Ok(pieces) => WHOLE.with_borrow_mut(|whole| {
            whole.clear();
            pieces
                .iter()
                .for_each(|piece| whole.extend_from_slice(piece));
            reply.data(whole);
        }),
        Err(errno) => reply.error(errno),
    }
}

pub(super) fn empty(reply: ReplyEmpty) -> impl FnOnce(Result<(), Errno>) + Send {
    move |result| match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

/// A reply with a value, or with its size, depending on the caller's buffer.
pub(super) fn xattr(reply: ReplyXattr, size: u32) -> impl FnOnce(Result<Vec<u8>, Errno>) + Send {
    move |result| match result {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(errno) => reply.error(errno),
    }
}

/// The space of a file system without a size of its own.
pub(super) fn space(reply: ReplyStatfs) -> impl FnOnce(Result<Usage, Errno>) + Send {
    move |result| match result {
        Ok(usage) => {
            let block = u64::from(BLOCK_BYTES);
            let free = SPACE_BYTES.saturating_sub(usage.bytes) / block;
            let files = FILES_MAX.saturating_sub(usage.objects);
            let all = SPACE_BYTES / block;
            reply.statfs(
                all,
                free,
                free,
                FILES_MAX,
                files,
                BLOCK_BYTES,
                255,
                BLOCK_BYTES,
            );
        }
        Err(errno) => reply.error(errno),
    }
}
