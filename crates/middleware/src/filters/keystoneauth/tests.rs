//! Tables of decisions by identity, request and ACL.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::keystone::{Holder, Named, Project};
use crate::testing::{OneOfEach, env, filter_in, header, request};
use cairn_http::{AccountInfo, ContainerInfo, handler_fn, respond};
use http::StatusCode;

fn named(id: &str) -> Named {
    Named {
        id: format!("{id}_id"),
        name: id.into(),
    }
}

fn domain(id: &str) -> Named {
    Named {
        id: id.into(),
        name: id.into(),
    }
}

fn holder(user: &str, project: &str, domain_id: &str, roles: &[&str]) -> Holder {
    let Named { id, name } = named(project);
    Holder {
        user: named(user),
        user_domain: domain(domain_id),
        project: Some(Project {
            id,
            name,
            domain: domain(domain_id),
        }),
        roles: roles.iter().map(|r| (*r).to_owned()).collect(),
        ..Holder::default()
    }
}

fn confirmed(user: Holder, service: Option<Holder>) -> Option<Confirmed> {
    Some(Confirmed {
        user: Arc::new(user),
        service: service.map(Arc::new),
        built_in: false,
    })
}

/// A member of the project `p` with these roles.
fn member(roles: &[&str]) -> Option<Confirmed> {
    confirmed(holder("u", "p", "default", roles), None)
}

/// An existing account with this stored domain.
fn account(kept: Option<&str>) -> AccountInfo {
    let mut info = AccountInfo {
        status: 204,
        ..AccountInfo::default()
    };
    if let Some(kept) = kept {
        info.sysmeta.insert("project-domain-id".into(), kept.into());
    }
    info
}

struct Store {
    options: Vec<(&'static str, &'static str)>,
    account: AccountInfo,
    sync_key: Option<String>,
}

impl Store {
    fn new(options: &[(&'static str, &'static str)]) -> Store {
        Store {
            options: options.to_vec(),
            account: account(None),
            sync_key: None,
        }
    }

    /// Sends a request through the filter to a proxy with the given `acl`; returns the status,
    /// whether the requester owns the account, and the domain sent along.
    async fn send(
        &self,
        who: Option<Confirmed>,
        mut sent: Request,
        acl: Option<&str>,
    ) -> (u16, bool, Option<String>) {
        let container = ContainerInfo {
            sync_key: self.sync_key.clone(),
            ..ContainerInfo::default()
        };
        let environment = FilterEnv {
            info_source: Arc::new(OneOfEach {
                account: Arc::new(self.account.clone()),
                container: Arc::new(container),
            }),
            ..env()
        };
        let acl = acl.map(str::to_owned);
        let proxy = handler_fn(move |request: Request| {
            let acl = acl.clone();
            async move {
                let (parts, _) = request.into_parts();
                let context = Context::of(&parts);
                if context.authorized {
                    return respond::empty(StatusCode::IM_A_TEAPOT);
                }
                let authorizer = context.authorizer.unwrap();
                let mut response = match authorizer.authorize(&parts, acl.as_deref()).await {
                    Ok(granted) => {
                        let mut response = respond::empty(StatusCode::OK);
                        respond::set(response.headers_mut(), "owner", granted.owner.to_string());
                        response
                    }
                    Err(denied) => denied,
                };
                if let Some(domain) = parts.headers.get(DOMAIN_SYSMETA) {
                    response
                        .headers_mut()
                        .insert(DOMAIN_SYSMETA, domain.clone());
                }
                response
            }
        });
        let app = filter_in(&environment, "keystoneauth", &self.options, proxy);
        if let Some(who) = who {
            sent.extensions_mut().insert(who);
        }
        let response = app.call(sent).await;
        (
            response.status().as_u16(),
            header(&response, "owner").as_deref() == Some("true"),
            header(&response, DOMAIN.as_str()),
        )
    }

    async fn ask(
        &self,
        who: Option<Confirmed>,
        method: &str,
        path: &str,
        acl: &str,
    ) -> (u16, bool) {
        let (status, owner, _) = self.send(who, request(method, path, &[]), Some(acl)).await;
        (status, owner)
    }

