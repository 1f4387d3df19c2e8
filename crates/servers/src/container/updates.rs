//! Rows: updates from object servers, and the container's own update of its account.

use std::net::SocketAddr;
use std::time::Duration;

use cairn_http::params::quote_path;
use cairn_http::{Body, Context, Request};
use cairn_index::{ContainerInfo, ObjectRow};
use futures_util::future::join_all;
use http::{HeaderMap, Method, StatusCode};
use serde_json::Value;

use super::put::no_policy;
use super::{ContainerRequest, ContainerServer};
use crate::index_server::status::{self, Refused};
use crate::index_server::{
    Answer, policy_index, read_body, required, required_number, set, text, timestamp,
};

/// Maximum body of an `UPDATE`.
const ROWS_BYTES_MAX: u64 = 64 << 20;
/// Maximum bytes read of an account server's response, whose body is ignored.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

impl ContainerServer {
    pub(super) async fn put_object(&self, asked: ContainerRequest) -> Answer {
        let headers = asked.headers();
        let time = timestamp(headers)?;
        let policy = policy_index(headers, &self.config.policies)?.unwrap_or(0);
        let bad_time = |_| Refused::BadRequest("Invalid timestamp header".into());
        let (data, ctype, meta) = ObjectRow::times(
            &time.internal(),
            text(headers, "x-content-type-timestamp"),
            text(headers, "x-meta-timestamp"),
        )
        .map_err(bad_time)?;
        let row = ObjectRow {
            name: asked.target.object.clone().unwrap_or_default(),
            data,
            ctype,
            meta,
            size: required_number(headers, "x-size")?,
            content_type: required(headers, "x-content-type")?.to_owned(),
            etag: required(headers, "x-etag")?.to_owned(),
            deleted: false,
            storage_policy_index: policy,
        };
        if let Some(redirected) = self.redirect(&asked).await? {
            return Ok(redirected);
        }
        let new = self.new_db_for_row(&asked, time, policy);
        // The object exists already, so its row may use the space kept free of uploads.
        self.db(&asked.target).merge_items(new, vec![row]).await?;
        Ok(status::created())
    }

    pub(super) async fn delete_object(&self, asked: ContainerRequest) -> Answer {
        let time = timestamp(asked.headers())?;
        let policy = policy_index(asked.headers(), &self.config.policies)?.unwrap_or(0);
        if let Some(redirected) = self.redirect(&asked).await? {
            return Ok(redirected);
        }
        let name = asked.target.object.clone().unwrap_or_default();
        let new = self.new_db_for_row(&asked, time, policy);
        let row = ObjectRow::tombstone(name, time, policy);
        self.db(&asked.target).merge_items(new, vec![row]).await?;
        Ok(status::done())
    }

    /// Merges many rows at once: a JSON list of objects, in the format of replication.
    pub(super) async fn update(&self, asked: ContainerRequest, body: Body) -> Answer {
        let time = timestamp(asked.headers())?;
        let policy = policy_index(asked.headers(), &self.config.policies)?;
        let new = self.new_db_for_row(&asked, time, policy.unwrap_or(0));
        if new.is_some() && policy.is_none() {
            return Err(no_policy());
        }
        let rows = read_body(body, ROWS_BYTES_MAX, rows_of_json).await?;
        self.db(&asked.target).merge_items(new, rows).await?;
        Ok(status::accepted())
    }

    /// Updates the container's row on the account servers named in the request. Failures are left
    /// to the updater; the request is refused only if all of them lack the account.
    pub(super) async fn update_account(
        &self,
        asked: &ContainerRequest,
        info: &ContainerInfo,
    ) -> Result<(), Refused> {
        let list = |name: &str| -> Vec<String> {
            let text = text(asked.headers(), name).unwrap_or("");
            text.split(',').map(|item| item.trim().to_owned()).collect()
        };
        let (hosts, devices) = (list("x-account-host"), list("x-account-device"));
        if hosts.len() != devices.len() {
            tracing::error!(?hosts, ?devices, "account hosts and devices do not match");
            return Err(Refused::BadRequest(
                "Different numbers of account hosts and devices".into(),
            ));
        }
        let partition = text(asked.headers(), "x-account-partition").unwrap_or("");
        if partition.is_empty() {
            return Ok(());
        }
        let updates = hosts
            .iter()
            .zip(&devices)
            .map(|(host, device)| self.update_account_server(asked, info, host, device, partition));
        let updates = join_all(updates).await;
        if updates
            .iter()
            .all(|status| status.is_some_and(|status| status == StatusCode::NOT_FOUND))
        {
            return Err(Refused::NotFound);
        }
        Ok(())
    }

