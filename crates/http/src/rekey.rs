//! Re-keying: the order by which an operator's tool has the filter `encryption` put the keys of one
//! object or container under the active root secret, and what became of it. Both travel in
//! extensions, of a POST and of its answer, where no client can put them.

/// The order, in a request's extensions.
#[derive(Clone, Copy, Debug)]
pub struct Rekey {
    /// Only look what there is to do.
    pub is_dry_run: bool,
}

/// The id of a root secret; none: that of `encryption_root_secret`.
pub type SecretId = Option<String>;

/// What became of the order, in the answer's extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rekeyed {
    /// There is no such object, or it has expired.
    Gone,
    /// No key of it depends on a root secret.
    NotEncrypted,
    /// All its keys are under the active root secret, and were.
    Active,
    /// They are now.
    Done,
    /// This root secret is needed still.
    Remains(SecretId, Reason),
    /// A container's: the secrets whose keys of it can be had from the active one.
    Container {
        active: SecretId,
        covered: Vec<SecretId>,
        is_changed: bool,
    },
}

/// Why a root secret is still needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Nobody has re-keyed it yet.
    NotYet,
    /// It is encrypted as OpenStack Swift does, and has to stay readable there.
    SwiftsFormat,
    /// The secret is not in the keymaster's conf, so that nothing can be done.
    NotConfigured,
}
