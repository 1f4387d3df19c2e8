//! GET and HEAD of an object.

use cairn_http::{Response, respond};
use cairn_types::{PolicyIndex, ServerKind};
use http::header::{CONTENT_TYPE, HeaderValue};

use super::{Name, Place};
use crate::app::Proxy;
use crate::headers::{self, POLICY_INDEX};
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

    /// Reads an object that is not where the remembered policy has it, if the container has
    /// another one by now: a reconciler moved the object there after its servers had disagreed.
    /// Without this it would be gone for as long as the container is remembered.
    pub(super) async fn object_elsewhere(
        &self,
        incoming: &mut Incoming,
        name: Name<'_>,
        policy: PolicyIndex,
    ) -> Option<Response> {
        let info = self
            .newer_policy(&incoming.context, name.account, name.container, policy)
            .await?;
        if let Err(denied) = self.authorize(incoming, info.read_acl.as_deref()).await {
            return Some(denied);
        }
        let asked = &mut incoming.parts.headers;
        headers::insert(asked, POLICY_INDEX, &info.policy.to_string());
        match self.place(incoming, name, info) {
            Ok(place) => Some(self.object_read(incoming, place).await),
            Err(refused) => Some(refused),
        }
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