    async fn update_account_server(
        &self,
        asked: &ContainerRequest,
        info: &ContainerInfo,
        host: &str,
        device: &str,
        partition: &str,
    ) -> Option<StatusCode> {
        let path = format!(
            "/{device}/{partition}/{}/{}",
            asked.target.account,
            asked.container()
        );
        let failed = |reason: String| {
            tracing::error!(
                host,
                device,
                reason,
                "account update failed, the updater will retry"
            );
        };
        let Some(address) = resolve(host).await else {
            failed("no such address".into());
            return None;
        };
        let mut request = Request::new(Body::empty());
        *request.method_mut() = Method::PUT;
        *request.uri_mut() = quote_path(&path).parse().ok()?;
        *request.headers_mut() = account_headers(asked, info);
        request.extensions_mut().insert(Context::of(&asked.parts));
        let patience: Duration = self.config.conn_timeout + self.config.node_timeout;
        let response = match self.backends.call(address, request, patience).await {
            Ok(response) => response,
            Err(error) => {
                failed(error.to_string());
                return None;
            }
        };
        let status = response.status();
        response.into_body().drain(ANSWER_BYTES_MAX).await;
        if !status.is_success() && status != StatusCode::NOT_FOUND {
            failed(format!("response {status}"));
        }
        Some(status)
    }
}

/// Resolves a host; ring addresses are numeric, names are looked up.
async fn resolve(host: &str) -> Option<SocketAddr> {
    let (name, port) = host.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = bare.parse() {
        return Some(SocketAddr::new(address, port));
    }
    tokio::net::lookup_host((bare, port)).await.ok()?.next()
}

fn account_headers(asked: &ContainerRequest, info: &ContainerInfo) -> HeaderMap {
    let mut headers = HeaderMap::new();
    set(&mut headers, "X-Put-Timestamp", &info.put_timestamp);
    set(&mut headers, "X-Delete-Timestamp", &info.delete_timestamp);
    set(&mut headers, "X-Object-Count", info.object_count);
    set(&mut headers, "X-Bytes-Used", info.bytes_used);
    set(
        &mut headers,
        "X-Trans-Id",
        text(asked.headers(), "x-trans-id").unwrap_or("-"),
    );
    set(
        &mut headers,
        "X-Backend-Storage-Policy-Index",
        info.storage_policy_index,
    );
    set(
        &mut headers,
        "User-Agent",
        format!("container-server {}", std::process::id()),
    );
    set(
        &mut headers,
        "Referer",
        format!("{} {}", asked.parts.method, asked.parts.uri),
    );
    let name = "x-account-override-deleted";
    if text(asked.headers(), name).is_some_and(|word| word.eq_ignore_ascii_case("yes")) {
        set(&mut headers, "X-Account-Override-Deleted", "yes");
    }
    headers
}

fn rows_of_json(body: &[u8]) -> Result<Vec<ObjectRow>, Refused> {
    let rows: Vec<Value> =
        serde_json::from_slice(body).map_err(|error| Refused::BadRequest(error.to_string()))?;
    let rows: Option<Vec<ObjectRow>> = rows.iter().map(row_of_json).collect();
    rows.ok_or_else(|| Refused::BadRequest("Invalid row".into()))
}

fn row_of_json(row: &Value) -> Option<ObjectRow> {
    let text = |name: &str| row.get(name).and_then(Value::as_str);
    let number = |name: &str| match row.get(name) {
        None | Some(Value::Null) => Some(0),
        Some(Value::Bool(yes)) => Some(i64::from(*yes)),
        Some(Value::String(text)) => text.trim().parse().ok(),
        Some(number) => number.as_i64(),
    };
    let (data, ctype, meta) = ObjectRow::times(
        text("created_at")?,
        text("ctype_timestamp"),
        text("meta_timestamp"),
    )
    .ok()?;
    Some(ObjectRow {
        name: text("name")?.to_owned(),
        data,
        ctype,
        meta,
        size: number("size")?,
        content_type: text("content_type")?.to_owned(),
        etag: text("etag")?.to_owned(),
        deleted: number("deleted")? != 0,
        storage_policy_index: number("storage_policy_index")?,
    })
}
