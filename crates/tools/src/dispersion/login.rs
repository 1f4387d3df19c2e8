//! Logins: TempAuth v1, Keystone v2.0 and v3.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cairn_formats::ini::Section;
use cairn_http::client::Client;
use cairn_http::{Body, Request, respond};
use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode, Uri};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(60);
const ANSWER_MAX_BYTES: u64 = 64 << 20;

/// A server by its URL.
#[derive(Clone)]
pub(super) struct Site {
    pub(super) address: SocketAddr,
    host: HeaderValue,
    /// Path without a trailing slash.
    pub(super) path: String,
}

impl Site {
    pub(super) fn parse(url: &str) -> Result<Site> {
        let uri: Uri = url.parse().with_context(|| format!("{url} is no URL"))?;
        let Some(host) = uri.host().filter(|_| uri.scheme_str() == Some("http")) else {
            bail!("{url}: expected a URL that begins with http:// (TLS is not spoken here)");
        };
        let port = uri.port_u16().unwrap_or(80);
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let mut addresses = (name, port)
            .to_socket_addrs()
            .with_context(|| format!("{url}: no address of {host}"))?;
        let address = addresses.next().context("a name without an address")?;
        Ok(Site {
            address,
            host: HeaderValue::from_str(uri.authority().map_or(host, |a| a.as_str()))?,
            path: uri.path().trim_end_matches('/').to_owned(),
        })
    }

    /// Sends a request; `path` is encoded.
    pub(super) async fn ask(
        &self,
        client: &Client,
        method: Method,
        path: &str,
        headers: &[(&'static str, &str)],
        body: impl Into<Vec<u8>>,
    ) -> Result<(StatusCode, HeaderMap, bytes::Bytes)> {
        let mut request = Request::new(Body::full(body.into()));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse()?;
        let map = request.headers_mut();
        for (name, value) in headers {
            map.insert(HeaderName::from_static(name), HeaderValue::from_str(value)?);
        }
        map.insert(HOST, self.host.clone());
        let answer = client.call(self.address, request, TIMEOUT).await?;
        let (head, body) = answer.into_parts();
        let body = tokio::time::timeout(TIMEOUT, body.collect(ANSWER_MAX_BYTES)).await??;
        Ok((head.status, head.headers, body))
    }
}

/// The account's URL and the token for it.
pub(super) struct SignedIn {
    pub(super) url: String,
    pub(super) token: String,
}

pub(super) async fn sign_in(client: &Client, section: &Section) -> Result<SignedIn> {
    let remedy = "it is how to sign in";
    let url = section.required("auth_url", remedy)?;
    let user = section.required("auth_user", remedy)?;
    let key = section.required("auth_key", remedy)?;
    let site = Site::parse(url)?;
    match section.str_or("auth_version", "1.0") {
        "1" | "1.0" => {
            let headers = [("x-auth-user", user), ("x-auth-key", key)];
            let path = if site.path.is_empty() {
                "/"
            } else {
                &site.path
            };
            let (status, headers, _) = site.ask(client, Method::GET, path, &headers, "").await?;
            let header = |name: &str| respond::header(&headers, name).map(str::to_owned);
            let (url, token) = (header("x-storage-url"), header("x-auth-token"));
            match (url, token) {
                (Some(url), Some(token)) if status.is_success() => Ok(SignedIn { url, token }),
                _ => bail!("{path}: signing in as {user} is answered with {status}"),
            }
        }
        "2" | "2.0" => v2(client, &site, section, user, key).await,
        "3" | "3.0" => v3(client, &site, section, user, key).await,
        _ => Err(section.bad("auth_version", "expected 1.0, 2.0 or 3").into()),
    }
}

async fn post(client: &Client, site: &Site, path: &str, body: Value) -> Result<(HeaderMap, Value)> {
    let headers = [("content-type", "application/json")];
    let answer = site.ask(client, Method::POST, path, &headers, body.to_string());
    let (status, headers, body) = answer.await?;
    if !status.is_success() {
        bail!("signing in at {path} is answered with {status}");
    }
    Ok((headers, serde_json::from_slice(&body)?))
}

async fn v2(
    client: &Client,
    site: &Site,
    section: &Section,
    user: &str,
    key: &str,
) -> Result<SignedIn> {
    let (tenant, user) = match section.get("project_name") {
        Some(project) => (project, user),
        None => user.split_once(':').unwrap_or(("", user)),
    };
    let login = json!({"auth": {
        "passwordCredentials": {"username": user, "password": key}, "tenantName": tenant,
    }});
    let path = format!("{}/tokens", site.path);
    let (_, answer) = post(client, site, &path, login).await?;
    let access = &answer["access"];
    let token = access["token"]["id"].as_str().context("no token")?;
    let kind = section.str_or("endpoint_type", "publicURL");
    let endpoints = store_of(&access["serviceCatalog"], "endpoints")?;
    let url = in_region(endpoints, section)
        .find_map(|endpoint| endpoint[kind].as_str())
        .context("the catalog has no endpoint of that type")?;
    Ok(SignedIn {
        url: url.to_owned(),
        token: token.to_owned(),
    })
}

async fn v3(
    client: &Client,
    site: &Site,
    section: &Section,
    user: &str,
    key: &str,
) -> Result<SignedIn> {
    let (project, user) = match section.get("project_name") {
        Some(project) => (project, user),
        None => user.split_once(':').unwrap_or(("", user)),
    };
    let domain = |option: &str| json!({ "name": section.str_or(option, "Default") });
    let login = json!({"auth": {
        "identity": {"methods": ["password"], "password": {"user": {
            "name": user, "password": key, "domain": domain("user_domain_name"),
        }}},
        "scope": {"project": {"name": project, "domain": domain("project_domain_name")}},
    }});
    let path = format!("{}/auth/tokens", site.path);
    let (headers, answer) = post(client, site, &path, login).await?;
    let token = respond::header(&headers, "x-subject-token").context("no token")?;
    let kind = section.str_or("endpoint_type", "publicURL");
    let interface = kind.trim_end_matches("URL");
    let endpoints = store_of(&answer["token"]["catalog"], "endpoints")?;
    let url = in_region(endpoints, section)
        .find(|endpoint| endpoint["interface"] == interface)
        .and_then(|endpoint| endpoint["url"].as_str())
        .context("the catalog has no endpoint of that type")?;
    Ok(SignedIn {
        url: url.to_owned(),
        token: token.to_owned(),
    })
}

fn store_of<'a>(catalog: &'a Value, field: &str) -> Result<&'a Vec<Value>> {
    let services = catalog.as_array().into_iter().flatten();
    let store = services
        .filter(|service| service["type"] == "object-store")
        .find_map(|service| service[field].as_array());
    store.context("the catalog has no object store")
}

fn in_region<'a>(endpoints: &'a [Value], section: &'a Section) -> impl Iterator<Item = &'a Value> {
    let region = section.get("region_name").filter(|name| !name.is_empty());
    endpoints
        .iter()
        .filter(move |endpoint| region.is_none_or(|region| endpoint["region"] == region))
}
