//! Filter `crossdomain`: serves `/crossdomain.xml`, in which old browser plug-ins look for the
//! sites whose scripts are allowed. Option: `cross_domain_policy`, lines of XML that are copied
//! into the document (default: all sites).

use std::sync::Arc;

use cairn_formats::ini::Section;
use cairn_http::{Handler, Request, Service, ServiceFuture, respond};
use http::{Method, StatusCode};
use serde_json::json;

use crate::{FilterEnv, FilterError};

const DEFAULT: &str = "<allow-access-from domain=\"*\" secure=\"false\" />";

struct CrossDomain {
    next: Handler,
    document: String,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    env.swift_info.register("crossdomain", json!({}));
    let policy = section.str_or("cross_domain_policy", DEFAULT);
    let document = format!(
        "<?xml version=\"1.0\"?>\n\
         <!DOCTYPE cross-domain-policy SYSTEM \
         \"http://www.adobe.com/xml/dtds/cross-domain-policy.dtd\" >\n\
         <cross-domain-policy>\n{policy}\n</cross-domain-policy>"
    );
    Ok(Arc::new(CrossDomain { next, document }))
}

impl Service for CrossDomain {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        if request.method() != Method::GET || request.uri().path() != "/crossdomain.xml" {
            return self.next.call(request);
        }
        let response = respond::typed(
            StatusCode::OK,
            "application/xml; charset=UTF-8",
            self.document.clone(),
        );
        Box::pin(std::future::ready(response))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::{answers, filter, request, text};

    #[tokio::test]
    async fn answers_for_its_path_alone() {
        let app = filter("crossdomain", &[], answers(404));
        let answer = app.call(request("GET", "/crossdomain.xml", &[])).await;
        assert_eq!(answer.status(), 200);
        assert!(text(answer).await.ends_with(
            "<cross-domain-policy>\n<allow-access-from domain=\"*\" secure=\"false\" />\n\
             </cross-domain-policy>"
        ));
        for (method, path) in [("PUT", "/crossdomain.xml"), ("GET", "/a/crossdomain.xml")] {
            assert_eq!(app.call(request(method, path, &[])).await.status(), 404);
        }
        let own = [("cross_domain_policy", "<a />\n<b />")];
        let answer = filter("crossdomain", &own, answers(404))
            .call(request("GET", "/crossdomain.xml", &[]))
            .await;
        assert!(text(answer).await.contains("\n<a />\n<b />\n"));
    }
}
