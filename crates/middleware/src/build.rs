//! From a `[filter:…]` section to a filter: names, what each needs of the cluster, and errors.
//!
//! A name of Swift's that is not built yet is an error with that name: a filter that guards
//! something must never be left out silently.

use std::sync::Arc;

use cairn_formats::ini::{ConfError, Section};
use cairn_http::context::Context;
use cairn_http::{AccountInfo, Clock, ContainerInfo, Handler, InfoFuture, InfoSource, SwiftInfo};
use cairn_types::{Constraints, HashPath, PolicySet};
use thiserror::Error;

use crate::random::Random;
use crate::{
    backend_ratelimit, catch_errors, copy, gatekeeper, healthcheck, listing_formats, memcache,
    proxy_logging, recon, tempauth,
};

/// What filters may know of the process and cluster they are in.
#[derive(Clone)]
pub struct FilterEnv {
    pub info_source: Arc<dyn InfoSource>,
    pub swift_info: Arc<SwiftInfo>,
    pub constraints: Arc<Constraints>,
    pub policies: Arc<PolicySet>,
    pub hash_path: HashPath,
    pub clock: Clock,
    pub random: Random,
}

/// Why a filter cannot be made.
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
    #[error(transparent)]
    Conf(#[from] ConfError),
}

type Make = fn(&Section, Handler, &FilterEnv) -> Result<Handler, FilterError>;

/// Filters that are built, under the names of Swift's entry points.
const BUILT: [(&str, Make); 10] = [
    ("backend_ratelimit", backend_ratelimit::make),
    ("catch_errors", catch_errors::make),
    ("copy", copy::make),
    ("gatekeeper", gatekeeper::make),
    ("healthcheck", healthcheck::make),
    ("listing_formats", listing_formats::make),
    ("memcache", memcache::make),
    ("proxy_logging", proxy_logging::make),
    ("recon", recon::make),
    ("tempauth", tempauth::make),
];

/// Filters of Swift's, and the one of Keystone's that goes with them, that are not built.
const NOT_YET: [&str; 28] = [
    "account_quotas",
    "authtoken",
    "bulk",
    "cname_lookup",
    "container_quotas",
    "container_sync",
    "crossdomain",
    "dlo",
    "domain_remap",
    "encryption",
    "etag_quoter",
    "formpost",
    "keymaster",
    "keystoneauth",
    "kmip_keymaster",
    "kms_keymaster",
    "list_endpoints",
    "name_check",
    "ratelimit",
    "read_only",
    "s3api",
    "s3token",
    "slo",
    "staticweb",
    "symlink",
    "tempurl",
    "versioned_writes",
    "xprofile",
];

/// The names [`build`] accepts.
pub fn known() -> Vec<&'static str> {
    BUILT.iter().map(|(name, _)| *name).collect()
}

/// Makes the filter of an entry point (`tempauth` of `use = egg:swift#tempauth`), around `next`.
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

/// Where Swift's proxy inserts a filter that the conf left out: (index, entry point), each index
/// valid after the ones before it were inserted. `pipeline`: entry points from the outside in.
/// Only filters that are built are named.
pub fn required_filters(pipeline: &[String]) -> Vec<(usize, &'static str)> {
    const AFTER: [(&str, &[&str]); 4] = [
        (
            "copy",
            &[
                "staticweb",
                "tempauth",
                "keystoneauth",
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
        // The gatekeeper follows catch_errors only where that is the first.
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

/// Knows nothing: for the pipelines of backend servers, whose filters ask nothing.
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
        assert!(matches!(result("slo"), Err(FilterError::NotYet { name }) if name == "slo"));
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
            ["catch_errors", "gatekeeper", "listing_formats", "copy"]
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
                "copy"
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
                "copy"
            ]
        );
    }
}
