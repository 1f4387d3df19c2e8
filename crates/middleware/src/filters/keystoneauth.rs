//! Filter `keystoneauth`: authorization by Keystone's roles. An account belongs to a project, and
//! the roles on that project determine its users' rights; other users get access by the container's
//! ACL.
//!
//! `authtoken` (an external Keystone) or `identity` (the built-in one) authenticates before this
//! filter. A request without a token passes as anonymous, for public containers.

mod authorize;

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_formats::ini::Section;
use cairn_http::context::{Authorize, Context};
use cairn_http::params::{is_true, split_path, unquote};
use cairn_http::{Handler, InfoSource, Request, Response, Service, ServiceFuture};
use http::Method;
use http::header::{HeaderName, HeaderValue};
use tracing::{debug, warn};

use crate::keystone::{Confirmed, lower};
use crate::resellers::{self, option_of_prefix, reseller_prefixes};
use crate::{FilterEnv, FilterError};
use authorize::Authorizer;

/// Domain of the project to which an account belongs, stored with the account.
const DOMAIN_SYSMETA: HeaderName = HeaderName::from_static("x-account-sysmeta-project-domain-id");
const DOMAIN: HeaderName = HeaderName::from_static("x-account-project-domain-id");
/// Stored domain of an account whose creator's token does not contain it; not the id of any domain.
const UNKNOWN_DOMAIN: &str = "_unknown";

/// The relevant roles for accounts with one prefix, in lower case.
#[derive(Debug, PartialEq, Eq)]
struct Rules {
    operator_roles: Vec<String>,
    service_roles: Vec<String>,
    project_reader_roles: Vec<String>,
}

/// Parameters of decisions, shared by the filter and its authorizers.
struct Core {
    prefixes: Vec<String>,
    rules: BTreeMap<String, Rules>,
    reseller_admin_role: String,
    system_reader_roles: Vec<String>,
    default_domain_id: String,
    allow_names_in_acls: bool,
    /// Owners have full rights whatever a container's ACL grants, with an external Keystone too.
    owners_before_acls: bool,
    info_source: Arc<dyn InfoSource>,
}

struct KeystoneAuth {
    next: Handler,
    core: Arc<Core>,
    allow_overrides: bool,
    anonymous: Arc<dyn Authorize>,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    if section.get("is_admin").is_some_and(is_true) {
        warn!("keystoneauth has no option is_admin any more, as in Swift: take it out");
    }
    let core = Arc::new(Core::read(section, env));
    env.logins.tell_privileged(core.privileged_roles());
    Ok(Arc::new(KeystoneAuth {
        next,
        allow_overrides: section.bool_or("allow_overrides", true),
        anonymous: Arc::new(Authorizer::new(core.clone(), None)),
        core,
    }))
}

impl Core {
    fn read(section: &Section, env: &FilterEnv) -> Core {
        let prefixes = reseller_prefixes(section);
        let rules = prefixes
            .iter()
            .map(|prefix| (prefix.clone(), rules(section, prefix)))
            .collect();
        Core {
            rules,
            prefixes,
            reseller_admin_role: section
                .str_or("reseller_admin_role", "ResellerAdmin")
                .to_lowercase(),
            system_reader_roles: lower(&section.list_or("system_reader_roles", "")),
            default_domain_id: section.str_or("default_domain_id", "default").to_owned(),
            allow_names_in_acls: section.bool_or("allow_names_in_acls", true),
            owners_before_acls: section.bool_or("owners_before_acls", false),
            info_source: env.info_source.clone(),
        }
    }

    /// Roles with more rights than a container's ACL can grant. Service roles count only together
    /// with others.
    fn privileged_roles(&self) -> Vec<String> {
        let mut roles = vec![self.reseller_admin_role.clone()];
        roles.extend(self.system_reader_roles.iter().cloned());
        for rules in self.rules.values() {
            roles.extend(rules.operator_roles.iter().cloned());
            roles.extend(rules.project_reader_roles.iter().cloned());
        }
        roles
    }

    /// Is this one of that project's accounts?
    fn is_account_of(&self, account: &str, project_id: &str) -> bool {
        self.prefixes
            .iter()
            .any(|prefix| account.strip_prefix(prefix.as_str()) == Some(project_id))
    }

    /// The rules for an account's prefix; `None` if it is not one of ours.
    fn rules_of(&self, account: &str) -> Option<&Rules> {
        self.rules
            .get(resellers::account_prefix(&self.prefixes, account)?)
    }

