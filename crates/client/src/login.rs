//! Logins: TempAuth v1, Keystone v3, or an existing token, and the environment variables of the
//! `swift` client that configure them.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde_json::{Value, json};

use crate::error::{ClientError, LoginError};
use crate::payload::Payload;
use crate::transport::{Repeat, Transport};
use crate::url::StoreUrl;

/// Maximum bytes of a login's response: a catalog of many services has some hundred kilobytes.
const ANSWER_MAX_BYTES: u64 = 4 << 20;

/// Method of obtaining a token.
#[derive(Clone, PartialEq, Eq)]
pub enum Login {
    /// `GET` with `X-Auth-User` and `X-Auth-Key` (`ST_AUTH`, `ST_USER`, `ST_KEY`).
    Tempauth {
        url: StoreUrl,
        user: String,
        key: String,
    },
    /// Keystone's v3 (`OS_AUTH_URL` and others).
    Keystone(Box<Keystone>),
    /// A fixed token that is never renewed (`OS_AUTH_TOKEN`, `OS_STORAGE_URL`).
    Token { storage: StoreUrl, token: String },
}

/// Parameters of a Keystone login.
#[derive(Clone, PartialEq, Eq)]
pub struct Keystone {
    /// URL of Keystone, `http://host:5000/v3`.
    pub url: StoreUrl,
    pub secret: KeystoneSecret,
    pub region: Option<String>,
}

/// Credentials for Keystone.
#[derive(Clone, PartialEq, Eq)]
pub enum KeystoneSecret {
    Password {
        user: String,
        password: String,
        user_domain: String,
        project: Option<String>,
        project_domain: String,
    },
    Application {
        id: String,
        secret: String,
    },
}

impl std::fmt::Debug for Login {
    /// Formats without keys and tokens.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Login::Tempauth { url, user, .. } => write!(f, "Tempauth({url}, {user})"),
            Login::Keystone(keystone) => write!(f, "Keystone({})", keystone.url),
            Login::Token { storage, .. } => write!(f, "Token({storage})"),
        }
    }
}

/// The result of a successful login.
pub(crate) struct SignedIn {
    pub(crate) token: HeaderValue,
    pub(crate) storage: StoreUrl,
}

impl Login {
    /// The login configured by environment variables, which `variable` reads.
    ///
    /// # Errors
    /// [`LoginError`] if none is configured, or only a part of one.
    pub fn from_environment(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Login, LoginError> {
        let get = |name: &str| variable(name).filter(|value| !value.is_empty());
        let need = |name: &'static str, beside: &'static str| {
            let missing = LoginError::Missing {
                variable: name,
                beside,
            };
            get(name).ok_or(missing)
        };
        if let (Some(url), Some(token)) = (get("OS_STORAGE_URL"), get("OS_AUTH_TOKEN")) {
            let storage = StoreUrl::parse(&url)?;
            return Ok(Login::Token { storage, token });
        }
        if let Some(url) = get("ST_AUTH") {
            if let Some(version) = get("ST_AUTH_VERSION").filter(|v| !v.starts_with('1')) {
                return Err(LoginError::Variable {
                    variable: "ST_AUTH_VERSION",
                    value: version,
                    reason: "ST_AUTH is for version 1; Keystone is told by OS_AUTH_URL",
                });
            }
            return Ok(Login::Tempauth {
                url: StoreUrl::parse(&url)?,
                user: need("ST_USER", "ST_AUTH")?,
                key: need("ST_KEY", "ST_AUTH")?,
            });
        }
        let Some(url) = get("OS_AUTH_URL") else {
            return Err(LoginError::None);
        };
        if let Some(version) = get("OS_IDENTITY_API_VERSION").filter(|v| !v.starts_with('3')) {
            return Err(LoginError::Variable {
                variable: "OS_IDENTITY_API_VERSION",
                value: version,
                reason: "expected 3",
            });
        }
        let url = StoreUrl::parse(&url)?;
        let secret = match get("OS_APPLICATION_CREDENTIAL_ID") {
            Some(id) => KeystoneSecret::Application {
                id,
                secret: need(
                    "OS_APPLICATION_CREDENTIAL_SECRET",
                    "OS_APPLICATION_CREDENTIAL_ID",
                )?,
            },
            None => {
                let domain = || "Default".to_owned();
                KeystoneSecret::Password {
                    user: need("OS_USERNAME", "OS_AUTH_URL")?,
                    password: need("OS_PASSWORD", "OS_AUTH_URL")?,
                    user_domain: get("OS_USER_DOMAIN_NAME").unwrap_or_else(domain),
                    project: get("OS_PROJECT_NAME").or_else(|| get("OS_TENANT_NAME")),
                    project_domain: get("OS_PROJECT_DOMAIN_NAME").unwrap_or_else(domain),
                }
            }
        };
        Ok(Login::Keystone(Box::new(Keystone {
            url,
            secret,
            region: get("OS_REGION_NAME"),
        })))
    }

    /// Can a new token be obtained when one has expired?
    pub(crate) fn can_renew(&self) -> bool {
        !matches!(self, Login::Token { .. })
    }

    pub(crate) async fn sign_in(&self, transport: &Transport) -> Result<SignedIn, LoginError> {
        match self {
            Login::Tempauth { url, user, key } => tempauth(transport, url, user, key).await,
            Login::Keystone(keystone) => keystone.sign_in(transport).await,
            Login::Token { storage, token } => Ok(SignedIn {
                token: header(token, "OS_AUTH_TOKEN")?,
                storage: storage.clone(),
            }),
        }
    }
}

fn header(value: &str, variable: &'static str) -> Result<HeaderValue, LoginError> {
    let wrong = |_| LoginError::Variable {
        variable,
        value: "(not shown)".to_owned(),
        reason: "expected text on one line",
    };
    let mut value = HeaderValue::from_str(value).map_err(wrong)?;
    value.set_sensitive(true);
    Ok(value)
}

fn not_a_login(url: &StoreUrl, reason: impl ToString) -> LoginError {
    LoginError::NotALogin {
        url: url.to_string(),
        reason: reason.to_string(),
    }
}

fn failed(url: &StoreUrl, user: &str, error: ClientError) -> LoginError {
    match error.status() {
        Some(status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)) => LoginError::Refused {
            url: url.to_string(),
            user: user.to_owned(),
            status,
        },
        _ if error.is_passing() => LoginError::Unreachable {
            url: url.to_string(),
            reason: error.to_string(),
        },
        _ => not_a_login(url, error),
    }
}

