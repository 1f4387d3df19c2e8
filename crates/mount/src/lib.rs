//! `cairn mount`: a container as a POSIX file system, through any Swift store.
//!
//! Every file is an ordinary object under its path that any client reads. `vfs` is the file system:
//! names, handles and their state; `content` over `extents` knows where each byte of a file is,
//! `commit` makes a version of it on the store, `vfs/commits` puts it in the place of the one that is
//! there, `history` knows own versions again, `segments` says when parts of old ones go, `cache` reads
//! blocks, `store` is the store (Swift, or memory in tests), `fuse` talks to the kernel. `docs/mount.md` says what is promised.
//!
//! A program: depends on `client` and `types`, never on a server.

mod attributes;
mod cache;
mod commit;
mod content;
mod error;
mod extents;
mod flatten;
mod fuse;
mod history;
mod intents;
mod nested;
mod pieces;
mod run;
mod segments;
mod store;
mod superseded;
mod sweep;
mod time;
mod vfs;

pub use run::{MountError, MountOptions, mount, run, sweep};
pub use sweep::Swept;
