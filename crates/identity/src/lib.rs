//! Filter `identity`, an extension: a built-in Keystone-compatible identity service, for clients
//! that require Keystone. It has login by `POST /v3/auth/tokens` and `POST /v2.0/tokens`, a catalog
//! that lists this store under the address that the client used, and lists of projects, users and
//! roles, which come from a small file (`directory.rs`) and from the pipeline's TempAuth users.
//!
//! Requests with one of its tokens are marked for `keystoneauth`, which comes after it and
//! authorizes them, as with `authtoken` and an external Keystone. Requests with other tokens or
//! paths are passed on.
//!
//! A crate of its own: it answers a protocol, where filters change requests that are Swift's. It
//! may use `middleware` for what both have (whom a token confirms, users of the pipeline, secrets).

mod catalog;
mod directory;
mod listing;
mod login;
mod revoked;
mod status;
mod token;
mod tokens;
mod v2;
mod v3;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use cairn_formats::ini::{Conf, Section};
use cairn_http::{Clock, Handler, Request, Response, Service, ServiceFuture, respond};
use cairn_middleware::keystone::{Confirmed, Holder, Named, Project};
use cairn_middleware::remembered::Remembered;
use cairn_middleware::resellers::reseller_prefixes;
use cairn_middleware::{CrossOrigin, FilterEnv, FilterError, Logins};
use http::header::{HeaderMap, HeaderName, ORIGIN};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use catalog::Catalog;
use directory::{Directory, Person};
use token::Token;
use tokens::Tokens;

const X_AUTH_TOKEN: HeaderName = HeaderName::from_static("x-auth-token");
const X_STORAGE_TOKEN: HeaderName = HeaderName::from_static("x-storage-token");
const X_SERVICE_TOKEN: HeaderName = HeaderName::from_static("x-service-token");

/// Methods that any path of the API supports.
const METHODS: [&str; 5] = ["GET", "HEAD", "POST", "DELETE", "OPTIONS"];

struct Identity {
    next: Handler,
    core: Arc<Core>,
    cross_origin: CrossOrigin,
}

/// State that responses are made from.
struct Core {
    /// Users and projects of the file, until the first request, which adds those of the pipeline's
    /// TempAuth: filters are built one after the other.
    of_file: Mutex<Option<Directory>>,
    complete: OnceLock<Directory>,
    logins: Logins,
    tokens: Tokens,
    remembered: Remembered<Valid>,
    catalog: Catalog,
    /// Roles whose tokens are accepted as service tokens.
    service_roles: Vec<String>,
    /// Held while the file of revoked tokens is read or written; others wait without occupying a
    /// thread.
    revoking: Arc<Semaphore>,
    clock: Clock,
}

/// A valid token, and its user.
#[derive(Clone)]
struct Valid {
    token: Arc<Token>,
    holder: Arc<Holder>,
}

/// The filter around `next`, by the options of its section.
///
/// # Errors
/// Its file cannot be read or is malformed, or an option is refused.
pub fn make(section: &Section, next: Handler, env: &FilterEnv) -> Result<Handler, FilterError> {
    let swift_dir = section.str_or("swift_dir", "/etc/swift");
    let default = Path::new(swift_dir).join("identity.conf");
    let path = section
        .get("file")
        .map_or(default.as_path(), |p| Path::new(p.trim()));
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        // Without a file there are only TempAuth's users.
        Err(error)
            if error.kind() == std::io::ErrorKind::NotFound && section.get("file").is_none() =>
        {
            String::new()
        }
        Err(error) => {
            return Err(section
                .bad("file", format!("{}: {error}", path.display()))
                .into());
        }
    };
    let of_file = Directory::read(&Conf::parse(&path.display().to_string(), &text)?)?;
    let prefixes = reseller_prefixes(section);
    let core = Core {
        of_file: Mutex::new(Some(of_file)),
        complete: OnceLock::new(),
        logins: env.logins.clone(),
        tokens: Tokens::read(section, env)?,
        remembered: Remembered::default(),
        catalog: Catalog::read(section, prefixes[0].clone()),
        service_roles: section.list_or("service_token_roles", "service"),
        revoking: Arc::new(Semaphore::new(1)),
        clock: env.clock.clone(),
    };
    env.swift_info.register(
        "identity",
        serde_json::json!({ "versions": ["v2.0", "v3"] }),
    );
    let core = Arc::new(core);
    Ok(Arc::new(Identity {
        next,
        core,
        cross_origin: env.cross_origin.clone(),
    }))
}

impl Core {
    fn directory(&self) -> &Directory {
        self.complete.get_or_init(|| {
            let mut of_file = self.of_file.lock();
            let mut directory = of_file.take().unwrap_or_default();
            let (logins, privileged) = (self.logins.all(), self.logins.privileged());
            directory.add_logins(&logins, self.catalog.account_prefix(), &privileged);
            directory
        })
    }

    fn now(&self) -> u64 {
        self.clock.now().secs()
    }

    /// Must other processes' revocations be read before tokens are validated?
    fn is_behind(&self, headers: &HeaderMap) -> bool {
        let tokens = [X_AUTH_TOKEN, X_STORAGE_TOKEN, X_SERVICE_TOKEN];
        self.tokens.revoked.is_stale(self.now()) && tokens.iter().any(|t| headers.contains_key(t))
    }

