//! `GET /endpoints/[v1|v2/]ACCOUNT[/CONTAINER[/OBJECT]]`: the URLs of its replicas on the storage
//! servers, for programs inside the cluster that run near the data. Option: `list_endpoints_path`
//! (`/endpoints/`).
//!
//! Version 1, the default, returns a JSON list of URLs; version 2 `{"endpoints": [...], "headers":
//! {...}}` with the headers to send. There is no authentication: every client that reaches a proxy
//! with this filter can find the location of all data.

use std::sync::Arc;

use cairn_formats::ini::Section;
use cairn_http::context::Context;
use cairn_http::params::{quote_path, split_path, unquote};
use cairn_http::{Handler, InfoSource, Request, Response, Service, ServiceFuture, respond};
use http::{Method, StatusCode};
use serde_json::json;

use crate::{FilterEnv, FilterError};

struct ListEndpoints {
    next: Handler,
    info: Arc<dyn InfoSource>,
    /// With a slash at both ends.
    path: String,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    let mut path = section
        .str_or("list_endpoints_path", "/endpoints/")
        .to_owned();
    if !path.ends_with('/') {
        path.push('/');
    }
    let info = env.info_source.clone();
    Ok(Arc::new(ListEndpoints { next, info, path }))
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Version {
    One,
    Two,
}

impl Version {
    fn parse(text: &str) -> Option<Version> {
        match text.trim_start_matches('v').parse::<f64>().ok()? {
            1.0 => Some(Version::One),
            2.0 => Some(Version::Two),
            _ => None,
        }
    }
}

/// The decoded entity of a request.
#[derive(Debug, PartialEq)]
struct Entity<'a> {
    version: Version,
    account: &'a str,
    container: Option<&'a str>,
    object: Option<&'a str>,
}

impl Entity<'_> {
    /// Parses a path without the filter's prefix; the error is for the client.
    fn parse(path: &str) -> Result<Entity<'_>, String> {
        let no_account = || "No account specified".to_owned();
        let parts = split_path(path, 1, 2, true).ok_or_else(no_account)?;
        let first = parts[0].unwrap_or("");
        let (version, rest) = match Version::parse(first) {
            Some(version) => (version, &path[1 + first.len()..]),
            // An invalid version, not an account.
            None if first.starts_with('v') && !first.contains('_') => {
                return Err(format!("Unsupported version '{first}'"));
            }
            None => (Version::One, path),
        };
        let parts = split_path(rest, 1, 3, true).ok_or_else(no_account)?;
        Ok(Entity {
            version,
            account: parts[0].ok_or_else(no_account)?,
            container: parts[1],
            object: parts[2].filter(|_| parts[1].is_some()),
        })
    }
}

impl ListEndpoints {
    async fn answer(&self, request: &Request, path: &str) -> Response {
        if request.method() != Method::GET {
            let mut response = respond::standard(StatusCode::METHOD_NOT_ALLOWED);
            respond::set(response.headers_mut(), "allow", "GET");
            return response;
        }
        let asked = match Entity::parse(path) {
            Ok(asked) => asked,
            Err(reason) => return respond::text(StatusCode::BAD_REQUEST, reason),
        };
        let mut policy = None;
        if let (Some(container), Some(_)) = (asked.container, asked.object) {
            let context = request.extensions().get::<Context>().cloned();
            let context = context.unwrap_or_default();
            let info = self
                .info
                .container(&context, asked.account, container)
                .await;
            policy = Some(info.policy);
        }
        let object = asked.object.zip(policy);
        let Some(places) = self.info.places(asked.account, asked.container, object) else {
            return respond::text(StatusCode::SERVICE_UNAVAILABLE, "There is no ring for it");
        };
        let mut name = quote_path(asked.account);
        for part in [asked.container, asked.object].into_iter().flatten() {
            name = name + "/" + &quote_path(part);
        }
        let endpoint = |place: &cairn_http::DevicePlace| {
            let (host, device, partition) = (&place.host, &place.device, place.partition);
            format!("http://{host}/{device}/{partition}/{name}")
        };
        let endpoints: Vec<String> = places.iter().map(endpoint).collect();
        let body = match (asked.version, policy) {
            (Version::One, _) => json!(endpoints),
            (Version::Two, None) => json!({"endpoints": endpoints, "headers": {}}),
            (Version::Two, Some(policy)) => json!({
                "endpoints": endpoints,
                "headers": {"X-Backend-Storage-Policy-Index": policy.to_string()},
            }),
        };
        respond::typed(StatusCode::OK, "application/json", body.to_string())
    }
}