async fn tempauth(
    transport: &Transport,
    url: &StoreUrl,
    user: &str,
    key: &str,
) -> Result<SignedIn, LoginError> {
    let mut headers = HeaderMap::new();
    headers.insert("x-auth-user", header(user, "ST_USER")?);
    headers.insert("x-auth-key", header(key, "ST_KEY")?);
    let answer = transport
        .call(
            url,
            Method::GET,
            "",
            &headers,
            &mut Payload::Empty,
            Repeat::Passing,
        )
        .await
        .map_err(|error| failed(url, user, error))?;
    let text = |name: &str| Some(answer.headers().get(name)?.to_str().ok()?.to_owned());
    match (text("x-auth-token"), text("x-storage-url")) {
        (Some(token), Some(storage)) => Ok(SignedIn {
            token: header(&token, "X-Auth-Token")?,
            storage: StoreUrl::parse(&storage)?,
        }),
        _ => Err(not_a_login(url, "no X-Auth-Token and X-Storage-Url")),
    }
}

impl Keystone {
    fn request(&self) -> Value {
        let domain = |name: &str| json!({ "name": name });
        match &self.secret {
            KeystoneSecret::Application { id, secret } => json!({ "auth": { "identity": {
                "methods": ["application_credential"],
                "application_credential": { "id": id, "secret": secret },
            }}}),
            KeystoneSecret::Password {
                user,
                password,
                user_domain,
                project,
                project_domain,
            } => {
                let mut request = json!({ "auth": { "identity": {
                    "methods": ["password"],
                    "password": { "user": {
                        "name": user, "password": password, "domain": domain(user_domain),
                    }},
                }}});
                if let Some(project) = project {
                    request["auth"]["scope"] = json!({ "project": {
                        "name": project, "domain": domain(project_domain),
                    }});
                }
                request
            }
        }
    }

