//! The v2.0 API, for clients from before v3: `/v2.0/tokens` and `/v2.0/tenants`. What v3 calls a
//! project is a tenant here.
//!
//! Some of these clients have no field for the tenant. Their users enter `user:tenant` (or, like in
//! TempAuth, `tenant:user`) as the user name; some clients split the two themselves, in an unknown
//! order. All interpretations are tried: the password must be right in any case.
//!
//! `/v2.0/tokens/<token>` is not supported, because a token in a path gets into logs.

use std::sync::Arc;

use cairn_http::context::Context;
use cairn_http::params::unquote;
use cairn_http::{Request, Response};
use cairn_middleware::logins::{Address, address_of};
use http::Method;
use serde_json::{Value, json};

use super::directory::{Naming, Project};
use super::login::{self, Granted, Proof, Scope};
use super::status::{self, Answer, Refusal};
use super::{Core, Valid, catalog, v3};

pub(super) async fn answer(core: &Arc<Core>, host: &str, request: Request) -> Answer {
    let path = unquote(request.uri().path()).map_err(|_| Refusal::NotFound("this path".into()))?;
    let rest = path
        .strip_prefix("/v2.0")
        .unwrap_or(&path)
        .trim_matches('/');
    let segments: Vec<&str> = rest.split('/').collect();
    let is_read = [Method::GET, Method::HEAD].contains(request.method());
    match segments[..] {
        [""] if is_read => Ok(status::ok(&json!({ "version": catalog::version_2(host) }))),
        ["extensions"] if is_read => Ok(status::ok(&json!({ "extensions": { "values": [] } }))),
        ["tokens"] if request.method() == Method::POST => log_in(core, host, request).await,
        ["tenants"] if is_read => tenants(core, &request),
        _ if !is_read => Err(Refusal::MethodNotAllowed),
        _ => Err(Refusal::NotFound("this path".into())),
    }
}

async fn log_in(core: &Arc<Core>, host: &str, request: Request) -> Answer {
    let address = address_of(&request);
    let notes = Context::of_request(&request).notes;
    let body = status::json_of(request).await?;
    let auth = &body["auth"];
    let tenant = match (auth["tenantId"].as_str(), auth["tenantName"].as_str()) {
        (Some(id), _) if !id.is_empty() => Some(Naming::Id(id.to_owned())),
        (_, Some(name)) if !name.is_empty() => Some(Naming::Name(name.to_owned())),
        _ => None,
    };
    let (action, user, granted) = match auth["token"]["id"].as_str() {
        Some(id) => {
            let scope = tenant.map_or(Scope::Unsaid, Scope::Project);
            let granted = login::log_in(core, address, Proof::Token(id.to_owned()), scope).await;
            ("token", login::name_of(core, id), granted)
        }
        None => {
            let given = &auth["passwordCredentials"];
            let user = given["userId"].as_str().or(given["username"].as_str());
            let user = user.unwrap_or_default();
            let login = by_password(core, address, given, tenant);
            let granted = login::tried(core, address, user, login).await;
            ("login", user.to_owned(), granted)
        }
    };
    login::audit(&notes, action, &user, &granted);
    let Granted { text, valid, .. } = granted?;
    Ok(status::ok(&describe(core, host, &text, &valid)))
}

async fn by_password(
    core: &Arc<Core>,
    address: Address,
    credentials: &Value,
    tenant: Option<Naming>,
) -> Result<Granted, Refusal> {
    let bad = |what: &str| {
        let what = format!("auth.passwordCredentials.{what}");
        Refusal::Bad(format!("Expecting to find {what} in the request's body."))
    };
    let password = credentials["password"].as_str();
    let password = password.ok_or_else(|| bad("password"))?;
    let tried = match (
        credentials["userId"].as_str(),
        credentials["username"].as_str(),
    ) {
        (Some(id), _) => vec![(
            Naming::Id(id.to_owned()),
            tenant.map_or(Scope::Unsaid, Scope::Project),
        )],
        (None, Some(name)) => readings(name, tenant),
        (None, None) => return Err(bad("username")),
    };
    for (user, scope) in tried {
        let password = password.to_owned();
        let proof = Proof::Password { user, password };
        match login::log_in(core, address, proof, scope).await {
            Err(Refusal::Unauthorized(_)) => {}
            other => return other,
        }
    }
    Err(login::WRONG)
}

/// Possible interpretations of a name and a tenant, the most likely first.
fn readings(name: &str, tenant: Option<Naming>) -> Vec<(Naming, Scope)> {
    let named = |user: &str, tenant: &str| {
        let user = Naming::Name(user.to_owned());
        (user, Scope::Project(Naming::Name(tenant.to_owned())))
    };
    let as_typed = Naming::Name(name.to_owned());
    let mut readings = Vec::new();
    match tenant {
        Some(tenant) => {
            readings.push((as_typed, Scope::Project(tenant.clone())));
            if let Naming::Name(tenant) = tenant {
                readings.push(named(&tenant, name));
            }
        }
        None => {
            readings.push((as_typed, Scope::Unsaid));
            if let Some((first, last)) = name.split_once(':') {
                readings.push(named(first, last));
                readings.push(named(last, first));
            }
        }
    }
    readings
}

fn tenant(project: &Project) -> Value {
    json!({
        "id": project.id,
        "name": project.name,
        "description": project.description,
        "enabled": true,
    })
}

/// The response body `{"access": {…}}`.
fn describe(core: &Core, host: &str, text: &str, valid: &Valid) -> Value {
    let (token, holder) = (&valid.token, &valid.holder);
    let project_id = token.project_id.as_deref();
    let mut described = json!({
        "id": text,
        "issued_at": v3::time(token.issued),
        "expires": v2_time(token.expires),
        "audit_ids": [token.audit_id],
    });
    if let Some(project) = project_id.and_then(|id| core.directory().project(id)) {
        described["tenant"] = tenant(project);
    }
    let roles: Vec<Value> = holder
        .roles
        .iter()
        .map(|role| json!({ "name": role }))
        .collect();
    json!({ "access": {
        "token": described,
        "user": {
            "id": holder.user.id,
            "name": holder.user.name,
            "username": holder.user.name,
            "roles": roles,
            "roles_links": [],
        },
        "serviceCatalog": core.catalog.v2(host, project_id),
        "metadata": { "is_admin": 0, "roles": [] },
    }})
}

/// A time in seconds in the format of v2.0, without fractions.
fn v2_time(seconds: u64) -> String {
    let time = v3::time(seconds);
    format!("{}Z", time.split('.').next().unwrap_or(&time))
}

/// The tenants on which a token's user has roles.
fn tenants(core: &Core, request: &Request) -> Result<Response, Refusal> {
    let asker = v3::asker(core, request.headers())?;
    let person = core.person(&asker).ok_or(status::NO_TOKEN)?;
    let directory = core.directory();
    let projects = person.roles.keys().filter_map(|id| directory.project(id));
    let tenants: Vec<Value> = projects.map(tenant).collect();
    Ok(status::ok(
        &json!({ "tenants": tenants, "tenants_links": [] }),
    ))
}