impl Service for ListEndpoints {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        let path = unquote(request.uri().path()).unwrap_or_default();
        if !path.starts_with(&self.path) {
            return self.next.call(request);
        }
        Box::pin(async move { self.answer(&request, &path[self.path.len() - 1..]).await })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cairn_http::{AccountInfo, ContainerInfo, DevicePlace, InfoFuture};
    use cairn_types::PolicyIndex;

    use super::*;
    use crate::testing::{answers, env, filter_in, header, request, text};

    /// A cluster with everything on two devices; containers have policy 3.
    struct Everywhere;

    impl InfoSource for Everywhere {
        fn account<'a>(&'a self, _: &'a Context, _: &'a str) -> InfoFuture<'a, AccountInfo> {
            Box::pin(async { Arc::default() })
        }

        fn container<'a>(
            &'a self,
            _: &'a Context,
            _: &'a str,
            _: &'a str,
        ) -> InfoFuture<'a, ContainerInfo> {
            let info = ContainerInfo {
                policy: PolicyIndex(3),
                ..ContainerInfo::default()
            };
            Box::pin(async { Arc::new(info) })
        }

        fn places(
            &self,
            _: &str,
            container: Option<&str>,
            object: Option<(&str, PolicyIndex)>,
        ) -> Option<Vec<DevicePlace>> {
            let partition = match (container, object) {
                (_, Some((_, policy))) => policy.0,
                (Some(_), None) => 2,
                (None, None) => 1,
            };
            let place = |host: &str| DevicePlace {
                host: host.into(),
                device: "sda".into(),
                partition,
            };
            Some(vec![place("10.0.0.1:6200"), place("[::1]:6200")])
        }
    }

    async fn ask(method: &str, path: &str) -> (u16, String) {
        let env = FilterEnv {
            info_source: Arc::new(Everywhere),
            ..env()
        };
        let app = filter_in(&env, "list_endpoints", &[], answers(404));
        let answer = app.call(request(method, path, &[])).await;
        (answer.status().as_u16(), text(answer).await)
    }

    #[tokio::test]
    async fn where_things_are() {
        let (status, body) = ask("GET", "/endpoints/a/c/o%20one/two").await;
        assert_eq!(status, 200);
        let list: Vec<String> = serde_json::from_str(&body).unwrap();
        assert_eq!(
            list,
            [
                "http://10.0.0.1:6200/sda/3/a/c/o%20one/two",
                "http://[::1]:6200/sda/3/a/c/o%20one/two"
            ]
        );
        for path in ["/endpoints/v1/a/c", "/endpoints/1.0/a/c", "/endpoints/a/c"] {
            let list: Vec<String> = serde_json::from_str(&ask("GET", path).await.1).unwrap();
            assert_eq!(list[0], "http://10.0.0.1:6200/sda/2/a/c");
        }
        let (_, body) = ask("GET", "/endpoints/v2/a/c/o").await;
        let told: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(told["headers"]["X-Backend-Storage-Policy-Index"], "3");
        assert_eq!(told["endpoints"][0], "http://10.0.0.1:6200/sda/3/a/c/o");
        let (_, body) = ask("GET", "/endpoints/v2/a").await;
        let told: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(told["headers"], json!({}));
        assert_eq!(told["endpoints"][0], "http://10.0.0.1:6200/sda/1/a");
    }

    #[tokio::test]
    async fn what_is_refused() {
        assert_eq!(ask("GET", "/v1/a/c/o").await.0, 404);
        assert_eq!(ask("PUT", "/endpoints/a").await.0, 405);
        for (path, reason) in [
            ("/endpoints/", "No account specified"),
            ("/endpoints/v1", "No account specified"),
            ("/endpoints/v1/", "No account specified"),
            ("/endpoints/v3/a", "Unsupported version 'v3'"),
            ("/endpoints/vx/a", "Unsupported version 'vx'"),
        ] {
            assert_eq!(ask("GET", path).await, (400, reason.into()), "{path}");
        }
        // This is an account.
        assert_eq!(ask("GET", "/endpoints/v_3/c").await.0, 200);
    }

    #[tokio::test]
    async fn another_path() {
        let options = [("list_endpoints_path", "/where")];
        let app = filter_in(&env(), "list_endpoints", &options, answers(404));
        let answer = app.call(request("POST", "/where/a", &[])).await;
        assert_eq!(header(&answer, "allow").as_deref(), Some("GET"));
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_path_is_read_or_refused(path in "(/(v[0-9.]{0,4}|[a-zé_]{0,6})){0,5}|.{0,40}") {
            if let Ok(entity) = Entity::parse(&path) {
                prop_assert!(entity.object.is_none() || entity.container.is_some());
            }
        }
    }
}
