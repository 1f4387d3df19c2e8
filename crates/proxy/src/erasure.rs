//! Erasure coding of policies: the parameters in swift.conf, and a codec for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_erasure::Codec;
use cairn_types::{ErasureScheme, PolicyIndex, PolicySet};

/// Erasure-coding parameters and codec of one policy.
pub(crate) struct Erasure {
    pub(crate) scheme: ErasureScheme,
    pub(crate) codec: Codec,
}

impl Erasure {
    /// Erasure coding of all erasure-coded policies.
    pub(crate) fn of_policies(policies: &PolicySet) -> BTreeMap<PolicyIndex, Arc<Erasure>> {
        let coded = policies.iter().filter_map(|policy| {
            let scheme = *policy.erasure()?;
            let codec = Codec::new(&scheme).with_checksums();
            Some((policy.index, Arc::new(Erasure { scheme, codec })))
        });
        coded.collect()
    }
}
