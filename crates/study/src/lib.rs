//! Studies: clusters × workloads × repetitions. A study file ([`file`]) is resolved into cells
//! ([`cell`]), each with a name that follows from all that it is; a cell's cluster is provisioned by
//! this program's own commands as child processes ([`cluster`]), measured by the lab, and leaves one
//! documented JSON file. What the cells say is drawn beside the published values ([`page`]).
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
