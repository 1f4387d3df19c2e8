//! Links in container listings: what their rows' hashes note becomes members of their own.

use cairn_http::params::quote;
use cairn_http::{Request, Response};
use http::StatusCode;
use serde_json::{Map, Value};

use super::Symlink;
use crate::api_path::ApiPath;
use crate::header_params;
use crate::whole::{self, rewritten};

impl Symlink {
    pub(super) async fn list(&self, request: Request) -> Response {
        let path = ApiPath::of(request.uri().path()).filter(|path| path.container.is_some());
        let response = self.next.call(request).await;
        let Some(path) = path.filter(|_| response.status() == StatusCode::OK) else {
            return response;
        };
        let (parts, json) = match whole::listing(response).await {
            Ok(whole) => whole,
            Err(as_it_is) => return as_it_is,
        };
        let has_links = std::str::from_utf8(&json).is_ok_and(|t| t.contains("symlink_target"));
        if !has_links {
            return rewritten(parts, json);
        }
        let rows: Result<Vec<Map<String, Value>>, _> = serde_json::from_slice(&json);
        let Ok(mut rows) = rows else {
            return rewritten(parts, json);
        };
        for row in &mut rows {
            tell_link(row, &path);
        }
        match serde_json::to_vec(&rows) {
            Ok(told) => rewritten(parts, told),
            Err(_) => rewritten(parts, json),
        }
    }
}

fn tell_link(row: &mut Map<String, Value>, container: &ApiPath) {
    let Some(noted) = row.get("hash").and_then(Value::as_str).map(str::to_owned) else {
        return;
    };
    let (hash, notes) = header_params::split(&noted);
    let mut others = Vec::new();
    let (mut target, mut account) = (None, quote(&container.account));
    for (name, value) in notes {
        match name {
            "symlink_target" => target = Some(value),
            "symlink_target_account" => account = value.to_owned(),
            "symlink_target_etag" => {
                row.insert("symlink_etag".into(), value.into());
            }
            "symlink_target_bytes" => {
                let bytes = value.parse::<u64>().map_or(Value::from(value), Value::from);
                row.insert("symlink_bytes".into(), bytes);
            }
            _ => others.push((name, value)),
        }
    }
    row.insert("hash".into(), header_params::join(hash, others).into());
    if let Some(target) = target.filter(|target| !target.is_empty()) {
        let target = target.trim_start_matches('/');
        let path = format!("/{}/{account}/{target}", container.version);
        row.insert("symlink_path".into(), path.into());
    }
}
