//! Signing in to Swift: TempAuth (v1), Keystone v2.0 and v3, or a token that is given.

use serde_json::{Value, json};

use super::http::{Client, Endpoint, Simple};
use super::url::Url;
use super::{TargetError, TargetOptions};
use crate::plan::{Access, Settings};

/// The answer to a sign-in.
pub(super) struct SignedIn {
    pub(super) token: String,
    pub(super) storage_url: String,
    pub(super) server: String,
}

/// Whether signing in again would give the same token.
pub(super) fn is_fixed(access: &Access) -> bool {
    access.storage.config.contains_key("token")
}

fn setting<'a>(settings: &'a Settings, keys: &[&str]) -> Option<&'a str> {
    keys.iter()
        .find_map(|key| settings.config.get(*key))
        .map(String::as_str)
        .filter(|value| !value.is_empty())
}

fn need<'a>(
    settings: &'a Settings,
    keys: &[&'static str],
    option: &'static str,
) -> Result<&'a str, TargetError> {
    setting(settings, keys).ok_or(TargetError::Missing {
        part: "auth",
        key: keys[0],
        option,
    })
}

pub(super) async fn sign_in(
    access: &Access,
    options: &TargetOptions,
) -> Result<SignedIn, TargetError> {
    let (auth, storage) = (&access.auth, &access.storage);
    let given_url = setting(storage, &["storage_url", "url"]);
    if let (Some(token), Some(url)) = (setting(storage, &["token"]), given_url) {
        return Ok(SignedIn {
            token: token.to_owned(),
            storage_url: url.to_owned(),
            server: String::new(),
        });
    }
    let mut signed_in = match auth.kind.to_ascii_lowercase().as_str() {
        "swauth" | "tempauth" | "v1" => tempauth(auth, options).await?,
        "keystone" => keystone(auth, options).await?,
        "none" | "mock" | "" => {
            let storage_url = given_url.ok_or(TargetError::Missing {
                part: "storage",
                key: "storage_url",
                option: "--target",
            })?;
            let (token, storage_url) = (String::new(), storage_url.to_owned());
            SignedIn {
                token,
                storage_url,
                server: String::new(),
            }
        }
        _ => return Err(TargetError::UnknownAuth(auth.kind.clone())),
    };
    if let Some(url) = given_url {
        url.clone_into(&mut signed_in.storage_url);
    }
    Ok(signed_in)
}

fn client(url: &str, options: &TargetOptions) -> Result<(Client, Url), TargetError> {
    let url = Url::parse(url)?;
    let endpoint = Endpoint::resolve(url.clone(), options)?;
    Ok((Client::new(endpoint, options.timeout), url))
}

fn not_a_store(url: &Url, why: impl std::fmt::Display) -> TargetError {
    TargetError::NotAStore {
        url: url.to_string(),
        why: why.to_string(),
    }
}

/// The answer, if it is a success.
fn accepted(
    answer: Result<Simple, crate::record::ErrorKind>,
    client: &Client,
    url: &Url,
    user: &str,
) -> Result<Simple, TargetError> {
    let answer = answer.map_err(|kind| TargetError::Unreachable {
        url: url.to_string(),
        why: client.explain(&kind),
    })?;
    match answer.status {
        200..300 => Ok(answer),
        status @ (401 | 403) => Err(TargetError::Refused {
            url: url.to_string(),
            user: user.to_owned(),
            status,
        }),
        status => Err(not_a_store(url, format_args!("it answers HTTP {status}"))),
    }
}

async fn tempauth(auth: &Settings, options: &TargetOptions) -> Result<SignedIn, TargetError> {
    let url = need(auth, &["auth_url", "url"], "--target")?;
    let user = need(auth, &["username", "user"], "--user")?;
    let key = need(auth, &["password", "key"], "--key")?;
    let (mut client, url) = client(url, options)?;
    let headers = [("X-Auth-User", user), ("X-Auth-Key", key)];
    let path = if url.path.is_empty() { "/" } else { &url.path };
    let answer = client.simple("GET", path, &headers, b"").await;
    let answer = accepted(answer, &client, &url, user)?;
    let header = |name: &str| answer.header(name).map(str::to_owned);
    match (header("X-Auth-Token"), header("X-Storage-Url")) {
        (Some(token), Some(storage_url)) => {
            let server = header("Server").unwrap_or_default();
            Ok(SignedIn {
                token,
                storage_url,
                server,
            })
        }
        _ => Err(not_a_store(
            &url,
            "its answer has no X-Auth-Token and X-Storage-Url",
        )),
    }
}

