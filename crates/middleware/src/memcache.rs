//! The cache filter (`egg:swift#memcache`): accepted, and empty. In Swift it hands a memcached
//! client to the others; here the process caches for itself (accounts, containers, validated
//! tokens), so the section's options have no effect.

use cairn_formats::ini::Section;
use cairn_http::Handler;

use crate::{FilterEnv, FilterError};

pub(crate) fn make(_: &Section, next: Handler, _: &FilterEnv) -> Result<Handler, FilterError> {
    Ok(next)
}
