//! Container requests: GET, HEAD, PUT, POST, DELETE.

use cairn_formats::acl;
use cairn_http::{Response, respond};
use cairn_types::ServerKind;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, Method, StatusCode};

use crate::checks;
use crate::headers;
use crate::request::Incoming;
use crate::shards::{self, Listed};
use crate::state::Proxy;
use crate::status;
use crate::write::Write;

/// Verb with which middleware adds rows to a container.
pub(crate) const UPDATE: &str = "UPDATE";
/// Maximum bytes of an `UPDATE`'s rows in JSON.
const UPDATE_BYTES_MAX: u64 = 64 << 20;

impl Proxy {
    pub(crate) async fn container(
        &self,
        incoming: &mut Incoming,
        account: &str,
        container: &str,
    ) -> Response {
        match *incoming.method() {
            Method::GET | Method::HEAD => self.container_read(incoming, account, container).await,
            Method::PUT => self.container_put(incoming, account, container).await,
            Method::POST => self.container_post(incoming, account, container).await,
            _ if incoming.method().as_str() == UPDATE => {
                self.container_update(incoming, account, container).await
            }
            _ => self.container_delete(incoming, account, container).await,
        }
    }

    async fn container_read(
        &self,
        incoming: &mut Incoming,
        account: &str,
        container: &str,
    ) -> Response {
        if incoming.method() == Method::GET {
            let most = self.constraints.container_listing_limit;
            if let Err(refused) = checks::check_listing_limit(&incoming.params, most) {
                return refused;
            }
        }
        let internal = account.starts_with(&self.constraints.auto_create_account_prefix);
        if !internal && !self.known_account(&incoming.context, account).await.stored {
            // Whether the account exists is revealed only to authorized users.
            return match self.authorize(incoming, None).await {
                Err(denied) => denied,
                Ok(()) => status::no_such_account(),
            };
        }
        if self.asks_for_changes(incoming) {
            return Box::pin(self.container_changes(incoming, account, container)).await;
        }
        if incoming.method() == Method::GET {
            incoming.params.set("format", "json");
            // The servers know it, whether the proxy's feed is on or not.
            incoming.params.remove("changes");
        }
        let Listed {
            mut response,
            cached,
        } = match *incoming.method() {
            Method::GET => self.container_listing(incoming).await,
            _ => Listed {
                response: self.read_index(incoming, ServerKind::Container).await,
                cached: false,
            },
        };
        let info = match self.containers.get(&format!("{account}/{container}")) {
            Some(info) if cached => info,
            _ => {
                let (status, found) = (response.status().as_u16(), response.headers());
                self.remember_container(account, container, status, found)
            }
        };
        let read_acl = info.read_acl.as_deref();
        if let Err(denied) = self.authorize(incoming, read_acl).await {
            return denied;
        }
        if !incoming.context.owner {
            let owner_headers = &self.options.swift_owner_headers;
            headers::strip_owner_headers(response.headers_mut(), owner_headers);
        }
        if incoming.context.reseller {
            shards::show_sharding(&mut response);
        }
        response
    }

    async fn container_put(
        &self,
        incoming: &mut Incoming,
        account: &str,
        container: &str,
    ) -> Response {
        if let Err(refused) = self.prepare_write(incoming).await {
            return refused;
        }
        let policy = match self.chosen_policy(incoming) {
            Ok(policy) => policy,
            Err(refused) => return refused,
        };
        let checked =
            checks::check_name_length(ServerKind::Container, account, container, &self.constraints);
        if let Err(refused) = checked {
            return refused;
        }
        let mut known = self.known_account(&incoming.context, account).await;
        if !known.stored && self.options.account_autocreate && known.info.status != 410 {
            let cause = incoming.headers().clone();
            if !self
                .autocreate_account(&incoming.context, &cause, account)
                .await
            {
                return status::unavailable();
            }
            known = self.known_account(&incoming.context, account).await;
        }
        if !known.stored {
            return status::no_such_account();
        }
        let most = self.options.max_containers_per_account;
        let exempt = self
            .options
            .max_containers_whitelist
            .iter()
            .any(|a| a == account);
        if most > 0 && known.info.container_count >= most && !exempt {
            let info = self
                .container_info(&incoming.context, account, container)
                .await;
            if !info.exists() {
                return status::too_many_containers(most);
            }
        }
        let (name, index) = match policy {
            Some(index) => (headers::POLICY_INDEX, index),
            None => (
                "x-backend-storage-policy-default",
                self.policies.default_policy().index.0,
            ),
        };
        let mut base = headers::with_metadata(incoming, ServerKind::Container);
        headers::insert(&mut base, name, &index.to_string());
        let response = self
            .container_request(incoming, account, container, Method::PUT, base, true)
            .await;
        self.forget_container(account, container);
        response
    }

