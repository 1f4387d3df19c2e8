//! `GET container?versions`: the objects of the container and all versions as one listing, in JSON
//! only. Every row has a `version_id` and states whether it `is_latest`; an object that is not a
//! version has the id `null`.

use std::collections::{BTreeSet, HashMap, HashSet};

use cairn_http::params::{Params, is_true, split_path, unquote};
use cairn_http::{Response, respond};
use cairn_types::Timestamp;
use http::header::HeaderValue;
use http::response::Parts;
use http::{Method, StatusCode};
use serde_json::Value;

use super::DELETE_MARKER;
use super::container::{build_listing, limit, text};
use super::object_versioning::{ObjectVersioning, SOURCE};
use crate::accept::best_match;
use crate::api_path::set;
use crate::cause::{Cause, drain};
use crate::filters::listing_formats::AsItIs;
use crate::filters::symlink::BACKEND_ALLOW_RESERVED;
use crate::version_names;
use crate::whole::{self, Row, rewritten};

/// Characters of version ids, which are not supported as delimiters.
const NO_DELIMITERS: &str = "0123456789.\0";

pub(super) struct VersionsListing<'l> {
    pub(super) filter: &'l ObjectVersioning,
    pub(super) cause: Cause,
    pub(super) account: String,
    /// The container of the versions.
    pub(super) versions: String,
    pub(super) params: Params,
    pub(super) accept: Option<HeaderValue>,
}

fn bad_request(message: &'static str) -> Response {
    respond::typed(StatusCode::BAD_REQUEST, respond::HTML, message)
}

/// The rows of the container itself, by kind.
#[derive(Default)]
struct Primary {
    subdirs: BTreeSet<String>,
    /// Links to versions, by their target's path.
    links: HashMap<String, Row>,
    /// Objects that are not versions.
    plain: Vec<Row>,
    /// Names whose latest version is known.
    with_latest: HashSet<String>,
}

impl Primary {
    fn of(rows: Vec<Row>) -> Primary {
        let mut primary = Primary::default();
        for mut row in rows {
            let Some(name) = text(&row, "name").map(str::to_owned) else {
                let subdir = text(&row, "subdir").unwrap_or_default();
                primary.subdirs.insert(subdir.to_owned());
                continue;
            };
            let link = text(&row, "symlink_path").and_then(|path| unquote(path).ok());
            match link.filter(|_| row.contains_key("version_symlink")) {
                Some(path) => {
                    primary.links.insert(path, row);
                }
                None => {
                    row.insert("version_id".into(), "null".into());
                    row.insert("is_latest".into(), true.into());
                    primary.with_latest.insert(name);
                    primary.plain.push(row);
                }
            }
        }
        primary
    }

    fn subdir_rows(&self) -> impl Iterator<Item = Row> {
        let row = |name: &String| Row::from_iter([("subdir".to_owned(), name.clone().into())]);
        self.subdirs.iter().map(row)
    }
}

