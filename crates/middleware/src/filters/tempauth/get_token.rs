//! Login by `GET /auth/v1.0` (also `/auth/auth`, `/auth/v1/<account>/auth`): exchanges a user's
//! name and key for a token and the account's URL.

use std::sync::Arc;

use cairn_http::context::{Audited, Context, Outcome};
use cairn_http::params::split_path;
use cairn_http::{Request, Response, respond};
use http::{HeaderMap, Method, StatusCode};
use tracing::info;

use super::Core;
use super::shared_tokens::{self, Granted};
use super::users::User;
use crate::filters::memcache::Shared;
use crate::logins::{Address, NotNow, address_of, seconds};
use crate::resellers::{host_url, unauthorized};

/// Credentials in a login request.
struct Claim {
    account: String,
    user: String,
    key: String,
}

/// The response to a request below the auth prefix; `path` is what follows the prefix.
pub(super) async fn answer(core: &Arc<Core>, request: Request, path: String) -> Response {
    let claim = match read_claim(&request, &path) {
        Ok(claim) => claim,
        Err(response) => return response,
    };
    let account_user = format!("{}:{}", claim.account, claim.user);
    let user = match check(core, &request, &claim, &account_user).await {
        Ok(user) => user,
        Err(response) => return response,
    };
    let (response, granted) = grant(core, &request, account_user, user);
    let shared = request.extensions().get::<Shared>();
    if let Some(shared) = shared {
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

/// The first of two headers that is present and not empty.
fn either<'h>(headers: &'h HeaderMap, first: &str, second: &str) -> Option<&'h str> {
    let filled = |name| respond::header(headers, name).filter(|v| !v.is_empty());
    filled(first).or_else(|| filled(second))
}

/// Credentials with the account in the user's name; the error is the realm of the 401.
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

/// Credentials with the account in the path.
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

/// The user, if the key is right.
async fn check<'c>(
    core: &'c Core,
    request: &Request,
    claim: &Claim,
    account_user: &str,
) -> Result<&'c User, Response> {
    let realm = if claim.account.is_empty() {
        "unknown"
    } else {
        &claim.account
    };
    if claim.account.is_empty() || claim.user.is_empty() || claim.key.is_empty() {
        return Err(unauthorized(realm));
    }
    if let Some(context) = request.extensions().get::<Context>() {
        context.notes.set_user(account_user);
    }
    let address = address_of(request);
    let is_right = is_right(core, address, account_user, &claim.key).await;
    audit(request, account_user, &is_right);
    let is_right = is_right.map_err(not_now)?;
    core.logins.ended(address, account_user, is_right);
    let user = core.users.get(account_user).filter(|_| is_right);
    user.ok_or_else(|| {
        info!(user = account_user, "a token was denied");
        unauthorized(realm)
    })
}

fn audit(request: &Request, account_user: &str, is_right: &Result<bool, NotNow>) {
    let outcome = match is_right {
        Ok(true) => Outcome::Accepted,
        Ok(false) => Outcome::Wrong,
        Err(_) => Outcome::HeldBack,
    };
    Context::of_request(request).notes.audit(Audited {
        action: "login",
        user: account_user.to_owned(),
        outcome,
    });
}

async fn is_right(
    core: &Core,
    address: Address,
    account_user: &str,
    key: &str,
) -> Result<bool, NotNow> {
    core.logins.may_try(address, account_user)?;
    let (own, more) = core.users.secrets(account_user);
    if let Some(more) = more {
        let _ = core
            .logins
            .matches(address, account_user, more, key)
            .await?;
    }
    match own {
        Some(own) => core.logins.matches(address, account_user, own, key).await,
        None => Ok(false),
    }
}

/// 429 after failures, 503 if too many are waiting.
fn not_now(why: NotNow) -> Response {
    let (status, wait) = match why {
        NotNow::HeldBack(wait) => (StatusCode::TOO_MANY_REQUESTS, seconds(wait)),
        NotNow::Busy => (StatusCode::SERVICE_UNAVAILABLE, 5),
    };
    let mut response = respond::standard(status);
    respond::set(response.headers_mut(), "retry-after", wait.to_string());
    response
}

/// The response, and what it granted.
fn grant(core: &Core, request: &Request, account_user: String, user: &User) -> (Response, Granted) {
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
    (response, granted)
}
