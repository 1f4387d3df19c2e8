//! Swift's middleware: filters around the proxy (and the backends) that are not part of storage
//! itself.
//!
//! Each module of `filters` is one filter, with Swift's name and options; what they share is beside.
//! A filter is a [`Service`](cairn_http::Service) that wraps the next one; [`Filters`] make one from
//! its `[filter:…]` section. Filters access the cluster only through [`FilterEnv`].
//!
//! May depend on `types`, `formats` and `http`; never on the proxy or the backend servers. Filters
//! that are crates of their own (`identity`) use what is public here, and are added by whoever builds
//! a pipeline.

mod accept;
mod api_path;
mod build;
mod cause;
mod client_tls;
mod cross_origin;
mod env;
#[cfg(test)]
mod fake_store;
pub mod fernet;
mod filters;
#[cfg(test)]
mod golden;
mod header_list;
mod header_params;
mod heartbeat;
mod html;
pub mod keystone;
mod location;
pub mod logins;
mod names;
mod random;
pub mod remembered;
mod report;
pub mod resellers;
mod scope;
pub mod secret;
mod segments;
mod signature;
mod status;
mod subrequest;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod trust;
mod version_names;
mod watch;
mod whole;

pub use build::{Filters, build, required_filters};
pub use cross_origin::CrossOrigin;
pub use env::{FilterEnv, FilterError, Make, NoInfo};
pub use logins::Logins;
pub use random::Random;
