//! The servers behind the proxy: accounts, containers, objects. Each answers Swift's backend
//! protocol on the devices of one node, as a [`cairn_http::Service`].
//!
//! Layer 3: may depend on `types`, `ring`, `formats`, `disk`, `index`, `http` and `peer`; knows
//! neither proxy nor middleware.

mod access_log;
pub mod account;
pub mod container;
mod index_server;
pub mod object;
pub mod rows;

pub use access_log::AccessLog;
