//! Filter `container_quotas`: refuses uploads that would exceed a container's quota, set by its
//! owner: `X-Container-Meta-Quota-Bytes` and `X-Container-Meta-Quota-Count`, validated when they
//! are set. A container's usage is known with a delay, and an upload of unknown length counts as 0
//! bytes: the next one is refused.

use std::sync::Arc;

use cairn_formats::ini::Section;
use cairn_http::context::Context;
use cairn_http::{
    ContainerInfo, Handler, InfoSource, Request, Response, Service, ServiceFuture, respond,
};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Method, StatusCode};
use serde_json::json;

use crate::filters::versioned_writes::versions_container;
use crate::names::Names;
use crate::{FilterEnv, FilterError};

struct ContainerQuotas {
    next: Handler,
    info_source: Arc<dyn InfoSource>,
}

pub(crate) fn make(_: &Section, next: Handler, env: &FilterEnv) -> Result<Handler, FilterError> {
    env.swift_info.register("container_quotas", json!({}));
    Ok(Arc::new(ContainerQuotas {
        next,
        info_source: env.info_source.clone(),
    }))
}

impl Service for ContainerQuotas {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        if request.method() != Method::PUT && request.method() != Method::POST {
            return self.next.call(request);
        }
        let Some(names) = Names::of(request.uri().path()) else {
            return self.next.call(request);
        };
        match (&names.container, &names.object) {
            (Some(_), None) => match check_new(request.headers()) {
                Ok(()) => self.next.call(request),
                Err(refused) => Box::pin(std::future::ready(refused)),
            },
            (Some(_), Some(_)) if request.method() == Method::PUT => {
                Box::pin(self.object_put(request, names))
            }
            _ => self.next.call(request),
        }
    }
}

fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // A number beyond 64 bits is capped.
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

fn check_new(headers: &HeaderMap) -> Result<(), Response> {
    for (name, message) in [
        ("x-container-meta-quota-bytes", "Invalid bytes quota."),
        ("x-container-meta-quota-count", "Invalid count quota."),
    ] {
        let Some(value) = headers.get(name).filter(|value| !value.is_empty()) else {
            continue;
        };
        if value.to_str().ok().and_then(number).is_none() {
            let refused = respond::typed(StatusCode::BAD_REQUEST, respond::HTML, message);
            return Err(refused);
        }
    }
    Ok(())
}

impl ContainerQuotas {
    async fn object_put(&self, request: Request, names: Names) -> Response {
        let context = Context::of_request(&request);
        let container = names.container.as_deref().unwrap_or("");
        let info = self
            .info_source
            .container(&context, &names.account, container)
            .await;
        let length = respond::header(request.headers(), CONTENT_LENGTH.as_str())
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        let of_versions = self.versions_bytes(&context, &names.account, &info).await;
        if !info.exists() || !is_exceeded(&info, of_versions.saturating_add(length)) {
            return self.next.call(request).await;
        }
        // A client without write access gets its denial, which does not reveal usage.
        let (parts, _) = request.into_parts();
        match context.authorize(&parts, info.write_acl.as_deref()).await {
            Err(denied) => denied,
            Ok(_) => respond::typed(
                StatusCode::PAYLOAD_TOO_LARGE,
                respond::HTML,
                "Upload exceeds quota.",
            ),
        }
    }
}

impl ContainerQuotas {
    /// Bytes of a container's old versions, which are stored in a container of their own.
    async fn versions_bytes(&self, context: &Context, account: &str, of: &ContainerInfo) -> u64 {
        match versions_container(of) {
            Some(name) => {
                self.info_source
                    .container(context, account, &name)
                    .await
                    .bytes
            }
            None => 0,
        }
    }
}

fn is_exceeded(info: &ContainerInfo, length: u64) -> bool {
    let quota = |name: &str| info.meta.get(name).and_then(|text| number(text));
    quota("quota-bytes").is_some_and(|most| info.bytes.saturating_add(length) > most)
        || quota("quota-count").is_some_and(|most| info.object_count.saturating_add(1) > most)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::{self, OneOfEach, answers, filter_in, request, text};
    use cairn_http::context::{Authorize, AuthorizeFuture, Granted};
    use http::request::Parts;

    /// A container of 100 bytes in 3 objects, which `bob` may write to.
    fn app(quotas: &[(&str, &str)]) -> Handler {
        let info = ContainerInfo {
            status: 204,
            bytes: 100,
            object_count: 3,
            write_acl: Some("bob".into()),
            meta: quotas
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            ..ContainerInfo::default()
        };
        let mut env = testing::env();
        env.info_source = Arc::new(OneOfEach {
            container: Arc::new(info),
            ..OneOfEach::default()
        });
        filter_in(&env, "container_quotas", &[], answers(201))
    }

    #[tokio::test]
    async fn uploads_within_and_beyond() {
        for (quota, value, length, status) in [
            ("other", "0", "5", 201),
            ("quota-bytes", "105", "5", 201),
            ("quota-bytes", "104", "5", 413),
            ("quota-bytes", "-1", "5", 201),
            ("quota-bytes", "99999999999999999999999", "5", 201),
            ("quota-count", "3", "5", 413),
            ("quota-count", "4", "5", 201),
            ("quota-count", "x", "5", 201),
        ] {
            let asked = request("PUT", "/v1/a/c/o", &[("content-length", length)]);
            let answer = app(&[(quota, value)]).call(asked).await;
            assert_eq!(answer.status(), status, "{quota} {value}");
            if status == 413 {
                assert_eq!(text(answer).await, "Upload exceeds quota.");
            }
        }
        for (method, path) in [("POST", "/v1/a/c/o"), ("PUT", "/v1/a/c"), ("PUT", "/v1/a")] {
            let answer = app(&[("quota-count", "0")])
                .call(request(method, path, &[]))
                .await;
            assert_eq!(answer.status(), 201);
        }
    }

    struct OnList(&'static str);

    impl Authorize for OnList {
        fn authorize<'a>(&'a self, _: &'a Parts, acl: Option<&'a str>) -> AuthorizeFuture<'a> {
            let denied = || respond::standard(StatusCode::FORBIDDEN);
            let granted = (acl == Some(self.0)).then(Granted::default);
            Box::pin(std::future::ready(granted.ok_or_else(denied)))
        }
    }

    #[tokio::test]
    async fn only_those_who_may_write_learn_of_it() {
        for (who, status) in [("bob", 413), ("eve", 403)] {
            let mut asked = request("PUT", "/v1/a/c/o", &[]);
            asked.extensions_mut().insert(Context {
                authorizer: Some(Arc::new(OnList(who))),
                ..Context::default()
            });
            let answer = app(&[("quota-count", "3")]).call(asked).await;
            assert_eq!(answer.status(), status);
        }
    }

    #[tokio::test]
    async fn new_quotas_are_numbers() {
        for (name, value, status) in [
            ("x-container-meta-quota-bytes", "10", 201),
            ("x-container-meta-quota-bytes", "", 201),
            ("x-container-meta-quota-bytes", "a", 400),
            ("x-container-meta-quota-count", "-1", 400),
            ("x-container-meta-quota-count", "1.5", 400),
        ] {
            let asked = request("POST", "/v1/a/c", &[(name, value)]);
            assert_eq!(
                app(&[]).call(asked).await.status(),
                status,
                "{name} {value}"
            );
        }
    }
}
