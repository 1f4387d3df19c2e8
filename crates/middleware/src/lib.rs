//! Swift's middleware: filters around the proxy (and the backends) that are no part of storing.
//!
//! Each file is one filter under Swift's name and with Swift's options. A filter is a
//! [`Service`](cairn_http::Service) that holds the next one; [`build`] makes one from its
//! `[filter:…]` section. Filters know the cluster through [`FilterEnv`] alone.
//!
//! May depend on `types`, `formats` and `http`; never on the proxy or the backend servers.

mod accept;
mod backend_ratelimit;
mod build;
mod catch_errors;
mod copy;
mod gatekeeper;
mod healthcheck;
mod listing_formats;
mod memcache;
mod proxy_logging;
mod random;
mod recon;
mod tempauth;
#[cfg(test)]
mod testing;
mod watch;

pub use build::{FilterEnv, FilterError, NoInfo, build, known, required_filters};
pub use random::Random;
