//! Large objects in container listings: the container's row has the large object's ETag after that
//! of its manifest (`hash; slo_etag=…`), and it is shown as a field of its own.

use cairn_formats::listing::MAX_LISTING_BYTES;
use cairn_http::{Body, Handler, Request, Response, respond};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use serde_json::Value;

use crate::status;
use crate::whole::{self, Row};

const MARK: &str = "slo_etag";

pub(super) async fn with_slo_etags(next: &Handler, request: Request) -> Response {
    let response = next.call(request).await;
    let content_type = respond::header(response.headers(), CONTENT_TYPE.as_str()).unwrap_or("");
    let is_json = content_type.split(';').next().map(str::trim) == Some("application/json");
    let length = respond::header(response.headers(), CONTENT_LENGTH.as_str())
        .and_then(|l| l.parse().ok())
        .or_else(|| response.body().length());
    let is_readable = length.is_some_and(|l: u64| l <= MAX_LISTING_BYTES);
    if !response.status().is_success() || !is_json || !is_readable {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let Ok(json) = body.collect(MAX_LISTING_BYTES).await else {
        return status::unavailable();
    };
    // Most listings contain none.
    let body = match whole::with_rows(&json, MARK, tell_etag).await {
        Some(told) => Body::full(told),
        None => Body::full(json),
    };
    head.headers
        .insert(CONTENT_LENGTH, body.length().unwrap_or(0).into());
    Response::from_parts(head, body)
}

fn tell_etag(row: &mut Row) {
    let hash = row.get("hash").and_then(Value::as_str);
    if let Some((hash, slo_etag)) = hash.and_then(split_etag) {
        row.insert("hash".into(), hash.into());
        row.insert("slo_etag".into(), format!("\"{slo_etag}\"").into());
    }
}

/// Splits `hash; a=b; slo_etag=c` into `hash; a=b` and `c`.
fn split_etag(hash: &str) -> Option<(String, String)> {
    let mut parts = hash.split(';').map(str::trim);
    let mut rest = parts.next()?.to_owned();
    let mut slo_etag = None;
    for part in parts {
        match part.strip_prefix("slo_etag=") {
            Some(etag) => slo_etag = Some(etag.trim_matches('"').to_owned()),
            None => {
                rest.push_str("; ");
                rest.push_str(part);
            }
        }
    }
    Some((rest, slo_etag?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags() {
        let pair = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        assert_eq!(split_etag("a; slo_etag=b"), pair("a", "b"));
        assert_eq!(
            split_etag("a; s3_etag=x; slo_etag=b; y=z"),
            pair("a; s3_etag=x; y=z", "b")
        );
        assert_eq!(split_etag("a"), None);
    }

    #[tokio::test]
    async fn rows_tell_it() {
        let json = r#"[{"hash":"a; slo_etag=b","name":"n"},{"subdir":"x/"}]"#;
        let told = whole::with_rows(&json.into(), MARK, tell_etag).await;
        assert_eq!(
            String::from_utf8_lossy(&told.unwrap_or_default()),
            r#"[{"hash":"a","name":"n","slo_etag":"\"b\""},{"subdir":"x/"}]"#
        );
        for other in [r#"{"slo_etag":1}"#, r#"[{"hash":"a","name":"n"}]"#] {
            let told = whole::with_rows(&other.into(), MARK, tell_etag).await;
            assert_eq!(told, None, "{other}");
        }
    }
}
