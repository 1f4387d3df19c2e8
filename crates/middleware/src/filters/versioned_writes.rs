//! Filter `versioned_writes`: versions of objects, in Swift's two modes.
//!
//! *Object versioning* (`X-Versions-Enabled`, `object_versioning.rs`): every version is stored in a
//! hidden container with a reserved name, and the object that clients see is a symlink to the
//! latest of them. *Versioned writes* (`X-Versions-Location`, `X-History-Location`, `legacy.rs`):
//! objects that are overwritten or deleted are first copied to a container chosen by the user.
//!
//! Like in Swift, this filter includes both, the second around the first.

mod account;
mod container;
mod copies;
mod enable;
mod legacy;
mod legacy_delete;
mod list_versions;

mod object;
mod object_versioning;
mod version_id;

use std::sync::Arc;

use cairn_formats::ini::Section;
use cairn_http::params::is_true;
use cairn_http::{Context, Handler, Request, Response, respond};
use http::Method;
use http::header::{IF_MATCH, IF_NONE_MATCH};
use http::request::Parts;
use serde_json::{Value, json};

use crate::{FilterEnv, FilterError, status};
use legacy::VersionedWrites;

use object_versioning::ObjectVersioning;
pub(crate) use object_versioning::versions_container;

/// Content type of delete markers. Clients cannot set it, since its parameter is Swift's own.
const DELETE_MARKER: &str = "application/x-deleted;swift_versions_deleted=1";

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    let allow_versioned_writes = section
        .get("allow_versioned_writes")
        .filter(|text| !text.is_empty())
        .map(is_true);
    if allow_versioned_writes == Some(true) {
        let flags = [legacy::VERSIONS_LOCATION, legacy::HISTORY_LOCATION];
        let flags: Vec<&str> = flags.iter().map(|name| name.as_str()).collect();
        let details = json!({ "allowed_flags": flags });
        env.swift_info.register("versioned_writes", details);
    }
    let mut next = next;
    if section.bool_or("allow_object_versioning", false) {
        if env.swift_info.view(&[], false).get("symlink").is_none() {
            return Err(FilterError::Needs {
                option: "allow_object_versioning",
                needs: "symlink",
            });
        }
        env.swift_info.register("object_versioning", Value::Null);
        next = Arc::new(ObjectVersioning::new(next, env));
    }
    Ok(Arc::new(VersionedWrites::new(
        next,
        env,
        allow_versioned_writes,
    )))
}

/// Authorizes the client's request before the filter acts with its own authority. The error is the
/// denial.
async fn authorize(parts: &Parts, acl: Option<&str>) -> Result<(), Response> {
    let context = Context::of(parts);
    match context.authorizer.filter(|_| !context.authorized) {
        None => Ok(()),
        Some(authorizer) => authorizer.authorize(parts, acl).await.map(|_| ()),
    }
}

/// The request, unless it is a conditional write: if each write creates or moves versions by
/// several requests, the condition cannot be decided atomically.
async fn without_condition(request: Request, acl: Option<&str>) -> Result<Request, Response> {
    let headers = request.headers();
    let tags = respond::header(headers, IF_NONE_MATCH.as_str());
    let is_new = request.method() == Method::PUT && tags.is_some_and(|tags| tags.trim() == "*");
    let is_write = [Method::PUT, Method::DELETE].contains(request.method());
    let is_conditional =
        headers.contains_key(IF_MATCH) || (headers.contains_key(IF_NONE_MATCH) && !is_new);
    if !(is_write && is_conditional) {
        return Ok(request);
    }
    let (parts, _) = request.into_parts();
    // Whether there are versions is revealed only to authorized clients.
    authorize(&parts, acl).await?;
    Err(status::not_on_a_condition(
        "Conditional writes are not available in containers that keep versions",
    ))
}

#[cfg(test)]
mod tests;
