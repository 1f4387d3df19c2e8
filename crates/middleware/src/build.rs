//! Construction of a filter from its `[filter:…]` section, by its entry point.
//!
//! An unsupported filter of Swift's is an error that names it: a filter that protects something
//! must never be omitted silently.

use std::collections::BTreeMap;

use cairn_formats::ini::Section;
use cairn_http::Handler;

use crate::env::{FilterEnv, FilterError, Make};
use crate::filters::{BUILT, NOT_YET};

/// Filters that pipelines may have, by their entry points (`tempauth` of
/// `use = egg:swift#tempauth`).
#[derive(Clone, Debug)]
pub struct Filters(BTreeMap<&'static str, Make>);

impl Filters {
    /// The filters of this crate.
    pub fn all() -> Filters {
        Filters(BUILT.iter().copied().collect())
    }

    /// Adds a filter of another crate.
    #[must_use]
    pub fn with(mut self, name: &'static str, make: Make) -> Filters {
        self.0.insert(name, make);
        self
    }

    /// The names that [`Filters::build`] accepts.
    pub fn known(&self) -> Vec<&'static str> {
        self.0.keys().copied().collect()
    }

    /// Builds the filter of an entry point around `next`.
    ///
    /// # Errors
    /// There is no such filter, or its options are refused.
    pub fn build(
        &self,
        entry_point: &str,
        section: &Section,
        next: Handler,
        env: &FilterEnv,
    ) -> Result<Handler, FilterError> {
        let name = entry_point.trim();
        if let Some(make) = self.0.get(name) {
            return make(section, next, env);
        }
        let (name, known) = (name.to_owned(), self.known());
        Err(match NOT_YET.contains(&name.as_str()) {
            true => FilterError::NotYet { name, known },
            false => FilterError::Unknown { name, known },
        })
    }
}

/// Builds a filter of this crate around `next`, as [`Filters::build`] does.
///
/// # Errors
/// There is no such filter, or its options are refused.
pub fn build(
    entry_point: &str,
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    Filters::all().build(entry_point, section, next, env)
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
        assert!(
            matches!(result("s3api"), Err(FilterError::NotYet { name, .. }) if name == "s3api")
        );
        let unknown = result("nonsense").expect_err("unknown").to_string();
        assert!(
            unknown.contains("nonsense") && unknown.contains("tempauth"),
            "{unknown}"
        );
    }

    #[test]
    fn a_filter_of_another_crate() {
        let make: Make = |_, _, _| Ok(testing::answers(418));
        let filters = Filters::all().with("teapot", make);
        assert!(filters.known().contains(&"teapot") && filters.known().contains(&"tempauth"));
        let section = Section::from_pairs("filter:x", &[]);
        let built = filters.build("teapot", &section, testing::answers(200), &testing::env());
        assert!(built.is_ok());
        let error = build("teapot", &section, testing::answers(200), &testing::env());
        assert!(
            matches!(error.map(|_| ()), Err(FilterError::Unknown { name, .. }) if name == "teapot")
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
