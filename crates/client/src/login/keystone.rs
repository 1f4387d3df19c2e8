//! Keystone logins (v3 and v2.0): their requests, and the store's endpoint in the catalogs that
//! they return.

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method};
use serde_json::{Value, json};

use super::{ANSWER_MAX_BYTES, SignedIn, failed, header, not_a_login};
use crate::call::Call;
use crate::error::LoginError;
use crate::transport::Transport;
use crate::url::StoreUrl;

/// Parameters of a Keystone login.
#[derive(Clone, PartialEq, Eq)]
pub struct Keystone {
    /// URL of Keystone, `http://host:5000/v3`.
    pub url: StoreUrl,
    pub secret: KeystoneSecret,
    pub endpoint: EndpointChoice,
}

/// Credentials for Keystone, and the version of its API that takes them.
#[derive(Clone, PartialEq, Eq)]
pub enum KeystoneSecret {
    /// v3.
    Password {
        user: String,
        password: String,
        user_domain: String,
        project: Option<String>,
        project_domain: String,
    },
    /// v3.
    Application { id: String, secret: String },
    /// v2.0.
    Tenant {
        user: String,
        password: String,
        tenant: Option<String>,
    },
}

/// The choice of one among a catalog's endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointChoice {
    /// Name or id of a region; `None`: any.
    pub region: Option<String>,
    /// Name of the service. `None`, or a name that no service has: those of type `object-store`.
    pub service: Option<String>,
    /// `public`, `internal` or `admin`.
    pub interface: String,
}

impl Default for EndpointChoice {
    fn default() -> EndpointChoice {
        EndpointChoice {
            region: None,
            service: None,
            interface: "public".to_owned(),
        }
    }
}

impl EndpointChoice {
    /// The URL of the chosen endpoint. Those of v2.0 have a key for each interface.
    fn pick(&self, catalog: &Value) -> Option<String> {
        let services = catalog.as_array()?;
        let named = self.service.as_deref();
        let named = named.filter(|name| services.iter().any(|s| s["name"] == *name));
        let is_chosen = |service: &&Value| match named {
            Some(name) => service["name"] == name,
            None => service["type"] == "object-store",
        };
        let is_here = |endpoint: &&Value| {
            let region = self.region.as_deref();
            region.is_none_or(|name| endpoint["region"] == name || endpoint["region_id"] == name)
        };
        let key_of_v2 = format!("{}URL", self.interface);
        let url = |endpoint: &Value| {
            let of_v3 = (endpoint["interface"] == self.interface.as_str()).then_some("url");
            let url = &endpoint[of_v3.unwrap_or(&key_of_v2)];
            url.as_str().map(str::to_owned)
        };
        let endpoints = services
            .iter()
            .filter(is_chosen)
            .filter_map(|service| service["endpoints"].as_array())
            .flatten();
        endpoints.filter(is_here).find_map(url)
    }
}

