//! Filter `read_only`: refuses writes to the whole cluster, or to single accounts, with 405. The
//! option `read_only` (false) is the default; an account's system metadata `Read-Only`, set by an
//! operator on the account servers, overrides it in either direction. `allow_deletes` (false) lets
//! deletions pass.

use std::sync::Arc;

use cairn_formats::ini::Section;
use cairn_http::context::Context;
use cairn_http::params::{is_true, unquote};
use cairn_http::{Handler, InfoSource, Request, Response, Service, ServiceFuture, respond};
use cairn_types::Constraints;
use http::{HeaderValue, StatusCode};
use serde_json::json;

use crate::names::Names;
use crate::{FilterEnv, FilterError};

struct ReadOnly {
    next: Handler,
    info_source: Arc<dyn InfoSource>,
    constraints: Arc<Constraints>,
    read_only: bool,
    allow_deletes: bool,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    let read_only = section.bool_or("read_only", false);
    if read_only {
        env.swift_info.register("read_only", json!({}));
    }
    Ok(Arc::new(ReadOnly {
        next,
        info_source: env.info_source.clone(),
        constraints: env.constraints.clone(),
        read_only,
        allow_deletes: section.bool_or("allow_deletes", false),
    }))
}

impl Service for ReadOnly {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        let writes = match request.method().as_str() {
            "COPY" | "POST" | "PUT" => true,
            "DELETE" => !self.allow_deletes,
            _ => false,
        };
        if !writes {
            return self.next.call(request);
        }
        match Names::of_api(request.uri().path(), &self.constraints) {
            None => self.next.call(request),
            Some(names) => Box::pin(self.write(request, names.account)),
        }
    }
}

impl ReadOnly {
    async fn write(&self, request: Request, account: String) -> Response {
        let account = match request.headers().get("destination-account") {
            Some(value) if request.method().as_str() == "COPY" => match account_name(value) {
                Ok(account) => account,
                Err(refused) => return refused,
            },
            _ => account,
        };
        let context = Context::of_request(&request);
        let info = self.info_source.account(&context, &account).await;
        let own = info
            .sysmeta
            .get("read-only")
            .filter(|text| !text.is_empty());
        if own.map_or(self.read_only, |text| is_true(text)) {
            let message = "Writes are disabled for this account.";
            return respond::typed(StatusCode::METHOD_NOT_ALLOWED, respond::HTML, message);
        }
        self.next.call(request).await
    }
}

fn account_name(value: &HeaderValue) -> Result<String, Response> {
    let refuse = |message: &'static str| respond::text(StatusCode::PRECONDITION_FAILED, message);
    let text = std::str::from_utf8(value.as_bytes()).unwrap_or("");
    match unquote(text) {
        Ok(name) if name.is_empty() => Err(refuse("Account name cannot be empty")),
        Ok(name) if name.contains('/') => Err(refuse("Account name cannot contain slashes")),
        Ok(name) => Ok(name),
        Err(_) => Err(refuse("Account name must be valid UTF-8")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::{self, answers, filter_in, request};
    use cairn_http::{AccountInfo, ContainerInfo, InfoFuture};

    /// Information source with accounts named after their metadata.
    struct ByName;

    impl InfoSource for ByName {
        fn account<'a>(&'a self, _: &'a Context, account: &'a str) -> InfoFuture<'a, AccountInfo> {
            let mut info = AccountInfo::default();
            info.sysmeta.insert("read-only".into(), account.into());
            if account == "neither" {
                info.sysmeta.clear();
            }
            Box::pin(std::future::ready(Arc::new(info)))
        }
        fn container<'a>(
            &'a self,
            _: &'a Context,
            _: &'a str,
            _: &'a str,
        ) -> InfoFuture<'a, ContainerInfo> {
            Box::pin(std::future::ready(Arc::default()))
        }
    }

    #[tokio::test]
    async fn accounts_and_clusters() {
        let mut env = testing::env();
        env.info_source = Arc::new(ByName);
        for (cluster, deletes, method, account, status) in [
            ("no", "no", "PUT", "neither", 200),
            ("no", "no", "PUT", "true", 405),
            ("no", "no", "DELETE", "true", 405),
            ("no", "yes", "DELETE", "true", 200),
            ("yes", "no", "PUT", "neither", 405),
            ("yes", "no", "COPY", "neither", 405),
            ("yes", "no", "POST", "neither", 405),
            ("yes", "no", "GET", "neither", 200),
            ("yes", "no", "HEAD", "neither", 200),
            ("yes", "no", "PUT", "false", 200),
        ] {
            let options = [("read_only", cluster), ("allow_deletes", deletes)];
            let app = filter_in(&env, "read_only", &options, answers(200));
            let path = format!("/v1/{account}/c/o");
            let answer = app.call(request(method, &path, &[])).await;
            assert_eq!(answer.status(), status, "{cluster} {method} {account}");
        }
    }

    #[tokio::test]
    async fn copies_are_writes_to_the_destination() {
        let mut env = testing::env();
        env.info_source = Arc::new(ByName);
        let app = filter_in(&env, "read_only", &[], answers(200));
        for (from, to, status) in [
            ("neither", "true", 405),
            ("true", "neither", 200),
            ("neither", "a/b", 412),
            ("neither", "", 412),
        ] {
            let path = format!("/v1/{from}/c/o");
            let asked = request("COPY", &path, &[("destination-account", to)]);
            assert_eq!(app.call(asked).await.status(), status, "{from} {to}");
        }
        assert_eq!(
            app.call(request("PUT", "/v9/true/c/o", &[])).await.status(),
            200
        );
    }
}
