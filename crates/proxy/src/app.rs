//! The proxy application, the innermost service of its pipeline: resolves the path, authorizes the
//! request, and dispatches it to the controller for its kind.

use cairn_http::params::{self, Params};
use cairn_http::{Context, Request, Response, Service, ServiceFuture, respond};
use cairn_types::Timestamp;
use http::header::{ALLOW, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderValue, Method};

use crate::container::UPDATE;
use crate::object::Name;
use crate::request::{self, Incoming, Target};
use crate::state::Proxy;
use crate::status;

impl Proxy {
    /// Rarely needed branches are boxed: a future has room for its largest branch, is moved, and is
    /// nested in many others.
    async fn handle(&self, request: Request) -> Response {
        let mut incoming = match self.accept(request) {
            Ok(incoming) => incoming,
            Err(refused) => return refused,
        };
        let target = incoming.target.clone();
        let allowed = self.allowed_methods(&target);
        if !allowed.contains(&incoming.method().as_str()) && !is_private(&incoming) {
            return self.not_allowed(&target);
        }
        if incoming.method() == Method::OPTIONS {
            return match target {
                Target::Info => {
                    let mut response = status::ok();
                    response
                        .headers_mut()
                        .insert(ALLOW, HeaderValue::from_static("HEAD, GET, OPTIONS"));
                    response
                }
                _ => Box::pin(self.options(&incoming, &allowed)).await,
            };
        }
        let mut response = match &target {
            Target::Info => self.cluster_info(&incoming),
            Target::Account { account } => Box::pin(self.account(&mut incoming, account)).await,
            Target::Container { account, container } => {
                Box::pin(self.container(&mut incoming, account, container)).await
            }
            Target::Object {
                account,
                container,
                object,
            } => {
                self.object(
                    &mut incoming,
                    Name {
                        account,
                        container,
                        object,
                    },
                )
                .await
            }
        };
        let origin = incoming.header("origin").map(str::to_owned);
        if let (Some(origin), Some(container)) = (origin, target.container()) {
            let info = self
                .container_info(&incoming.context, target.account(), container)
                .await;
            self.add_cors(&info, &origin, &mut response);
        }
        response
    }

    /// Parses the parts common to all requests: path, parameters, timestamp.
    fn accept(&self, request: Request) -> Result<Incoming, Response> {
        let (mut parts, body) = request.into_parts();
        let context = Context::of(&parts);
        let allow_reserved = context.allow_reserved
            || respond::header(&parts.headers, "x-backend-allow-reserved-names")
                .is_some_and(params::is_true);
        if parts.headers.contains_key(TRANSFER_ENCODING) {
            // With both headers present the encoding takes precedence, and no backend may interpret
            // the request otherwise.
            parts.headers.remove(CONTENT_LENGTH);
        }
        if let Some(token) = parts.headers.get("x-storage-token").cloned() {
            parts.headers.entry("x-auth-token").or_insert(token);
        }
        let target = request::parse_target(parts.uri.path(), &self.constraints, allow_reserved)?;
        if self.is_host_denied(&parts.headers) {
            return Err(status::denied_host());
        }
        let params = Params::parse(parts.uri.query())
            .map_err(|_| status::malformed("query parameters: not valid UTF-8"))?;
        let timestamp = match respond::header(&parts.headers, "x-timestamp") {
            None => self.clock.unique(),
            Some(text) => Timestamp::parse(text).map_err(|_| {
                let text =
                    format!("X-Timestamp should be a UNIX timestamp float value; was {text:?}");
                status::malformed(text)
            })?,
        };
        Ok(Incoming {
            parts,
            body,
            context,
            params,
            target,
            timestamp,
        })
    }

    fn is_host_denied(&self, headers: &http::HeaderMap) -> bool {
        let denied = &self.options.deny_host_headers;
        let host = respond::header(headers, "host").unwrap_or("");
        let host = host.split(':').next().unwrap_or("");
        !denied.is_empty() && denied.iter().any(|d| d == host)
    }
}

/// Is this a verb for middleware only, which the gatekeeper blocks for clients?
fn is_private(incoming: &Incoming) -> bool {
    incoming.method().as_str() == UPDATE
        && matches!(incoming.target, Target::Container { .. })
        && incoming.flag("x-backend-allow-private-methods")
}

impl Service for Proxy {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        Box::pin(self.handle(request))
    }
}
