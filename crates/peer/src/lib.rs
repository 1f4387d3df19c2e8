//! Client side of the backend protocol: the choice of nodes, quorums, and the call itself, which
//! goes to a service of this process or over a pooled connection.
//!
//! Layer 2: may depend on `types`, `ring` and `http`. Only this crate knows whether a backend is in
//! this process.

pub mod backends;
pub mod calls;
mod clocks;
pub mod documents;
pub mod error_limit;
pub mod fan_out;
pub mod gather;
pub mod heads;
pub mod hedge;
pub mod hedging;
pub mod hosts;
mod node;
pub mod nodes;
pub mod object_read;
pub mod put;
pub mod quorum;
pub mod reach;
pub mod rings;
pub mod two_phase;
pub mod whole_write;

pub use backends::{Answered, Backends, Network};
pub use cairn_http::client::CallError;
pub use calls::TakesCalls;
pub use error_limit::ErrorLimiter;
pub use heads::ObjectHeads;
pub use hedge::OpenCalls;
pub use hosts::look_up;
pub use node::{Node, backend_uri};
pub use nodes::Nodes;
pub use object_read::ObjectRead;
pub use reach::Reach;
pub use rings::{LoadedRing, Rings, RingsError};
pub use whole_write::{Change, WholeWrite};
