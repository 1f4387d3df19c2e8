//! Studies: clusters × workloads × repetitions. A study file ([`file`]) is resolved into cells
//! ([`cell`]), each named by a digest of its definition; a cell's cluster is provisioned by this
//! program's own commands as child processes ([`cluster`]) and measured by the lab, and the result
//! is one documented JSON file. Results are shown with the published values ([`page`]).
//!
//! Never links the servers. May depend on `emulate`, `lab`, `ring` and `types` of this workspace.

pub mod archive;
pub mod cell;
pub mod check;
pub mod cli;
pub mod cluster;
pub mod figures;
pub mod file;
pub mod measure;
pub mod metrics;
pub mod page;
pub mod process;
pub mod run;
pub mod summary;
