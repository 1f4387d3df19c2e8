//! Options of keystonemiddleware's `auth_token`, with its names and defaults. Options for memcached
//! are accepted and ignored: validated tokens are cached in the process.

use std::time::Duration;

use cairn_formats::ini::Section;
use tracing::warn;

use crate::FilterError;
use crate::resellers::secret_option;

pub(super) struct Options {
    pub(super) www_authenticate_uri: String,
    pub(super) delay_auth_decision: bool,
    pub(super) include_service_catalog: bool,
    /// Cache time in seconds; `None`: every request is validated by Keystone.
    pub(super) token_cache_time: Option<u64>,
    pub(super) service_token_roles_required: bool,
    pub(super) service_type: Option<String>,
    pub(super) token_bind: TokenBind,
    pub(super) timeout: Duration,
    pub(super) retries: u64,
    service_token_roles: Vec<String>,
}

/// Requirement for tokens bound to an authentication mechanism (`enforce_token_bind`).
pub(super) enum TokenBind {
    Disabled,
    Permissive,
    Strict,
    /// Any mechanism, or a named one: always refused here, as no request was authenticated by one.
    Required,
}

const DEFAULT_TIMEOUT: f64 = 30.0;

impl Options {
    pub(super) fn read(section: &Section) -> Result<Options, FilterError> {
        let uri = ["www_authenticate_uri", "auth_uri", "auth_url"]
            .iter()
            .find_map(|option| section.get(option).filter(|v| !v.is_empty()));
        let cache_time = section.str_or("token_cache_time", "300").trim();
        let token_cache_time = match cache_time.parse::<i64>() {
            Ok(seconds) => u64::try_from(seconds).ok().filter(|s| *s > 0),
            Err(_) => {
                let remedy = "expected whole seconds, or -1 to remember no token";
                return Err(section.bad("token_cache_time", remedy).into());
            }
        };
        if section.get("memcached_servers").is_some() || section.get("cache").is_some() {
            warn!("authtoken: tokens are remembered in this process, not in memcached");
        }
        Ok(Options {
            www_authenticate_uri: uri.unwrap_or_default().to_owned(),
            delay_auth_decision: section.bool_or("delay_auth_decision", false),
            include_service_catalog: section.bool_or("include_service_catalog", true),
            token_cache_time,
            service_token_roles: section.list_or("service_token_roles", "service"),
            service_token_roles_required: section.bool_or("service_token_roles_required", true),
            service_type: section.get("service_type").map(str::to_owned),
            token_bind: TokenBind::read(section.str_or("enforce_token_bind", "permissive").trim()),
            timeout: section.seconds_or("http_connect_timeout", DEFAULT_TIMEOUT)?,
            retries: section.u64_or("http_request_max_retries", 3)?,
        })
    }

    pub(super) fn has_service_role(&self, roles: &[String]) -> bool {
        roles.iter().any(|r| self.service_token_roles.contains(r))
    }
}

impl TokenBind {
    fn read(text: &str) -> TokenBind {
        match text {
            "disabled" => TokenBind::Disabled,
            "permissive" | "" => TokenBind::Permissive,
            "strict" => TokenBind::Strict,
            _ => TokenBind::Required,
        }
    }

    /// Is a token bound to these mechanisms accepted? The only known one, Kerberos, is verified by
    /// a web server in front, and no request here comes through one.
    pub(super) fn accepts(&self, bind: &[String]) -> bool {
        match self {
            TokenBind::Disabled => true,
            TokenBind::Permissive => !bind.iter().any(|way| way == "kerberos"),
            TokenBind::Strict => bind.is_empty(),
            TokenBind::Required => false,
        }
    }
}

/// Credentials of the service user.
pub(super) struct ServiceUser {
    pub(super) auth_url: String,
    /// Body of the login request.
    pub(super) login: serde_json::Value,
}

impl ServiceUser {
    pub(super) fn read(section: &Section) -> Result<ServiceUser, FilterError> {
        let kind = section.str_or("auth_type", section.str_or("auth_plugin", "password"));
        if !["password", "v3password"].contains(&kind.trim()) {
            let remedy = "expected password or v3password, with username and password";
            return Err(section.bad("auth_type", remedy).into());
        }
        let remedy = "give the address of Keystone, for example http://127.0.0.1:5000";
        let auth_url = section.required("auth_url", remedy)?;
        let option = |name: &str| section.get(name).filter(|v| !v.is_empty());
        let default_domain = option("default_domain_id");
        let domain = |id: &str, name: &str| match (option(id), option(name)) {
            (Some(id), _) => serde_json::json!({ "id": id }),
            (None, Some(name)) => serde_json::json!({ "name": name }),
            (None, None) => serde_json::json!({ "id": default_domain.unwrap_or("default") }),
        };
        let mut user = match (
            option("user_id"),
            option("username").or(option("user_name")),
        ) {
            (Some(id), _) => serde_json::json!({ "id": id }),
            (None, Some(name)) => serde_json::json!({
                "name": name,
                "domain": domain("user_domain_id", "user_domain_name"),
            }),
            (None, None) => {
                let remedy = "give the name of the user that asks Keystone about tokens";
                section.required("username", remedy)?;
                return Err(section.bad("username", remedy).into());
            }
        };
        if option("password").is_none() {
            return Err(secret_option(
                section,
                "password",
                "give the user's password",
            ));
        }
        user["password"] = option("password").into();
        let project = option("project_name").or(option("tenant_name"));
        let scope = match (option("project_id"), project, option("system_scope")) {
            (Some(id), _, _) => Some(serde_json::json!({ "project": { "id": id } })),
            (None, Some(name), _) => Some(serde_json::json!({ "project": {
                "name": name,
                "domain": domain("project_domain_id", "project_domain_name"),
            }})),
            (None, None, Some("all")) => Some(serde_json::json!({ "system": { "all": true } })),
            _ => None,
        };
        let mut login = serde_json::json!({ "auth": { "identity": {
            "methods": ["password"],
            "password": { "user": user },
        }}});
        if let Some(scope) = scope {
            login["auth"]["scope"] = scope;
        }
        Ok(ServiceUser {
            auth_url: auth_url.trim().to_owned(),
            login,
        })
    }
}
