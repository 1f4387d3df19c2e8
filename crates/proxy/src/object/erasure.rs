//! Objects of erasure-coded policies. An upload is cut into segments, and each segment is coded
//! into fragments; an object server stores all fragments of one index as a fragment archive
//! (`put.rs`, `encode.rs`). A read collects enough archives of one version (`get.rs`, `buckets.rs`)
//! and decodes the requested bytes (`layout.rs`, `archive.rs`, `content.rs`).
//!
//! System metadata of every fragment archive: `Ec-Etag` and `Ec-Content-Length` of the whole
//! object, `Ec-Frag-Index`, `Ec-Scheme`, `Ec-Segment-Size`.

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

/// Erasure-coding parameters and codec of one policy.
pub(crate) struct Erasure {
    pub(super) scheme: ErasureScheme,
    pub(super) codec: Codec,
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

/// System metadata by which fragment archives describe the whole object.
const EC_ETAG: &str = "x-object-sysmeta-ec-etag";
const EC_LENGTH: &str = "x-object-sysmeta-ec-content-length";
const EC_INDEX: &str = "x-object-sysmeta-ec-frag-index";
const EC_PREFIX: &str = "x-object-sysmeta-ec-";

/// Removes headers that clients and middleware must not see.
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
