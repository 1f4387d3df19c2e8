//! Filter `listing_formats`: converts listings into the requested format. Inside the pipeline every
//! account and container GET is for JSON; here the response is converted to text or XML by
//! `?format=` or `Accept`.
//!
//! The whole listing is held in memory during conversion: at most
//! [`MAX_LISTING_BYTES`](listing::MAX_LISTING_BYTES).

use std::sync::Arc;

use bytes::Bytes;
use cairn_formats::ini::Section;
use cairn_formats::listing::{self, Converted, ListingError};
use cairn_http::context::Context;
use cairn_http::params::{Params, is_true, quote, quote_path, split_path, unquote};
use cairn_http::{Body, Handler, Request, Response, Service, ServiceFuture, own_thread, respond};
use cairn_types::Constraints;
use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, VARY};
use http::{Method, StatusCode};
use tracing::warn;

use crate::accept::best_match;
use crate::status;
use crate::whole;
use crate::{FilterEnv, FilterError};

/// Marker in the extensions of a response that stays JSON whatever the client requested
/// (`swift.format_listing` is false).
#[derive(Clone, Copy)]
pub(crate) struct AsItIs;

struct ListingFormats {
    next: Handler,
    constraints: Arc<Constraints>,
}

pub(crate) fn make(_: &Section, next: Handler, env: &FilterEnv) -> Result<Handler, FilterError> {
    Ok(Arc::new(ListingFormats {
        next,
        constraints: env.constraints.clone(),
    }))
}

/// The requested format of a listing.
struct Wanted {
    account: String,
    container: Option<String>,
    content_type: &'static str,
    /// The response depends on `Accept`.
    by_accept: bool,
    show_reserved: bool,
    is_head: bool,
}

impl Service for ListingFormats {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        match self.target(&request) {
            None => self.next.call(request),
            Some((account, container)) => Box::pin(self.list(request, account, container)),
        }
    }
}

impl ListingFormats {
    /// Account and container of a GET or HEAD, unless it is for an object.
    fn target(&self, request: &Request) -> Option<(String, Option<String>)> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return None;
        }
        // Requests for objects, the majority, return here without an allocation: an encoded slash
        // can only add segments.
        let raw = request.uri().path();
        if raw
            .splitn(5, '/')
            .nth(4)
            .is_some_and(|object| !object.is_empty())
        {
            return None;
        }
        let path = unquote(raw).ok()?;
        let parts = split_path(&path, 2, 3, false)?;
        let version = parts[0]?;
        if !self
            .constraints
            .valid_api_versions
            .iter()
            .any(|v| v == version)
        {
            return None;
        }
        Some((parts[1]?.to_owned(), parts[2].map(str::to_owned)))
    }

    async fn list(
        &self,
        mut request: Request,
        account: String,
        container: Option<String>,
    ) -> Response {
        let wanted = match ask_for_json(&mut request, account, container) {
            Ok(wanted) => wanted,
            Err(response) => return response,
        };
        let response = self.next.call(request).await;
        convert(response, wanted).await
    }
}

/// Determines the requested format and changes the request to JSON.
fn ask_for_json(
    request: &mut Request,
    account: String,
    container: Option<String>,
) -> Result<Wanted, Response> {
    let mut params = Params::parse(request.uri().query()).map_err(|_| {
        respond::text(
            StatusCode::BAD_REQUEST,
            "\"format\" parameter not valid UTF-8",
        )
    })?;
    // The change feed of a container has no other form.
    if container.is_some() && params.contains("changes") {
        params.set("format", "json");
    }
    let by_accept = !params.contains("format");
    let content_type = listing_content_type(request, &params)?;
    if !by_accept {
        // Filters behind this one that support a single format see only the requested one.
        let accept = HeaderValue::from_static(content_type);
        request.headers_mut().insert(ACCEPT, accept);
    }
    params.set("format", "json");
    let path = request.uri().path();
    let uri = format!("{path}?{}", params.encode());
    *request.uri_mut() = uri.parse().map_err(|_| status::path_too_long())?;
    let asks_reserved = respond::header(request.headers(), "x-backend-allow-reserved-names");
    Ok(Wanted {
        account,
        container,
        content_type,
        by_accept,
        show_reserved: asks_reserved.is_some_and(is_true)
            || Context::of_request(request).allow_reserved,
        is_head: request.method() == Method::HEAD,
    })
}

