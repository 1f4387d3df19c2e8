//! Authorization decision, called by the proxy once it knows the container's ACL: may these groups
//! perform this request?
//!
//! In this order: administrators of all accounts, readers of all accounts, the account's own
//! administrator, the container's sync key, `OPTIONS`, the container's ACL, the account's ACL.

use std::sync::Arc;

use cairn_formats::acl::{AccountAcl, Acl, check_account_acl};
use cairn_http::context::{Authorize, AuthorizeFuture, Context, Granted};
use cairn_http::params::{split_path, unquote};
use cairn_http::{Response, respond};
use http::header::REFERER;
use http::request::Parts;
use http::{Method, StatusCode};
use subtle::ConstantTimeEq;

use super::{ACCOUNT_ACL, Core, header};
use crate::resellers::deny;

/// A user with a valid token. The first group is the account, the second the user.
#[derive(Clone)]
pub(super) struct Identity {
    groups: Vec<String>,
    name: Arc<str>,
}

impl Identity {
    pub(super) fn new(groups: Vec<String>) -> Option<Identity> {
        let name = groups
            .get(1)
            .or_else(|| groups.first())
            .filter(|n| !n.is_empty())?;
        Some(Identity {
            name: name.as_str().into(),
            groups,
        })
    }
}

pub(super) struct Authorizer {
    core: Arc<Core>,
    /// Identity of the requester; `None`: anonymous.
    identity: Option<Identity>,
}

const OWNER: Granted = Granted { owner: true };
const USER: Granted = Granted { owner: false };

/// The entity that a request concerns.
struct Target<'p> {
    account: &'p str,
    container: Option<&'p str>,
    object: Option<&'p str>,
}

impl Authorizer {
    pub(super) fn new(core: Arc<Core>, identity: Option<Identity>) -> Self {
        Authorizer { core, identity }
    }

    pub(super) fn name(&self) -> Option<Arc<str>> {
        self.identity.as_ref().map(|i| i.name.clone())
    }

    fn groups(&self) -> &[String] {
        self.identity.as_ref().map_or(&[], |i| &i.groups)
    }

    fn has(&self, group: &str) -> bool {
        self.groups().iter().any(|g| g == group)
    }

    pub(super) fn is_reseller_admin(&self) -> bool {
        self.has(".reseller_admin")
    }

    /// This user with another's groups added: a service acting for a user.
    pub(super) fn joined(&self, service: &Authorizer) -> Authorizer {
        let identity = self.identity.clone().map(|mut identity| {
            identity.groups.extend_from_slice(service.groups());
            identity
        });
        Authorizer {
            core: self.core.clone(),
            identity,
        }
    }

    async fn decide(&self, parts: &Parts, acl: Option<&str>) -> Result<Granted, Response> {
        let path = unquote(parts.uri.path())
            .map_err(|_| respond::standard(StatusCode::PRECONDITION_FAILED))?;
        let segments = split_path(&path, 1, 4, true)
            .ok_or_else(|| respond::standard(StatusCode::NOT_FOUND))?;
        let denied = || Err(deny(&path, self.identity.is_some()));
        let target = match segments[1] {
            Some(account) if self.core.account_prefix(account).is_some() => Target {
                account,
                container: segments[2],
                object: segments[3],
            },
            _ => return denied(),
        };
        refuse_bad_account_acl(parts)?;
        if let Some(granted) = self.by_account(parts, &target) {
            return Ok(granted);
        }
        if self.by_sync_key(parts, &target).await || parts.method == Method::OPTIONS {
            return Ok(USER);
        }
        if self.by_container_acl(parts, &target, acl) {
            return Ok(USER);
        }
        match self.by_account_acl(parts, &target).await {
            Some(granted) => Ok(granted),
            None => denied(),
        }
    }

    /// Can an administrator of all accounts administer this account?
    fn is_ordinary(&self, account: &str) -> bool {
        let is_bare_prefix = self.core.prefixes.iter().any(|p| p == account);
        let is_dotted = self
            .core
            .account_prefix(account)
            .and_then(|prefix| account.strip_prefix(prefix))
            .is_some_and(|rest| rest.starts_with('.'));
        !is_bare_prefix && !is_dotted
    }

