//! Symlinks in container listings: parameters of a row's hash become fields of their own.

use cairn_http::params::quote;
use cairn_http::{Request, Response};
use http::StatusCode;
use serde_json::Value;

use super::Symlink;
use crate::api_path::ApiPath;
use crate::header_params;
use crate::whole::{self, Row, rewritten};

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
        let told = whole::with_rows(&json, "symlink_target", move |row| tell_link(row, &path));
        match told.await {
            Some(told) => rewritten(parts, told),
            None => rewritten(parts, json),
        }
    }
}

fn tell_link(row: &mut Row, container: &ApiPath) {
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
