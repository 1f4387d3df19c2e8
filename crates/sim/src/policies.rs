//! The storage policies of simulated clusters: optionally one of the containers has an
//! erasure-coded policy.

use anyhow::{Context, Result};
use cairn_types::{EcType, ErasureScheme, PolicyIndex, PolicyKind, PolicySet, StoragePolicy};

/// The policy's name.
pub(crate) const FRAGMENTS: &str = "fragments";
pub(crate) const FRAGMENTS_INDEX: PolicyIndex = PolicyIndex(1);
/// The container with that policy.
pub(crate) const IN_FRAGMENTS: &str = "c1";
/// Segment size in bytes; larger objects have several.
const SEGMENT_BYTES: usize = 10_000;

/// Any two of three fragments restore an object.
pub(crate) fn scheme() -> Result<ErasureScheme> {
    let scheme = ErasureScheme::new(EcType::LiberasurecodeRsVand, 2, 1)?;
    Ok(scheme.with_segment_size(SEGMENT_BYTES)?)
}

/// One replicated policy, and optionally the erasure-coded one.
pub(crate) fn policies(has_fragments: bool) -> Result<PolicySet> {
    if !has_fragments {
        return Ok(PolicySet::single());
    }
    let policy = |index, name: &str, kind| StoragePolicy {
        index,
        name: name.to_owned(),
        aliases: Vec::new(),
        is_default: index == PolicyIndex(0),
        deprecated: false,
        kind,
    };
    let fragments = PolicyKind::ErasureCoding(scheme()?);
    let both = PolicySet::new(vec![
        policy(PolicyIndex(0), "replicas", PolicyKind::Replication),
        policy(FRAGMENTS_INDEX, FRAGMENTS, fragments),
    ]);
    both.context("the simulator's policies")
}

/// The policy of a container's objects.
pub(crate) fn policy_of(container: &str, has_fragments: bool) -> PolicyIndex {
    match has_fragments && container == IN_FRAGMENTS {
        true => FRAGMENTS_INDEX,
        false => PolicyIndex(0),
    }
}