    fn by_account(&self, parts: &Parts, target: &Target<'_>) -> Option<Granted> {
        let reads = parts.method == Method::GET || parts.method == Method::HEAD;
        if self.is_reseller_admin() && self.is_ordinary(target.account) {
            return Some(OWNER);
        }
        if reads && self.has(".reseller_reader") && self.is_ordinary(target.account) {
            return Some(USER);
        }
        // Only administrators of all accounts may create and remove accounts.
        let makes_account = target.container.is_none()
            && (parts.method == Method::PUT || parts.method == Method::DELETE);
        if makes_account || !self.has(target.account) {
            return None;
        }
        let prefix = self.core.account_prefix(target.account)?;
        match self.core.require_group.get(prefix) {
            Some(group) if !self.has(group) => None,
            _ => Some(OWNER),
        }
    }

    /// Another cluster's container sync, which has the container's key.
    async fn by_sync_key(&self, parts: &Parts, target: &Target<'_>) -> bool {
        let writes = parts.method == Method::PUT || parts.method == Method::DELETE;
        let (Some(container), true, Some(sent)) = (
            target.container,
            writes && target.object.is_some() && parts.headers.contains_key("x-timestamp"),
            parts.headers.get("x-container-sync-key"),
        ) else {
            return false;
        };
        let context = Context::of(parts);
        let info = self
            .core
            .info_source
            .container(&context, target.account, container)
            .await;
        let key = info.sync_key.as_deref().unwrap_or("");
        !key.is_empty() && bool::from(key.as_bytes().ct_eq(sent.as_bytes()))
    }

    fn by_container_acl(&self, parts: &Parts, target: &Target<'_>, acl: Option<&str>) -> bool {
        let acl = Acl::parse(acl);
        let referer = header(&parts.headers, &REFERER);
        if acl.referrer_allowed(referer) && (target.object.is_some() || acl.has_group(".rlistings"))
        {
            return true;
        }
        self.groups()
            .iter()
            .any(|group| !group.is_empty() && acl.has_group(group))
    }

    async fn by_account_acl(&self, parts: &Parts, target: &Target<'_>) -> Option<Granted> {
        // An anonymous requester is in no account ACL.
        self.identity.as_ref()?;
        let context = Context::of(parts);
        let info = self
            .core
            .info_source
            .account(&context, target.account)
            .await;
        let stored = info.sysmeta.get("core-access-control").map(String::as_str);
        let acl = AccountAcl::from_sysmeta(stored)?;
        let on = |list: &[String]| self.groups().iter().any(|g| list.contains(g));
        let reads = parts.method == Method::GET || parts.method == Method::HEAD;
        if on(&acl.admin) {
            Some(OWNER)
        } else if (on(&acl.read_write) && (target.container.is_some() || reads))
            || (on(&acl.read_only) && reads)
        {
            Some(USER)
        } else {
            None
        }
    }
}

impl Authorize for Authorizer {
    fn authorize<'a>(&'a self, request: &'a Parts, acl: Option<&'a str>) -> AuthorizeFuture<'a> {
        Box::pin(self.decide(request, acl))
    }
}

/// Authorizer for requests that no filter is responsible for.
pub(super) struct DenyAll;

impl Authorize for DenyAll {
    fn authorize<'a>(&'a self, request: &'a Parts, _: Option<&'a str>) -> AuthorizeFuture<'a> {
        let path = unquote(request.uri.path()).unwrap_or_default();
        Box::pin(std::future::ready(Err(deny(&path, false))))
    }
}

/// Refuses an account ACL that was not converted into system metadata, since it is invalid.
fn refuse_bad_account_acl(parts: &Parts) -> Result<(), Response> {
    let Some(value) = parts.headers.get(ACCOUNT_ACL) else {
        return Ok(());
    };
    let text = String::from_utf8_lossy(value.as_bytes());
    match check_account_acl(&text) {
        Ok(()) => Ok(()),
        Err(error) => {
            let message = format!("X-Account-Access-Control invalid: {error}\n\nInput: {text}\n");
            Err(respond::text(StatusCode::BAD_REQUEST, message))
        }
    }
}
