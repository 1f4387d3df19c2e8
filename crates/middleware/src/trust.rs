//! System metadata that makes a symlink trusted, and the rule for who may write it.
//!
//! The link to an object's latest version is followed without calling the authorizer, into reserved
//! names, and does not count as a step. Its metadata equals OpenStack Swift's. A request's headers
//! cannot set it, and no copy includes it: `versioned_writes` marks its own request by an
//! extension, [`LatestVersionLink`], and `symlink` writes the metadata. Stored metadata is
//! effective only for links to a version of the same object (`version_names::is_version_of`).

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

/// A step over this link does not count.
pub(crate) const SYMLOOP_EXTEND: HeaderName =
    HeaderName::from_static("x-object-sysmeta-symloop-extend");
/// The link may be followed into reserved names.
pub(crate) const ALLOW_RESERVED_NAMES: HeaderName =
    HeaderName::from_static("x-object-sysmeta-allow-reserved-names");
/// The link stands for the latest version.
pub(crate) const VERSIONS_SYMLINK: HeaderName =
    HeaderName::from_static("x-object-sysmeta-versions-symlink");

const MARKS: [HeaderName; 3] = [SYMLOOP_EXTEND, ALLOW_RESERVED_NAMES, VERSIONS_SYMLINK];

/// Marker in the extensions of a PUT that makes an object the link to its latest version.
#[derive(Clone, Copy)]
pub(crate) struct LatestVersionLink;

pub(crate) fn is_mark(name: &HeaderName) -> bool {
    MARKS.contains(name)
}

/// Removes the marks from headers of a client or of a stored object.
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
