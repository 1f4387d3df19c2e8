//! The console's part of the audit log: sign-ins and sign-outs, runs, and changes of the store.
//!
//! Read-only requests are not logged. A line contains names and outcomes, but no passwords, keys,
//! tokens or query strings, and no text of a workload.

use std::sync::Arc;

use cairn_http::audit::AuditLog;
use cairn_http::{Context, Request, Response};
use http::Method;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use crate::status::Refusal;
use crate::swift;

/// Maximum characters of a name sent by a client.
const NAME_MAX: usize = 1024;

/// A request that is logged when it is answered, or when it is dropped because its client
/// disconnected.
pub(crate) struct Watched {
    log: Arc<AuditLog>,
    context: Context,
    facts: Facts,
    outcome: &'static str,
    status: Option<u16>,
}

/// Facts for the log, collected while a request is handled. In the request's extensions.
#[derive(Clone, Default)]
pub(crate) struct Facts(Arc<Mutex<Map<String, Value>>>);

impl Facts {
    /// The facts of this request; discarded without an audit log.
    pub(crate) fn of(request: &Request) -> Facts {
        request.extensions().get().cloned().unwrap_or_default()
    }

    pub(crate) fn add(&self, name: &str, value: &str) {
        let value: String = value.chars().take(NAME_MAX).collect();
        let mut facts = self.0.lock();
        facts.insert(name.to_owned(), value.into());
    }

    fn take(&self) -> Map<String, Value> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Watched {
    /// Begins to watch a request; `None` if it is read-only.
    pub(crate) fn begin(log: &Arc<AuditLog>, request: &mut Request) -> Option<Watched> {
        let facts = Facts::default();
        let action = action(request.method(), request.uri().path(), &facts)?;
        facts.add("action", action);
        request.extensions_mut().insert(facts.clone());
        Some(Watched {
            log: log.clone(),
            context: Context::of_request(request),
            facts,
            outcome: "unknown",
            status: None,
        })
    }

    pub(crate) fn end(mut self, answer: &Result<Response, Refusal>) {
        let status = match answer {
            Ok(response) => response.status(),
            Err(refusal) => refusal.status(),
        };
        // A wrong password or key is a 403 for the form field it was in.
        let field = answer.as_ref().err().and_then(|refusal| refusal.field);
        self.outcome = match (status.as_u16(), field) {
            (200..300, _) => "accepted",
            (429, _) => "held back",
            (403, Some("password" | "key")) => "wrong",
            _ => "refused",
        };
        self.status = Some(status.as_u16());
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut line = self.facts.take();
        line.insert("outcome".into(), json!(self.outcome));
        line.insert("status".into(), json!(self.status));
        self.log.tell(&self.context, &line.into());
    }
}

/// The name of a request's action if it changes anything; adds the facts in its path.
fn action(method: &Method, path: &str, facts: &Facts) -> Option<&'static str> {
    if let Some(full) = path.strip_prefix(swift::PREFIX)
        && full.starts_with('/')
    {
        let is_read = [Method::GET, Method::HEAD].contains(method);
        facts.add("method", method.as_str());
        facts.add("path", full);
        return (!is_read).then_some("console change");
    }
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let action = match (method.as_str(), &segments[..]) {
        ("POST", ["api", "session"]) => "console login",
        ("DELETE", ["api", "session"]) => "console logout",
        ("POST", ["api", "store", "user"]) => "console store login",
        ("DELETE", ["api", "store", "user"]) => "console store logout",
        ("POST", ["api", "runs"]) => "run submit",
        ("POST", ["api", "runs", _, "cancel"]) => "run cancel",
        ("DELETE", ["api", "runs", _]) => "run delete",
        ("PATCH", ["api", "runs", _]) => "run rename",
        _ => return None,
    };
    if let ["api", "runs", id, ..] = segments[..] {
        facts.add("run", id);
    }
    Some(action)
}
