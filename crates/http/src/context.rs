//! What travels with a request through the pipeline: the transaction id, who is asking, who
//! decides whether they may, and notes for the access log. Swift keeps these in the WSGI
//! environment.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use http::request::Parts;
use parking_lot::Mutex;

use crate::service::Response;

/// What an authorizer grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Granted {
    /// The user owns the account: privileged headers (ACLs, sync keys, temp-URL keys) are shown
    /// and may be set.
    pub owner: bool,
}

pub type AuthorizeFuture<'a> = Pin<Box<dyn Future<Output = Result<Granted, Response>> + Send + 'a>>;

/// The decision of an authentication middleware, asked by the proxy once it knows the ACL
/// (`swift.authorize`). `acl`: the container's read or write ACL, as the request's method needs;
/// `None` where the request is about an account, or the container has none.
pub trait Authorize: Send + Sync {
    fn authorize<'a>(&'a self, request: &'a Parts, acl: Option<&'a str>) -> AuthorizeFuture<'a>;
}

/// In every request's extensions from `catch_errors` on; subrequests carry a clone.
#[derive(Clone, Default)]
pub struct Context {
    pub trans_id: Arc<str>,
    /// The client's address, where the request came over a socket.
    pub remote: Option<SocketAddr>,
    /// The client's connection is TLS, which ends here or at a proxy in front of us
    /// (`wsgi.url_scheme`).
    pub is_tls: bool,
    /// Set by an authentication middleware; without one everything is allowed.
    pub authorizer: Option<Arc<dyn Authorize>>,
    /// Who decides is settled, and authentication middleware leave it so: a signature does what
    /// its scope allows, or the proxy itself asks, and then there is no authorizer
    /// (`swift.authorize_override`).
    pub authorized: bool,
    /// The user is known to own the account (`swift_owner`).
    pub owner: bool,
    /// The user is an administrator of all accounts (`reseller_request`).
    pub reseller: bool,
    /// A middleware wrote the content type: it may have `swift_*` parameters, which a client may
    /// not give (`swift.content_type_overridden`).
    pub content_type_overridden: bool,
    /// The request may see reserved (NUL-prefixed) names; and for whom it is made, for the log
    /// (`swift.source`).
    pub allow_reserved: bool,
    pub source: Option<&'static str>,
    /// Manifests of static large objects are stored and shown as they are (`swift.slo_override`).
    pub slo_override: bool,
    /// Static links are stored as they come, whether their target is there or not
    /// (`swift.symlink_override`).
    pub symlink_override: bool,
    /// The path the client asked for, where a middleware changed it.
    pub original_path: Option<Arc<str>>,
    pub notes: Arc<Notes>,
}

/// Facts that inner layers learn and the outermost log line tells. Shared by all clones.
#[derive(Default)]
pub struct Notes {
    user: OnceLock<Arc<str>>,
    log_info: Mutex<Vec<String>>,
    audited: Mutex<Vec<Audited>>,
}

/// Something that an audit log tells: a login, a token, its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audited {
    pub action: &'static str,
    /// As the client named it.
    pub user: String,
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Accepted,
    /// Name, key or token are wrong.
    Wrong,
    /// Not looked at: there were too many tries.
    HeldBack,
    Refused,
}

impl Notes {
    /// The user's name for the log; the first to tell wins.
    pub fn set_user(&self, user: impl Into<Arc<str>>) {
        let _ = self.user.set(user.into());
    }

    pub fn user(&self) -> Option<Arc<str>> {
        self.user.get().cloned()
    }

    /// Adds to the log line's `log_info`; bounded.
    pub fn add(&self, text: impl Into<String>) {
        let mut info = self.log_info.lock();
        if info.len() < 32 {
            info.push(text.into());
        }
    }

    /// For the audit log; bounded.
    pub fn audit(&self, audited: Audited) {
        let mut all = self.audited.lock();
        if all.len() < 32 {
            all.push(audited);
        }
    }

    /// Takes the notes for the audit log.
    pub fn take_audited(&self) -> Vec<Audited> {
        std::mem::take(&mut *self.audited.lock())
    }

    /// What was added, with commas between.
    pub fn log_info(&self) -> String {
        let info = self.log_info.lock();
        info.join(",")
    }
}

impl Context {
    pub fn new(trans_id: impl Into<Arc<str>>) -> Self {
        Context {
            trans_id: trans_id.into(),
            ..Context::default()
        }
    }

    /// The context of a request, or an empty one.
    pub fn of(parts: &Parts) -> Context {
        parts
            .extensions
            .get::<Context>()
            .cloned()
            .unwrap_or_default()
    }

    /// With which URLs that the client is given begin (`wsgi.url_scheme`).
    pub fn scheme(&self) -> &'static str {
        match self.is_tls {
            true => "https",
            false => "http",
        }
    }

    pub fn of_request<B>(request: &http::Request<B>) -> Context {
        request
            .extensions()
            .get::<Context>()
            .cloned()
            .unwrap_or_default()
    }

    /// For a subrequest that the proxy makes on its own authority, named in the log as `source`.
    pub fn pre_authorized(&self, source: &'static str) -> Context {
        Context {
            authorizer: None,
            authorized: true,
            owner: true,
            source: Some(source),
            ..self.clone()
        }
    }

    /// The proxy itself asks: not even a signature's scope limits it.
    pub fn is_pre_authorized(&self) -> bool {
        self.authorized && self.authorizer.is_none()
    }

    /// May the request be made, as far as an ACL decides? The error is the denial.
    pub async fn authorize(&self, request: &Parts, acl: Option<&str>) -> Result<Granted, Response> {
        match &self.authorizer {
            Some(authorizer) => authorizer.authorize(request, acl).await,
            None => Ok(Granted::default()),
        }
    }

    /// For a subrequest made on the client's authority.
    pub fn subrequest(&self, source: &'static str) -> Context {
        Context {
            source: Some(source),
            ..self.clone()
        }
    }
}
