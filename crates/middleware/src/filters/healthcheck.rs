//! Filter `healthcheck`: `/healthcheck` responds 200 `OK` while the server runs, and 503 while the
//! file `disable_path` exists, so that an operator can remove a server from a load balancer before
//! stopping it.

use std::path::PathBuf;
use std::sync::Arc;

use cairn_formats::ini::Section;
use cairn_http::{Handler, Request, Response, Service, ServiceFuture, respond};
use http::StatusCode;

use crate::{FilterEnv, FilterError};

struct HealthCheck {
    next: Handler,
    disable_path: Option<PathBuf>,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    _: &FilterEnv,
) -> Result<Handler, FilterError> {
    let disable_path = section
        .get("disable_path")
        .filter(|p| !p.is_empty())
        .map(PathBuf::from);
    Ok(Arc::new(HealthCheck { next, disable_path }))
}

impl Service for HealthCheck {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        if request.uri().path() != "/healthcheck" {
            return self.next.call(request);
        }
        Box::pin(self.answer())
    }
}

impl HealthCheck {
    async fn answer(&self) -> Response {
        if let Some(path) = self.disable_path.clone() {
            let exists = tokio::task::spawn_blocking(move || path.exists()).await;
            if exists.unwrap_or(false) {
                return respond::text(StatusCode::SERVICE_UNAVAILABLE, "DISABLED BY FILE");
            }
        }
        respond::text(StatusCode::OK, "OK")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::testing::{answers, filter, request, text};

    #[tokio::test]
    async fn answers_for_its_path_alone() {
        let app = filter("healthcheck", &[], answers(404));
        let response = app.call(request("GET", "/healthcheck", &[])).await;
        assert_eq!(response.status(), 200);
        assert_eq!(text(response).await, "OK");
        for path in ["/", "/healthcheck/", "/v1/a"] {
            assert_eq!(app.call(request("GET", path, &[])).await.status(), 404);
        }
    }

    #[tokio::test]
    async fn a_file_disables() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("off");
        let options = [("disable_path", path.to_str().unwrap())];
        let app = filter("healthcheck", &options, answers(404));
        assert_eq!(
            app.call(request("GET", "/healthcheck", &[])).await.status(),
            200
        );
        std::fs::write(&path, "").unwrap();
        let response = app.call(request("GET", "/healthcheck", &[])).await;
        assert_eq!(response.status(), 503);
        assert_eq!(text(response).await, "DISABLED BY FILE");
    }
}
