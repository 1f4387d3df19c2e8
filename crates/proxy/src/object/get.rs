//! GET and HEAD of an object.

use cairn_http::{Response, respond};
use cairn_types::{PolicyIndex, ServerKind};
use http::header::{CONTENT_TYPE, HeaderValue};

use super::{Location, Name};
use crate::headers::{self, POLICY_INDEX};
use crate::request::Incoming;
use crate::state::Proxy;

impl Proxy {
    pub(super) async fn object_read(
        &self,
        incoming: &mut Incoming,
        location: Location,
    ) -> Response {
        let mut response = if let Some(erasure) = location.erasure.clone() {
            Box::pin(self.read_fragments(incoming, location, erasure)).await
        } else {
            let query = incoming.parts.uri.query().map(str::to_owned);
            let kind = ServerKind::Object;
            let (ring, partition, hash) = (location.ring, location.partition, location.hash);
            self.read(incoming, kind, ring, partition, query, Some(hash))
                .await
        };
        if let Some(bare) = without_swift_bytes(&response) {
            response.headers_mut().insert(CONTENT_TYPE, bare);
        }
        response
    }

    /// Reads an object that is missing in the container's cached policy from the container's
    /// current policy, if that differs: when its servers had disagreed, the reconciler moved the
    /// object there. Otherwise the object would be missing until the cache entry expires.
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
        match self.locate(incoming, name, info) {
            Ok(location) => Some(self.object_read(incoming, location).await),
            Err(refused) => Some(refused),
        }
    }
}

/// The content type without the `swift_bytes` parameter that internal services add.
fn without_swift_bytes(response: &Response) -> Option<HeaderValue> {
    let text = respond::header(response.headers(), CONTENT_TYPE.as_str())?;
    let (left, right) = text.rsplit_once(';')?;
    right
        .trim_start()
        .starts_with("swift_bytes=")
        .then(|| respond::value(left))
        .flatten()
}
