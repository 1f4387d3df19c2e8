//! Access to the cluster: through its proxy as a user, and to its servers directly, whose own
//! protocol is not the API that `cairn_client` speaks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use cairn_client::{
    ClientError, Options, Payload, Retries, RetryCauses, Swift, Transport, Trust, encode_path,
};
use cairn_http::client::Client;
use cairn_http::params::quote_path;
use cairn_http::{Body, Request};
use cairn_ring::Device;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Method, StatusCode};
use tokio::time::sleep;

use super::Plan;
use super::login::login;
use crate::locations::ip_of;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const PROXY_TIMEOUT: Duration = Duration::from_secs(60);
const NODE_TIMEOUT: Duration = Duration::from_secs(15);
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// An authenticated account.
pub(super) struct Cluster {
    swift: Swift,
    servers: Client,
    pub(super) account: String,
    retries: u64,
    /// Number of requests to servers that were repeated.
    retried: AtomicU64,
    /// Number of repeated requests that do not count any more.
    uncounted: AtomicU64,
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
        let options = Options {
            connect_timeout: CONNECT_TIMEOUT,
            answer_timeout: PROXY_TIMEOUT,
            stall_timeout: PROXY_TIMEOUT,
            retries: Retries {
                attempts: u32::try_from(plan.retries.saturating_add(1)).unwrap_or(u32::MAX),
                pause_min: PAUSE_MIN,
                pause_max: PAUSE_MAX,
                has_jitter: false,
                causes: RetryCauses::ServerErrors,
            },
            idle_connections: 32,
            trust: match plan.is_insecure {
                true => Trust::Unchecked,
                false => Trust::System,
            },
        };
        Cluster::over(Transport::network(&options), plan).await
    }

    async fn over(transport: Transport, plan: &Plan) -> Result<Arc<Cluster>> {
        let swift = Swift::over(transport, login(&plan.section)?, None).await?;
        let path = &swift.account().path;
        let account = path.rsplit('/').next().unwrap_or_default();
        Ok(Arc::new(Cluster {
            servers: Client::new(CONNECT_TIMEOUT, 32, Duration::from_secs(30)),
            account: cairn_http::params::unquote(account)?,
            swift,
            retries: plan.retries,
            retried: AtomicU64::new(0),
            uncounted: AtomicU64::new(0),
        }))
    }

    /// Number of requests that were repeated since the last [`Cluster::count_anew`].
    pub(super) fn retried(&self) -> u64 {
        let all = self.retried.load(Ordering::Relaxed) + self.swift.repeats();
        all.saturating_sub(self.uncounted.load(Ordering::Relaxed))
    }

    pub(super) fn count_anew(&self) {
        let all = self.retried.load(Ordering::Relaxed) + self.swift.repeats();
        self.uncounted.store(all, Ordering::Relaxed);
    }

    /// Stores a container, or an object; `path` is decoded, below the account.
    pub(super) async fn put(
        &self,
        path: &str,
        header: (&'static str, &str),
        body: &str,
    ) -> Result<()> {
        let path = format!("/{}", encode_path(path));
        let mut headers = HeaderMap::new();
        let value = HeaderValue::from_bytes(header.1.as_bytes())?;
        headers.insert(header.0, value);
        let body = Payload::from(body.as_bytes().to_vec());
        let put = self.swift.request(Method::PUT, &path, "", headers, body);
        put.await?;
        Ok(())
    }

    /// All names with a prefix; `None` if the container does not exist.
    pub(super) async fn names(
        &self,
        container: Option<&str>,
        prefix: &str,
    ) -> Result<Option<Vec<String>>, ClientError> {
        match self.swift.names(container, prefix).await {
            Ok(names) => Ok(Some(names)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
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
        let mut pause = PAUSE_MIN;
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
        match self.servers.call(address, request, NODE_TIMEOUT).await {
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use cairn_http::{Context, handler_fn, respond};

    use super::*;

    /// A store that takes a container at the second attempt, and lists what it has in pages.
    #[tokio::test(start_paused = true)]
    async fn samples_are_stored_and_listed() {
        let puts = AtomicU32::new(0);
        let handler = handler_fn(move |request: Request| {
            let is_put = request.method() == Method::PUT;
            let puts = u32::from(is_put) + puts.fetch_add(u32::from(is_put), Ordering::Relaxed);
            let has = |name: &str, value: &str| {
                respond::header(request.headers(), name).is_some_and(|is| is == value)
            };
            let marker = request.uri().query().unwrap_or_default().to_owned();
            let answer = match (request.uri().path(), request.method()) {
                ("/auth/v1.0", _) if has("x-auth-key", "k") => {
                    let mut answer = respond::empty(StatusCode::OK);
                    respond::set(answer.headers_mut(), "x-auth-token", "t");
                    respond::set(
                        answer.headers_mut(),
                        "x-storage-url",
                        "http://h/v1/AUTH_%C3%B6",
                    );
                    answer
                }
                ("/v1/AUTH_%C3%B6/dispersion_0_7", &Method::PUT)
                    if has("x-auth-token", "t") && has("x-storage-policy", "gold") =>
                {
                    respond::empty(match puts {
                        1 => StatusCode::INSUFFICIENT_STORAGE,
                        _ => StatusCode::CREATED,
                    })
                }
                ("/v1/AUTH_%C3%B6", &Method::GET) => {
                    let page = match &*marker {
                        "format=json&prefix=d" => r#"[{"name":"d1"},{"name":"d2"}]"#,
                        "format=json&prefix=d&marker=d2" => r#"[{"name":"d3"}]"#,
                        _ => "[]",
                    };
                    respond::text(StatusCode::OK, page)
                }
                _ => respond::empty(StatusCode::NOT_FOUND),
            };
            async move { answer }
        });
        let folder = tempfile::tempdir().unwrap();
        let hashes = "[swift-hash]\nswift_hash_path_suffix = x\n";
        std::fs::write(folder.path().join("swift.conf"), hashes).unwrap();
        let conf = folder.path().join("dispersion.conf");
        let text = format!(
            "[dispersion]\nauth_url = http://h/auth/v1.0\nauth_user = a:u\nauth_key = k\n\
             swift_dir = {}\n",
            folder.path().display()
        );
        std::fs::write(&conf, text).unwrap();
        let plan = Plan::read(&conf, None, false).unwrap();
        let options = Options {
            retries: Retries {
                causes: RetryCauses::ServerErrors,
                ..Retries::default()
            },
            ..Options::default()
        };
        let transport = Transport::in_process(handler, Context::default(), &options);
        let cluster = Cluster::over(transport, &plan).await.unwrap();
        assert_eq!(cluster.account, "AUTH_ö");
        let header = ("x-storage-policy", "gold");
        cluster.put("dispersion_0_7", header, "").await.unwrap();
        assert_eq!(cluster.retried(), 1);
        cluster.count_anew();
        assert_eq!(cluster.retried(), 0);
        let names = cluster.names(None, "d").await.unwrap();
        assert_eq!(names.unwrap(), ["d1", "d2", "d3"]);
        assert_eq!(cluster.names(Some("none"), "d").await.unwrap(), None);
        assert!(cluster.put("other", header, "").await.is_err());
    }
}
