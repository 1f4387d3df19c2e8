//! Filter `authtoken`: validation of tokens by an external Keystone, with the options of
//! keystonemiddleware's `auth_token` in the same section.
//!
//! `X-Auth-Token` (or `X-Storage-Token`) and `X-Service-Token` are looked up in a bounded cache, or
//! else validated by Keystone (v3, over HTTP) with a service user's own token. The result goes to
//! `keystoneauth` in the request's extensions, and to other filters and applications in the `X-…`
//! headers of keystonemiddleware; a client's own headers of these names are removed. A revoked
//! token is refused once its cache entry has expired, `token_cache_time` after the last validation.

mod access_rules;
mod headers;
mod options;
mod server;

use std::sync::Arc;

use cairn_formats::ini::Section;
use cairn_http::{Clock, Handler, Request, Response, Service, ServiceFuture, respond};
use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use tracing::{debug, warn};

use crate::keystone::Confirmed;
use crate::remembered::Remembered;
use crate::{FilterEnv, FilterError};
use options::Options;
use server::{AskError, Described, Server};

const X_AUTH_TOKEN: HeaderName = HeaderName::from_static("x-auth-token");
const X_STORAGE_TOKEN: HeaderName = HeaderName::from_static("x-storage-token");
const X_SERVICE_TOKEN: HeaderName = HeaderName::from_static("x-service-token");
/// Maximum bytes of a token; Keystone's have some 200 bytes.
const TOKEN_MAX_BYTES: usize = 8192;

struct AuthToken {
    next: Handler,
    options: Options,
    server: Server,
    remembered: Remembered<Arc<Described>>,
    clock: Clock,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    let options = Options::read(section)?;
    Ok(Arc::new(AuthToken {
        next,
        server: Server::new(section, &options, env.clock.clone())?,
        options,
        remembered: Remembered::default(),
        clock: env.clock.clone(),
    }))
}

/// Reasons why a request has no identity.
enum Refused {
    /// No token, or one that Keystone does not accept.
    Invalid,
    /// Keystone does not respond, or responds with an error.
    Unavailable,
}

/// Outcome of validating one of a request's tokens.
enum Outcome {
    Absent,
    Invalid,
    Valid(Arc<Described>),
}

impl Outcome {
    fn valid(&self) -> Option<&Arc<Described>> {
        match self {
            Outcome::Valid(described) => Some(described),
            Outcome::Absent | Outcome::Invalid => None,
        }
    }
}

impl Service for AuthToken {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        Box::pin(self.handle(request))
    }
}

impl AuthToken {
    async fn handle(&self, mut request: Request) -> Response {
        headers::remove(request.headers_mut());
        request.extensions_mut().remove::<Confirmed>();
        match self.identify(&mut request).await {
            Ok(()) => {}
            Err(Refused::Unavailable) => {
                return respond::text(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "The Keystone service is temporarily unavailable.",
                );
            }
            Err(Refused::Invalid) if self.options.delay_auth_decision => {}
            Err(Refused::Invalid) => return self.unauthorized(),
        }
        let mut response = self.next.call(request).await;
        if response.status() == StatusCode::UNAUTHORIZED {
            self.tell_where(response.headers_mut());
        }
        response
    }

