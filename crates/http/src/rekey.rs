//! Re-keying: the order by which an operator's tool has the filter `encryption` wrap the keys of
//! one object or container by the active root secret, and its outcome. They travel in the
//! extensions of a POST and of its response, where no client can put them.

/// The order, in a request's extensions.
#[derive(Clone, Copy, Debug)]
pub struct Rekey {
    /// Only report what would be done.
    pub is_dry_run: bool,
}

/// Id of a root secret; `None` is that of `encryption_root_secret`.
pub type SecretId = Option<String>;

/// Outcome of the order, in the response's extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rekeyed {
    /// The object does not exist, or has expired.
    Gone,
    /// None of its keys depends on a root secret.
    NotEncrypted,
    /// All its keys were under the active root secret already.
    Active,
    /// All its keys are under the active root secret now.
    Done,
    /// This root secret is still needed.
    Remains(SecretId, Reason),
    /// Outcome for a container: the secrets whose keys of it can be derived from the active one.
    Container {
        active: SecretId,
        covered: Vec<SecretId>,
        is_changed: bool,
    },
}

/// Reasons why a root secret is still needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// It has not been re-keyed yet.
    NotYet,
    /// It is encrypted in OpenStack Swift's format, and has to stay readable there.
    SwiftsFormat,
    /// The secret is not in the keymaster's conf, so its keys cannot be unwrapped.
    NotConfigured,
}
