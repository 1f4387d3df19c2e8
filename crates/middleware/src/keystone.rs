//! Who is asking, in Keystone's words: what `authtoken` and `identity` learn from a token, and
//! `keystoneauth` decides by. It travels in the request's extensions, where no client can put it
//! (in Swift: among the headers).

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

/// What a valid token says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) user: Named,
    pub(crate) user_domain: Named,
    /// What the token is for; none where it is for no project.
    pub(crate) project: Option<Project>,
    pub(crate) domain: Option<Named>,
    pub(crate) roles: Vec<String>,
    /// For the whole of the installation.
    pub(crate) is_system: bool,
    pub(crate) is_admin_project: bool,
    /// In seconds; the token is no good after.
    pub(crate) expires: u64,
}

/// In the extensions of a request whose token is valid, and whose service token, if it has one,
/// is too.
#[derive(Clone, Debug)]
pub(crate) struct Confirmed {
    pub(crate) user: Arc<Holder>,
    pub(crate) service: Option<Arc<Holder>>,
    /// The token is of this store's own `identity`.
    pub(crate) built_in: bool,
}

/// The one's roles, in lower case, as they are compared.
pub(crate) fn lower(roles: &[String]) -> Vec<String> {
    roles.iter().map(|role| role.to_lowercase()).collect()
}
