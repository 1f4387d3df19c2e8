//! Filter `audit`, an extension: logs logins and changes of access control, one JSON object per
//! line.
//!
//! Its place is after `catch_errors` and before all authentication middleware. Filters that log
//! users in leave a note ([`Audited`]); changes of ACLs, keys and quotas are recognised by the
//! request's headers. Lines contain header names but not their values, and neither tokens, keys nor
//! query strings, which may be signatures.

use std::sync::Arc;

use cairn_formats::ini::Section;
use cairn_http::audit::AuditLog;
use cairn_http::context::{Audited, Context, Outcome};
use cairn_http::{Handler, Request, Response, Service, ServiceFuture};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use serde_json::{Value, json};

use crate::{FilterEnv, FilterError};

const FILE: &str = "audit_file";

/// Maximum characters of a user's name, which any client may send.
const NAME_MAX: usize = 256;

struct Audit {
    next: Handler,
    log: Arc<AuditLog>,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    let path = section.get(FILE).map(str::trim).filter(|p| !p.is_empty());
    let log = AuditLog::open(path, env.clock.clone());
    let log = log.map_err(|error| not_opened(path.unwrap_or_default(), &error))?;
    Ok(Arc::new(Audit {
        next,
        log: Arc::new(log),
    }))
}

fn not_opened(path: &str, error: &std::io::Error) -> FilterError {
    FilterError::Setting(format!(
        "{FILE} = {path}: cannot be written ({error}): name a file in a folder that the server's \
         user may write to"
    ))
}

impl Service for Audit {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        Box::pin(self.watch(request))
    }
}

impl Audit {
    async fn watch(&self, mut request: Request) -> Response {
        let context = request.extensions_mut().get_or_insert_default::<Context>();
        let context = context.clone();
        let (parts, body) = request.into_parts();
        let mut watched = Watched {
            log: Arc::clone(&self.log),
            context,
            change: Change::of(&parts),
            status: None,
        };
        let response = self.next.call(Request::from_parts(parts, body)).await;
        watched.status = Some(response.status());
        response
    }
}

/// A request in progress, which is logged when it is answered, or when it is dropped because the
/// client disconnected, so that disconnecting does not avoid the log.
struct Watched {
    log: Arc<AuditLog>,
    context: Context,
    change: Option<Change>,
    status: Option<StatusCode>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        for audited in self.context.notes.take_audited() {
            self.log.tell(&self.context, &login_line(&audited));
        }
        if let Some(change) = &self.change {
            let line = change.line(&self.context, self.status);
            self.log.tell(&self.context, &line);
        }
    }
}

fn login_line(audited: &Audited) -> Value {
    let outcome = match audited.outcome {
        Outcome::Accepted => "accepted",
        Outcome::Wrong => "wrong",
        Outcome::HeldBack => "held back",
        Outcome::Refused => "refused",
    };
    let user: String = audited.user.chars().take(NAME_MAX).collect();
    json!({ "action": audited.action, "user": user, "outcome": outcome })
}

/// A request that changes access control of an account or container.
struct Change {
    method: Method,
    path: String,
    /// Header names, without values.
    headers: Vec<String>,
}

impl Change {
    fn of(parts: &Parts) -> Option<Change> {
        let writes = [Method::PUT, Method::POST].contains(&parts.method);
        let headers = match writes {
            true => guarding(&parts.headers),
            false => Vec::new(),
        };
        (!headers.is_empty()).then(|| Change {
            method: parts.method.clone(),
            path: parts.uri.path().to_owned(),
            headers,
        })
    }

    fn line(&self, context: &Context, status: Option<StatusCode>) -> Value {
        let outcome = match status {
            Some(status) if status.is_success() => "accepted",
            Some(_) => "refused",
            None => "unknown",
        };
        json!({
            "action": "change",
            "user": context.notes.user().as_deref(),
            "outcome": outcome,
            "status": status.map(|status| status.as_u16()),
            "method": self.method.as_str(),
            "path": &self.path,
            "headers": &self.headers,
        })
    }
}

fn guarding(headers: &HeaderMap) -> Vec<String> {
    let names = headers.keys().map(|name| name.as_str());
    names
        .filter(|name| guards(name))
        .map(str::to_owned)
        .collect()
}

/// Does this lower-case header set or remove ACLs, keys, quotas or allowed origins?
fn guards(name: &str) -> bool {
    let Some(name) = name.strip_prefix("x-") else {
        return false;
    };
    let name = name.strip_prefix("remove-").unwrap_or(name);
    let kind = name
        .strip_prefix("account-")
        .or_else(|| name.strip_prefix("container-"));
    let Some(rest) = kind else { return false };
    let rest = rest.strip_prefix("meta-").unwrap_or(rest);
    matches!(
        rest,
        "read"
            | "write"
            | "sync-to"
            | "sync-key"
            | "access-control"
            | "access-control-allow-origin"
            | "temp-url-key"
            | "temp-url-key-2"
    ) || rest.starts_with("quota-")
}

#[cfg(test)]
mod tests;
