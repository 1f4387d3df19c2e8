//! The proxy server: the public API, turned into calls to account, container and object servers.
//!
//! Layer 3: may depend on `types`, `formats`, `http` and `peer`. It never opens a file, and need
//! not know which backends are in its process. Middleware sits around it and is assembled
//! elsewhere.

mod account;
mod affinity;
mod app;
mod checks;
mod container;
mod cors;
mod erasure;
mod feed;
mod headers;
mod info;
mod info_cache;
mod object;
mod read;
mod request;
mod settings;
mod shards;
mod state;
mod status;
mod whole_body;
mod write;

pub use settings::{ProxyOptions, ProxySettings};
pub use state::Proxy;
