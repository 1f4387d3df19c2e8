//! Account requests: GET, HEAD, PUT, POST, DELETE, and automatic creation on the first write.

use cairn_formats::acl;
use cairn_http::{Context, Response, respond};
use cairn_types::ServerKind;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use tracing::{info, warn};

use crate::checks;
use crate::headers;
use crate::request::{Incoming, network_of};
use crate::state::Proxy;
use crate::status;
use crate::write::Write;

const ACL: &str = "x-account-access-control";
const STORED_ACL: &str = "x-account-sysmeta-core-access-control";

impl Proxy {
    pub(crate) async fn account(&self, incoming: &mut Incoming, account: &str) -> Response {
        let method = incoming.method().clone();
        let managed = [Method::PUT, Method::DELETE].contains(&method);
        if managed && !self.options.allow_account_management {
            return self.not_allowed(&incoming.target);
        }
        if let Err(refused) =
            checks::check_name_length(ServerKind::Account, account, account, &self.constraints)
        {
            return refused;
        }
        if let Err(denied) = self.authorize(incoming, None).await {
            return denied;
        }
        match method {
            Method::GET | Method::HEAD => self.account_read(incoming, account).await,
            Method::PUT | Method::POST => self.account_write(incoming, account).await,
            _ => self.account_delete(incoming, account).await,
        }
    }

    async fn account_read(&self, incoming: &mut Incoming, account: &str) -> Response {
        let most = self.constraints.account_listing_limit;
        if let Err(refused) = checks::check_listing_limit(&incoming.params, most) {
            return refused;
        }
        incoming.params.set("format", "json");
        let mut response = self.read_index(incoming, ServerKind::Account).await;
        self.remember_account(account, response.status().as_u16(), response.headers());
        if response.status() == StatusCode::NOT_FOUND {
            let status = respond::header(response.headers(), "x-account-status");
            if status.is_some_and(|s| s.eq_ignore_ascii_case("deleted")) {
                let headers = std::mem::take(response.headers_mut());
                response = status::deleted_account();
                merge(response.headers_mut(), headers);
            } else if self.options.account_autocreate {
                response = self.pretended_account(incoming);
            }
        }
        if incoming.context.owner {
            show_acl(&mut response);
        } else {
            let owner_headers = &self.options.swift_owner_headers;
            headers::strip_owner_headers(response.headers_mut(), owner_headers);
            response.headers_mut().remove(STORED_ACL);
        }
        response
    }

    /// The response for an account that will be created by its first write: empty.
    fn pretended_account(&self, incoming: &Incoming) -> Response {
        let json = "application/json; charset=utf-8";
        let mut response = match *incoming.method() {
            Method::HEAD => status::known_to_be_empty(json),
            _ => status::known(json, "[]"),
        };
        let headers = response.headers_mut();
        for name in [
            "x-account-container-count",
            "x-account-object-count",
            "x-account-bytes-used",
        ] {
            headers.insert(name, HeaderValue::from_static("0"));
        }
        respond::set(headers, "x-timestamp", incoming.timestamp.normal());
        headers.insert(
            "x-backend-fake-account-listing",
            HeaderValue::from_static("yes"),
        );
        response
    }

    async fn account_write(&self, incoming: &mut Incoming, account: &str) -> Response {
        let checked =
            checks::check_metadata(incoming.headers(), ServerKind::Account, &self.constraints);
        if let Err(refused) = checked {
            return refused;
        }
        store_acl(&mut incoming.parts.headers);
        let method = incoming.method().clone();
        let mut response = self
            .account_request(incoming, account, method.clone())
            .await;
        if method == Method::POST
            && response.status() == StatusCode::NOT_FOUND
            && self.options.account_autocreate
            && self
                .autocreate_account(&incoming.context, incoming.headers(), account)
                .await
        {
            incoming.timestamp = self.clock.unique();
            response = self.account_request(incoming, account, method).await;
        }
        self.forget_account(account);
        show_acl(&mut response);
        response
    }

    async fn account_delete(&self, incoming: &mut Incoming, account: &str) -> Response {
        // A query string here belongs to a middleware that is not in the pipeline.
        if !incoming.params.is_empty() {
            return status::stray_query();
        }
        let response = self
            .account_request(incoming, account, Method::DELETE)
            .await;
        self.forget_account(account);
        response
    }

    async fn account_request(
        &self,
        incoming: &Incoming,
        account: &str,
        method: Method,
    ) -> Response {
        let ring = incoming.network_of(self.rings.account());
        let partition = ring.partition(&self.hash_path, account, None, None);
        let headers = if method == Method::DELETE {
            headers::base(incoming)
        } else {
            headers::with_metadata(incoming, ServerKind::Account)
        };
        let replicas = ring.primaries(partition).len();
        let path = incoming.target.entity_path();
        let write = Write::new(ring, partition, method, path, vec![headers; replicas]);
        self.write(write).await
    }

    /// Creates an account because its first container is about to be created. The system metadata
    /// of the causing request is stored with it.
    pub(crate) async fn autocreate_account(
        &self,
        context: &Context,
        cause: &HeaderMap,
        account: &str,
    ) -> bool {
        let mut headers = HeaderMap::new();
        headers::insert(&mut headers, "x-timestamp", &self.clock.unique().internal());
        headers::insert(&mut headers, "x-trans-id", &context.trans_id);
        for (name, value) in cause {
            if name
                .as_str()
                .starts_with(ServerKind::Account.sys_meta_prefix())
            {
                headers.insert(name, value.clone());
            }
        }
        let ring = network_of(self.rings.account(), cause);
        let partition = ring.partition(&self.hash_path, account, None, None);
        let replicas = ring.primaries(partition).len();
        let path = format!("/{account}");
        let write = Write::new(ring, partition, Method::PUT, path, vec![headers; replicas]);
        let response = self.write(write).await;
        self.forget_account(account);
        if response.status().is_success() {
            info!(account, "account made on first use");
        } else {
            warn!(
                account,
                status = response.status().as_u16(),
                "account could not be made"
            );
        }
        response.status().is_success()
    }
}

/// Converts the ACL header as clients write it into system metadata.
fn store_acl(headers: &mut HeaderMap) {
    if headers.contains_key(STORED_ACL) {
        return;
    }
    let Some(text) = respond::header(headers, ACL).map(str::to_owned) else {
        return;
    };
    if let Some(map) = acl::parse_account_acl(&text) {
        let stored = if map.is_empty() {
            String::new()
        } else {
            acl::format_account_acl(&map)
        };
        respond::set(headers, STORED_ACL, stored);
    }
}

/// Converts the ACL's system metadata into the header that clients see.
fn show_acl(response: &mut Response) {
    let headers = response.headers_mut();
    let Some(stored) = headers.remove(STORED_ACL) else {
        return;
    };
    let Ok(text) = std::str::from_utf8(stored.as_bytes()) else {
        return;
    };
    if let Some(map) = acl::parse_account_acl(text).filter(|map| !map.is_empty()) {
        respond::set(headers, ACL, acl::format_account_acl(&map));
    }
}

fn merge(into: &mut HeaderMap, from: HeaderMap) {
    for (name, value) in from {
        if let Some(name) = name.filter(|n| *n != CONTENT_TYPE) {
            into.insert(name, value);
        }
    }
}
