//! Logins: TempAuth v1, Keystone v3 and v2.0, or an existing token, and the environment variables
//! of the `swift` client that configure them.

mod keystone;

use http::{HeaderMap, HeaderValue, Method, StatusCode};

use crate::call::Call;
use crate::error::{ClientError, LoginError};
use crate::transport::Transport;
use crate::url::StoreUrl;
pub use keystone::{EndpointChoice, Keystone, KeystoneSecret};

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
    /// Keystone (`OS_AUTH_URL` and others).
    Keystone(Box<Keystone>),
    /// A fixed token that is never renewed (`OS_AUTH_TOKEN`, `OS_STORAGE_URL`).
    Token { storage: StoreUrl, token: String },
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
#[derive(Clone, Debug)]
pub struct SignedIn {
    pub token: HeaderValue,
    /// The account's URL.
    pub storage: StoreUrl,
    /// The `Server` header of TempAuth's response, which is the store's; else empty.
    pub server: String,
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
            endpoint: EndpointChoice {
                region: get("OS_REGION_NAME"),
                ..EndpointChoice::default()
            },
        })))
    }

    /// Can a new token be obtained when one has expired?
    pub(crate) fn can_renew(&self) -> bool {
        !matches!(self, Login::Token { .. })
    }

    /// Obtains a token.
    ///
    /// # Errors
    /// [`LoginError`], which names the problem.
    pub async fn sign_in(&self, transport: &Transport) -> Result<SignedIn, LoginError> {
        match self {
            Login::Tempauth { url, user, key } => tempauth(transport, url, user, key).await,
            Login::Keystone(keystone) => keystone.sign_in(transport).await,
            Login::Token { storage, token } => Ok(SignedIn {
                token: header(token, "OS_AUTH_TOKEN")?,
                storage: storage.clone(),
                server: String::new(),
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
    // Names and keys may be UTF-8.
    let mut value = HeaderValue::from_bytes(value.as_bytes()).map_err(wrong)?;
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
    let url = url.to_string();
    match error {
        ClientError::Status { status, .. }
            if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) =>
        {
            let user = user.to_owned();
            LoginError::Refused { url, user, status }
        }
        ClientError::Status { status, .. } => LoginError::Status { url, status },
        ClientError::Connect { reason, .. } => LoginError::Unreachable { url, reason },
        ClientError::Broken { reason, .. } => LoginError::Unreachable {
            url,
            reason: format!("the connection broke: {reason}"),
        },
        ClientError::Timeout { after, .. } => LoginError::Unreachable {
            url,
            reason: format!("no answer in {} s", after.as_secs_f64()),
        },
        ClientError::Tls(reason) => LoginError::Tls(reason),
        error => LoginError::NotALogin {
            url,
            reason: error.to_string(),
        },
    }
}

async fn tempauth(
    transport: &Transport,
    url: &StoreUrl,
    user: &str,
    key: &str,
) -> Result<SignedIn, LoginError> {
    let mut call = Call::new(Method::GET);
    call.headers.insert("x-auth-user", header(user, "ST_USER")?);
    call.headers.insert("x-auth-key", header(key, "ST_KEY")?);
    let answer = transport.call(url, &mut call).await;
    let answer = answer.map_err(|error| failed(url, user, error))?;
    let text = |name: &str| text(answer.headers(), name);
    match (text("x-auth-token"), text("x-storage-url")) {
        (Some(token), Some(storage)) => Ok(SignedIn {
            token: header(&token, "X-Auth-Token")?,
            storage: StoreUrl::parse(&storage)?,
            server: text("server").unwrap_or_default(),
        }),
        _ => Err(not_a_login(url, "no X-Auth-Token and X-Storage-Url")),
    }
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
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
}