impl VersionsListing<'_> {
    pub(super) async fn respond(self, head: Parts, rows: Vec<Row>) -> Result<Response, Response> {
        let accept = self.accept.as_ref().and_then(|v| v.to_str().ok());
        match best_match(accept, &["application/json"]) {
            Ok(Some(_)) => {}
            Ok(None) => return Err(as_it_is(respond::standard(StatusCode::NOT_ACCEPTABLE))),
            Err(_) => return Err(bad_request("Invalid Accept header")),
        }
        let query = self.query()?;
        let most = self.filter.constraints.container_listing_limit;
        let limit = limit(&self.params, most)?;
        let reverse = self.params.get("reverse").is_some_and(is_true);
        let primary = Primary::of(rows);
        let merged = match self.version_rows(&query).await? {
            Some(versions) => self.merge(primary, versions),
            None => links_alone(primary),
        };
        let json = serde_json::to_vec(&build_listing(merged, reverse, limit))
            .map_err(|_| respond::standard(StatusCode::INTERNAL_SERVER_ERROR))?;
        Ok(as_it_is(rewritten(head, json)))
    }

    /// The client's query, translated to versions' names.
    fn query(&self) -> Result<Params, Response> {
        let reserved = || bad_request("Invalid reserved part in a query parameter");
        let mut query = Params::default();
        let own = |name: &str| self.params.get(name);
        let marker = match (own("marker"), own("version_marker")) {
            (None, Some(_)) => return Err(bad_request("version_marker param requires marker")),
            (None, None) => String::new(),
            (Some(marker), version) => {
                let prefix = version_names::version_prefix(marker).ok_or_else(reserved)?;
                match version {
                    // Behind all versions of the marker.
                    None => prefix + ":",
                    // Before all of them.
                    Some("null") => prefix,
                    Some(version) => {
                        let version = Timestamp::parse(version)
                            .map_err(|_| bad_request("invalid version_marker param"))?;
                        version_names::version_name(marker, version).ok_or_else(reserved)?
                    }
                }
            }
        };
        let delimiter = own("delimiter").unwrap_or("");
        if delimiter.contains(|c| NO_DELIMITERS.contains(c)) {
            return Err(bad_request("invalid delimiter param"));
        }
        // Possibly a partial name: nothing can be appended.
        let prefix = match own("prefix") {
            Some(prefix) => version_names::reserved(&[prefix]).ok_or_else(reserved)?,
            None => String::new(),
        };
        query.set("prefix", prefix);
        query.set("marker", marker);
        query.set("limit", own("limit").unwrap_or(""));
        query.set("delimiter", delimiter);
        query.set("reverse", own("reverse").unwrap_or(""));
        Ok(query)
    }

    /// The rows of the versions container; `None` if it does not exist.
    async fn version_rows(&self, query: &Params) -> Result<Option<Vec<Row>>, Response> {
        let context = &self.cause.context;
        let info_source = &self.filter.info_source;
        // Its existence is checked first: a 404 is expensive if it is not cached, and clients
        // request versions of containers that never had any.
        let info = info_source
            .container(context, &self.account, &self.versions)
            .await;
        if info.status == 404 {
            return Ok(None);
        }
        let path = format!("/v1/{}/{}", self.account, self.versions);
        let query = query.encode();
        let mut get = self
            .cause
            .pre_authorized(SOURCE, Method::GET, &path, &query)?;
        set(get.headers_mut(), BACKEND_ALLOW_RESERVED, "true");
        let response = self.filter.next.call(get).await;
        if response.status() == StatusCode::NOT_FOUND {
            drain(response).await;
            return Ok(None);
        }
        if !response.status().is_success() {
            return Err(response);
        }
        let (head, json) = whole::listing(response).await?;
        if head.status == StatusCode::NO_CONTENT {
            return Ok(Some(Vec::new()));
        }
        serde_json::from_slice(&json)
            .map(Some)
            .map_err(|_| respond::standard(StatusCode::INTERNAL_SERVER_ERROR))
    }

    fn merge(&self, mut primary: Primary, versions: Vec<Row>) -> Vec<Row> {
        let mut rows = std::mem::take(&mut primary.plain);
        for mut row in versions {
            let Some(stored) = text(&row, "name").map(str::to_owned) else {
                let parts = text(&row, "subdir").and_then(version_names::split_reserved);
                if let Some(subdir) = parts.and_then(|parts| parts.first().copied()) {
                    primary.subdirs.insert(subdir.to_owned());
                }
                continue;
            };
            let (name, Some(id)) = version_names::parse_version_name(&stored) else {
                continue;
            };
            let path = format!("/v1/{}/{}/{stored}", self.account, self.versions);
            let is_marker = text(&row, "content_type") == Some(DELETE_MARKER);
            // The newest row of a name without an object is a delete marker.
            let is_latest = primary.links.remove(&path).is_some()
                || (is_marker && !primary.with_latest.contains(name));
            if is_latest {
                primary.with_latest.insert(name.to_owned());
            }
            row.insert("is_latest".into(), is_latest.into());
            row.insert("version_id".into(), id.into());
            row.insert("name".into(), name.into());
            rows.push(row);
        }
        // Links whose versions are not among these rows: those are on another page, or gone.
        rows.extend(primary.subdir_rows());
        rows
    }
}

/// There is no versions container: only the links to versions remain.
fn links_alone(mut primary: Primary) -> Vec<Row> {
    let mut rows = std::mem::take(&mut primary.plain);
    rows.extend(primary.subdir_rows());
    for (path, link) in &primary.links {
        let stored = match split_path(path, 4, 4, true).as_deref() {
            Some([_, _, _, Some(stored)]) => *stored,
            _ => continue,
        };
        let (name, Some(id)) = version_names::parse_version_name(stored) else {
            continue;
        };
        let is_latest = primary.with_latest.insert(name.to_owned());
        let mut row = Row::new();
        row.insert("name".into(), name.into());
        row.insert("is_latest".into(), is_latest.into());
        row.insert("version_id".into(), id.into());
        for member in ["content_type", "bytes", "hash", "last_modified"] {
            let value = link.get(member).cloned().unwrap_or(Value::Null);
            row.insert(member.into(), value);
        }
        rows.push(row);
    }
    rows
}

fn as_it_is(mut response: Response) -> Response {
    response.extensions_mut().insert(AsItIs);
    response
}
