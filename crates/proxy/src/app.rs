//! The proxy application, the innermost service of its pipeline: hands each request to the controller
//! for its kind.

use cairn_http::{Request, Response, Service, ServiceFuture};
use http::header::ALLOW;
use http::{HeaderValue, Method};

use crate::container::UPDATE;
use crate::object::Name;
use crate::request::{Incoming, Rules, Target};
use crate::state::Proxy;
use crate::status;

impl Proxy {
    /// Rarely needed branches are boxed: a future has room for its largest branch, is moved, and is
    /// nested in many others.
    async fn handle(&self, request: Request) -> Response {
        let rules = Rules {
            constraints: &self.constraints,
            denied_hosts: &self.options.deny_host_headers,
            clock: &self.clock,
        };
        let mut incoming = match rules.parse(request) {
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
