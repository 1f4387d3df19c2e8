//! Shared parts of the programs of `xtask`: stores that are started and stopped (Cairn, the real
//! OpenStack Swift), a client that shows every byte, a model of what a store has acknowledged,
//! checks with a report, and the paths and programs of this workspace.
//!
//! A program tests, attacks or measures one thing and stays in xtask; what two of them need is here.
//! Depends on no crate of the workspace: Cairn is met as its users meet it, over HTTP and the
//! command line, and what finds a fault must not share it.

#![warn(missing_docs)]

pub mod cairn;
pub mod conf;
pub mod figures;
pub mod lab;
pub mod model;
pub mod process;
pub mod random;
pub mod report;
pub mod swift;
pub mod trees;
pub mod venv;
pub mod wire;
pub mod workspace;
