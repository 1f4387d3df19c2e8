//! The filters, one file each, and the table of them. A new one is its file and two lines here.

mod account_quotas;
mod audit;
mod authtoken;
mod backend_ratelimit;
mod bulk;
mod catch_errors;
mod cname_lookup;
mod container_quotas;
mod container_sync;
mod copy;
mod crossdomain;
mod crypto;
mod dlo;
mod domain_remap;
mod etag_quoter;
mod formpost;
mod gatekeeper;
mod healthcheck;
mod keystoneauth;
mod list_endpoints;
mod listing_formats;
mod memcache;
mod name_check;
mod proxy_logging;
mod ratelimit;
mod read_only;
mod recon;
mod slo;
mod staticweb;
mod symlink;
mod tempauth;
mod tempurl;
mod versioned_writes;

use crate::env::Make;

/// Supported filters, by the names of Swift's entry points. `authtoken` is Keystone's `auth_token`;
/// `audit` is an extension.
pub(crate) const BUILT: &[(&str, Make)] = &[
    ("account_quotas", account_quotas::make),
    ("audit", audit::make),
    ("authtoken", authtoken::make),
    ("backend_ratelimit", backend_ratelimit::make),
    ("bulk", bulk::make),
    ("catch_errors", catch_errors::make),
    ("cname_lookup", cname_lookup::make),
    ("container_quotas", container_quotas::make),
    ("container_sync", container_sync::make),
    ("copy", copy::make),
    ("crossdomain", crossdomain::make),
    ("dlo", dlo::make),
    ("domain_remap", domain_remap::make),
    ("encryption", crypto::make_encryption),
    ("etag_quoter", etag_quoter::make),
    ("formpost", formpost::make),
    ("gatekeeper", gatekeeper::make),
    ("healthcheck", healthcheck::make),
    ("keystoneauth", keystoneauth::make),
    ("keymaster", crypto::make_keymaster),
    ("kmip_keymaster", crypto::make_kmip),
    ("kms_keymaster", crypto::make_kms),
    ("list_endpoints", list_endpoints::make),
    ("listing_formats", listing_formats::make),
    ("memcache", memcache::make),
    ("name_check", name_check::make),
    ("proxy_logging", proxy_logging::make),
    ("ratelimit", ratelimit::make),
    ("read_only", read_only::make),
    ("recon", recon::make),
    ("slo", slo::make),
    ("staticweb", staticweb::make),
    ("symlink", symlink::make),
    ("tempauth", tempauth::make),
    ("tempurl", tempurl::make),
    ("versioned_writes", versioned_writes::make),
];

/// Filters of Swift's that are not supported.
pub(crate) const NOT_YET: &[&str] = &["s3api", "s3token", "xprofile"];
