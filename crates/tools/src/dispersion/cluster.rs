//! Access to the cluster: through its proxy as a user, and to its servers directly.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cairn_http::client::Client;
use cairn_http::params::{quote, quote_path};
use cairn_http::{Body, Request};
use cairn_ring::Device;
use http::header::{HeaderName, HeaderValue};
use http::{Method, StatusCode};
use serde_json::Value;
use tokio::time::sleep;

use super::Plan;
use super::login::{Site, sign_in};
use crate::locations::ip_of;

const NODE_TIMEOUT: Duration = Duration::from_secs(15);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// An authenticated account.
pub(super) struct Cluster {
    client: Client,
    site: Site,
    token: String,
    pub(super) account: String,
    retries: u64,
    /// Number of requests that were repeated.
    pub(super) retried: AtomicU64,
}

/// Result of requesting one copy from one server.
pub(super) enum Copy {
    Found,
    /// 404, or 507: the device is not mounted.
    Missing(StatusCode),
    Failed(String),
}

impl Cluster {
    pub(super) async fn open(plan: &Plan) -> Result<Arc<Cluster>> {
        let client = Client::new(Duration::from_secs(5), 32, Duration::from_secs(30));
        let signed_in = sign_in(&client, &plan.section).await?;
        let site = Site::parse(&signed_in.url)?;
        let account = site.path.rsplit('/').next().unwrap_or_default();
        Ok(Arc::new(Cluster {
            client,
            account: cairn_http::params::unquote(account)?,
            site,
            token: signed_in.token,
            retries: plan.retries,
            retried: AtomicU64::new(0),
        }))
    }

    /// Stores an object; `path` is decoded, below the account.
    pub(super) async fn put(
        &self,
        path: &str,
        header: (&'static str, &str),
        body: &str,
    ) -> Result<()> {
        let path = format!("{}/{}", self.site.path, quote_path(path));
        let headers = [("x-auth-token", self.token.as_str()), header];
        let mut pause = Duration::from_secs(1);
        for attempt in 0.. {
            let answer = self
                .site
                .ask(&self.client, Method::PUT, &path, &headers, body)
                .await;
            let last = attempt >= self.retries;
            match answer {
                Ok((status, ..)) if status.is_success() => return Ok(()),
                Ok((status, ..)) if last || status.is_client_error() => {
                    bail!("PUT {path}: answered with {status}");
                }
                Err(error) if last => return Err(error.context(format!("PUT {path}"))),
                _ => {}
            }
            self.retried.fetch_add(1, Ordering::Relaxed);
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        Ok(())
    }

    /// All names with a prefix; `None` if the container does not exist.
    pub(super) async fn names(
        &self,
        container: Option<&str>,
        prefix: &str,
    ) -> Result<Option<Vec<String>>> {
        let path = match container {
            Some(container) => format!("{}/{}", self.site.path, quote_path(container)),
            None => self.site.path.clone(),
        };
        let mut names: Vec<String> = Vec::new();
        loop {
            let marker = quote(names.last().map_or("", String::as_str));
            let url = format!(
                "{path}?format=json&prefix={}&marker={marker}",
                quote(prefix)
            );
            let headers = [("x-auth-token", self.token.as_str())];
            let answer = self.site.ask(&self.client, Method::GET, &url, &headers, "");
            let (status, _, body) = answer.await?;
            if status == StatusCode::NOT_FOUND {
                return Ok(None);
            }
            if !status.is_success() {
                bail!("GET {path}: answered with {status}");
            }
            let page: Vec<Value> = match body.is_empty() {
                true => Vec::new(),
                false => serde_json::from_slice(&body).context("a listing that is no JSON")?,
            };
            if page.is_empty() {
                return Ok(Some(names));
            }
            names.extend(
                page.iter()
                    .filter_map(|row| row["name"].as_str().map(str::to_owned)),
            );
        }
    }

    /// Requests a server's copy; `told` is called for each failed attempt.
    pub(super) async fn head(
        &self,
        device: &Device,
        partition: u32,
        path: &str,
        policy: Option<u32>,
        told: impl Fn(&Copy),
    ) -> Copy {
        let mut pause = Duration::from_secs(1);
        for attempt in 0.. {
            let copy = self.head_once(device, partition, path, policy).await;
            match &copy {
                Copy::Found => return copy,
                Copy::Missing(_) => {
                    told(&copy);
                    return copy;
                }
                Copy::Failed(_) if attempt >= self.retries => {
                    told(&copy);
                    return copy;
                }
                Copy::Failed(_) => told(&copy),
            }
            self.retried.fetch_add(1, Ordering::Relaxed);
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        Copy::Failed("not asked".to_owned())
    }

    async fn head_once(
        &self,
        device: &Device,
        partition: u32,
        path: &str,
        policy: Option<u32>,
    ) -> Copy {
        let ip = match ip_of(&device.ip) {
            Ok(ip) => ip,
            Err(error) => return Copy::Failed(error.to_string()),
        };
        let mut request = Request::new(Body::empty());
        *request.method_mut() = Method::HEAD;
        let uri = format!("/{}/{partition}/{}", device.device, quote_path(path));
        match uri.parse() {
            Ok(uri) => *request.uri_mut() = uri,
            Err(error) => return Copy::Failed(format!("{uri}: {error}")),
        }
        if let Some(policy) = policy {
            let name = HeaderName::from_static("x-backend-storage-policy-index");
            request
                .headers_mut()
                .insert(name, HeaderValue::from(policy));
        }
        let address = (ip, device.port).into();
        match self.client.call(address, request, NODE_TIMEOUT).await {
            Err(error) => Copy::Failed(error.to_string()),
            Ok(answer) => match answer.status() {
                status if status.is_success() => Copy::Found,
                status @ (StatusCode::NOT_FOUND | StatusCode::INSUFFICIENT_STORAGE) => {
                    Copy::Missing(status)
                }
                status => Copy::Failed(format!("answered with {status}")),
            },
        }
    }
}