    async fn kept(&self, who: Option<Confirmed>, method: &str, path: &str) -> Option<String> {
        self.send(who, request(method, path, &[]), None).await.2
    }
}

const OWNER: (u16, bool) = (200, true);
const USER: (u16, bool) = (200, false);
const NO: (u16, bool) = (403, false);
const NOBODY: (u16, bool) = (401, false);

#[tokio::test]
async fn roles_on_the_projects_own_account() {
    let store = Store::new(&[
        ("system_reader_roles", "Auditor"),
        ("project_reader_roles", "reader"),
    ]);
    let own = "/v1/AUTH_p_id";
    for (roles, method, path, expected) in [
        (&["admin"][..], "GET", own, OWNER),
        (&["SwiftOperator"], "PUT", "/v1/AUTH_p_id/c", OWNER),
        (&["member"], "GET", own, NO),
        (&["member"], "OPTIONS", own, USER),
        (&["reader"], "GET", "/v1/AUTH_p_id/c/o", USER),
        (&["reader"], "HEAD", own, USER),
        (&["reader"], "PUT", "/v1/AUTH_p_id/c", NO),
        (&["reader"], "GET", "/v1/AUTH_other", NO),
        (&["admin"], "GET", "/v1/AUTH_other", NO),
        (&["admin"], "GET", "/v1/OTHER_p_id", NO),
        (&["admin"], "DELETE", own, NO),
        (&["admin"], "DELETE", "/v1/AUTH_p_id/c", OWNER),
        (&["ResellerAdmin"], "DELETE", "/v1/AUTH_other", OWNER),
        (&["reselleradmin"], "PUT", "/v1/AUTH_other/c", OWNER),
        (&["auditor"], "GET", "/v1/AUTH_other/c", USER),
        (&["auditor"], "PUT", "/v1/AUTH_other/c", NO),
        (&["auditor", "admin"], "PUT", "/v1/AUTH_p_id/c", OWNER),
    ] {
        let got = store.ask(member(roles), method, path, "").await;
        assert_eq!(got, expected, "{roles:?} {method} {path}");
    }
    assert_eq!(store.ask(None, "GET", own, "").await, NOBODY);
    assert_eq!(store.ask(None, "OPTIONS", own, "").await, USER);
    let mut unscoped = holder("u", "p", "default", &["admin"]);
    unscoped.project = None;
    assert_eq!(
        store.ask(confirmed(unscoped, None), "GET", own, "").await,
        NO
    );
}

#[tokio::test]
async fn prefixes_with_rules_of_their_own() {
    let store = Store::new(&[
        ("reseller_prefix", "AUTH, SERVICE, ''"),
        ("operator_roles", "admin"),
        ("SERVICE_operator_roles", "admin, glance"),
        ("SERVICE_service_roles", "service"),
        ("''operator_roles", "bare"),
    ]);
    let with_service = |roles: &[&str], service: &[&str]| {
        let service = holder("s", "services", "default", service);
        confirmed(holder("u", "p", "default", roles), Some(service))
    };
    for (who, path, expected) in [
        (member(&["admin"]), "/v1/AUTH_p_id/c", OWNER),
        (member(&["glance"]), "/v1/AUTH_p_id/c", NO),
        (member(&["admin"]), "/v1/SERVICE_p_id/c", NO),
        (
            with_service(&["admin"], &["Service"]),
            "/v1/SERVICE_p_id/c",
            OWNER,
        ),
        (
            with_service(&["glance"], &["service"]),
            "/v1/SERVICE_p_id/c",
            OWNER,
        ),
        (
            with_service(&["member"], &["service"]),
            "/v1/SERVICE_p_id/c",
            NO,
        ),
        (
            with_service(&["admin"], &["other"]),
            "/v1/SERVICE_p_id/c",
            NO,
        ),
        (
            with_service(&["admin"], &["other"]),
            "/v1/AUTH_p_id/c",
            OWNER,
        ),
        (member(&["bare"]), "/v1/p_id/c", OWNER),
        (member(&["admin"]), "/v1/p_id/c", NO),
    ] {
        assert_eq!(store.ask(who, "PUT", path, "").await, expected, "{path}");
    }
}

