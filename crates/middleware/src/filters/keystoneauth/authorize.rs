//! Authorization decision, called by the proxy once it knows the container's ACL.
//!
//! In this order: `OPTIONS`, administrators of all accounts, readers of all accounts, the
//! container's ACL by project and user, the container's sync key, its ACL by referrer; then, for
//! the project's own accounts only, operators, readers, and roles in the container's ACL.
//!
//! Operators come before ACLs if the token is of the built-in `identity`, or if
//! `owners_before_acls` is set: a grant by an ACL gives fewer rights, and would hide the ACL from
//! its owner.

use std::sync::Arc;

use cairn_formats::acl::Acl;
use cairn_http::context::{Authorize, AuthorizeFuture, Context, Granted};
use cairn_http::params::{split_path, unquote};
use cairn_http::{Response, respond};
use http::header::REFERER;
use http::request::Parts;
use http::{Method, StatusCode};
use subtle::ConstantTimeEq;

use super::{Core, Rules};
use crate::keystone::{Confirmed, Project, lower};
use crate::resellers::{account_prefix, deny};

const OWNER: Granted = Granted { owner: true };
const USER: Granted = Granted { owner: false };

pub(super) struct Authorizer {
    core: Arc<Core>,
    /// Identity of the requester; `None`: anonymous.
    confirmed: Option<Confirmed>,
    roles: Vec<String>,
    service_roles: Vec<String>,
}

/// The entity that a request concerns.
struct Target<'p> {
    account: &'p str,
    container: Option<&'p str>,
    object: Option<&'p str>,
}

impl Authorizer {
    pub(super) fn new(core: Arc<Core>, confirmed: Option<Confirmed>) -> Authorizer {
        let roles = confirmed.as_ref().map(|c| lower(&c.user.roles));
        let service = confirmed.as_ref().and_then(|c| c.service.as_ref());
        Authorizer {
            service_roles: service.map(|s| lower(&s.roles)).unwrap_or_default(),
            roles: roles.unwrap_or_default(),
            confirmed,
            core,
        }
    }

    async fn decide(&self, parts: &Parts, acl: Option<&str>) -> Result<Granted, Response> {
        let path = unquote(parts.uri.path())
            .map_err(|_| respond::standard(StatusCode::PRECONDITION_FAILED))?;
        let segments = split_path(&path, 1, 4, true)
            .ok_or_else(|| respond::standard(StatusCode::NOT_FOUND))?;
        if parts.method == Method::OPTIONS {
            return Ok(USER);
        }
        let denied = || Err(deny(&path, self.confirmed.is_some()));
        let Some(account) = segments[1] else {
            return denied();
        };
        let target = Target {
            account,
            container: segments[2],
            object: segments[3],
        };
        let acl = Acl::parse(acl);
        let granted = match &self.confirmed {
            Some(confirmed) => self.for_somebody(confirmed, parts, &target, &acl).await,
            None => self.for_nobody(parts, &target, &acl).await,
        };
        granted.map_or_else(denied, Ok)
    }

    async fn for_nobody(&self, parts: &Parts, target: &Target<'_>, acl: &Acl) -> Option<Granted> {
        account_prefix(&self.core.prefixes, target.account)?;
        match self.by_key_or_referrer(parts, target, acl).await {
            Some(true) => Some(USER),
            _ => None,
        }
    }

    async fn for_somebody(
        &self,
        confirmed: &Confirmed,
        parts: &Parts,
        target: &Target<'_>,
        acl: &Acl,
    ) -> Option<Granted> {
        let has = |role: &String| self.roles.contains(role);
        let reads = parts.method == Method::GET || parts.method == Method::HEAD;
        if has(&self.core.reseller_admin_role) {
            return Some(OWNER);
        }
        if reads && self.core.system_reader_roles.iter().any(has) {
            return Some(USER);
        }
        // Only administrators of all accounts may remove accounts.
        if target.container.is_none() && parts.method == Method::DELETE {
            return None;
        }
        let owns = || self.owns(confirmed, target);
        if (confirmed.built_in || self.core.owners_before_acls) && owns() {
            return Some(OWNER);
        }
        if self
            .by_project_and_user(confirmed, parts, target, acl)
            .await
        {
            return Some(USER);
        }
        let by_key_or_referrer = self.by_key_or_referrer(parts, target, acl).await;
        if by_key_or_referrer == Some(true) {
            return Some(USER);
        }
        if owns() {
            return Some(OWNER);
        }
        let project = confirmed.user.project.as_ref()?;
        if !self.core.is_account_of(target.account, &project.id) {
            return None;
        }
        let rules = self.core.rules_of(target.account)?;
        if reads && rules.project_reader_roles.iter().any(has) {
            return Some(USER);
        }
        // An ACL with referrers that the request does not match decides here: roles in it no longer
        // count.
        if by_key_or_referrer.is_some() {
            return None;
        }
        lower(&acl.groups).iter().any(has).then_some(USER)
    }

