//! Versions of objects, in the two ways Swift has.
//!
//! *Object versioning* (`X-Versions-Enabled`, `object_versioning.rs`): every version lies in a
//! hidden container of the reserved names, and the object that clients see is a symlink to the
//! latest of them. *Versioned writes* (`X-Versions-Location`, `X-History-Location`, `legacy.rs`):
//! what is overwritten or deleted is copied to a container of the user's own.
//!
//! Swift has both behind this one filter: the second around the first.

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

/// The type of objects that say: here the object was deleted. Clients cannot give it, its
/// parameter is Swift's.
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

/// Asks whether the client may do what it asked for, before the filter does something on its own
/// authority. The error is the denial.
async fn authorize(parts: &Parts, acl: Option<&str>) -> Result<(), Response> {
    let context = Context::of(parts);
    match context.authorizer.filter(|_| !context.authorized) {
        None => Ok(()),
        Some(authorizer) => authorizer.authorize(parts, acl).await.map(|_| ()),
    }
}

/// The request, unless it replaces or deletes what is there on a condition: where each write makes a
/// version of its own, or moves others, several requests are not decided as one.
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
    // That there are versions is not for everybody to know.
    authorize(&parts, acl).await?;
    Err(status::not_on_a_condition(
        "Conditional writes are not available in containers that keep versions",
    ))
}

#[cfg(test)]
mod tests;