async fn keystone(auth: &Settings, options: &TargetOptions) -> Result<SignedIn, TargetError> {
    let (mut client, url) = client(need(auth, &["auth_url", "url"], "--target")?, options)?;
    let user = need(auth, &["username", "user"], "--user")?;
    if url.path.contains("/v3") {
        v3(auth, &mut client, &url, user).await
    } else {
        v2(auth, &mut client, &url, user).await
    }
}

async fn v2(
    auth: &Settings,
    client: &mut Client,
    url: &Url,
    user: &str,
) -> Result<SignedIn, TargetError> {
    let password = need(auth, &["password", "key"], "--key")?;
    let mut request = json!({ "auth": {
        "passwordCredentials": { "username": user, "password": password }
    }});
    if let Some(tenant) = setting(auth, &["tenant_name", "tenant", "project"]) {
        request["auth"]["tenantName"] = json!(tenant);
    }
    let path = format!("{}/tokens", url.path);
    let headers = [("Content-Type", "application/json")];
    let body = request.to_string();
    let answer = client
        .simple("POST", &path, &headers, body.as_bytes())
        .await;
    let answer = accepted(answer, client, url, user)?;
    let body: Value =
        serde_json::from_slice(&answer.body).map_err(|error| not_a_store(url, error))?;
    let token = body["access"]["token"]["id"]
        .as_str()
        .ok_or_else(|| not_a_store(url, "its answer has no access.token.id"))?;
    let entries = body["access"]["serviceCatalog"]
        .as_array()
        .map(Vec::as_slice);
    let endpoint = pick_endpoint(entries.unwrap_or(&[]), auth, |endpoint| {
        endpoint["publicURL"].as_str()
    });
    signed_in(url, token.to_owned(), endpoint)
}

async fn v3(
    auth: &Settings,
    client: &mut Client,
    url: &Url,
    user: &str,
) -> Result<SignedIn, TargetError> {
    let password = need(auth, &["password", "key"], "--key")?;
    let domain = setting(auth, &["domain"]).unwrap_or("Default");
    let user_domain = setting(auth, &["user_domain", "user_domain_name"]).unwrap_or(domain);
    let project_domain =
        setting(auth, &["project_domain", "project_domain_name"]).unwrap_or(domain);
    let mut request = json!({ "auth": { "identity": {
        "methods": ["password"],
        "password": {
            "user": { "name": user, "domain": { "name": user_domain }, "password": password }
        }
    }}});
    if let Some(project) = setting(auth, &["tenant_name", "tenant", "project", "project_name"]) {
        request["auth"]["scope"] =
            json!({ "project": { "name": project, "domain": { "name": project_domain } } });
    }
    let path = match url.path.ends_with("/tokens") {
        true => url.path.clone(),
        false => format!("{}/auth/tokens", url.path),
    };
    let headers = [("Content-Type", "application/json")];
    let body = request.to_string();
    let answer = client
        .simple("POST", &path, &headers, body.as_bytes())
        .await;
    let answer = accepted(answer, client, url, user)?;
    let token = answer
        .header("X-Subject-Token")
        .ok_or_else(|| not_a_store(url, "its answer has no X-Subject-Token"))?
        .to_owned();
    let body: Value =
        serde_json::from_slice(&answer.body).map_err(|error| not_a_store(url, error))?;
    let entries = body["token"]["catalog"].as_array().map(Vec::as_slice);
    let endpoint = pick_endpoint(entries.unwrap_or(&[]), auth, |endpoint| {
        (endpoint["interface"] == "public")
            .then(|| endpoint["url"].as_str())
            .flatten()
    });
    signed_in(url, token, endpoint)
}

/// The public URL of the object store in a catalog: by COSBench's `service` (a name), else type.
fn pick_endpoint(
    entries: &[Value],
    auth: &Settings,
    public: impl Fn(&Value) -> Option<&str>,
) -> Option<String> {
    let named = setting(auth, &["service"]).filter(|name| *name != "swift service");
    let wanted = |entry: &&Value| match named {
        Some(name) if entries.iter().any(|entry| entry["name"] == name) => entry["name"] == name,
        _ => entry["type"] == "object-store",
    };
    let region = setting(auth, &["region"]);
    entries
        .iter()
        .filter(wanted)
        .filter_map(|entry| entry["endpoints"].as_array())
        .flatten()
        .filter(|endpoint| {
            region.is_none_or(|region| {
                endpoint["region"] == region || endpoint["region_id"] == region
            })
        })
        .find_map(|endpoint| public(endpoint).map(str::to_owned))
}

fn signed_in(
    url: &Url,
    token: String,
    storage_url: Option<String>,
) -> Result<SignedIn, TargetError> {
    let storage_url = storage_url.ok_or_else(|| {
        not_a_store(
            url,
            "its catalog has no public object-store endpoint; check tenant and region",
        )
    })?;
    Ok(SignedIn {
        token,
        storage_url,
        server: String::new(),
    })
}
