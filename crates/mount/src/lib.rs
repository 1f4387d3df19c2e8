//! `cairn mount`: a container as a POSIX file system, through any Swift store.
//!
//! Every file is an ordinary object under its path that any client can read. `vfs` is the file
//! system: names, handles and their state; `content` with `extents` maps the bytes of a file to
//! their sources, `commit` writes a version of it to the store, `vfs/commits` replaces the current
//! version by it, `history` recognises own versions, `segments` decides when parts of old ones are
//! removed, `journal` keeps closed files until they are stored, `cache` reads blocks, `store` is the store (Swift, or memory in tests), `fuse` the
//! kernel interface. `docs/mount.md` describes the guarantees.
//!
//! A program: depends on `client` and `types`, never on a server.

mod attributes;
mod cache;
mod chance;
mod commit;
mod content;
mod error;
mod extents;
mod feed;
mod flatten;
mod fuse;
mod history;
mod intents;
mod journal;
mod links;
mod merges;
mod nested;
mod pieces;
mod private_dir;
mod run;
mod segments;
#[cfg(test)]
mod simulated;
mod store;
mod superseded;
mod sweep;
mod time;
mod turns;
mod vfs;

pub use run::{MountError, MountOptions, mount, run, sweep};
pub use sweep::{Failure, Swept};