#[tokio::test]
async fn lists_of_containers() {
    let store = Store::new(&[]);
    let path = "/v1/AUTH_other_id/c/o";
    for (acl, expected) in [
        ("p_id:u_id", USER),
        ("p:u", USER),
        ("p_id:u", USER),
        ("p_id:*", USER),
        ("*:u_id", USER),
        ("*:*", USER),
        ("p%5Fid:u_id", USER),
        ("p_id:x", NO),
        ("x:u_id", NO),
        ("p_id", NO),
        ("u_id", NO),
        ("member", NO),
        ("*", NO),
        (".r:*", USER),
        (".r:-*,.r:example.com", NO),
        ("", NO),
    ] {
        let got = store.ask(member(&["member"]), "GET", path, acl).await;
        assert_eq!(got, expected, "{acl}");
    }
    for (acl, path, expected) in [
        ("Member", "/v1/AUTH_p_id/c", USER),
        ("other,MEMBER", "/v1/AUTH_p_id/c/o", USER),
        ("other", "/v1/AUTH_p_id/c/o", NO),
        // The referrer matches, for a listing that is not public: roles no longer count.
        (".r:*,member", "/v1/AUTH_p_id/c", NO),
        (".r:*,.rlistings", "/v1/AUTH_p_id/c", USER),
    ] {
        let got = store.ask(member(&["member"]), "GET", path, acl).await;
        assert_eq!(got, expected, "{acl} {path}");
    }
    for (acl, path, expected) in [
        (".r:*", "/v1/AUTH_p_id/c/o", USER),
        (".r:*", "/v1/AUTH_p_id/c", NOBODY),
        (".r:*,.rlistings", "/v1/AUTH_p_id/c", USER),
        ("*:*", "/v1/AUTH_p_id/c/o", NOBODY),
        (".r:*", "/v1/OTHER_p_id/c/o", NOBODY),
    ] {
        assert_eq!(
            store.ask(None, "GET", path, acl).await,
            expected,
            "{acl} {path}"
        );
    }
}

#[tokio::test]
async fn owners_own_what_a_list_grants_to_all() {
    let owner = |built_in| {
        let mut who = member(&["admin"]).unwrap();
        who.built_in = built_in;
        Some(who)
    };
    let (upstreams, before) = (
        Store::new(&[]),
        Store::new(&[("owners_before_acls", "yes")]),
    );
    let path = "/v1/AUTH_p_id/c/o";
    for acl in [".r:*", ".r:*,.rlistings", "p_id:u_id", "*:*"] {
        assert_eq!(upstreams.ask(owner(false), "GET", path, acl).await, USER);
        assert_eq!(upstreams.ask(owner(true), "GET", path, acl).await, OWNER);
        assert_eq!(before.ask(owner(false), "GET", path, acl).await, OWNER);
        let other = "/v1/AUTH_other_id/c/o";
        assert_eq!(before.ask(owner(true), "GET", other, acl).await, USER);
    }
    // Removing accounts is still reserved to administrators of all accounts.
    let gone = before.ask(owner(true), "DELETE", "/v1/AUTH_p_id", "");
    assert_eq!(gone.await, NO);
}

