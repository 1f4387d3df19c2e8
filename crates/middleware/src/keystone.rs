//! Identity of a requester in Keystone's terms: the result of `authtoken` and `identity` validating
//! a token, and the input of `keystoneauth`. It travels in the request's extensions, where no
//! client can put it (in Swift: in headers).

use std::sync::Arc;

/// A user, a project or a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    pub id: String,
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Project {
    pub id: String,
    pub name: String,
    pub domain: Named,
}

/// The content of a valid token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    pub user: Named,
    pub user_domain: Named,
    /// The token's project; `None` without one.
    pub project: Option<Project>,
    pub domain: Option<Named>,
    pub roles: Vec<String>,
    /// The token's scope is the whole installation.
    pub is_system: bool,
    pub is_admin_project: bool,
    /// Expiry in seconds since 1970.
    pub expires: u64,
}

/// Identity in the extensions of a request with a valid token, and with a valid service token if it
/// has one.
#[derive(Clone, Debug)]
pub struct Confirmed {
    pub user: Arc<Holder>,
    pub service: Option<Arc<Holder>>,
    /// The token is of the built-in `identity`.
    pub built_in: bool,
}

/// Roles in lower case, for comparison.
pub fn lower(roles: &[String]) -> Vec<String> {
    roles.iter().map(|role| role.to_lowercase()).collect()
}
