//! Storage policies: `[storage-policy:N]` sections of swift.conf as values.

use std::fmt;

use thiserror::Error;

use crate::erasure_scheme::ErasureScheme;
use crate::quorum::Quorum;

/// The number of a policy. Policy 0 uses the folder names from before there were policies
/// (`objects`, `tmp`, `async_pending`); those of others end in `-N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct PolicyIndex(pub u32);

impl PolicyIndex {
    /// The folder name for this policy: `objects` or `objects-N`, `tmp` or `tmp-N`.
    pub fn dir(self, base: &str) -> String {
        if self.0 == 0 {
            base.to_owned()
        } else {
            format!("{base}-{}", self.0)
        }
    }

    /// The ring's name, `object` or `object-N`; its file is that and `.ring.gz`.
    pub fn ring_name(self) -> String {
        self.dir("object")
    }
}

impl fmt::Display for PolicyIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The way in which a policy stores its objects: replication or erasure coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    Replication,
    ErasureCoding(ErasureScheme),
}

impl PolicyKind {
    /// The quorum of an upload to a partition that has `replicas` replicas, or fragments.
    pub fn upload_quorum(&self, replicas: usize) -> Quorum {
        match self {
            PolicyKind::Replication => Quorum::of_replicas(replicas),
            PolicyKind::ErasureCoding(scheme) => scheme.quorum(),
        }
    }

    /// The quorum of a write that each of `servers` servers gets whole: metadata (POST) or a
    /// tombstone (DELETE). Of fragments, too, half is enough, as in Swift: none of it is needed to
    /// decode anything.
    pub fn update_quorum(&self, servers: usize) -> Quorum {
        match self {
            PolicyKind::Replication | PolicyKind::ErasureCoding(_) => Quorum::of_replicas(servers),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoragePolicy {
    pub index: PolicyIndex,
    pub name: String,
    pub aliases: Vec<String>,
    pub is_default: bool,
    /// Existing containers of this policy are still read and written; new ones cannot choose it.
    pub deprecated: bool,
    pub kind: PolicyKind,
}

impl StoragePolicy {
    /// The erasure-coding parameters; `None` for a replicated policy.
    pub fn erasure(&self) -> Option<&ErasureScheme> {
        match &self.kind {
            PolicyKind::Replication => None,
            PolicyKind::ErasureCoding(scheme) => Some(scheme),
        }
    }
}

/// All policies of a cluster, of which exactly one is the default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySet {
    policies: Vec<StoragePolicy>,
    default: usize,
}

#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum PolicyError {
    #[error("two storage policies have the index {0}")]
    DuplicateIndex(u32),
    #[error("two storage policies have the name {0:?}; names are compared without case")]
    DuplicateName(String),
    #[error("the storage policy name {0:?} is not valid: use letters, digits and dashes")]
    BadName(String),
    #[error("storage policies {0} and {1} both say 'default = yes'; one may")]
    TwoDefaults(u32, u32),
    #[error("no storage policy says 'default = yes'")]
    NoDefault,
    #[error("storage policy {0} is deprecated and can't be the default")]
    DeprecatedDefault(u32),
    #[error("storage policies are declared, but none has index 0")]
    NoPolicyZero,
}

impl PolicySet {
    /// The set with one replicated policy, `Policy-0`: the meaning of a swift.conf without
    /// policies.
    pub fn single() -> Self {
        PolicySet {
            policies: vec![StoragePolicy {
                index: PolicyIndex(0),
                name: "Policy-0".into(),
                aliases: Vec::new(),
                is_default: true,
                deprecated: false,
                kind: PolicyKind::Replication,
            }],
            default: 0,
        }
    }