    /// Reads the revocations of other processes.
    async fn catch_up(self: &Arc<Self>) {
        if !self.tokens.revoked.is_stale(self.now()) {
            return;
        }
        let Ok(turn) = self.revoking.clone().acquire_owned().await else {
            return;
        };
        let now = self.now();
        if !self.tokens.revoked.is_stale(now) {
            return;
        }
        let core = self.clone();
        let looking = tokio::task::spawn_blocking(move || {
            core.tokens.revoked.look(now);
            drop(turn);
        });
        // This fails only after a panic, which is logged.
        let _ = looking.await;
    }

    /// Opens a token of this service that is valid now.
    fn open(&self, text: &str) -> Option<Valid> {
        if !text.starts_with(tokens::PREFIX) {
            return None;
        }
        let now = self.now();
        // With or without padding it is the same token.
        let text = text.trim_end_matches('=');
        if let Some(valid) = self.remembered.get(text, now) {
            return (!self.tokens.revoked.has(&valid.token)).then_some(valid);
        }
        let directory = self.directory();
        let token = self.tokens.open(text, directory, now)?;
        let person = directory.person(&token.user_id)?;
        let valid = Valid {
            holder: Arc::new(holder(directory, person, &token)),
            token: Arc::new(token),
        };
        let until = valid.token.expires.saturating_sub(1);
        self.remembered.add(text, until, now, valid.clone());
        Some(valid)
    }

    fn person(&self, valid: &Valid) -> Option<&Person> {
        self.directory().person(&valid.token.user_id)
    }
}

/// The only domain.
fn default_domain() -> Named {
    Named {
        id: "default".into(),
        name: "Default".into(),
    }
}

fn holder(directory: &Directory, person: &Person, token: &Token) -> Holder {
    let project = token
        .project_id
        .as_deref()
        .and_then(|id| directory.project(id));
    let roles = project.and_then(|p| person.roles.get(&p.id));
    Holder {
        user: Named {
            id: person.id.clone(),
            name: person.name.clone(),
        },
        user_domain: default_domain(),
        project: project.map(|project| Project {
            id: project.id.clone(),
            name: project.name.clone(),
            domain: default_domain(),
        }),
        domain: None,
        roles: roles.cloned().unwrap_or_default(),
        is_system: false,
        is_admin_project: true,
        expires: token.expires,
    }
}

impl Service for Identity {
    fn call<'a>(&'a self, mut request: Request) -> ServiceFuture<'a> {
        if let Some(version) = version(&request) {
            return Box::pin(self.answer_pages(version, request));
        }
        request.extensions_mut().remove::<Confirmed>();
        if self.core.is_behind(request.headers()) {
            return Box::pin(async {
                self.core.catch_up().await;
                self.go_on(request).await
            });
        }
        self.go_on(request)
    }
}

/// API version of a path; Swift's own paths begin with `/v1` and other words.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    /// The list of both versions.
    All,
    V2,
    V3,
}

fn version(request: &Request) -> Option<Version> {
    let path = request.uri().path();
    let below = |root: &str| {
        path.strip_prefix(root)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if below("/v3") {
        return Some(Version::V3);
    }
    if below("/v2.0") {
        return Some(Version::V2);
    }
    // A client that discovers versions sends its accepted type; a browser sends a different one.
    let accepts = || {
        respond::header(request.headers(), "accept").is_some_and(|accept| {
            accept.contains("application/json") && !accept.contains("text/html")
        })
    };
    (path == "/" && request.method() == http::Method::GET && accepts()).then_some(Version::All)
}

impl Identity {
    fn go_on<'a>(&'a self, mut request: Request) -> ServiceFuture<'a> {
        if let Some(confirmed) = self.identify(request.headers()) {
            request.extensions_mut().insert(confirmed);
        }
        self.next.call(request)
    }

    async fn answer_pages(&self, version: Version, request: Request) -> Response {
        if let Some(answer) = self.cross_origin.options(&request, &METHODS) {
            return answer;
        }
        let origin = request.headers().get(ORIGIN).cloned();
        let mut response = self.answer(version, request).await;
        self.cross_origin.show(origin.as_ref(), &mut response);
        response
    }

    async fn answer(&self, version: Version, request: Request) -> Response {
        let is_head = request.method() == http::Method::HEAD;
        let host = self.core.catalog.host(&request);
        self.core.catch_up().await;
        let answer = match version {
            Version::All => Ok(catalog::all_versions(&host)),
            Version::V2 => v2::answer(&self.core, &host, request).await,
            Version::V3 => v3::answer(&self.core, &host, request).await,
        };
        let mut response = answer.unwrap_or_else(|refusal| refusal.into_response(&host));
        if is_head {
            *response.body_mut() = cairn_http::Body::empty();
        }
        response
    }

    /// The requester's identity, if all tokens of the request are of this service.
    fn identify(&self, headers: &HeaderMap) -> Option<Confirmed> {
        let token = respond::header(headers, X_AUTH_TOKEN.as_str())
            .or_else(|| respond::header(headers, X_STORAGE_TOKEN.as_str()))?;
        let user = self.core.open(token.trim())?.holder;
        let service = match respond::header(headers, X_SERVICE_TOKEN.as_str()) {
            None => None,
            Some(token) => {
                let holder = self.core.open(token.trim())?.holder;
                let roles = &self.core.service_roles;
                if !holder.roles.iter().any(|role| roles.contains(role)) {
                    return None;
                }
                Some(holder)
            }
        };
        Some(Confirmed {
            user,
            service,
            built_in: true,
        })
    }
}

#[cfg(test)]
mod tests;
