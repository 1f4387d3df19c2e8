//! The v3 API: `/v3`, `/v3/auth/…`; the lists are in `listing.rs`.

use std::sync::Arc;

use cairn_http::context::{Context, Notes};
use cairn_http::params::{Params, unquote};
use cairn_http::{Request, respond};
use cairn_middleware::logins::address_of;
use cairn_types::Timestamp;
use http::{HeaderMap, Method};
use serde_json::{Value, json};

use super::directory::{Naming, Person};
use super::login::{self, Granted, Proof, Scope};
use super::status::{self, Answer, NO_TOKEN, Refusal};
use super::{Core, Valid, X_AUTH_TOKEN, catalog, listing};

const SUBJECT: &str = "x-subject-token";
const READ_ONLY: &str = "Projects, users and roles are kept in the store's identity.conf: change \
                         them there, and restart.";

pub(super) async fn answer(core: &Arc<Core>, host: &str, request: Request) -> Answer {
    let path = unquote(request.uri().path()).map_err(|_| Refusal::NotFound("this path".into()))?;
    let rest = path.strip_prefix("/v3").unwrap_or(&path).trim_matches('/');
    let segments: Vec<&str> = rest.split('/').collect();
    let is_read = [Method::GET, Method::HEAD].contains(request.method());
    match segments[..] {
        [""] if is_read => Ok(status::ok(&json!({ "version": catalog::version_3(host) }))),
        [""] => Err(Refusal::MethodNotAllowed),
        ["auth", "tokens"] if request.method() == Method::POST => log_in(core, host, request).await,
        ["auth", "tokens"] if is_read => validate(core, host, &request),
        ["auth", "tokens"] if request.method() == Method::DELETE => {
            let notes = Context::of_request(&request).notes;
            revoke(core, request.headers(), &notes).await
        }
        _ => {
            let valid = asker(core, request.headers())?;
            if !is_read {
                return Err(Refusal::Forbidden(READ_ONLY));
            }
            let params = Params::parse(request.uri().query())
                .map_err(|_| Refusal::Bad("The query is not UTF-8.".into()))?;
            listing::answer(core, host, &valid, &segments, &params)
        }
    }
}

/// The requester, by `X-Auth-Token`.
pub(super) fn asker(core: &Core, headers: &HeaderMap) -> Result<Valid, Refusal> {
    respond::header(headers, X_AUTH_TOKEN.as_str())
        .and_then(|text| core.open(text.trim()))
        .ok_or(NO_TOKEN)
}

async fn log_in(core: &Arc<Core>, host: &str, request: Request) -> Answer {
    let with_catalog = has_catalog(&request);
    let address = address_of(&request);
    let notes = Context::of_request(&request).notes;
    let body = status::json_of(request).await?;
    let (proof, scope) = (proof(&body)?, scope(&body)?);
    let (action, user) = match &proof {
        Proof::Password { user, .. } => ("login", user.text().to_owned()),
        Proof::Token(text) => ("token", login::name_of(core, text)),
    };
    let by_password = matches!(proof, Proof::Password { .. });
    let login = login::log_in(core, address, proof, scope);
    let granted = match by_password {
        true => login::tried(core, address, &user, login).await,
        false => login.await,
    };
    login::audit(&notes, action, &user, &granted);
    let granted = granted?;
    let described = describe(core, host, &granted.valid, &granted.methods, with_catalog);
    let mut response = status::created(&described);
    let Granted { text, .. } = granted;
    respond::set(response.headers_mut(), SUBJECT, text);
    Ok(response)
}

fn has_catalog(request: &Request) -> bool {
    let query = request.uri().query().unwrap_or("");
    !query
        .split('&')
        .any(|p| p.split('=').next() == Some("nocatalog"))
}

fn proof(body: &Value) -> Result<Proof, Refusal> {
    let identity = &body["auth"]["identity"];
    let bad = |what: &str| Refusal::Bad(format!("Expecting to find {what} in the request's body."));
    let methods = identity["methods"].as_array();
    let methods = methods.ok_or_else(|| bad("auth.identity.methods"))?;
    let uses = |method: &str| methods.iter().any(|m| m == method);
    if uses("token") {
        let id = identity["token"]["id"].as_str();
        let id = id.ok_or_else(|| bad("auth.identity.token.id"))?;
        return Ok(Proof::Token(id.to_owned()));
    }
    if !uses("password") {
        return Err(Refusal::Unauthorized(
            "Attempted to authenticate with an unsupported method: use password or token.",
        ));
    }
    let user = &identity["password"]["user"];
    let password = user["password"].as_str();
    let password = password.ok_or_else(|| bad("auth.identity.password.user.password"))?;
    let naming = match (user["id"].as_str(), user["name"].as_str()) {
        (Some(id), _) => Naming::Id(id.to_owned()),
        (None, Some(name)) if is_our_domain(&user["domain"]) => Naming::Name(name.to_owned()),
        (None, Some(_)) => return Err(login::WRONG),
        (None, None) => return Err(bad("auth.identity.password.user.name or .id")),
    };
    Ok(Proof::Password {
        user: naming,
        password: password.to_owned(),
    })
}

