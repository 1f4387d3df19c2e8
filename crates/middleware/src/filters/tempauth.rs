//! Filter `tempauth`: authentication and authorization from a conf file, with users, keys and
//! groups in the section, tokens from `GET /auth/v1.0`, and access by account group, container ACL
//! and account ACL.
//!
//! Tokens are Fernet messages, so every proxy with the same conf accepts every token, also after a
//! restart, and none is stored. With `active_fernet_key_id` they have OpenStack Swift's format
//! (`AUTH_ftk…`, `AUTH_zftk…`) and are valid on its proxies too; otherwise they have our own
//! (`AUTH_tk…`, see `tokens.rs`). Validated tokens are cached until they expire.
//!
//! If the filter `cache` names memcached servers, our own tokens are stored there, so that Swift's
//! proxies accept them, and tokens made by Swift's proxies are looked up there
//! (`shared_tokens.rs`).

mod authorize;
mod get_token;
mod shared_tokens;
mod tokens;
mod users;

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_formats::acl::check_account_acl;
use cairn_formats::ini::Section;
use cairn_http::context::{Authorize, Context};
use cairn_http::params::{split_path, unquote};
use cairn_http::{Clock, Handler, InfoSource, Request, Response, Service, ServiceFuture, respond};
use http::header::{HeaderMap, HeaderName, ORIGIN};
use tracing::{debug, warn};

use crate::cross_origin::CrossOrigin;
use crate::keystone::Confirmed;
use crate::logins::Logins;
use crate::remembered::Remembered;
use crate::resellers::{self, option_of_prefix, reseller_prefixes, unauthorized};
use crate::{FilterEnv, FilterError};
use authorize::{Authorizer, DenyAll, Identity};
use tokens::Tokens;
use users::Users;

const X_AUTH_TOKEN: HeaderName = HeaderName::from_static("x-auth-token");
const X_STORAGE_TOKEN: HeaderName = HeaderName::from_static("x-storage-token");
const X_SERVICE_TOKEN: HeaderName = HeaderName::from_static("x-service-token");
const ACCOUNT_ACL: HeaderName = HeaderName::from_static("x-account-access-control");
const ACCOUNT_ACL_SYSMETA: HeaderName =
    HeaderName::from_static("x-account-sysmeta-core-access-control");

/// Parameters of decisions, shared by the filter and its authorizers.
struct Core {
    /// Account prefixes that this filter is responsible for, underscore included; the first is used
    /// for tokens.
    prefixes: Vec<String>,
    /// Group that an account's administrator needs in addition, by account prefix.
    require_group: BTreeMap<String, String>,
    users: Users,
    tokens: Tokens,
    token_life: u64,
    storage_url_scheme: String,
    info_source: Arc<dyn InfoSource>,
    logins: Logins,
    clock: Clock,
}

struct TempAuth {
    next: Handler,
    core: Arc<Core>,
    auth_prefix: String,
    allow_overrides: bool,
    remembered: Remembered<Arc<Authorizer>>,
    /// Authorizer for requests without a token, and for accounts of no known prefix.
    anonymous: Arc<dyn Authorize>,
    deny_all: Arc<dyn Authorize>,
    cross_origin: CrossOrigin,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    env.swift_info
        .register("tempauth", serde_json::json!({ "account_acls": true }));
    let prefixes = reseller_prefixes(section);
    let require_group = prefixes
        .iter()
        .filter_map(|p| {
            let group = option_of_prefix(section, p, "require_group")?.trim();
            (!group.is_empty()).then(|| (p.clone(), group.to_owned()))
        })
        .collect();
    let users = Users::read(section, &prefixes)?;
    env.logins.tell(users.logins());
    let tokens = Tokens::read(section, &prefixes[0], env)?;
    let core = Arc::new(Core {
        prefixes,
        require_group,
        users,
        tokens,
        token_life: section.u64_or("token_life", 86_400)?,
        storage_url_scheme: section.str_or("storage_url_scheme", "default").to_owned(),
        info_source: env.info_source.clone(),
        logins: env.logins.clone(),
        clock: env.clock.clone(),
    });
    Ok(Arc::new(TempAuth {
        next,
        auth_prefix: auth_prefix(section.str_or("auth_prefix", "/auth/")),
        allow_overrides: section.bool_or("allow_overrides", true),
        remembered: Remembered::default(),
        anonymous: Arc::new(Authorizer::new(core.clone(), None)),
        deny_all: Arc::new(DenyAll),
        cross_origin: env.cross_origin.clone(),
        core,
    }))
}

