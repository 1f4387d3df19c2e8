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

use http::HeaderMap;

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
