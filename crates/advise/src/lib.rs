//! The advisor: predicts the performance of clusters that do not exist yet, and answers three
//! questions about them (least cost, most capacity, most throughput).
//!
//! A candidate's rings are made by the real builder. A discrete-event simulation runs the workload
//! over them: [`paths`] translates an operation into steps, [`engine`] executes the steps on
//! processors, links and disks, [`simulate`] collects the results. Demands come from a calibration
//! ([`calibration`], made by [`fit`] of measured [`cell`]s), intervals from held-out cells
//! ([`conformal`]).
//!
//! Pure: values in, values out; no clock, no files, no waiting; random numbers from a seed. Depends
//! on `cairn-ring` and `cairn-types` only. The program is `cairn advise`
//! (`crates/cairn/src/advise.rs`).

pub mod answer;
pub mod bounds;
pub mod cache;
pub mod calibration;
pub mod catalogue;
pub mod cell;
pub mod cluster;
pub mod conformal;
pub mod degraded;
pub mod emulation;
pub mod engine;
pub mod fit;
pub mod hardware;
pub mod page;
pub mod paths;
pub mod plan;
pub mod predict;
pub mod regret;
pub mod scope;
pub mod score;
pub mod simulate;
pub mod workload;

mod error;
mod placement;
mod quantity;
mod random;

mod read;

pub use cairn_types::SplitMix;
pub use error::AdviseError;
pub use placement::Placement;
pub use quantity::Bytes;
pub use random::Spread;
