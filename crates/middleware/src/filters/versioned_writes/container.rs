//! Containers with versions: their headers, listings and deletion.

use cairn_http::params::{Params, quote_path, split_path, unquote};
use cairn_http::{Request, Response, respond};
use http::header::{ACCEPT, HeaderName};
use http::{Method, StatusCode};
use serde_json::Value;

use super::list_versions::VersionsListing;

use super::object_versioning::{
    ContainerPath, ObjectVersioning, SOURCE, STORED_CONTAINER, STORED_ENABLED, VERSIONS_ENABLED,
    versions_container,
};
use crate::api_path::set;
use crate::cause::{Cause, drain};
use crate::filters::symlink::BACKEND_ALLOW_RESERVED;
use crate::header_params;
use crate::version_names;
use crate::whole::{self, Row, rewritten};

const BYTES_USED: HeaderName = HeaderName::from_static("x-container-bytes-used");
const OBJECT_COUNT: &str = "x-container-object-count";

pub(super) fn text<'r>(row: &'r Row, member: &str) -> Option<&'r str> {
    row.get(member).and_then(Value::as_str)
}

impl ObjectVersioning {
    /// GET, HEAD, and writes that do not concern versions.
    pub(super) async fn show_container(&self, request: Request, path: ContainerPath) -> Response {
        let cause = Cause::of_request(&request);
        let is_get = request.method() == Method::GET;
        let accept = request.headers().get(ACCEPT).cloned();
        let params = Params::parse(request.uri().query()).unwrap_or_default();
        let mut response = self.next.call(request).await;
        if let Some(enabled) = response.headers().get(STORED_ENABLED).cloned() {
            response.headers_mut().insert(VERSIONS_ENABLED, enabled);
        }
        let stored = respond::header(response.headers(), STORED_CONTAINER.as_str())
            .and_then(|name| unquote(name).ok())
            .filter(|name| !name.is_empty());
        if let Some(versions) = &stored {
            self.add_bytes(&mut response, &cause, &path, versions).await;
        }
        if !is_get || response.status() != StatusCode::OK {
            return response;
        }
        // A listing of versions is made even if there seem to be none: cached container information
        // may be out of date.
        let versions = stored.or_else(|| version_names::versions_container(&path.container));
        let (head, json) = match whole::listing(response).await {
            Ok(whole) => whole,
            Err(as_it_is) => return as_it_is,
        };
        let Some(versions) = versions else {
            return rewritten(head, json);
        };
        if !params.contains("versions") {
            let show = move |row: &mut Row| show_version(row, &path.container, &versions, false);
            return match whole::with_rows(&json, "symlink_path", show).await {
                Some(shown) => rewritten(head, shown),
                None => rewritten(head, json),
            };
        }
        let Ok(mut rows) = serde_json::from_slice::<Vec<Row>>(&json) else {
            return rewritten(head, json);
        };
        for row in &mut rows {
            show_version(row, &path.container, &versions, true);
        }
        let listing = VersionsListing {
            filter: self,
            cause,
            account: path.account,
            versions,
            params,
            accept,
        };
        match listing.respond(head, rows).await {
            Ok(response) | Err(response) => response,
        }
    }

    /// Versions count, because they use space.
    async fn add_bytes(
        &self,
        response: &mut Response,
        cause: &Cause,
        path: &ContainerPath,
        versions: &str,
    ) {
        let number = |response: &Response| {
            let text = respond::header(response.headers(), BYTES_USED.as_str())?;
            text.parse::<u64>().ok()
        };
        let Some(current) = number(response) else {
            return;
        };
        let Ok(found) = self.head_container(cause, &path.sibling(versions)).await else {
            return;
        };
        if found.status().is_success() {
            let all = current.saturating_add(number(&found).unwrap_or(0));
            set(response.headers_mut(), BYTES_USED, &all.to_string());
        }
        drain(found).await;
    }

    async fn head_container(&self, cause: &Cause, path: &str) -> Result<Response, Response> {
        let mut head = cause.pre_authorized(SOURCE, Method::HEAD, path, "")?;
        set(head.headers_mut(), BACKEND_ALLOW_RESERVED, "true");
        Ok(self.next.call(head).await)
    }