    /// Makes a set of policies, sorted by index; none at all give [`PolicySet::single`].
    ///
    /// # Errors
    /// `BadName`, `DuplicateName`, `DuplicateIndex` or `NoPolicyZero`; `NoDefault` or `TwoDefaults`
    /// if several have not one default, `DeprecatedDefault` if that one is deprecated.
    pub fn new(mut policies: Vec<StoragePolicy>) -> Result<Self, PolicyError> {
        if policies.is_empty() {
            return Ok(Self::single());
        }
        policies.sort_by_key(|p| p.index);
        let mut names: Vec<String> = Vec::new();
        for policy in &policies {
            for name in std::iter::once(&policy.name).chain(&policy.aliases) {
                if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
                {
                    return Err(PolicyError::BadName(name.clone()));
                }
                let lower = name.to_ascii_lowercase();
                if names.contains(&lower) {
                    return Err(PolicyError::DuplicateName(name.clone()));
                }
                names.push(lower);
            }
        }
        for pair in policies.windows(2) {
            if pair[0].index == pair[1].index {
                return Err(PolicyError::DuplicateIndex(pair[0].index.0));
            }
        }
        if policies[0].index.0 != 0 {
            return Err(PolicyError::NoPolicyZero);
        }
        let mut defaults = (0..policies.len()).filter(|i| policies[*i].is_default);
        let default = match (defaults.next(), defaults.next()) {
            (Some(a), Some(b)) => {
                return Err(PolicyError::TwoDefaults(
                    policies[a].index.0,
                    policies[b].index.0,
                ));
            }
            (Some(a), None) => a,
            (None, _) if policies.len() == 1 => 0,
            (None, _) => return Err(PolicyError::NoDefault),
        };
        policies[default].is_default = true;
        if policies[default].deprecated {
            return Err(PolicyError::DeprecatedDefault(policies[default].index.0));
        }
        Ok(PolicySet { policies, default })
    }

    pub fn default_policy(&self) -> &StoragePolicy {
        &self.policies[self.default]
    }

    pub fn by_index(&self, index: PolicyIndex) -> Option<&StoragePolicy> {
        self.policies.iter().find(|p| p.index == index)
    }

    /// The policy with this name or alias, ignoring case.
    pub fn by_name(&self, name: &str) -> Option<&StoragePolicy> {
        self.policies.iter().find(|p| {
            p.name.eq_ignore_ascii_case(name)
                || p.aliases.iter().any(|a| a.eq_ignore_ascii_case(name))
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = &StoragePolicy> {
        self.policies.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(index: u32, name: &str, is_default: bool) -> StoragePolicy {
        StoragePolicy {
            index: PolicyIndex(index),
            name: name.into(),
            aliases: Vec::new(),
            is_default,
            deprecated: false,
            kind: PolicyKind::Replication,
        }
    }

    #[test]
    fn directories() {
        assert_eq!(PolicyIndex(0).dir("objects"), "objects");
        assert_eq!(PolicyIndex(3).dir("async_pending"), "async_pending-3");
    }

    #[test]
    fn quorums_are_the_policys() {
        let scheme = ErasureScheme::new(crate::EcType::IsaLRsVand, 4, 2).expect("a scheme");
        let coded = PolicyKind::ErasureCoding(scheme);
        assert_eq!(coded.upload_quorum(6).size(), 5);
        assert_eq!(coded.update_quorum(6).size(), 3);
        assert_eq!(PolicyKind::Replication.upload_quorum(4).size(), 2);
        assert_eq!(PolicyKind::Replication.update_quorum(4).size(), 2);
    }

    #[test]
    fn sets() {
        let set = PolicySet::new(vec![policy(1, "silver", true), policy(0, "gold", false)])
            .expect("a set");
        assert_eq!(set.default_policy().name, "silver");
        assert_eq!(set.by_name("GOLD").map(|p| p.index), Some(PolicyIndex(0)));
        for (policies, error) in [
            (vec![policy(1, "a", true)], PolicyError::NoPolicyZero),
            (
                vec![policy(0, "a", true), policy(1, "A", false)],
                PolicyError::DuplicateName("A".into()),
            ),
            (
                vec![policy(0, "a", true), policy(1, "b", true)],
                PolicyError::TwoDefaults(0, 1),
            ),
            (
                vec![policy(0, "a b", true)],
                PolicyError::BadName("a b".into()),
            ),
        ] {
            assert_eq!(PolicySet::new(policies), Err(error));
        }
    }
}
