//! A token of this identity service, opened: what it says of its holder, and of the tokens it came
//! from.

/// The fields of a valid token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) user_id: String,
    pub(super) project_id: Option<String>,
    pub(super) issued: u64,
    pub(super) expires: u64,
    pub(super) audit_id: String,
    /// Audit ids of the tokens that this one was derived from: revoking any of them revokes it.
    pub(super) parents: Vec<String>,
    /// Latest possible time of the password login that began the chain.
    pub(super) login: u64,
}