#[tokio::test]
async fn names_count_in_the_default_domain_alone() {
    let path = "/v1/AUTH_other_id/c/o";
    let of_domain = |id: &str| confirmed(holder("u", "p", id, &["member"]), None);
    let by_name = "p:u";
    let mut store = Store::new(&[]);
    for (user_domain, kept, expected) in [
        ("default", Some("default"), USER),
        ("default", None, USER),
        ("", None, USER),
        ("default", Some("elsewhere"), NO),
        ("default", Some("_unknown"), NO),
        ("default", Some(""), NO),
        ("elsewhere", Some("default"), NO),
    ] {
        store.account = account(kept);
        let got = store
            .ask(of_domain(user_domain), "GET", path, by_name)
            .await;
        assert_eq!(got, expected, "{user_domain} {kept:?}");
        let by_id = store
            .ask(of_domain(user_domain), "GET", path, "p_id:u_id")
            .await;
        assert_eq!(by_id, USER);
    }
    store.account = AccountInfo {
        pretended: true,
        ..account(None)
    };
    assert_eq!(
        store.ask(of_domain("default"), "GET", path, by_name).await,
        NO
    );
    let own = "/v1/AUTH_p_id/c/o";
    assert_eq!(
        store.ask(of_domain("default"), "GET", own, by_name).await,
        USER
    );

    let elsewhere = Store::new(&[("default_domain_id", "elsewhere")]);
    assert_eq!(
        elsewhere
            .ask(of_domain("elsewhere"), "GET", path, by_name)
            .await,
        USER
    );
    let never = Store::new(&[("allow_names_in_acls", "false")]);
    assert_eq!(
        never.ask(of_domain("default"), "GET", path, by_name).await,
        NO
    );
    assert_eq!(
        never
            .ask(of_domain("default"), "GET", path, "p_id:u_id")
            .await,
        USER
    );
}

#[tokio::test]
async fn the_domain_is_kept_with_the_account() {
    let missing = AccountInfo {
        pretended: true,
        ..account(None)
    };
    let of_domain = |id: &str| confirmed(holder("u", "p", id, &["admin"]), None);
    let (own, other) = ("/v1/AUTH_p_id", "/v1/AUTH_other");
    for (info, who, method, path, expected) in [
        (
            &missing,
            of_domain("d"),
            "PUT",
            "/v1/AUTH_p_id/c",
            Some("d"),
        ),
        (&missing, of_domain("d"), "POST", own, Some("d")),
        (&missing, of_domain("d"), "PUT", "/v1/AUTH_p_id/c/o", None),
        (&missing, of_domain("d"), "POST", "/v1/AUTH_p_id/c", None),
        (&missing, of_domain("d"), "GET", own, None),
        (&missing, of_domain(""), "PUT", own, None),
        (
            &missing,
            member(&["ResellerAdmin"]),
            "PUT",
            other,
            Some("_unknown"),
        ),
        (
            &account(None),
            of_domain("default"),
            "POST",
            own,
            Some("default"),
        ),
        (&account(None), of_domain("d"), "POST", own, None),
        (
            &account(Some("_unknown")),
            of_domain("d"),
            "POST",
            own,
            Some("d"),
        ),
        (
            &account(Some("_unknown")),
            of_domain("d"),
            "POST",
            other,
            None,
        ),
        (&account(Some("e")), of_domain("d"), "POST", own, None),
        (&missing, None, "PUT", own, None),
    ] {
        let mut store = Store::new(&[]);
        store.account = info.clone();
        let kept = store.kept(who, method, path).await;
        assert_eq!(kept.as_deref(), expected, "{info:?} {method} {path}");
    }
}

#[tokio::test]
async fn overrides_and_sync_keys() {
    for (allowed, expected) in [("true", 418), ("false", 401)] {
        let store = Store::new(&[("allow_overrides", allowed)]);
        let mut sent = request("GET", "/v1/AUTH_p_id/c/o", &[]);
        sent.extensions_mut().insert(Context {
            authorized: true,
            ..Context::default()
        });
        assert_eq!(store.send(None, sent, None).await.0, expected);
    }
    let mut store = Store::new(&[]);
    store.sync_key = Some("secret".into());
    for (key, timestamp, expected) in [
        ("secret", Some("1"), 200),
        ("wrong", Some("1"), 401),
        ("secret", None, 401),
    ] {
        let mut headers = vec![("x-container-sync-key", key)];
        headers.extend(timestamp.map(|t| ("x-timestamp", t)));
        let sent = request("PUT", "/v1/AUTH_p_id/c/o", &headers);
        assert_eq!(store.send(None, sent, None).await.0, expected, "{key}");
    }
}