    /// Is the requester an operator of the account's project?
    fn owns(&self, confirmed: &Confirmed, target: &Target<'_>) -> bool {
        let project = confirmed.user.project.as_ref();
        project.is_some_and(|project| self.core.is_account_of(target.account, &project.id))
            && self
                .core
                .rules_of(target.account)
                .is_some_and(|rules| self.is_operator(rules))
    }

    fn is_operator(&self, rules: &Rules) -> bool {
        let any = |wanted: &[String], had: &[String]| wanted.iter().any(|r| had.contains(r));
        any(&rules.operator_roles, &self.roles)
            && (rules.service_roles.is_empty() || any(&rules.service_roles, &self.service_roles))
    }

    /// `project:user` in the container's ACL, each by id, by `*`, and by name if names are
    /// unambiguous.
    async fn by_project_and_user(
        &self,
        confirmed: &Confirmed,
        parts: &Parts,
        target: &Target<'_>,
        acl: &Acl,
    ) -> bool {
        if acl.groups.is_empty() {
            return false;
        }
        let (user, project) = (&confirmed.user.user, confirmed.user.project.as_ref());
        let mut projects = vec!["*"];
        let mut users = vec![user.id.as_str(), "*"];
        projects.extend(project.map(|p| p.id.as_str()));
        if self.may_use_names(confirmed, parts, target).await {
            projects.extend(project.map(|p| p.name.as_str()));
            users.push(&user.name);
        }
        users.retain(|u| !u.is_empty());
        acl.groups.iter().any(|group| {
            projects.iter().any(|project| {
                let user = group
                    .strip_prefix(project)
                    .and_then(|rest| rest.strip_prefix(':'));
                user.is_some_and(|user| users.contains(&user))
            })
        })
    }

    /// Names are unique within a domain only: they count if user, project and account are all in
    /// the default domain, which contains everything from before there were domains.
    async fn may_use_names(
        &self,
        confirmed: &Confirmed,
        parts: &Parts,
        target: &Target<'_>,
    ) -> bool {
        let core = &self.core;
        let is_default = |id: &str| id.is_empty() || id == core.default_domain_id;
        let holder = &confirmed.user;
        let of_default = |project: &Project| is_default(&project.domain.id);
        if !core.allow_names_in_acls
            || !is_default(&holder.user_domain.id)
            || !holder.project.as_ref().is_none_or(of_default)
        {
            return false;
        }
        let is_own = |project: &Project| core.is_account_of(target.account, &project.id);
        if holder.project.as_ref().is_some_and(is_own) {
            return true;
        }
        let context = Context::of(parts);
        let (exists, domain) = core.kept_domain(&context, target.account).await;
        exists && domain.is_none_or(|domain| domain == core.default_domain_id)
    }

    /// Access without a token: another cluster's container sync, which has the container's key, and
    /// referrers. `Some(false)` if the referrer matches but the request is for a listing that is
    /// not public.
    async fn by_key_or_referrer(
        &self,
        parts: &Parts,
        target: &Target<'_>,
        acl: &Acl,
    ) -> Option<bool> {
        if self.has_sync_key(parts, target).await {
            return Some(true);
        }
        let referer = respond::header(&parts.headers, REFERER.as_str());
        acl.referrer_allowed(referer)
            .then(|| target.object.is_some() || acl.has_group(".rlistings"))
    }

    async fn has_sync_key(&self, parts: &Parts, target: &Target<'_>) -> bool {
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
}

impl Authorize for Authorizer {
    fn authorize<'a>(&'a self, request: &'a Parts, acl: Option<&'a str>) -> AuthorizeFuture<'a> {
        Box::pin(self.decide(request, acl))
    }
}
