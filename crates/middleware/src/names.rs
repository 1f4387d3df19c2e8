//! Names in a request's path under the API: version, account, container, object, decoded.

use cairn_http::params::{split_path, unquoted};
use cairn_types::Constraints;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) version: String,
    pub(crate) account: String,
    pub(crate) container: Option<String>,
    pub(crate) object: Option<String>,
}

impl Names {
    /// Parses an encoded path; `None` if it has no account or is not UTF-8.
    pub(crate) fn of(raw: &str) -> Option<Names> {
        let path = unquoted(raw).ok()?;
        let parts = split_path(&path, 2, 4, true)?;
        let own = |part: Option<&str>| part.map(str::to_owned);
        Some(Names {
            version: own(parts[0])?,
            account: own(parts[1])?,
            container: own(parts[2]),
            // A path with an empty segment in the middle names nothing.
            object: own(parts[3]).filter(|_| parts[2].is_some()),
        })
    }

    /// Parses like [`Names::of`], but accepts only versions that the cluster serves.
    pub(crate) fn of_api(raw: &str, constraints: &Constraints) -> Option<Names> {
        Names::of(raw).filter(|names| names.is_api(constraints))
    }

    pub(crate) fn is_api(&self, constraints: &Constraints) -> bool {
        constraints.valid_api_versions.contains(&self.version)
    }
}
