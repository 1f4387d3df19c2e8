//! `GET /auth/v1.0` (also `/auth/auth`, `/auth/v1/<account>/auth`): a user's name and key for a
//! token and the account's URL.

use std::sync::Arc;

use cairn_http::context::Context;
use cairn_http::params::split_path;
use cairn_http::{Request, Response, respond};
use http::{HeaderMap, Method, StatusCode};
use tracing::info;

use super::Core;
use super::shared_tokens::{self, Granted};
use crate::memcache::Shared;
use crate::resellers::{host_url, unauthorized};

/// Who says they ask, with what key.
struct Claim {
    account: String,
    user: String,
    key: String,
}

/// Answers a request below the auth prefix; `path` is what follows the prefix.
pub(super) async fn answer(core: &Arc<Core>, request: Request, path: String) -> Response {
    let claim = match read_claim(&request, &path) {
        Ok(claim) => claim,
        Err(response) => return response,
    };
    let (response, granted) = grant(core, &request, &claim);
    let shared = request.extensions().get::<Shared>();
    if let (Some(granted), Some(shared)) = (granted, shared) {
        shared_tokens::share(core, shared, &granted).await;
    }
    response
}

fn read_claim(request: &Request, path: &str) -> Result<Claim, Response> {
    if request.method() != Method::GET {
        return Err(respond::standard(StatusCode::METHOD_NOT_ALLOWED));
    }
    let Some(parts) = split_path(path, 1, 4, true) else {
        return Err(respond::standard(StatusCode::NOT_FOUND));
    };
    let claim = match (parts[0], split_path(path, 1, 3, true).as_deref()) {
        (Some("v1"), Some([_, Some(account), Some("auth")])) => {
            claim_of_account(request.headers(), account)
        }
        (Some("auth" | "v1.0"), _) => claim(request.headers()),
        _ => return Err(respond::standard(StatusCode::BAD_REQUEST)),
    };
    claim.map_err(|realm| unauthorized(&realm))
}

/// The first of two headers that is there and not empty.
fn either<'h>(headers: &'h HeaderMap, first: &str, second: &str) -> Option<&'h str> {
    let filled = |name| respond::header(headers, name).filter(|v| !v.is_empty());
    filled(first).or_else(|| filled(second))
}

/// A claim with the account in the user's name; the error is the realm of the 401.
fn claim(headers: &HeaderMap) -> Result<Claim, String> {
    let (account, user) = either(headers, "x-auth-user", "x-storage-user")
        .and_then(|user| user.split_once(':'))
        .ok_or("unknown")?;
    let key = either(headers, "x-auth-key", "x-storage-pass").unwrap_or("");
    Ok(Claim {
        account: account.into(),
        user: user.into(),
        key: key.into(),
    })
}

/// A claim with the account in the path.
fn claim_of_account(headers: &HeaderMap, account: &str) -> Result<Claim, String> {
    let filled = |name| respond::header(headers, name).filter(|v| !v.is_empty());
    let user = match filled("x-storage-user") {
        Some(user) => user,
        None => filled("x-auth-user")
            .and_then(|user| user.split_once(':'))
            .filter(|(named, _)| *named == account)
            .map(|(_, user)| user)
            .ok_or(account)?,
    };
    let key = either(headers, "x-storage-pass", "x-auth-key").unwrap_or("");
    Ok(Claim {
        account: account.into(),
        user: user.into(),
        key: key.into(),
    })
}

/// The answer, and what it granted.
fn grant(core: &Core, request: &Request, claim: &Claim) -> (Response, Option<Granted>) {
    let realm = if claim.account.is_empty() {
        "unknown"
    } else {
        &claim.account
    };
    if claim.account.is_empty() || claim.user.is_empty() || claim.key.is_empty() {
        return (unauthorized(realm), None);
    }
    let account_user = format!("{}:{}", claim.account, claim.user);
    if let Some(context) = request.extensions().get::<Context>() {
        context.notes.set_user(account_user.as_str());
    }
    let Some(user) = core.users.check(&account_user, &claim.key) else {
        info!(user = account_user, "a token was denied");
        return (unauthorized(realm), None);
    };
    let now = core.clock.now().secs();
    let token = core.tokens.make(&account_user, user, &core.prefixes, now);
    let mut url = user.url.replace("$HOST", &host_url(request));
    if core.storage_url_scheme != "default"
        && let Some((_, rest)) = url.split_once(':')
    {
        url = format!("{}:{rest}", core.storage_url_scheme);
    }
    let mut response = respond::standard(StatusCode::OK);
    for (name, value) in [
        ("x-auth-token", token.as_str()),
        ("x-storage-token", &token),
        ("x-auth-token-expires", &core.token_life.to_string()),
        ("x-storage-url", &url),
    ] {
        respond::set(response.headers_mut(), name, value);
    }
    let groups = user.groups(&account_user, &core.prefixes);
    let granted = Granted {
        token,
        account_user,
        groups,
        now,
    };
    (response, Some(granted))
}
