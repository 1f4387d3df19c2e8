//! Request context: the data that travels with a request through the pipeline, such as the
//! transaction id, the authenticated user, the authorizer, and notes for the access log. Swift
//! keeps these in the WSGI environment.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use http::request::Parts;
use parking_lot::Mutex;

use crate::service::Response;

/// Rights that an authorizer grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Granted {
    /// The user owns the account: privileged headers (ACLs, sync keys, temp-URL keys) are visible
    /// and may be set.
    pub owner: bool,
}

pub type AuthorizeFuture<'a> = Pin<Box<dyn Future<Output = Result<Granted, Response>> + Send + 'a>>;

/// The authorizer left by an authentication middleware, called by the proxy once it knows the ACL
/// (`swift.authorize`). `acl` is the container's read or write ACL, whichever the request's method
/// needs; `None` if the request is for an account, or the container has none.
pub trait Authorize: Send + Sync {
    fn authorize<'a>(&'a self, request: &'a Parts, acl: Option<&'a str>) -> AuthorizeFuture<'a>;
}

/// Context in every request's extensions from `catch_errors` on; subrequests carry a clone.
#[derive(Clone, Default)]
pub struct Context {
    pub trans_id: Arc<str>,
    /// The client's address, if the request came over a socket.
    pub remote: Option<SocketAddr>,
    /// The client's address as reported by an HTTP proxy that the conf trusts, which is `remote`.
    pub forwarded_for: Option<IpAddr>,
    /// The client used TLS, which ends here or at a proxy in front of us (`wsgi.url_scheme`).
    pub is_tls: bool,
    /// Set by an authentication middleware; without one everything is allowed.
    pub authorizer: Option<Arc<dyn Authorize>>,
    /// Authorization is settled and authentication middleware must not change it: a signature
    /// grants what its scope allows, or, without an authorizer, the proxy itself made the request
    /// (`swift.authorize_override`).
    pub authorized: bool,
    /// The user owns the account (`swift_owner`).
    pub owner: bool,
    /// The user is an administrator of all accounts (`reseller_request`).
    pub reseller: bool,
    /// A middleware set the content type: it may have `swift_*` parameters, which a client may not
    /// set (`swift.content_type_overridden`).
    pub content_type_overridden: bool,
    /// The request may see reserved (NUL-prefixed) names; the text names its source in the log
    /// (`swift.source`).
    pub allow_reserved: bool,
    pub source: Option<&'static str>,
    /// Manifests of static large objects are stored and returned unchanged (`swift.slo_override`).
    pub slo_override: bool,
    /// Symlinks are stored as sent, whether their target exists or not (`swift.symlink_override`).
    pub symlink_override: bool,
    /// The path that the client requested, if a middleware changed it.
    pub original_path: Option<Arc<str>>,
    pub notes: Arc<Notes>,
}

/// Facts that inner layers add for the outermost layer's access and audit logs. Shared by all
/// clones of the context.
#[derive(Default)]
pub struct Notes {
    user: OnceLock<Arc<str>>,
    log_info: Mutex<Vec<String>>,
    audited: Mutex<Vec<Audited>>,
}

/// An event for the audit log: a login, or a token's issue or end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audited {
    pub action: &'static str,
    /// The user's name as the client gave it.
    pub user: String,
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Accepted,
    /// Wrong name, key or token.
    Wrong,
    /// Not checked, because of too many attempts.
    HeldBack,
    Refused,
}

impl Notes {
    /// Sets the user's name for the log; the first call wins.
    pub fn set_user(&self, user: impl Into<Arc<str>>) {
        let _ = self.user.set(user.into());
    }

    pub fn user(&self) -> Option<Arc<str>> {
        self.user.get().cloned()
    }

    /// Adds to the log line's `log_info`, up to a bound.
    pub fn add(&self, text: impl Into<String>) {
        let mut info = self.log_info.lock();
        if info.len() < 32 {
            info.push(text.into());
        }
    }

    /// Adds an event for the audit log, up to a bound.
    pub fn audit(&self, audited: Audited) {
        let mut all = self.audited.lock();
        if all.len() < 32 {
            all.push(audited);
        }
    }

    /// Takes the events for the audit log.
    pub fn take_audited(&self) -> Vec<Audited> {
        std::mem::take(&mut *self.audited.lock())
    }

    /// All additions to `log_info`, separated by commas.
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

    /// The client's address, by which logins are counted and which the audit log names.
    pub fn client(&self) -> Option<IpAddr> {
        let remote = self.remote.map(|remote| remote.ip().to_canonical());
        self.forwarded_for.or(remote)
    }

    /// Scheme of the URLs that the client is given (`wsgi.url_scheme`).
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

    /// The context for a subrequest that the proxy makes with its own authority, named in the log
    /// as `source`.
    pub fn pre_authorized(&self, source: &'static str) -> Context {
        Context {
            authorizer: None,
            authorized: true,
            owner: true,
            source: Some(source),
            ..self.clone()
        }
    }

    /// Did the proxy itself make the request, without even a signature's scope to limit it?
    pub fn is_pre_authorized(&self) -> bool {
        self.authorized && self.authorizer.is_none()
    }

    /// Is the request allowed by its authorizer for this ACL? The error is the denial to return.
    ///
    /// # Errors
    /// The authorizer's denial; without an authorizer there is none.
    pub async fn authorize(&self, request: &Parts, acl: Option<&str>) -> Result<Granted, Response> {
        match &self.authorizer {
            Some(authorizer) => authorizer.authorize(request, acl).await,
            None => Ok(Granted::default()),
        }
    }

    /// The context for a subrequest made with the client's authority.
    pub fn subrequest(&self, source: &'static str) -> Context {
        Context {
            source: Some(source),
            ..self.clone()
        }
    }
}
