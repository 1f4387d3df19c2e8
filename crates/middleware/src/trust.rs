//! System metadata that makes a link trusted, and who may write it.
//!
//! The link that stands for an object's latest version is followed without asking the authorizer,
//! into reserved names, and is not counted as a step. Its metadata is the same that OpenStack Swift
//! stores. A request's headers cannot ask for it, and no copy takes it over: `versioned_writes`
//! marks the request for its link with an extension, [`LatestVersionLink`], and `symlink` writes
//! the metadata. What is stored is believed only of links to a version of the object itself
//! (`version_names::is_version_of`).

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

/// A step over this link is not counted.
pub(crate) const SYMLOOP_EXTEND: HeaderName =
    HeaderName::from_static("x-object-sysmeta-symloop-extend");
/// The link may be followed into reserved names.
pub(crate) const ALLOW_RESERVED_NAMES: HeaderName =
    HeaderName::from_static("x-object-sysmeta-allow-reserved-names");
/// The link stands for the latest version.
pub(crate) const VERSIONS_SYMLINK: HeaderName =
    HeaderName::from_static("x-object-sysmeta-versions-symlink");

const MARKS: [HeaderName; 3] = [SYMLOOP_EXTEND, ALLOW_RESERVED_NAMES, VERSIONS_SYMLINK];

/// In the extensions of a PUT that makes an object the link to its latest version.
#[derive(Clone, Copy)]
pub(crate) struct LatestVersionLink;

pub(crate) fn is_mark(name: &HeaderName) -> bool {
    MARKS.contains(name)
}

/// Removes the marks from headers that came from a client or from a stored object.
pub(crate) fn strip(headers: &mut HeaderMap) {
    for name in MARKS {
        headers.remove(name);
    }
}

pub(crate) fn mark(headers: &mut HeaderMap) {
    for name in MARKS {
        headers.insert(name, HeaderValue::from_static("true"));
    }
}