    /// Deletes a container together with its versions container, if that is empty.
    pub(super) async fn delete_container(&self, request: Request, path: ContainerPath) -> Response {
        let (parts, body) = request.into_parts();
        let cause = Cause::of_parts(&parts);
        let info = self
            .info_source
            .container(&cause.context, &path.account, &path.container)
            .await;
        if let Some(versions) = versions_container(&info) {
            if let Err(denied) = super::authorize(&parts, None).await {
                return denied;
            }
            let versions = path.sibling(&versions);
            if let Err(refused) = self.delete_versions_container(&cause, &versions).await {
                return refused;
            }
        }
        self.next.call(Request::from_parts(parts, body)).await
    }

    async fn delete_versions_container(&self, cause: &Cause, path: &str) -> Result<(), Response> {
        let failed = || {
            respond::typed(
                StatusCode::INTERNAL_SERVER_ERROR,
                respond::HTML,
                "Error deleting versioned container",
            )
        };
        let is_gone = |r: &Response| r.status().is_success() || r.status() == StatusCode::NOT_FOUND;
        // Read from the servers: cached information may be out of date.
        let found = self.head_container(cause, path).await?;
        if !is_gone(&found) {
            return Err(failed());
        }
        let count = respond::header(found.headers(), OBJECT_COUNT).and_then(|t| t.parse().ok());
        if found.status().is_success() && count.is_some_and(|count: u64| count > 0) {
            return Err(respond::typed(
                StatusCode::CONFLICT,
                respond::HTML,
                "Delete all versions before deleting container.",
            ));
        }
        drain(found).await;
        let mut delete = cause.pre_authorized(SOURCE, Method::DELETE, path, "")?;
        set(delete.headers_mut(), BACKEND_ALLOW_RESERVED, "true");
        let deleted = self.next.call(delete).await;
        if !is_gone(&deleted) {
            return Err(failed());
        }
        drain(deleted).await;
        Ok(())
    }
}

/// Shows a link to a version like the version: with its size, hash, and id.
fn show_version(row: &mut Row, container: &str, versions: &str, keeps_path: bool) {
    let (Some(link), Some(etag), Some(bytes)) = (
        text(row, "symlink_path").and_then(|path| unquote(path).ok()),
        text(row, "symlink_etag").map(str::to_owned),
        row.get("symlink_bytes").cloned(),
    ) else {
        return;
    };
    let (account, name) = match split_path(&link, 4, 4, true).as_deref() {
        Some([_, Some(account), Some(found), Some(name)]) if *found == versions => {
            (*account, *name)
        }
        // The target is elsewhere: an ordinary link, or one from before the container was replaced.
        _ => return,
    };
    let hash = text(row, "hash").unwrap_or_default().to_owned();
    let (_, notes) = header_params::split(&hash);
    row.insert("hash".into(), header_params::join(&etag, notes).into());
    row.insert("bytes".into(), bytes);
    row.insert("version_symlink".into(), true.into());
    row.remove("symlink_bytes");
    row.remove("symlink_etag");
    if let ((object, Some(id)), false) = (version_names::parse_version_name(name), keeps_path) {
        let path = quote_path(&format!("/v1/{account}/{container}/{object}"));
        row.insert(
            "symlink_path".into(),
            format!("{path}?version-id={id}").into(),
        );
    }
}

/// Rows sorted by name, at most `limit` of them; rows with equal names keep their order.
pub(super) fn build_listing(rows: Vec<Row>, reverse: bool, limit: usize) -> Vec<Row> {
    let name = |row: &Row| {
        let name = text(row, "subdir").or_else(|| text(row, "name"));
        name.unwrap_or_default().to_owned()
    };
    let mut named: Vec<(String, Row)> = rows.into_iter().map(|row| (name(&row), row)).collect();
    if reverse {
        named.sort_by(|(a, _), (b, _)| b.cmp(a));
    } else {
        named.sort_by(|(a, _), (b, _)| a.cmp(b));
    }
    named.into_iter().take(limit).map(|(_, row)| row).collect()
}

/// The client's `limit`, capped at the maximum.
pub(super) fn limit(params: &Params, most: usize) -> Result<usize, Response> {
    let digits = |text: &&str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match params.get("limit").filter(digits).map(str::parse::<usize>) {
        None => Ok(most),
        Some(Ok(limit)) if limit <= most => Ok(limit),
        Some(_) => Err(respond::text(
            StatusCode::PRECONDITION_FAILED,
            format!("Maximum limit is {most}"),
        )),
    }
}
