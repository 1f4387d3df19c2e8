//! Signing in to Swift, by `cairn_client`: the logins that a workload's settings describe. Load is
//! sent over the lab's own connections, so that what a general client does per request is not
//! measured as the store's.

use cairn_client::{
    EndpointChoice, Keystone, KeystoneSecret, Login, LoginError, Options, Retries, StoreUrl,
    Transport, Trust,
};

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
    let without_login = |token: &str, url: &str| SignedIn {
        token: token.to_owned(),
        storage_url: url.to_owned(),
        server: String::new(),
    };
    if let (Some(token), Some(url)) = (setting(storage, &["token"]), given_url) {
        return Ok(without_login(token, url));
    }
    let failed = |error| failed(options, error);
    let login = match auth.kind.to_ascii_lowercase().as_str() {
        "swauth" | "tempauth" | "v1" => Login::Tempauth {
            url: StoreUrl::parse(need(auth, &["auth_url", "url"], "--target")?).map_err(failed)?,
            user: need(auth, &["username", "user"], "--user")?.to_owned(),
            key: need(auth, &["password", "key"], "--key")?.to_owned(),
        },
        "keystone" => {
            let url = need(auth, &["auth_url", "url"], "--target")?;
            let url = StoreUrl::parse(url).map_err(failed)?;
            Login::Keystone(Box::new(keystone(auth, url)?))
        }
        "none" | "mock" | "" => {
            let url = given_url.ok_or(TargetError::Missing {
                part: "storage",
                key: "storage_url",
                option: "--target",
            })?;
            return Ok(without_login("", url));
        }
        _ => return Err(TargetError::UnknownAuth(auth.kind.clone())),
    };
    let signed_in = login.sign_in(&transport(options)).await.map_err(failed)?;
    Ok(SignedIn {
        token: String::from_utf8_lossy(signed_in.token.as_bytes()).into_owned(),
        storage_url: given_url.map_or_else(|| signed_in.storage.to_string(), str::to_owned),
        server: signed_in.server,
    })
}

/// Each sign-in is tried once: a store that is not there is reported at once.
fn transport(options: &TargetOptions) -> Transport {
    Transport::network(&Options {
        connect_timeout: options.timeout,
        answer_timeout: options.timeout,
        stall_timeout: options.timeout,
        retries: Retries::none(),
        idle_connections: 1,
        trust: match (&options.ca, options.insecure) {
            (_, true) => Trust::Unchecked,
            (Some(file), false) => Trust::File(file.clone()),
            (None, false) => Trust::System,
        },
    })
}

/// v3 if the URL says so, else v2.0.
fn keystone(auth: &Settings, url: StoreUrl) -> Result<Keystone, TargetError> {
    let user = need(auth, &["username", "user"], "--user")?.to_owned();
    let password = need(auth, &["password", "key"], "--key")?.to_owned();
    let project = setting(auth, &["tenant_name", "tenant", "project"]).map(str::to_owned);
    let secret = match url.path.contains("/v3") {
        true => {
            let domain = setting(auth, &["domain"]).unwrap_or("Default");
            let domain = |keys: &[&str]| setting(auth, keys).unwrap_or(domain).to_owned();
            KeystoneSecret::Password {
                user,
                password,
                user_domain: domain(&["user_domain", "user_domain_name"]),
                project: project.or_else(|| setting(auth, &["project_name"]).map(str::to_owned)),
                project_domain: domain(&["project_domain", "project_domain_name"]),
            }
        }
        false => KeystoneSecret::Tenant {
            user,
            password,
            tenant: project,
        },
    };
    // COSBench's default is a name that catalogs need not have.
    let service = setting(auth, &["service"]).filter(|name| *name != "swift service");
    Ok(Keystone {
        url,
        secret,
        endpoint: EndpointChoice {
            region: setting(auth, &["region"]).map(str::to_owned),
            service: service.map(str::to_owned),
            ..EndpointChoice::default()
        },
    })
}

fn failed(options: &TargetOptions, error: LoginError) -> TargetError {
    match error {
        LoginError::Refused { url, user, status } => TargetError::Refused {
            url,
            user,
            status: status.as_u16(),
        },
        LoginError::Unreachable { url, reason } => TargetError::Unreachable { url, why: reason },
        LoginError::Status { url, status } => TargetError::NotAStore {
            url,
            why: format!("it answers HTTP {}", status.as_u16()),
        },
        LoginError::NotALogin { url, reason } => TargetError::NotAStore { url, why: reason },
        LoginError::Url { url, reason } => TargetError::Setting {
            key: "URL".into(),
            value: url,
            why: reason,
        },
        LoginError::Tls(reason) => match &options.ca {
            Some(path) => TargetError::Setting {
                key: "--ca".into(),
                value: path.display().to_string(),
                why: reason,
            },
            None => TargetError::Other(format!("TLS: {reason}")),
        },
        error => TargetError::Other(error.to_string()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn auth(url: &str, more: &[(&str, &str)]) -> Keystone {
        let mut settings = Settings {
            kind: "keystone".into(),
            ..Settings::default()
        };
        for (key, value) in [("username", "u"), ("password", "p")].iter().chain(more) {
            settings.config.insert((*key).into(), (*value).into());
        }
        keystone(&settings, StoreUrl::parse(url).unwrap()).unwrap()
    }

    #[test]
    fn settings_of_keystone() {
        let more = [("tenant_name", "t"), ("service", "swift service")];
        let v2 = auth("http://h:5000/v2.0", &more);
        assert!(matches!(
            v2.secret,
            KeystoneSecret::Tenant { tenant: Some(tenant), .. } if tenant == "t"
        ));
        assert_eq!(v2.endpoint, EndpointChoice::default());
        let more = [
            ("project_name", "p"),
            ("domain", "d"),
            ("user_domain", "e"),
            ("region", "r"),
            ("service", "swift"),
        ];
        let v3 = auth("http://h:5000/v3", &more);
        let secret = KeystoneSecret::Password {
            user: "u".into(),
            password: "p".into(),
            user_domain: "e".into(),
            project: Some("p".into()),
            project_domain: "d".into(),
        };
        assert!(v3.secret == secret);
        assert_eq!(v3.endpoint.service.as_deref(), Some("swift"));
        assert_eq!(v3.endpoint.region.as_deref(), Some("r"));
    }
}