    async fn container_post(
        &self,
        incoming: &mut Incoming,
        account: &str,
        container: &str,
    ) -> Response {
        if let Err(refused) = self.prepare_write(incoming).await {
            return refused;
        }
        if !self.known_account(&incoming.context, account).await.stored {
            return status::no_such_account();
        }
        let base = headers::with_metadata(incoming, ServerKind::Container);
        let response = self
            .container_request(incoming, account, container, Method::POST, base, false)
            .await;
        self.forget_container(account, container);
        response
    }

    async fn container_delete(
        &self,
        incoming: &mut Incoming,
        account: &str,
        container: &str,
    ) -> Response {
        if let Err(denied) = self.authorize(incoming, None).await {
            return denied;
        }
        if !self.known_account(&incoming.context, account).await.stored {
            return status::no_such_account();
        }
        let mut base = headers::base(incoming);
        let index = self.policies.default_policy().index.0.to_string();
        headers::insert(&mut base, "x-backend-storage-policy-default", &index);
        let response = self
            .container_request(incoming, account, container, Method::DELETE, base, true)
            .await;
        self.forget_container(account, container);
        if response.status() == StatusCode::ACCEPTED {
            // No server had the container.
            return status::no_such_container();
        }
        response
    }

    /// Adds rows to a container unchanged, for middleware that queues tasks in containers; not
    /// available to clients.
    async fn container_update(
        &self,
        incoming: &mut Incoming,
        account: &str,
        container: &str,
    ) -> Response {
        let body = std::mem::take(&mut incoming.body);
        let rows = match body.collect(UPDATE_BYTES_MAX).await {
            Ok(rows) => rows,
            Err(error) => return status::malformed(error.to_string()),
        };
        let ring = incoming.network_of(self.rings.container());
        let partition = ring.partition(&self.hash_path, account, Some(container), None);
        let mut base = headers::base(incoming);
        base.insert(CONTENT_LENGTH, rows.len().into());
        let headers = vec![base; ring.primaries(partition).len()];
        let (path, method) = (incoming.target.entity_path(), incoming.method().clone());
        let mut write = Write::new(ring, partition, method, path, headers);
        write.body = rows;
        self.write(write).await
    }

    /// Common steps of PUT and POST: authorization, ACL syntax, metadata limits.
    async fn prepare_write(&self, incoming: &mut Incoming) -> Result<(), Response> {
        self.authorize(incoming, None).await?;
        shards::take_sharding(incoming);
        for name in ["x-container-read", "x-container-write"] {
            let Some(value) = respond::header(incoming.headers(), name) else {
                continue;
            };
            match acl::clean_acl(name, value) {
                Ok(cleaned) => {
                    let name = HeaderName::from_static(name);
                    if let Some(value) = respond::value(&cleaned) {
                        incoming.parts.headers.insert(name, value);
                    }
                }
                Err(error) => {
                    return Err(status::malformed(error.to_string()));
                }
            }
        }
        checks::check_metadata(incoming.headers(), ServerKind::Container, &self.constraints)?;
        if !incoming.context.owner && incoming.context.authorizer.is_some() {
            let owner_headers = &self.options.swift_owner_headers;
            headers::strip_owner_headers(&mut incoming.parts.headers, owner_headers);
        }
        Ok(())
    }

    /// Index of the policy named by `X-Storage-Policy`.
    fn chosen_policy(&self, incoming: &Incoming) -> Result<Option<u32>, Response> {
        let Some(name) = incoming
            .header("x-storage-policy")
            .filter(|n| !n.is_empty())
        else {
            return Ok(None);
        };
        match self.policies.by_name(name) {
            None => Err(status::malformed(format!(
                "Invalid X-Storage-Policy '{name}'"
            ))),
            Some(policy) if policy.deprecated => Err(status::malformed(format!(
                "Storage Policy '{}' is deprecated",
                policy.name
            ))),
            Some(policy) => Ok(Some(policy.index.0)),
        }
    }

    async fn container_request(
        &self,
        incoming: &Incoming,
        account: &str,
        container: &str,
        method: Method,
        base: HeaderMap,
        tell_account: bool,
    ) -> Response {
        let ring = incoming.network_of(self.rings.container());
        let partition = ring.partition(&self.hash_path, account, Some(container), None);
        let replicas = ring.primaries(partition).len();
        let mut headers = vec![base; replicas];
        if tell_account && replicas > 0 {
            let accounts = incoming.network_of(self.rings.account());
            let partition = accounts.partition(&self.hash_path, account, None, None);
            for (i, node) in accounts.primaries(partition).iter().enumerate() {
                let headers = &mut headers[i % replicas];
                headers::insert(headers, "x-account-partition", &partition.to_string());
                headers::append_csv(headers, "x-account-host", &node.host());
                headers::append_csv(headers, "x-account-device", &node.device.device);
            }
        }
        let path = incoming.target.entity_path();
        self.write(Write::new(ring, partition, method, path, headers))
            .await
    }
}