const OFFERS: [&str; 4] = [
    "text/plain",
    "application/json",
    "application/xml",
    "text/xml",
];

fn listing_content_type(request: &Request, params: &Params) -> Result<&'static str, Response> {
    if let Some(format) = params.get("format").filter(|f| !f.is_empty()) {
        return Ok(match format.to_ascii_lowercase().as_str() {
            "json" => "application/json",
            "xml" => "application/xml",
            _ => "text/plain",
        });
    }
    let values: Vec<&str> = request
        .headers()
        .get_all(ACCEPT)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .collect();
    match best_match(Some(&values.join(",")), &OFFERS) {
        Ok(Some(best)) => Ok(best),
        Ok(None) => Err(respond::standard(StatusCode::NOT_ACCEPTABLE)),
        Err(_) => Err(respond::text(
            StatusCode::BAD_REQUEST,
            "Invalid Accept header",
        )),
    }
}

async fn convert(mut response: Response, wanted: Wanted) -> Response {
    if response.status() != StatusCode::OK && response.status() != StatusCode::NO_CONTENT {
        return response;
    }
    if response.extensions().get::<AsItIs>().is_some() {
        return response;
    }
    if wanted.by_accept {
        vary_by_accept(&mut response);
    }
    let content_type = respond::header(response.headers(), CONTENT_TYPE.as_str()).unwrap_or("");
    if content_type.split(';').next().unwrap_or("").trim() != "application/json" {
        return response;
    }
    if wanted.is_head {
        set_type(&mut response, wanted.content_type);
        response
            .headers_mut()
            .insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        return response;
    }
    let (mut head, json) = match whole::listing(response).await {
        Ok(whole) => whole,
        Err(as_it_is) => return as_it_is,
    };
    let (content_type, whole) = (wanted.content_type, json.clone());
    let rendered = own_thread::heavy(json.len(), move || wanted.render(&whole)).await;
    let Some(rendered) = rendered else {
        return respond::standard(StatusCode::INTERNAL_SERVER_ERROR);
    };
    let Ok(body) = rendered else {
        // JSON of another filter that is not a listing: passed on unchanged.
        head.headers.insert(CONTENT_LENGTH, json.len().into());
        return Response::from_parts(head, Body::full(json));
    };
    if body.is_empty() {
        head.status = StatusCode::NO_CONTENT;
    }
    head.headers.insert(CONTENT_LENGTH, body.len().into());
    let mut response = Response::from_parts(head, Body::full(body));
    set_type(&mut response, content_type);
    response
}

impl Wanted {
    fn render(&self, json: &Bytes) -> Result<Bytes, ListingError> {
        let converted = match (self.content_type, &self.container) {
            ("application/json", _) => match listing::to_json(json, self.show_reserved)? {
                None => return Ok(json.clone()),
                Some(converted) => converted,
            },
            ("text/plain", _) => listing::to_text(json, self.show_reserved)?,
            (_, Some(container)) => listing::container_to_xml(json, container, self.show_reserved)?,
            (_, None) => listing::account_to_xml(json, &self.account, self.show_reserved)?,
        };
        let Converted { body, hidden } = converted;
        if hidden > 0 {
            warn!(
                account = quote(&self.account),
                container = self.container.as_deref().map(quote_path),
                hidden,
                "a listing had names with the reserved byte"
            );
        }
        Ok(body.into())
    }
}

fn set_type(response: &mut Response, content_type: &str) {
    let value = format!("{content_type}; charset=utf-8");
    respond::set(response.headers_mut(), CONTENT_TYPE.as_str(), value);
}

