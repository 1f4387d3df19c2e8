//! Account listings: a container's bytes include those of its versions.

use std::collections::BTreeMap;

use cairn_http::params::{Params, is_true};
use cairn_http::{Request, Response};
use http::{Method, StatusCode};
use serde_json::Value;

use super::container::{build_listing, limit, text};

use super::object_versioning::{ObjectVersioning, SOURCE};
use crate::api_path::set;
use crate::cause::Cause;
use crate::filters::symlink::BACKEND_ALLOW_RESERVED;
use crate::version_names;
use crate::whole::{self, Row, rewritten};

impl ObjectVersioning {
    pub(super) async fn list_account(&self, request: Request, account: String) -> Response {
        let cause = Cause::of_request(&request);
        let params = Params::parse(request.uri().query()).unwrap_or_default();
        let response = self.next.call(request).await;
        if response.status() != StatusCode::OK {
            return response;
        }
        let (head, json) = match whole::listing(response).await {
            Ok(whole) => whole,
            Err(as_it_is) => return as_it_is,
        };
        let Some(hidden) = self.hidden_containers(&cause, &account, &params).await else {
            return rewritten(head, json);
        };
        let Ok(mut rows) = serde_json::from_slice::<Vec<Row>>(&json) else {
            return rewritten(head, json);
        };
        add_hidden(&mut rows, hidden);
        let limit = match limit(&params, self.constraints.account_listing_limit) {
            Ok(limit) => limit,
            Err(refused) => return refused,
        };
        let reverse = params.get("reverse").is_some_and(is_true);
        match serde_json::to_vec(&build_listing(rows, reverse, limit)) {
            Ok(listing) => rewritten(head, listing),
            Err(_) => rewritten(head, json),
        }
    }

    /// The versions containers for that part of the account, if there are any.
    async fn hidden_containers(
        &self,
        cause: &Cause,
        account: &str,
        params: &Params,
    ) -> Option<Vec<Row>> {
        let mut query = params.clone();
        // Reserved names stay unchanged: the request is of another of Swift's services.
        let hidden = |name: &str| version_names::versions_container(name);
        match params.get("prefix").map(hidden) {
            None => query.set("prefix", version_names::versions_container_prefix()),
            Some(Some(prefix)) => query.set("prefix", prefix),
            Some(None) => {}
        }
        for name in ["marker", "end_marker"] {
            // An empty one counts as absent.
            let given = params.get(name).filter(|marker| !marker.is_empty());
            if let Some(marker) = given.and_then(hidden) {
                query.set(name, marker);
            }
        }
        let path = format!("/v1/{account}");
        let query = query.encode();
        let mut get = cause
            .pre_authorized(SOURCE, Method::GET, &path, &query)
            .ok()?;
        set(get.headers_mut(), BACKEND_ALLOW_RESERVED, "true");
        let response = self.next.call(get).await;
        if response.status() != StatusCode::OK {
            return None;
        }
        let (_, json) = whole::listing(response).await.ok()?;
        let rows: Vec<Row> = serde_json::from_slice(&json).ok()?;
        (!rows.is_empty()).then_some(rows)
    }
}

fn add_hidden(rows: &mut Vec<Row>, hidden: Vec<Row>) {
    let mut by_parent: BTreeMap<String, Row> = hidden
        .into_iter()
        .filter_map(|row| {
            let parent = version_names::parent_container(text(&row, "name")?).to_owned();
            Some((parent, row))
        })
        .collect();
    let bytes = |row: &Row| row.get("bytes").and_then(Value::as_u64).unwrap_or(0);
    for row in rows.iter_mut() {
        let Some(versions) = text(row, "name").and_then(|name| by_parent.remove(name)) else {
            continue;
        };
        let all = bytes(row).saturating_add(bytes(&versions));
        row.insert("bytes".into(), all.into());
    }
    // The remaining ones should have been removed with their containers. They are shown, so that
    // the user can delete them.
    for (parent, mut row) in by_parent {
        row.insert("name".into(), parent.into());
        row.insert("count".into(), 0.into());
        rows.push(row);
    }
}