    /// Identifies the requester, and adds the identity to the request.
    async fn identify(&self, request: &mut Request) -> Result<(), Refused> {
        let token = |name: &HeaderName| {
            let value = respond::header(request.headers(), name.as_str())?;
            Some(value.trim().to_owned()).filter(|t| !t.is_empty())
        };
        let user_token = token(&X_AUTH_TOKEN).or_else(|| token(&X_STORAGE_TOKEN));
        let service_token = token(&X_SERVICE_TOKEN);
        if user_token.is_none() && service_token.is_none() {
            set_status(request.headers_mut(), headers::STATUS, false);
            return Err(Refused::Invalid);
        }
        let mut service = self.look_up(service_token.as_deref(), false).await?;
        let may_act = service
            .valid()
            .is_some_and(|s| self.options.has_service_role(&s.holder.roles));
        if self.options.service_token_roles_required && !may_act && service.valid().is_some() {
            service = Outcome::Invalid;
        }
        let mut user = self.look_up(user_token.as_deref(), may_act).await?;
        let has_service_token = !matches!(service, Outcome::Absent);
        if let Some(described) = user.valid()
            && !access_rules::allow(
                described,
                self.options.service_type.as_deref(),
                request,
                has_service_token,
            )
        {
            debug!("the token's access rules do not allow this request");
            user = Outcome::Invalid;
        }
        self.write_down(request, &user, &service);
        match (user.valid(), &service) {
            (Some(described), Outcome::Absent | Outcome::Valid(_)) => {
                let confirmed = Confirmed {
                    user: described.holder.clone(),
                    service: service.valid().map(|s| s.holder.clone()),
                    built_in: false,
                };
                request.extensions_mut().insert(confirmed);
                Ok(())
            }
            _ => Err(Refused::Invalid),
        }
    }

    fn write_down(&self, request: &mut Request, user: &Outcome, service: &Outcome) {
        let all = request.headers_mut();
        if !matches!(service, Outcome::Absent) {
            set_status(all, headers::SERVICE_STATUS, service.valid().is_some());
        }
        set_status(all, headers::STATUS, user.valid().is_some());
        if let Some(described) = user.valid() {
            headers::set_user(all, &described.holder);
            if self.options.include_service_catalog {
                headers::set_catalog(all, described.catalog.as_ref());
            }
        }
        if let Some(described) = service.valid() {
            headers::set_service(all, &described.holder);
        }
    }

    /// Looks up a token in the cache, or validates it by Keystone. `allow_expired`: a service may
    /// continue a user's request with the user's expired token.
    async fn look_up(&self, token: Option<&str>, allow_expired: bool) -> Result<Outcome, Refused> {
        let Some(token) = token else {
            return Ok(Outcome::Absent);
        };
        if token.len() > TOKEN_MAX_BYTES {
            return Ok(Outcome::Invalid);
        }
        let now = self.clock.now().secs();
        let described = match self.remembered.get(token, now) {
            Some(described) => described,
            None => match self.server.describe(token, allow_expired).await {
                Ok(described) => {
                    let described = Arc::new(described);
                    self.remember(token, now, &described);
                    described
                }
                Err(AskError::NoSuchToken) => return Ok(Outcome::Invalid),
                Err(error) => {
                    warn!(%error, "a token cannot be validated");
                    if self.options.delay_auth_decision {
                        return Ok(Outcome::Invalid);
                    }
                    return Err(Refused::Unavailable);
                }
            },
        };
        let is_current = allow_expired || described.holder.expires > now;
        if !is_current || !self.options.token_bind.accepts(&described.bind) {
            return Ok(Outcome::Invalid);
        }
        Ok(Outcome::Valid(described))
    }

    fn remember(&self, token: &str, now: u64, described: &Arc<Described>) {
        if let Some(life) = self.options.token_cache_time {
            // The second in which `life` ends no longer counts.
            let until = now.saturating_add(life).saturating_sub(1);
            self.remembered.add(token, until, now, described.clone());
        }
    }

    fn unauthorized(&self) -> Response {
        let body = serde_json::json!({ "error": {
            "code": 401,
            "title": "Unauthorized",
            "message": "The request you have made requires authentication.",
        }});
        let mut response = respond::typed(
            StatusCode::UNAUTHORIZED,
            "application/json; charset=UTF-8",
            body.to_string(),
        );
        self.tell_where(response.headers_mut());
        response
    }

    fn tell_where(&self, headers: &mut HeaderMap) {
        let value = format!("Keystone uri=\"{}\"", self.options.www_authenticate_uri);
        if let Some(value) = respond::value(value) {
            headers.append(WWW_AUTHENTICATE, value);
        }
    }
}

fn set_status(headers: &mut HeaderMap, name: HeaderName, is_valid: bool) {
    let word = if is_valid { "Confirmed" } else { "Invalid" };
    headers.insert(name, HeaderValue::from_static(word));
}

#[cfg(test)]
mod tests;
