//! Identity of a requester in Keystone's terms: the result of `authtoken` and `identity` validating
//! a token, and the input of `keystoneauth`. It travels in the request's extensions, where no
//! client can put it (in Swift: in headers).

use std::sync::Arc;

/// A user, a project or a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) id: String,
    pub(crate) name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Project {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) domain: Named,
}

/// The content of a valid token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) user: Named,
    pub(crate) user_domain: Named,
    /// The token's project; `None` without one.
    pub(crate) project: Option<Project>,
    pub(crate) domain: Option<Named>,
    pub(crate) roles: Vec<String>,
    /// The token's scope is the whole installation.
    pub(crate) is_system: bool,
    pub(crate) is_admin_project: bool,
    /// Expiry in seconds since 1970.
    pub(crate) expires: u64,
}

/// Identity in the extensions of a request with a valid token, and with a valid service token if it
/// has one.
#[derive(Clone, Debug)]
pub(crate) struct Confirmed {
    pub(crate) user: Arc<Holder>,
    pub(crate) service: Option<Arc<Holder>>,
    /// The token is of the built-in `identity`.
    pub(crate) built_in: bool,
}

/// Roles in lower case, for comparison.
pub(crate) fn lower(roles: &[String]) -> Vec<String> {
    roles.iter().map(|role| role.to_lowercase()).collect()
}
