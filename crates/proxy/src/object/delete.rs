//! DELETE of an object: a tombstone on every replica.

use cairn_http::Response;
use http::Method;

use super::Place;
use crate::app::Proxy;
use crate::request::{Incoming, Target};
use crate::write::Write;

impl Proxy {
    pub(super) async fn object_delete(&self, incoming: &mut Incoming, place: Place) -> Response {
        let Target::Object {
            account,
            container,
            object,
        } = &incoming.target
        else {
            return self.not_allowed(&incoming.target);
        };
        let headers = self.backend_headers(incoming, account, container, object, &place, None);
        let path = incoming.target.entity_path();
        let write = Write::new(place.ring, place.partition, Method::DELETE, path, headers);
        // Replicas that never had it agree with those that deleted it.
        self.write(write, &[(404, 204)]).await
    }
}