fn auth_prefix(text: &str) -> String {
    let bare = text.trim_matches('/');
    if bare.is_empty() {
        warn!(
            auth_prefix = text,
            "an empty auth prefix is not possible; using /auth/"
        );
        return "/auth/".to_owned();
    }
    format!("/{bare}/")
}

impl Core {
    /// The prefix of an account; the empty one matches if no other does.
    fn account_prefix(&self, account: &str) -> Option<&str> {
        resellers::account_prefix(&self.prefixes, account)
    }
}

impl Service for TempAuth {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        let authorized = request
            .extensions()
            .get::<Context>()
            .is_some_and(|context| context.authorized);
        if authorized && self.allow_overrides {
            return self.next.call(request);
        }
        if let Some(rest) = self.auth_path(&request) {
            return Box::pin(self.log_in(request, rest));
        }
        match self.to_look_up(&request) {
            None => self.go_on(request),
            Some((shared, token)) => Box::pin(async move {
                self.look_up(&shared, &token).await;
                self.go_on(request).await
            }),
        }
    }
}

impl TempAuth {
    async fn log_in(&self, request: Request, path: String) -> Response {
        if let Some(answer) = self.cross_origin.options(&request, &["GET", "OPTIONS"]) {
            return answer;
        }
        let origin = request.headers().get(ORIGIN).cloned();
        let mut response = get_token::answer(&self.core, request, path).await;
        self.cross_origin.show(origin.as_ref(), &mut response);
        response
    }

