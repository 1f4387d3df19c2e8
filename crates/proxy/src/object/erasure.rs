//! Objects of erasure-coded policies. An upload is cut into segments and these into fragments,
//! each object server keeping those of one index (`put.rs`, `encode.rs`); a read collects enough
//! of them that belong together (`get.rs`, `buckets.rs`) and decodes what the client asked for
//! (`layout.rs`, `archive.rs`, `content.rs`).
//!
//! What every fragment archive says of its object, as system metadata: `Ec-Etag` and
//! `Ec-Content-Length` of the whole object, `Ec-Frag-Index`, `Ec-Scheme`, `Ec-Segment-Size`.

mod archive;
mod buckets;
mod content;
mod encode;
mod get;
mod layout;
mod put;

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_erasure::Codec;
use cairn_types::{ErasureScheme, PolicyIndex, PolicySet};
use http::HeaderMap;

/// One policy's scheme and its codec.
pub(crate) struct Erasure {
    pub(super) scheme: ErasureScheme,
    pub(super) codec: Codec,
}

impl Erasure {
    /// Of all erasure-coded policies.
    pub(crate) fn of_policies(policies: &PolicySet) -> BTreeMap<PolicyIndex, Arc<Erasure>> {
        let coded = policies.iter().filter_map(|policy| {
            let scheme = *policy.erasure()?;
            let codec = Codec::new(&scheme).with_checksums();
            Some((policy.index, Arc::new(Erasure { scheme, codec })))
        });
        coded.collect()
    }
}

/// What servers of fragments tell of the object as a whole.
const EC_ETAG: &str = "x-object-sysmeta-ec-etag";
const EC_LENGTH: &str = "x-object-sysmeta-ec-content-length";
const EC_INDEX: &str = "x-object-sysmeta-ec-frag-index";
const EC_PREFIX: &str = "x-object-sysmeta-ec-";

/// Removes what clients and middleware have no business with.
fn strip(headers: &mut HeaderMap) {
    let names: Vec<_> = headers
        .keys()
        .filter(|name| name.as_str().starts_with(EC_PREFIX))
        .cloned()
        .collect();
    for name in names {
        headers.remove(name);
    }
}