    async fn sign_in(&self, transport: &Transport) -> Result<SignedIn, LoginError> {
        let url = &self.url;
        let path = match () {
            () if url.path.ends_with("/auth/tokens") => url.path.clone(),
            () if url.path.ends_with("/v3") => format!("{}/auth/tokens", url.path),
            () => format!("{}/v3/auth/tokens", url.path),
        };
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let user = match &self.secret {
            KeystoneSecret::Password { user, .. } => user,
            KeystoneSecret::Application { id, .. } => id,
        };
        let mut body = Payload::from(self.request().to_string().into_bytes());
        let answer = transport
            .call(
                &url.with_path(&path),
                Method::POST,
                "",
                &headers,
                &mut body,
                Repeat::Passing,
            )
            .await
            .map_err(|error| failed(url, user, error))?;
        let token = answer.headers().get("x-subject-token").cloned();
        let token = token.ok_or_else(|| not_a_login(url, "no X-Subject-Token"))?;
        let body = answer.into_body().collect(ANSWER_MAX_BYTES).await;
        let body = body.map_err(|error| not_a_login(url, error))?;
        let body: Value = serde_json::from_slice(&body).map_err(|e| not_a_login(url, e))?;
        let storage = self.endpoint(&body["token"]["catalog"]).ok_or_else(|| {
            not_a_login(url, "its catalog has no public object-store endpoint; check the project and OS_REGION_NAME")
        })?;
        Ok(SignedIn {
            token,
            storage: StoreUrl::parse(&storage)?,
        })
    }

    fn endpoint(&self, catalog: &Value) -> Option<String> {
        let region = self.region.as_deref();
        let is_here = |endpoint: &&Value| {
            let has = |key: &str, value: &str| endpoint[key] == value;
            has("interface", "public")
                && region.is_none_or(|name| has("region", name) || has("region_id", name))
        };
        let services = catalog.as_array()?.iter();
        let endpoints = services
            .filter(|service| service["type"] == "object-store")
            .filter_map(|service| service["endpoints"].as_array())
            .flatten();
        let url = endpoints.filter(is_here).find_map(|e| e["url"].as_str());
        url.map(str::to_owned)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Result<Login, LoginError> {
        Login::from_environment(|name| {
            let pair = pairs.iter().find(|(key, _)| *key == name);
            pair.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn reads_the_environment_as_the_swift_client_does() {
        let login = of(&[
            ("ST_AUTH", "http://h:8080/auth/v1.0"),
            ("ST_USER", "test:tester"),
            ("ST_KEY", "testing"),
            ("OS_AUTH_URL", "http://other/v3"),
        ]);
        assert!(matches!(login.unwrap(), Login::Tempauth { user, .. } if user == "test:tester"));
        let login = of(&[
            ("OS_AUTH_URL", "http://h:5000/v3"),
            ("OS_USERNAME", "u"),
            ("OS_PASSWORD", "p"),
            ("OS_TENANT_NAME", "t"),
        ]);
        let Login::Keystone(keystone) = login.unwrap() else {
            panic!("no Keystone");
        };
        let request = keystone.request();
        assert_eq!(request["auth"]["scope"]["project"]["name"], "t");
        assert_eq!(
            request["auth"]["scope"]["project"]["domain"]["name"],
            "Default"
        );
        let login = of(&[("OS_STORAGE_URL", "http://h/v1/a"), ("OS_AUTH_TOKEN", "t")]);
        assert!(matches!(login.unwrap(), Login::Token { .. }));
    }

    #[test]
    fn says_what_is_missing() {
        assert!(matches!(of(&[]), Err(LoginError::None)));
        let error = of(&[("ST_AUTH", "http://h/auth"), ("ST_USER", "u")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "ST_KEY: not set, and needed beside ST_AUTH"
        );
        let error = of(&[
            ("OS_AUTH_URL", "http://h"),
            ("OS_IDENTITY_API_VERSION", "2.0"),
        ]);
        assert!(error.unwrap_err().to_string().contains("expected 3"));
    }

    #[test]
    fn picks_the_endpoint_of_the_region() {
        let catalog = json!([
            { "type": "identity", "endpoints": [{ "interface": "public", "url": "http://i" }] },
            { "type": "object-store", "endpoints": [
                { "interface": "admin", "region": "a", "url": "http://x" },
                { "interface": "public", "region": "a", "url": "http://a" },
                { "interface": "public", "region": "b", "url": "http://b" },
            ]},
        ]);
        let mut keystone = Keystone {
            url: StoreUrl::parse("http://h").unwrap(),
            secret: KeystoneSecret::Application {
                id: "i".into(),
                secret: "s".into(),
            },
            region: None,
        };
        assert_eq!(keystone.endpoint(&catalog).as_deref(), Some("http://a"));
        keystone.region = Some("b".into());
        assert_eq!(keystone.endpoint(&catalog).as_deref(), Some("http://b"));
        keystone.region = Some("c".into());
        assert_eq!(keystone.endpoint(&catalog), None);
    }
}
