//! Filter `etag_quoter`: ETags in double quotes, as the HTTP standard requires and older clients of
//! Swift do not expect. Accounts and containers choose by `X-Account-Rfc-Compliant-Etags` and
//! `X-Container-Rfc-Compliant-Etags` (the container's choice takes precedence); `enable_by_default`
//! (false) applies to those without a choice.

use std::sync::Arc;

use cairn_formats::ini::Section;
use cairn_http::context::Context;
use cairn_http::params::is_true;
use cairn_http::{Handler, InfoSource, Request, Response, Service, ServiceFuture, respond};
use cairn_types::Constraints;
use http::HeaderMap;
use http::header::ETAG;
use serde_json::json;

use crate::names::Names;
use crate::{FilterEnv, FilterError};

const KEY: &str = "rfc-compliant-etags";

struct EtagQuoter {
    next: Handler,
    info_source: Arc<dyn InfoSource>,
    constraints: Arc<Constraints>,
    enable_by_default: bool,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    let enable_by_default = section.bool_or("enable_by_default", false);
    let info = json!({ "enable_by_default": enable_by_default });
    env.swift_info.register("etag_quoter", info);
    Ok(Arc::new(EtagQuoter {
        next,
        info_source: env.info_source.clone(),
        constraints: env.constraints.clone(),
        enable_by_default,
    }))
}

impl Service for EtagQuoter {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        match Names::of_api(request.uri().path(), &self.constraints) {
            None => self.next.call(request),
            Some(names) if names.object.is_some() => Box::pin(self.object(request, names)),
            Some(names) if names.container.is_some() => Box::pin(self.choice(request, "container")),
            Some(_) => Box::pin(self.choice(request, "account")),
        }
    }
}

impl EtagQuoter {
    /// A request for an account or container: its choice is stored as system metadata, and returned
    /// under the name in which it was sent.
    async fn choice(&self, mut request: Request, kind: &str) -> Response {
        let shown = format!("x-{kind}-{KEY}");
        let stored = format!("x-{kind}-sysmeta-{KEY}");
        store(request.headers_mut(), &shown, &stored, kind);
        let mut response = self.next.call(request).await;
        let headers = response.headers_mut();
        if let Some(value) = headers.remove(stored.as_str())
            && let Ok(text) = value.to_str()
        {
            respond::set(headers, &shown, text);
        }
        response
    }

    async fn object(&self, request: Request, names: Names) -> Response {
        let quotes = self.quotes(&Context::of_request(&request), &names).await;
        let mut response = self.next.call(request).await;
        if quotes {
            quote_etag(response.headers_mut());
        }
        response
    }

    async fn quotes(&self, context: &Context, names: &Names) -> bool {
        let container = names.container.as_deref().unwrap_or("");
        let info = self
            .info_source
            .container(context, &names.account, container)
            .await;
        if !info.exists() {
            return false;
        }
        if let Some(chosen) = info.sysmeta.get(KEY) {
            return is_true(chosen);
        }
        let account = self.info_source.account(context, &names.account).await;
        if !account.exists() {
            return false;
        }
        let chosen = account.sysmeta.get(KEY);
        chosen.map_or(self.enable_by_default, |chosen| is_true(chosen))
    }
}

fn store(headers: &mut HeaderMap, shown: &str, stored: &str, kind: &str) {
    let chosen = respond::header(headers, shown).map(|text| match text {
        "" => "",
        text if is_true(text) => "True",
        _ => "False",
    });
    let removed = headers
        .get(format!("x-remove-{kind}-{KEY}"))
        .is_some_and(|value| !value.is_empty());
    if let Some(value) = removed.then_some("").or(chosen) {
        respond::set(headers, stored, value);
    }
}

fn quote_etag(headers: &mut HeaderMap) {
    let Some(etag) = respond::header(headers, ETAG.as_str()) else {
        return;
    };
    let is_quoted = (etag.starts_with('"') || etag.starts_with("W/\"")) && etag.ends_with('"');
    if !is_quoted {
        let quoted = format!("\"{etag}\"");
        respond::set(headers, ETAG.as_str(), quoted);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::{self, OneOfEach, filter_in, header, recorder, request};
    use cairn_http::{AccountInfo, ContainerInfo};
    use http::StatusCode;

    async fn etag(
        account: Option<&str>,
        container: Option<&str>,
        default: &str,
        etag: &'static str,
    ) -> String {
        let chosen = |value: Option<&str>| {
            let pair = value.map(|v| (KEY.to_owned(), v.to_owned()));
            pair.into_iter().collect()
        };
        let mut env = testing::env();
        env.info_source = Arc::new(OneOfEach {
            account: Arc::new(AccountInfo {
                status: 204,
                sysmeta: chosen(account),
                ..AccountInfo::default()
            }),
            container: Arc::new(ContainerInfo {
                status: 204,
                sysmeta: chosen(container),
                ..ContainerInfo::default()
            }),
        });
        let (inner, _) = recorder(move |_| {
            let mut response = respond::empty(StatusCode::OK);
            respond::set(response.headers_mut(), "etag", etag);
            response
        });
        let options = [("enable_by_default", default)];
        let app = filter_in(&env, "etag_quoter", &options, inner);
        let answer = app.call(request("GET", "/v1/a/c/o", &[])).await;
        header(&answer, "etag").unwrap()
    }

    #[tokio::test]
    async fn who_chooses() {
        for (account, container, default, quoted) in [
            (None, None, "false", false),
            (None, None, "true", true),
            (Some("True"), None, "false", true),
            (Some("False"), None, "true", false),
            (Some("True"), Some("False"), "true", false),
            (Some("False"), Some("True"), "false", true),
        ] {
            let expected = if quoted { "\"abc\"" } else { "abc" };
            assert_eq!(etag(account, container, default, "abc").await, expected);
        }
        assert_eq!(etag(None, None, "true", "\"abc\"").await, "\"abc\"");
        assert_eq!(etag(None, None, "true", "W/\"abc\"").await, "W/\"abc\"");
        assert_eq!(etag(None, None, "true", "\"abc").await, "\"\"abc\"");
    }

    #[tokio::test]
    async fn choices_are_stored_and_shown() {
        let (inner, seen) = recorder(|parts| {
            let mut response = respond::empty(StatusCode::OK);
            for (name, value) in &parts.headers {
                response.headers_mut().insert(name, value.clone());
            }
            response
        });
        let app = filter_in(&testing::env(), "etag_quoter", &[], inner);
        for (path, kind) in [("/v1/a", "account"), ("/v1/a/c", "container")] {
            for (name, value, stored) in [
                ("", "t", "True"),
                ("", "no", "False"),
                ("", "", ""),
                ("remove-", "x", ""),
            ] {
                let name = format!("x-{name}{kind}-{KEY}");
                let answer = app.call(request("POST", path, &[(&name, value)])).await;
                let shown = header(&answer, &format!("x-{kind}-{KEY}"));
                assert_eq!(shown.as_deref(), Some(stored));
                let (parts, _) = seen.lock().unwrap().pop().unwrap();
                let sysmeta = format!("x-{kind}-sysmeta-{KEY}");
                assert_eq!(respond::header(&parts.headers, &sysmeta), Some(stored));
            }
        }
    }
}
