//! POST to an object: writes new metadata on every replica.

use cairn_http::Response;
use cairn_types::ServerKind;
use http::{HeaderMap, Method, StatusCode};
use tracing::debug;

use super::conditional::Opening;
use super::{Location, Name, effect};
use crate::checks;
use crate::request::Incoming;
use crate::state::Proxy;
use crate::status;
use crate::write::{Write, best_response};

impl Proxy {
    pub(super) async fn object_post(
        &self,
        incoming: &mut Incoming,
        name: Name<'_>,
        location: Location,
    ) -> Response {
        let checked =
            checks::check_metadata(incoming.headers(), ServerKind::Object, &self.constraints);
        if let Err(refused) = checked {
            return refused;
        }
        let delete_at =
            match checks::check_delete_headers(&mut incoming.parts.headers, incoming.timestamp) {
                Ok(delete_at) => delete_at,
                Err(refused) => return refused,
            };
        let swap = match self.begin_swap(incoming, &location, Opening::Give).await {
            Ok(swap) => swap,
            Err(refused) => return refused,
        };
        let headers = self
            .backend_headers(incoming, name, &location, delete_at)
            .all();
        let nodes = self.nodes_of(
            location.ring.clone(),
            location.partition,
            Some(location.policy),
        );
        let path = incoming.target.entity_path();
        let write = |headers: Vec<HeaderMap>| {
            let quorum = location.kind.update_quorum(headers.len());
            Write::new(
                location.ring.clone(),
                location.partition,
                Method::POST,
                path.clone(),
                headers,
            )
            .needing(quorum)
        };
        if let Some(swap) = swap {
            return self.swap_write(incoming, swap, write(headers)).await;
        }
        let mut answers = self.write_answers(write(headers.clone()), &nodes).await;
        let found = answers.iter().filter(|a| a.status == 202).count();
        let mut quorum = location.kind.update_quorum(answers.len());
        if found > 0 && !quorum.is_reached_by(found) {
            // Some primaries do not have the object: it may be on handoffs instead.
            let replicas = location.ring.ring().replica_count().ceil() as usize;
            quorum = location.kind.update_quorum(replicas);
            let missing: Vec<_> = headers
                .into_iter()
                .zip(&answers)
                .filter(|(_, answer)| answer.status == 404)
                .map(|(headers, _)| headers)
                .collect();
            debug!(path, found, "mixed answers to POST; trying handoffs");
            if !missing.is_empty() {
                answers.extend(self.write_answers(write(missing), &nodes).await);
            }
        }
        let response = best_response(&answers, quorum, &format!("POST {path}"));
        if response.status() == StatusCode::NOT_FOUND && found > 0 {
            // At least one server has the object, so 404 cannot be right.
            return status::no_quorum();
        }
        if response.status() == StatusCode::CONFLICT {
            effect::note_missing(incoming);
        }
        response
    }
}
