//! Construction of a filter from its `[filter:…]` section, by its entry point.
//!
//! An unsupported filter of Swift's is an error that names it: a filter that protects something
//! must never be omitted silently.

use std::sync::Arc;

use cairn_formats::ini::{ConfError, Section};
use cairn_http::context::Context;
use cairn_http::{AccountInfo, Clock, ContainerInfo, Handler, InfoFuture, InfoSource, SwiftInfo};
use cairn_types::{Constraints, HashPath, PolicySet};
use thiserror::Error;

use crate::cross_origin::CrossOrigin;
use crate::logins::Logins;
use crate::random::Random;

/// Environment of a filter: what it may know of its process and cluster.
#[derive(Clone)]
pub struct FilterEnv {
    pub info_source: Arc<dyn InfoSource>,
    pub swift_info: Arc<SwiftInfo>,
    pub constraints: Arc<Constraints>,
    pub policies: Arc<PolicySet>,
    pub hash_path: HashPath,
    pub clock: Clock,
    pub random: Random,
    /// Users with name and key, as the filters of this pipeline share them.
    pub logins: Logins,
    /// Origins whose pages may log in.
    pub cross_origin: CrossOrigin,
}

/// Reasons why a filter cannot be built.
#[derive(Debug, Error)]
pub enum FilterError {
    #[error(
        "the filter {name:?} is not built yet, and a pipeline is not served without one of its \
         filters, which may guard something; take it out where it may be missed. Built are: {}",
        known().join(", ")
    )]
    NotYet { name: String },
    #[error("there is no filter {name:?}; known are: {}", known().join(", "))]
    Unknown { name: String },
    #[error(
        "{option} needs the filter {needs:?} behind it in the pipeline, and it is not there; add it, or \
         set {option} = false"
    )]
    Needs {
        option: &'static str,
        needs: &'static str,
    },
    /// Describes an invalid setting without its value.
    #[error("{0}")]
    Setting(String),
    #[error(transparent)]
    Conf(#[from] ConfError),
}

type Make = fn(&Section, Handler, &FilterEnv) -> Result<Handler, FilterError>;

/// Supported filters, by the names of Swift's entry points. `authtoken` is Keystone's `auth_token`;
/// `audit` and `identity` are extensions.
const BUILT: &[(&str, Make)] = &[
    ("account_quotas", crate::account_quotas::make),
    ("audit", crate::audit::make),
    ("authtoken", crate::authtoken::make),
    ("backend_ratelimit", crate::backend_ratelimit::make),
    ("bulk", crate::bulk::make),
    ("catch_errors", crate::catch_errors::make),
    ("cname_lookup", crate::cname_lookup::make),
    ("container_quotas", crate::container_quotas::make),
    ("container_sync", crate::container_sync::make),
    ("copy", crate::copy::make),
    ("crossdomain", crate::crossdomain::make),
    ("dlo", crate::dlo::make),
    ("domain_remap", crate::domain_remap::make),
    ("encryption", crate::crypto::make_encryption),
    ("etag_quoter", crate::etag_quoter::make),
    ("formpost", crate::formpost::make),
    ("gatekeeper", crate::gatekeeper::make),
    ("healthcheck", crate::healthcheck::make),
    ("identity", crate::identity::make),
    ("keystoneauth", crate::keystoneauth::make),
    ("keymaster", crate::crypto::make_keymaster),
    ("kmip_keymaster", crate::crypto::make_kmip),
    ("kms_keymaster", crate::crypto::make_kms),
    ("list_endpoints", crate::list_endpoints::make),
    ("listing_formats", crate::listing_formats::make),
    ("memcache", crate::memcache::make),
    ("name_check", crate::name_check::make),
    ("proxy_logging", crate::proxy_logging::make),
    ("ratelimit", crate::ratelimit::make),
    ("read_only", crate::read_only::make),
    ("recon", crate::recon::make),
    ("slo", crate::slo::make),
    ("staticweb", crate::staticweb::make),
    ("symlink", crate::symlink::make),
    ("tempauth", crate::tempauth::make),
    ("tempurl", crate::tempurl::make),
    ("versioned_writes", crate::versioned_writes::make),
];

/// Filters of Swift's that are not supported.
const NOT_YET: &[&str] = &["s3api", "s3token", "xprofile"];

/// The names that [`build`] accepts.
pub fn known() -> Vec<&'static str> {
    BUILT.iter().map(|(name, _)| *name).collect()
}