    /// Does the account exist, and which domain is stored with it?
    async fn kept_domain(&self, context: &Context, account: &str) -> (bool, Option<String>) {
        let info = self.info_source.account(context, account).await;
        let domain = info.sysmeta.get("project-domain-id").cloned();
        (info.exists() && !info.pretended, domain)
    }
}

fn rules(section: &Section, prefix: &str) -> Rules {
    let roles = |option: &str, default: &str| {
        let value = option_of_prefix(section, prefix, option).unwrap_or(default);
        value
            .to_lowercase()
            .split(',')
            .map(|role| role.trim().to_owned())
            .filter(|role| !role.is_empty())
            .collect()
    };
    Rules {
        operator_roles: roles("operator_roles", "admin,swiftoperator"),
        service_roles: roles("service_roles", ""),
        project_reader_roles: roles("project_reader_roles", ""),
    }
}

impl Service for KeystoneAuth {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        Box::pin(self.handle(request))
    }
}

impl KeystoneAuth {
    async fn handle(&self, mut request: Request) -> Response {
        let authorized = request
            .extensions()
            .get::<Context>()
            .is_some_and(|context| context.authorized);
        let confirmed = request.extensions().get::<Confirmed>().cloned();
        if !(authorized && self.allow_overrides) {
            self.authenticate(&mut request, confirmed).await;
        }
        let mut response = self.next.call(request).await;
        if let Some(domain) = response.headers().get(DOMAIN_SYSMETA).cloned() {
            response.headers_mut().insert(DOMAIN, domain);
        }
        response
    }

    /// Puts the authorizer into the request's context.
    async fn authenticate(&self, request: &mut Request, confirmed: Option<Confirmed>) {
        if let Some(confirmed) = &confirmed {
            self.keep_domain(request, confirmed).await;
        }
        let context = request.extensions_mut().get_or_insert_default::<Context>();
        // An override that the conf does not allow is ignored.
        context.authorized = false;
        context.authorizer = Some(match confirmed {
            None => self.anonymous.clone(),
            Some(confirmed) => {
                let user = &confirmed.user.user;
                debug!(user = user.id, "authenticated");
                context.reseller |=
                    lower(&confirmed.user.roles).contains(&self.core.reseller_admin_role);
                let id = if user.id.is_empty() {
                    &user.name
                } else {
                    &user.id
                };
                context.notes.set_user(id.as_str());
                Arc::new(Authorizer::new(self.core.clone(), Some(confirmed)))
            }
        });
    }

    /// Stores the project's domain with the account, if the request may create the account or
    /// provides an unknown domain: names in ACLs are valid only in the default domain.
    async fn keep_domain(&self, request: &mut Request, confirmed: &Confirmed) {
        if request.headers().contains_key(DOMAIN_SYSMETA) {
            return;
        }
        let Ok(path) = unquote(request.uri().path()) else {
            return;
        };
        let account = match split_path(&path, 2, 4, true).as_deref() {
            Some([_, Some(account), None, None])
                if [Method::PUT, Method::POST].contains(request.method()) =>
            {
                *account
            }
            Some([_, Some(account), Some(_), None]) if request.method() == Method::PUT => *account,
            _ => return,
        };
        let context = Context::of_request(request);
        let (exists, kept) = self.core.kept_domain(&context, account).await;
        if let Some(domain) = self.domain_to_keep(account, confirmed, exists, kept.as_deref())
            && let Ok(value) = HeaderValue::from_bytes(domain.as_bytes())
        {
            request.headers_mut().insert(DOMAIN_SYSMETA, value);
        }
    }

    fn domain_to_keep<'c>(
        &self,
        account: &str,
        confirmed: &'c Confirmed,
        exists: bool,
        kept: Option<&str>,
    ) -> Option<&'c str> {
        // The token contains the domain of its own project's accounts only.
        let told: Option<Option<&str>> = confirmed
            .user
            .project
            .as_ref()
            .filter(|project| self.core.is_account_of(account, &project.id))
            .map(|project| Some(project.domain.id.as_str()).filter(|id| !id.is_empty()));
        let default = self.core.default_domain_id.as_str();
        match (exists, kept, told) {
            (false, _, Some(told)) => told,
            (false, _, None) => Some(UNKNOWN_DOMAIN),
            (true, None, Some(Some(told))) if told == default => Some(told),
            (true, Some(UNKNOWN_DOMAIN), Some(told)) => Some(told.unwrap_or("")),
            (true, kept, Some(told)) if kept != told => {
                warn!(
                    account,
                    kept, told, "the token and the account name different domains for one project"
                );
                None
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