/// A domain that is not given is the only one there is.
fn is_our_domain(domain: &Value) -> bool {
    let is = |name: &str, ours: &str| {
        domain[name]
            .as_str()
            .is_none_or(|theirs| theirs.eq_ignore_ascii_case(ours))
    };
    is("id", "default") && is("name", "Default")
}

fn scope(body: &Value) -> Result<Scope, Refusal> {
    let scope = &body["auth"]["scope"];
    if scope.is_null() {
        return Ok(Scope::Unsaid);
    }
    if scope == "unscoped" || scope.get("unscoped").is_some() {
        return Ok(Scope::None);
    }
    let project = &scope["project"];
    match (project["id"].as_str(), project["name"].as_str()) {
        (Some(id), _) => Ok(Scope::Project(Naming::Id(id.to_owned()))),
        (None, Some(name)) if is_our_domain(&project["domain"]) => {
            Ok(Scope::Project(Naming::Name(name.to_owned())))
        }
        (None, Some(_)) => Err(login::WRONG),
        (None, None) if project.is_null() => Err(Refusal::Unauthorized(
            "Nobody has roles on a domain or the system here: ask for a project.",
        )),
        (None, None) => Err(Refusal::Bad(
            "Expecting to find auth.scope.project.name or .id in the request's body.".into(),
        )),
    }
}

/// A time in seconds in the format of v3.
pub(super) fn time(seconds: u64) -> String {
    format!("{}Z", Timestamp::from_secs(seconds).isoformat())
}

/// The response body `{"token": {…}}`.
fn describe(core: &Core, host: &str, valid: &Valid, methods: &[&str], with_catalog: bool) -> Value {
    let (token, holder) = (&valid.token, &valid.holder);
    let domain = json!({ "id": "default", "name": "Default" });
    let mut described = json!({
        "methods": methods,
        "user": {
            "id": holder.user.id,
            "name": holder.user.name,
            "domain": domain,
            "password_expires_at": null,
        },
        "audit_ids": [token.audit_id],
        "issued_at": time(token.issued),
        "expires_at": time(token.expires),
    });
    if let Some(project) = &holder.project {
        described["project"] = json!({ "id": project.id, "name": project.name, "domain": domain });
        described["is_domain"] = false.into();
        described["roles"] = holder
            .roles
            .iter()
            .map(|role| listing::role_ref(role))
            .collect();
        if with_catalog {
            described["catalog"] = core.catalog.v3(host, Some(&project.id));
        }
    }
    json!({ "token": described })
}

/// The token that a request concerns, if its requester may perform the operation.
fn subject(
    core: &Core,
    headers: &HeaderMap,
    may: fn(&Core, &Valid, &Valid) -> bool,
) -> Result<(String, Valid), Refusal> {
    let asker = asker(core, headers)?;
    let text = respond::header(headers, SUBJECT)
        .ok_or_else(|| Refusal::Bad("The header X-Subject-Token is missing.".into()))?;
    let text = text.trim().to_owned();
    let valid = core
        .open(&text)
        .ok_or_else(|| Refusal::NotFound("this token".into()))?;
    match may(core, &asker, &valid) {
        true => Ok((text, valid)),
        false => Err(Refusal::Forbidden(
            "This token is somebody else's: that needs the role admin.",
        )),
    }
}

/// Everyone may revoke their own tokens; others only an administrator.
fn may_end(core: &Core, asker: &Valid, subject: &Valid) -> bool {
    let is_own = asker.token.user_id == subject.token.user_id;
    is_own || core.person(asker).is_some_and(Person::is_admin)
}

/// Services may also validate tokens of others, which clients send them.
fn may_see(core: &Core, asker: &Valid, subject: &Valid) -> bool {
    let mut roles = asker.holder.roles.iter();
    may_end(core, asker, subject) || roles.any(|role| core.service_roles.contains(role))
}

fn validate(core: &Core, host: &str, request: &Request) -> Answer {
    let (text, valid) = subject(core, request.headers(), may_see)?;
    let described = describe(core, host, &valid, &["password"], has_catalog(request));
    let mut response = status::ok(&described);
    respond::set(response.headers_mut(), SUBJECT, text);
    Ok(response)
}

async fn revoke(core: &Arc<Core>, headers: &HeaderMap, notes: &Notes) -> Answer {
    let asker = asker(core, headers)?;
    let ended = match subject(core, headers, may_end) {
        Ok((_, valid)) => login::end(core, &valid.token).await,
        Err(refusal) => Err(refusal),
    };
    let name = core.person(&asker).map_or("", |person| &person.name);
    login::audit(notes, "revocation", name, &ended);
    ended?;
    Ok(status::no_content())
}