/// Builds the filter of an entry point (`tempauth` of `use = egg:swift#tempauth`) around `next`.
pub fn build(
    entry_point: &str,
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    let name = entry_point.trim();
    if let Some((_, make)) = BUILT.iter().find(|(n, _)| *n == name) {
        return make(section, next, env);
    }
    let name = name.to_owned();
    if NOT_YET.contains(&name.as_str()) {
        Err(FilterError::NotYet { name })
    } else {
        Err(FilterError::Unknown { name })
    }
}

/// Filters that Swift's proxy inserts if the conf omits them, as (index, entry point); each index
/// is valid after the earlier ones were inserted. `pipeline` lists entry points from the outside
/// in. Only supported filters are named.
pub fn required_filters(pipeline: &[String]) -> Vec<(usize, &'static str)> {
    const AFTER: [(&str, &[&str]); 6] = [
        (
            "versioned_writes",
            &[
                "slo",
                "dlo",
                "copy",
                "staticweb",
                "tempauth",
                "keystoneauth",
                "catch_errors",
                "gatekeeper",
                "proxy_logging",
            ],
        ),
        (
            "dlo",
            &[
                "copy",
                "staticweb",
                "tempauth",
                "keystoneauth",
                "catch_errors",
                "gatekeeper",
                "proxy_logging",
            ],
        ),
        (
            "copy",
            &[
                "staticweb",
                "tempauth",
                "catch_errors",
                "gatekeeper",
                "proxy_logging",
            ],
        ),
        (
            "listing_formats",
            &["catch_errors", "gatekeeper", "proxy_logging", "memcache"],
        ),
        ("gatekeeper", &["catch_errors"]),
        ("catch_errors", &[]),
    ];
    let mut pipeline: Vec<&str> = pipeline.iter().map(String::as_str).collect();
    let mut inserts = Vec::new();
    for (name, after) in AFTER {
        if pipeline.contains(&name) {
            continue;
        }
        // The gatekeeper follows catch_errors only if that is the first.
        let after = if name == "gatekeeper" && pipeline.first() != Some(&"catch_errors") {
            &[][..]
        } else {
            after
        };
        let index = after
            .iter()
            .filter_map(|a| pipeline.iter().position(|p| p == a))
            .map(|i| i + 1)
            .max()
            .unwrap_or(0);
        pipeline.insert(index, name);
        inserts.push((index, name));
    }
    inserts
}

/// An information source without information, for pipelines of backend servers, whose filters need
/// none.
pub struct NoInfo;

impl InfoSource for NoInfo {
    fn account<'a>(&'a self, _: &'a Context, _: &'a str) -> InfoFuture<'a, AccountInfo> {
        Box::pin(async { Arc::default() })
    }
    fn container<'a>(
        &'a self,
        _: &'a Context,
        _: &'a str,
        _: &'a str,
    ) -> InfoFuture<'a, ContainerInfo> {
        Box::pin(async { Arc::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn names() {
        let section = Section::from_pairs("filter:x", &[]);
        let result =
            |name: &str| build(name, &section, testing::answers(200), &testing::env()).map(|_| ());
        assert!(result("catch_errors").is_ok());
        assert!(matches!(result("s3api"), Err(FilterError::NotYet { name }) if name == "s3api"));
        let unknown = result("nonsense").expect_err("unknown").to_string();
        assert!(
            unknown.contains("nonsense") && unknown.contains("tempauth"),
            "{unknown}"
        );
    }

    #[test]
    fn required_filters_go_where_swift_puts_them() {
        let place = |pipeline: &[&'static str]| {
            let names: Vec<String> = pipeline.iter().map(|n| (*n).to_owned()).collect();
            let mut full = pipeline.to_vec();
            for (index, name) in required_filters(&names) {
                full.insert(index, name);
            }
            full
        };
        assert_eq!(
            place(&[]),
            [
                "catch_errors",
                "gatekeeper",
                "listing_formats",
                "copy",
                "dlo",
                "versioned_writes"
            ]
        );
        assert_eq!(
            place(&[
                "catch_errors",
                "healthcheck",
                "proxy_logging",
                "memcache",
                "tempauth"
            ]),
            [
                "catch_errors",
                "gatekeeper",
                "healthcheck",
                "proxy_logging",
                "memcache",
                "listing_formats",
                "tempauth",
                "copy",
                "dlo",
                "versioned_writes"
            ]
        );
        assert_eq!(
            place(&["healthcheck", "catch_errors", "tempauth"]),
            [
                "gatekeeper",
                "healthcheck",
                "catch_errors",
                "listing_formats",
                "tempauth",
                "copy",
                "dlo",
                "versioned_writes"
            ]
        );
    }
}
