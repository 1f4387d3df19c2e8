//! The account server: account databases over HTTP, with the backend protocol of OpenStack Swift's
//! proxies, container servers and updaters.
//!
//! `PUT`, `POST`, `DELETE`, `HEAD`, `GET` of `/<device>/<partition>/<account>`; `PUT` of
//! `…/<container>` comes from container servers, for deletions too; `REPLICATE` from replicators.

mod delete;
mod get;
mod post;
mod put;
#[cfg(test)]
mod tests;
mod updates;

use std::sync::Arc;

use cairn_http::{Clock, Request, Response, Service, ServiceFuture};
use cairn_index::{AccountDb, AccountInfo, DbKind, IndexPool, Reserve};
use cairn_types::{Constraints, HashPath, PolicySet, ServerKind};
use http::request::Parts;
use http::{HeaderMap, Method};

use crate::index_server::replicate::Replicated;
use crate::index_server::status::Refused;
use crate::index_server::{self, Answer, RequestPath, drive_check, set};

/// Options of `account-server.conf` that concern the server itself.
#[derive(Clone)]
pub struct AccountServerConfig {
    pub hash_path: HashPath,
    pub policies: Arc<PolicySet>,
    pub constraints: Constraints,
    pub mount_check: bool,
    /// Space that must stay free on a device; nothing is added below it.
    pub fallocate_reserve: Option<Reserve>,
    pub clock: Clock,
}

impl AccountServerConfig {
    /// Swift's defaults.
    pub fn new(hash_path: HashPath, policies: Arc<PolicySet>) -> Self {
        AccountServerConfig {
            hash_path,
            policies,
            constraints: Constraints::default(),
            mount_check: true,
            fallocate_reserve: Some(Reserve::Percent(1.0)),
            clock: Clock::system(),
        }
    }
}

pub struct AccountServer {
    config: AccountServerConfig,
    pool: Arc<IndexPool>,
}

/// A request with its parsed path.
struct AccountRequest {
    target: RequestPath,
    parts: Parts,
}

impl AccountRequest {
    fn headers(&self) -> &HeaderMap {
        &self.parts.headers
    }
}

impl AccountServer {
    pub fn new(config: AccountServerConfig, pool: Arc<IndexPool>) -> Arc<Self> {
        Arc::new(AccountServer { config, pool })
    }

    async fn answer(&self, request: Request) -> Answer {
        let (parts, body) = request.into_parts();
        let method = parts.method.clone();
        if method == Method::OPTIONS {
            return Ok(options());
        }
        if method.as_str() == "REPLICATE" {
            let replicated = Replicated {
                pool: &self.pool,
                kind: DbKind::Account,
                mount_check: self.config.mount_check,
                reserve: self.config.fallocate_reserve,
            };
            return replicated.answer(parts.uri.path(), body).await;
        }
        if !METHODS.contains(&method.as_str()) {
            return Err(Refused::MethodNotAllowed);
        }
        let most = if method == Method::PUT { 4 } else { 3 };
        let target = RequestPath::of(parts.uri.path(), (3, most))?;
        target.check_reserved(&self.config.constraints.auto_create_account_prefix)?;
        let asked = AccountRequest { target, parts };
        match method.as_str() {
            "PUT" if asked.target.container.is_some() => self.put_container(asked).await,
            "PUT" => self.put(asked).await,
            "POST" => self.post(asked).await,
            "DELETE" => self.delete(asked).await,
            "HEAD" => self.head(asked).await,
            "GET" => self.get(asked).await,
            _ => Err(Refused::MethodNotAllowed),
        }
    }

    /// Handle of the database for reads and deletions.
    fn db(&self, target: &RequestPath) -> AccountDb {
        self.pool
            .account(
                &self.config.hash_path,
                &target.device,
                &target.partition,
                &target.account,
            )
            .checked(drive_check(self.config.mount_check, None))
    }

    /// Handle of the database for additions, which need free space.
    fn db_to_fill(&self, target: &RequestPath) -> AccountDb {
        let reserve = self.config.fallocate_reserve;
        self.db(target)
            .checked(drive_check(self.config.mount_check, reserve))
    }

    fn new_metadata(&self, asked: &AccountRequest) -> Result<Vec<(String, String)>, Refused> {
        index_server::metadata_of(asked.headers(), ServerKind::Account, &[])
    }
}

/// Headers that mark an account as deleted, until it is reclaimed.
fn status_headers(info: &AccountInfo) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if info.is_status_deleted() {
        set(&mut headers, "X-Account-Status", "Deleted");
    }
    headers
}

fn deleted(info: &AccountInfo) -> Refused {
    Refused::NotFoundWith(Box::new(status_headers(info)))
}

const METHODS: [&str; 5] = ["PUT", "POST", "DELETE", "HEAD", "GET"];

fn options() -> Response {
    index_server::options(
        "DELETE, GET, HEAD, OPTIONS, POST, PUT, REPLICATE",
        concat!("account-server/", env!("CARGO_PKG_VERSION")),
    )
}

impl Service for AccountServer {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        Box::pin(async move {
            let is_head = request.method() == Method::HEAD;
            index_server::response(self.answer(request).await, is_head)
        })
    }
}