    fn go_on<'a>(&'a self, mut request: Request) -> ServiceFuture<'a> {
        if !decided_by_identity(&request)
            && let Err(response) = self.authenticate(&mut request)
        {
            return Box::pin(std::future::ready(response));
        }
        self.account_acl_to_sysmeta(&mut request);
        self.next.call(request)
    }

    /// The decoded path after the auth prefix, slash included.
    fn auth_path(&self, request: &Request) -> Option<String> {
        let raw = request.uri().path();
        if raw.starts_with("/v1/") && self.auth_prefix != "/v1/" {
            return None;
        }
        let path = unquote(raw).ok()?;
        path.strip_prefix(&self.auth_prefix)
            .map(|rest| format!("/{rest}"))
    }

    /// Authenticates a request, and puts the authorizer into its context.
    fn authenticate(&self, request: &mut Request) -> Result<(), Response> {
        let headers = request.headers();
        let token = header(headers, &X_AUTH_TOKEN).or_else(|| header(headers, &X_STORAGE_TOKEN));
        let own = self.core.prefixes[0].as_str();
        let token = token.filter(|t| !t.is_empty() && t.starts_with(own));
        let who = match token {
            None => None,
            Some(token) => {
                let Some(user) = self.user(token) else {
                    return self.unknown_token(request);
                };
                Some(self.with_service_token(user, headers))
            }
        };
        let is_ours = who.is_none() && self.is_definitive(request);
        let context = request.extensions_mut().get_or_insert_default::<Context>();
        // An override that the conf does not allow is ignored.
        context.authorized &= self.allow_overrides;
        match who {
            Some(user) => {
                context.reseller |= user.is_reseller_admin();
                if let Some(name) = user.name() {
                    debug!(user = %name, "authenticated");
                    context.notes.set_user(name);
                }
                context.authorizer = Some(user);
            }
            None if is_ours => context.authorizer = Some(self.anonymous.clone()),
            None if context.authorizer.is_some() => {}
            None if own.is_empty() => context.authorizer = Some(self.anonymous.clone()),
            None => context.authorizer = Some(self.deny_all.clone()),
        }
        Ok(())
    }

    /// The user of a valid token.
    fn user(&self, token: &str) -> Option<Arc<Authorizer>> {
        let core = &self.core;
        let now = core.clock.now().secs();
        if let Some(known) = self.remembered.get(token, now) {
            return Some(known);
        }
        let (groups, expires) = core.tokens.open(token, &core.users, &core.prefixes, now)?;
        self.remember(token, groups, expires, now)
    }

    fn remember(
        &self,
        token: &str,
        groups: Vec<String>,
        until: u64,
        now: u64,
    ) -> Option<Arc<Authorizer>> {
        let identity = Identity::new(groups)?;
        let authorizer = Arc::new(Authorizer::new(self.core.clone(), Some(identity)));
        self.remembered.add(token, until, now, authorizer.clone());
        Some(authorizer)
    }

    /// Refuses an invalid token with our prefix at once; if any text could be another filter's
    /// token, that filter may still accept it.
    fn unknown_token(&self, request: &mut Request) -> Result<(), Response> {
        if !self.core.prefixes[0].is_empty() {
            let path = unquote(request.uri().path()).unwrap_or_default();
            let realm = split_path(&path, 2, 3, true)
                .and_then(|p| p[1])
                .unwrap_or("unknown");
            return Err(unauthorized(realm));
        }
        let context = request.extensions_mut().get_or_insert_default::<Context>();
        context
            .authorizer
            .get_or_insert_with(|| self.deny_all.clone());
        Ok(())
    }

    /// The user with the groups of a service token added.
    fn with_service_token(&self, user: Arc<Authorizer>, headers: &HeaderMap) -> Arc<Authorizer> {
        let service = header(headers, &X_SERVICE_TOKEN)
            .filter(|t| !t.is_empty())
            .and_then(|token| self.user(token));
        match service {
            None => user,
            Some(service) => Arc::new(user.joined(&service)),
        }
    }

    /// Does the path name an account for which no other filter is responsible?
    fn is_definitive(&self, request: &Request) -> bool {
        let Ok(path) = unquote(request.uri().path()) else {
            return false;
        };
        split_path(&path, 1, 3, true)
            .and_then(|parts| parts[1])
            .and_then(|account| self.core.account_prefix(account))
            .is_some_and(|prefix| !prefix.is_empty())
    }

    /// Converts a valid account ACL into the stored system metadata; an invalid one stays, and is
    /// refused when the request is authorized.
    fn account_acl_to_sysmeta(&self, request: &mut Request) {
        if !request.headers().contains_key(ACCOUNT_ACL) {
            return;
        }
        let has_account = unquote(request.uri().path()).ok().is_some_and(|path| {
            split_path(&path, 1, 4, true)
                .and_then(|parts| parts[1])
                .is_some_and(|account| self.core.account_prefix(account).is_some())
        });
        let is_valid = header(request.headers(), &ACCOUNT_ACL)
            .is_some_and(|text| check_account_acl(text).is_ok());
        if has_account
            && is_valid
            && let Some(value) = request.headers_mut().remove(ACCOUNT_ACL)
        {
            request.headers_mut().insert(ACCOUNT_ACL_SYSMETA, value);
        }
    }
}

/// Has the built-in identity authenticated the request, for another filter to authorize? Both cover
/// the same accounts, so this filter is then not solely responsible for them.
fn decided_by_identity(request: &Request) -> bool {
    let built_in = |confirmed: &Confirmed| confirmed.built_in;
    let extensions = request.extensions();
    extensions.get().is_some_and(built_in)
        && extensions
            .get::<Context>()
            .is_some_and(|context| context.authorizer.is_some())
}

fn header<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    respond::header(headers, name.as_str())
}

#[cfg(test)]
mod tests;
