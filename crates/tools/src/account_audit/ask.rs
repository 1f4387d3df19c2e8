//! Single requests to single servers, each of which has its own listing of a container: their
//! protocol is not the API that `cairn_client` speaks.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use cairn_http::params::{quote, quote_path};
use cairn_http::{Body, Request, Response};
use cairn_ring::Device;
use http::{HeaderMap, Method, StatusCode};
use serde_json::Value;
use tokio::time::timeout;

use super::Auditor;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum bytes of a page: at most 10,000 names of at most a few kilobytes each.
const LISTING_MAX_BYTES: u64 = 128 << 20;

/// The listing in one server's database, page by page.
pub(super) struct Pages<'a> {
    device: &'a Device,
    partition: u32,
    path: &'a str,
    /// Marker of the next page; `None` after the last.
    marker: Option<String>,
}

/// Reasons why there is no page.
pub(super) enum NoPage {
    /// The server responded with an error status.
    Status,
    /// There was no response, or an invalid one.
    NoAnswer,
}

impl<'a> Pages<'a> {
    pub(super) fn of(device: &'a Device, partition: u32, path: &'a str) -> Self {
        Pages {
            device,
            partition,
            path,
            marker: Some(String::new()),
        }
    }

    /// Headers and rows of the next page; `None` after the last page, and after a failure.
    pub(super) async fn next(
        &mut self,
        auditor: &Auditor,
    ) -> Option<Result<(HeaderMap, Vec<Value>), NoPage>> {
        let marker = self.marker.take()?;
        let page = auditor.page(self.device, self.partition, self.path, &marker);
        Some(match page.await {
            Ok(Ok((headers, rows))) => {
                self.marker = last_name(&rows);
                Ok((headers, rows))
            }
            Ok(Err(_)) => Err(NoPage::Status),
            Err(_) => Err(NoPage::NoAnswer),
        })
    }
}

impl Auditor {
    /// Sends a request; `path` is decoded and begins with a slash.
    pub(super) async fn ask(
        &self,
        method: Method,
        device: &Device,
        partition: u32,
        path: &str,
        query: &str,
        policy: Option<u32>,
    ) -> Result<Response> {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = method;
        let path = format!("/{}/{partition}{path}", device.device);
        let uri = format!("{}{query}", quote_path(&path));
        *request.uri_mut() = uri.parse().with_context(|| uri.clone())?;
        if let Some(policy) = policy {
            request
                .headers_mut()
                .insert("x-backend-storage-policy-index", policy.into());
        }
        let ip = crate::locations::ip_of(&device.ip)?;
        let address = SocketAddr::new(ip, device.port);
        Ok(self.client.call(address, request, TIMEOUT).await?)
    }

    /// The names after `marker` in one server's database of an account or a container.
    async fn page(
        &self,
        device: &Device,
        partition: u32,
        path: &str,
        marker: &str,
    ) -> Result<Result<(HeaderMap, Vec<Value>), StatusCode>> {
        let _turn = self.requests.acquire().await?;
        let query = format!("?format=json&marker={}", quote(marker));
        let answer = self.ask(Method::GET, device, partition, path, &query, None);
        let (head, body) = answer.await?.into_parts();
        if !head.status.is_success() {
            return Ok(Err(head.status));
        }
        let body = timeout(TIMEOUT, body.collect(LISTING_MAX_BYTES)).await??;
        let rows: Vec<Value> = match body.is_empty() {
            true => Vec::new(),
            false => serde_json::from_slice(&body)?,
        };
        Ok(Ok((head.headers, rows)))
    }
}

/// The name of a listing's last row, which is the next marker.
fn last_name(rows: &[Value]) -> Option<String> {
    Some(rows.last()?.get("name")?.as_str()?.to_owned())
}

/// A count in a header.
pub(super) fn count(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// Maximum and minimum, if they differ.
pub(super) fn spread(counts: &[u64]) -> Option<(u64, u64)> {
    let (most, least) = (*counts.iter().max()?, *counts.iter().min()?);
    (most != least).then_some((most, least))
}
