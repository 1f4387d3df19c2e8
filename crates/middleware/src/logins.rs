//! People who log in by name and key, told by the filter that has them (`tempauth`) and asked by
//! others of the same pipeline that hand out tokens of another kind (`identity`).

use std::collections::BTreeSet;
use std::sync::{Arc, RwLock};

/// Somebody with a key to one account.
#[derive(Clone)]
pub(crate) struct Login {
    /// As typed when logging in: `account:user`.
    pub(crate) account: String,
    pub(crate) user: String,
    pub(crate) key: Arc<str>,
    pub(crate) groups: Vec<String>,
    /// The account's name in paths, its prefix included.
    pub(crate) account_id: String,
}

/// All of a pipeline's. Cloning shares it.
#[derive(Clone, Default)]
pub struct Logins(Arc<RwLock<Known>>);

#[derive(Default)]
struct Known {
    logins: Vec<Login>,
    /// In lower case.
    privileged: BTreeSet<String>,
}

impl Logins {
    pub(crate) fn tell(&self, logins: impl IntoIterator<Item = Login>) {
        let mut all = self.0.write().unwrap_or_else(|e| e.into_inner());
        all.logins.extend(logins);
    }

    /// Roles that mean more than their name, as the filter that decides by them has them: a group
    /// of that name is none of them.
    pub(crate) fn tell_privileged(&self, roles: impl IntoIterator<Item = String>) {
        let mut all = self.0.write().unwrap_or_else(|e| e.into_inner());
        all.privileged.extend(roles);
    }

    pub(crate) fn privileged(&self) -> BTreeSet<String> {
        let all = self.0.read().unwrap_or_else(|e| e.into_inner());
        all.privileged.clone()
    }

    pub(crate) fn all(&self) -> Vec<Login> {
        let all = self.0.read().unwrap_or_else(|e| e.into_inner());
        all.logins.clone()
    }
}