impl Keystone {
    pub(super) fn request(&self) -> Value {
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
            KeystoneSecret::Tenant {
                user,
                password,
                tenant,
            } => {
                let mut request = json!({ "auth": {
                    "passwordCredentials": { "username": user, "password": password },
                }});
                if let Some(tenant) = tenant {
                    request["auth"]["tenantName"] = json!(tenant);
                }
                request
            }
        }
    }

    fn path(&self) -> String {
        let path = &self.url.path;
        match &self.secret {
            KeystoneSecret::Tenant { .. } => format!("{path}/tokens"),
            _ if path.ends_with("/auth/tokens") => path.clone(),
            _ if path.split('/').any(|part| part == "v3") => format!("{path}/auth/tokens"),
            _ => format!("{path}/v3/auth/tokens"),
        }
    }

    fn user(&self) -> &str {
        match &self.secret {
            KeystoneSecret::Password { user, .. } | KeystoneSecret::Tenant { user, .. } => user,
            KeystoneSecret::Application { id, .. } => id,
        }
    }

    pub(super) async fn sign_in(&self, transport: &Transport) -> Result<SignedIn, LoginError> {
        let url = &self.url;
        let mut call = Call::new(Method::POST);
        let json = HeaderValue::from_static("application/json");
        call.headers.insert(CONTENT_TYPE, json);
        call.payload = self.request().to_string().into_bytes().into();
        let at = url.with_path(&self.path());
        let answer = transport.fetch(&at, &mut call, ANSWER_MAX_BYTES).await;
        let answer = answer.map_err(|error| failed(url, self.user(), error))?;
        let body: Value =
            serde_json::from_slice(answer.body()).map_err(|error| not_a_login(url, error))?;
        let (token, catalog) = match &self.secret {
            KeystoneSecret::Tenant { .. } => {
                let token = body["access"]["token"]["id"].as_str();
                let token = token.ok_or_else(|| not_a_login(url, "no access.token.id"))?;
                (
                    header(token, "access.token.id")?,
                    &body["access"]["serviceCatalog"],
                )
            }
            _ => (
                token_of(answer.headers()).ok_or_else(|| not_a_login(url, "no X-Subject-Token"))?,
                &body["token"]["catalog"],
            ),
        };
        let storage = self.endpoint.pick(catalog).ok_or_else(|| {
            let interface = &self.endpoint.interface;
            let reason = format!(
                "its catalog has no {interface} object-store endpoint; check the project and the \
                 region"
            );
            not_a_login(url, reason)
        })?;
        Ok(SignedIn {
            token,
            storage: StoreUrl::parse(&storage)?,
            server: String::new(),
        })
    }
}

fn token_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut token = headers.get("x-subject-token")?.clone();
    token.set_sensitive(true);
    Some(token)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn keystone(url: &str, secret: KeystoneSecret) -> Keystone {
        Keystone {
            url: StoreUrl::parse(url).unwrap(),
            secret,
            endpoint: EndpointChoice::default(),
        }
    }

    #[test]
    fn picks_the_endpoint_of_the_region() {
        let catalog = json!([
            { "type": "identity", "endpoints": [{ "interface": "public", "url": "http://i" }] },
            { "type": "object-store", "name": "swift", "endpoints": [
                { "interface": "admin", "region": "a", "url": "http://x" },
                { "interface": "public", "region": "a", "url": "http://a" },
                { "interface": "public", "region_id": "b", "url": "http://b" },
            ]},
            { "type": "s3", "name": "other", "endpoints": [
                { "interface": "public", "region": "a", "url": "http://o" },
            ]},
        ]);
        let mut choice = EndpointChoice::default();
        assert_eq!(choice.pick(&catalog).as_deref(), Some("http://a"));
        choice.region = Some("b".into());
        assert_eq!(choice.pick(&catalog).as_deref(), Some("http://b"));
        choice.region = Some("c".into());
        assert_eq!(choice.pick(&catalog), None);
        choice = EndpointChoice {
            service: Some("other".into()),
            ..EndpointChoice::default()
        };
        assert_eq!(choice.pick(&catalog).as_deref(), Some("http://o"));
        choice.service = Some("nobody's".into());
        choice.interface = "admin".into();
        assert_eq!(choice.pick(&catalog).as_deref(), Some("http://x"));
        let of_v2 = json!([{ "type": "object-store", "endpoints": [
            { "region": "a", "publicURL": "http://p", "adminURL": "http://q" },
        ]}]);
        assert_eq!(choice.pick(&of_v2).as_deref(), Some("http://q"));
    }

    #[test]
    fn versions_have_their_paths() {
        let application = || KeystoneSecret::Application {
            id: "i".into(),
            secret: "s".into(),
        };
        for url in ["http://h/v3", "http://h/", "http://h/v3/auth/tokens"] {
            assert_eq!(keystone(url, application()).path(), "/v3/auth/tokens");
        }
        let tenant = KeystoneSecret::Tenant {
            user: "u".into(),
            password: "p".into(),
            tenant: Some("t".into()),
        };
        let keystone = keystone("http://h/v2.0/", tenant);
        assert_eq!(keystone.path(), "/v2.0/tokens");
        assert_eq!(keystone.request()["auth"]["tenantName"], "t");
    }
}
