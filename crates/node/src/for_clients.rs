//! Storage server for clients' requests only (`replication_server = no`): replication requests are
//! refused, which a separate server handles on the replication network.

use cairn_http::{Handler, Request, Response, Service, ServiceFuture, respond};
use http::Method;
use http::header::ALLOW;
use std::sync::Arc;

use crate::status;

const REPLICATION_METHODS: [&str; 2] = ["REPLICATE", "SSYNC"];

pub(crate) struct ForClients {
    server: Handler,
}

impl ForClients {
    pub(crate) fn around(server: Handler) -> Handler {
        Arc::new(ForClients { server })
    }

    async fn answer(&self, request: Request) -> Response {
        let method = request.method().clone();
        if REPLICATION_METHODS.contains(&method.as_str()) {
            return status::not_for_clients();
        }
        let mut response = self.server.call(request).await;
        if method == Method::OPTIONS
            && let Some(allowed) = respond::header(response.headers(), ALLOW.as_str())
        {
            let left = allowed
                .split(", ")
                .filter(|name| !REPLICATION_METHODS.contains(name));
            let left = left.collect::<Vec<_>>().join(", ");
            respond::set(response.headers_mut(), "allow", left);
        }
        response
    }
}

impl Service for ForClients {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        Box::pin(self.answer(request))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cairn_http::Body;
    use cairn_http::service::handler_fn;
    use http::StatusCode;

    use super::*;

    #[tokio::test]
    async fn replicators_are_refused() {
        let server = handler_fn(|_| async {
            let mut response = respond::empty(StatusCode::OK);
            respond::set(response.headers_mut(), "allow", "PUT, REPLICATE, SSYNC");
            response
        });
        let server = ForClients::around(server);
        let ask = async |method: &str| {
            let request = http::Request::builder().method(method);
            server.call(request.body(Body::empty()).unwrap()).await
        };
        assert_eq!(ask("PUT").await.status(), 200);
        assert_eq!(ask("REPLICATE").await.status(), 405);
        assert_eq!(ask("SSYNC").await.status(), 405);
        assert_eq!(ask("OPTIONS").await.headers()["allow"], "PUT");
    }
}
