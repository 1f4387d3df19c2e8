//! Swift's middleware: filters around the proxy (and the backends) that are not part of storage
//! itself.
//!
//! Each module is one filter, with Swift's name and options. A filter is a
//! [`Service`](cairn_http::Service) that wraps the next one; [`build`] makes one from its
//! `[filter:…]` section. Filters access the cluster only through [`FilterEnv`].
//!
//! May depend on `types`, `formats` and `http`; never on the proxy or the backend servers.

mod accept;
mod account_quotas;
mod api_path;
mod audit;
mod authtoken;
mod backend_ratelimit;
mod build;
mod bulk;
mod catch_errors;
mod cause;
mod client_tls;
mod cname_lookup;
mod container_quotas;
mod container_sync;
mod copy;
mod cross_origin;
mod crossdomain;
mod crypto;
mod dlo;
mod domain_remap;
mod etag_quoter;
#[cfg(test)]
mod fake_store;
mod fernet;
mod formpost;
mod gatekeeper;
#[cfg(test)]
mod golden;
mod header_list;
mod header_params;
mod healthcheck;
mod heartbeat;
mod html;
mod identity;
mod keystone;
mod keystoneauth;
mod list_endpoints;
mod listing_formats;
mod location;
mod logins;
mod memcache;
mod name_check;
mod names;
mod proxy_logging;
mod random;
mod ratelimit;
mod read_only;
mod recon;
mod remembered;
mod report;
mod resellers;
mod scope;
mod secret;
mod segments;
mod signature;
mod slo;
mod staticweb;
mod status;
mod subrequest;
mod symlink;
mod tempauth;
mod tempurl;
#[cfg(test)]
mod testing;
mod trust;
mod version_names;
mod versioned_writes;
mod watch;
mod whole;

pub use build::{FilterEnv, FilterError, NoInfo, build, known, required_filters};
pub use cross_origin::CrossOrigin;
pub use logins::Logins;
pub use random::Random;