fn vary_by_accept(response: &mut Response) {
    let value = match respond::header(response.headers(), VARY.as_str()) {
        None => "Accept".to_owned(),
        Some(vary)
            if vary
                .split(',')
                .any(|v| v.trim().eq_ignore_ascii_case("accept")) =>
        {
            return;
        }
        Some(vary) => format!("{vary}, Accept"),
    };
    respond::set(response.headers_mut(), VARY.as_str(), value);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::{Seen, filter, header, recorder, request, text};

    const ACCOUNT: &str = r#"[{"name":"bar","bytes":0,"count":0,"last_modified":"1970-01-01T00:00:00.000000"},{"subdir":"foo_"}]"#;
    const CONTAINER: &str = r#"[{"name":"bar","hash":"etag","bytes":0,"content_type":"text/plain","last_modified":"1970-01-01T00:00:00.000000"},{"subdir":"foo/"}]"#;

    fn app(json: &'static str) -> (Handler, Seen) {
        let (inner, seen) = recorder(move |_| {
            respond::typed(StatusCode::OK, "application/json; charset=utf-8", json)
        });
        (filter("listing_formats", &[], inner), seen)
    }

    #[tokio::test]
    async fn changes_of_a_container_are_json_whatever_is_accepted() {
        for (path, expected) in [
            ("/v1/a/c?changes=", "application/json; charset=utf-8"),
            (
                "/v1/a/c?changes=&format=xml",
                "application/json; charset=utf-8",
            ),
            ("/v1/a?changes=", "text/plain; charset=utf-8"),
        ] {
            let (filter, _) = app(CONTAINER);
            let asked = request("GET", path, &[("accept", "text/plain")]);
            let response = filter.call(asked).await;
            let is = header(&response, "content-type");
            assert_eq!(is.as_deref(), Some(expected), "{path}");
        }
    }

    #[tokio::test]
    async fn accounts_in_every_format() {
        for (query, accept, content_type, body, vary) in [
            (
                "",
                None,
                "text/plain; charset=utf-8",
                "bar\nfoo_\n",
                Some("Accept"),
            ),
            (
                "?format=plain",
                None,
                "text/plain; charset=utf-8",
                "bar\nfoo_\n",
                None,
            ),
            (
                "?format=nonsense",
                None,
                "text/plain; charset=utf-8",
                "bar\nfoo_\n",
                None,
            ),
            (
                "?format=json",
                None,
                "application/json; charset=utf-8",
                ACCOUNT,
                None,
            ),
            (
                "",
                Some("application/json"),
                "application/json; charset=utf-8",
                ACCOUNT,
                Some("Accept"),
            ),
            (
                "?format=json",
                Some("text/xml"),
                "application/json; charset=utf-8",
                ACCOUNT,
                None,
            ),
            (
                "?format=xml",
                None,
                "application/xml; charset=utf-8",
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<account name=\"a\">\n<container>\
              <name>bar</name><count>0</count><bytes>0</bytes><last_modified>\
              1970-01-01T00:00:00.000000</last_modified></container>\n<subdir name=\"foo_\" />\n\
              </account>",
                None,
            ),
        ] {
            let (app, seen) = app(ACCOUNT);
            let headers: Vec<_> = accept.iter().map(|a| ("accept", *a)).collect();
            let response = app
                .call(request("GET", &format!("/v1/a{query}"), &headers))
                .await;
            assert_eq!(response.status(), 200);
            assert_eq!(header(&response, "content-type").unwrap(), content_type);
            assert_eq!(
                header(&response, "content-length").unwrap(),
                body.len().to_string()
            );
            assert_eq!(header(&response, "vary").as_deref(), vary);
            assert_eq!(text(response).await, body);
            assert_eq!(seen.lock().unwrap()[0].0.uri.query(), Some("format=json"));
        }
    }

    #[tokio::test]
    async fn containers_and_their_query() {
        let (app, seen) = app(CONTAINER);
        let path = "/v1/a/c%20d?limit=2&prefix=a%20b&format=XML";
        let response = app
            .call(request("GET", path, &[("accept", "text/plain")]))
            .await;
        assert!(
            text(response)
                .await
                .contains("<container name=\"c d\"><object><name>bar</name>")
        );
        let uri = seen.lock().unwrap()[0].0.uri.clone();
        assert_eq!(
            uri.to_string(),
            "/v1/a/c%20d?limit=2&prefix=a%20b&format=json"
        );
        let response = app
            .call(request("GET", "/v1/a/c/", &[("accept", "text/xml")]))
            .await;
        assert_eq!(
            header(&response, "content-type").unwrap(),
            "text/xml; charset=utf-8"
        );
    }

    #[tokio::test]
    async fn an_empty_text_is_204() {
        let (app, _) = app("[]");
        let response = app.call(request("GET", "/v1/a/c", &[])).await;
        assert_eq!(response.status(), 204);
        assert_eq!(
            header(&response, "content-type").unwrap(),
            "text/plain; charset=utf-8"
        );
        assert_eq!(header(&response, "content-length").unwrap(), "0");
        let response = app.call(request("GET", "/v1/a/c?format=json", &[])).await;
        assert_eq!(response.status(), 200);
        assert_eq!(text(response).await, "[]");
    }

    #[tokio::test]
    async fn heads_have_the_type_and_no_length() {
        let (app, _) = app("[]");
        let response = app.call(request("HEAD", "/v1/a?format=xml", &[])).await;
        assert_eq!(
            header(&response, "content-type").unwrap(),
            "application/xml; charset=utf-8"
        );
        assert_eq!(header(&response, "content-length").unwrap(), "0");
    }

    #[tokio::test]
    async fn refusals() {
        let (app, seen) = app(CONTAINER);
        for (accept, query, status) in [
            ("image/png", "", 406),
            ("nonsense", "", 400),
            ("*/*", "?format=%ff", 400),
        ] {
            let path = format!("/v1/a/c{query}");
            let response = app.call(request("GET", &path, &[("accept", accept)])).await;
            assert_eq!(response.status(), status);
        }
        assert!(seen.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn others_pass_untouched() {
        let (app, seen) = app(CONTAINER);
        for (method, path) in [
            ("GET", "/v1/a/c/o"),
            ("GET", "/v1/a/c%2Fo/o"),
            ("PUT", "/v1/a/c"),
            ("GET", "/v3/a/c"),
            ("GET", "/info"),
            ("GET", "/v1"),
        ] {
            let response = app.call(request(method, path, &[])).await;
            assert_eq!(text(response).await, CONTAINER);
        }
        assert!(
            seen.lock()
                .unwrap()
                .iter()
                .all(|(parts, _)| parts.uri.query().is_none())
        );
    }

    #[tokio::test]
    async fn what_is_no_listing_passes() {
        for json in ["{}", "[1]", "nonsense", r#"[{"x":1}]"#] {
            let (app, _) = app(json);
            let response = app.call(request("GET", "/v1/a/c?format=xml", &[])).await;
            assert_eq!(
                header(&response, "content-type").unwrap(),
                "application/json; charset=utf-8"
            );
            assert_eq!(text(response).await, json);
        }
        let (inner, _) = recorder(|_| {
            let mut response = respond::text(StatusCode::OK, "web page");
            respond::set(response.headers_mut(), "vary", "Origin");
            response
        });
        let app = filter("listing_formats", &[], inner);
        let response = app.call(request("GET", "/v1/a/c", &[])).await;
        assert_eq!(header(&response, "vary").unwrap(), "Origin, Accept");
        assert_eq!(text(response).await, "web page");
    }

    #[tokio::test]
    async fn reserved_names_need_permission() {
        let json = r#"[{"name":"\u0000v"},{"name":"w"}]"#;
        let (app, _) = app(json);
        let response = app.call(request("GET", "/v1/a/c", &[])).await;
        assert_eq!(text(response).await, "w\n");
        let allow = [("x-backend-allow-reserved-names", "true")];
        let response = app.call(request("GET", "/v1/a/c", &allow)).await;
        assert_eq!(text(response).await, "\0v\nw\n");
    }
}
