//! GET and HEAD of an object.

use cairn_http::{Response, respond};
use cairn_types::ServerKind;
use http::header::{CONTENT_TYPE, HeaderValue};

use super::Place;
use crate::app::Proxy;
use crate::request::Incoming;

impl Proxy {
    pub(super) async fn object_read(&self, incoming: &mut Incoming, place: Place) -> Response {
        let mut response = if let Some(erasure) = place.erasure.clone() {
            Box::pin(self.read_fragments(incoming, place, erasure)).await
        } else {
            let query = incoming.parts.uri.query().map(str::to_owned);
            let kind = ServerKind::Object;
            self.read(incoming, kind, place.ring, place.partition, query)
                .await
        };
        if let Some(bare) = without_swift_bytes(&response) {
            response.headers_mut().insert(CONTENT_TYPE, bare);
        }
        response
    }
}

/// A content type less the `swift_bytes` that internal services add to it.
fn without_swift_bytes(response: &Response) -> Option<HeaderValue> {
    let text = respond::header(response.headers(), CONTENT_TYPE.as_str())?;
    let (left, right) = text.rsplit_once(';')?;
    right
        .trim_start()
        .starts_with("swift_bytes=")
        .then(|| respond::value(left))
        .flatten()
}
