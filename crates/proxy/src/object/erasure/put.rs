//! PUT of an erasure-coded object: one fragment to each server, in two phases. When a quorum has
//! written its fragments, all are told to commit; only then is the object durable and the client
//! answered.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_http::{BodyError, Response, respond};
use cairn_peer::gather::{Answer, Commit, Gather};
use cairn_peer::two_phase::TwoPhasePut;
use cairn_peer::{Nodes, documents};
use cairn_types::{ErasureScheme, Quorum};
use futures_util::future::join_all;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, ETAG};
use serde_json::{Value, json};
use tracing::{debug, error};

use super::encode::{Encoder, Etags};
use crate::checks::MessageLength;
use crate::erasure::Erasure;
use crate::object::Location;
use crate::object::put::{footers_json, refused_by_state, trailer};
use crate::request::Incoming;
use crate::state::Proxy;
use crate::status;
use crate::write::best_response;

/// Prefix of system metadata that describes the fragment, not the object.
const EC_PREFIX: &str = "x-object-sysmeta-ec-";

/// An upload to one server, with the indexes of the fragments it gets.
struct Upload {
    put: TwoPhasePut,
    fragment: usize,
}

impl Proxy {
    pub(in crate::object) async fn put_fragments(
        &self,
        incoming: &mut Incoming,
        location: Location,
        erasure: Arc<Erasure>,
        mut headers: Vec<HeaderMap>,
        length: MessageLength,
    ) -> Response {
        let scheme = erasure.scheme;
        let quorum = location.kind.upload_quorum(headers.len());
        let known = match length {
            MessageLength::Known(length) => Some(length),
            _ => None,
        };
        for headers in &mut headers {
            // The fragments' lengths and ETags differ from the object's.
            headers.remove(CONTENT_LENGTH);
            headers.remove(ETAG);
            if let Some(length) = known.filter(|length| *length > 0) {
                let archive = erasure.codec.archive_size(length, scheme.segment_size());
                let name = "x-backend-obj-content-length";
                respond::set(headers, name, archive.to_string());
            }
        }
        let nodes = self.upload_nodes(&location);
        let puts = self
            .open_uploads(incoming, &nodes, location.partition, headers)
            .await;
        let early = puts
            .iter()
            .filter_map(|put| put.early.as_ref().map(|answer| answer.status));
        if let Some(refused) = refused_by_state(incoming, early) {
            return refused;
        }
        let mut uploads = assign(puts, &scheme);
        if let Err(few) = self.check_enough(incoming, &uploads, quorum) {
            return few;
        }
        let etags = match self
            .pump_fragments(incoming, &erasure, &mut uploads, quorum, known)
            .await
        {
            Ok(etags) => etags,
            Err(broken) => return broken,
        };
        let what = format!("PUT {}", incoming.target.entity_path());
        let answers = match self.conclude_uploads(uploads, quorum, &nodes, &what).await {
            Ok(answers) => answers,
            Err(refused) => return refused,
        };
        let mut response = best_response(&answers, quorum, &what);
        if response.status().is_success() {
            respond::set(response.headers_mut(), ETAG.as_str(), &etags.object);
        }
        response
    }

    /// Opens one upload for each stored fragment, to handoffs if primaries do not respond.
    async fn open_uploads(
        &self,
        incoming: &Incoming,
        nodes: &Nodes,
        partition: u32,
        headers: Vec<HeaderMap>,
    ) -> Vec<TwoPhasePut> {
        let path = incoming.target.entity_path();
        let opening = headers
            .into_iter()
            .map(|headers| self.open_upload(nodes, partition, &path, headers));
        join_all(opening).await.into_iter().flatten().collect()
    }

    async fn open_upload(
        &self,
        nodes: &Nodes,
        partition: u32,
        path: &str,
        headers: HeaderMap,
    ) -> Option<TwoPhasePut> {
        while let Some(node) = nodes.next() {
            let opened = TwoPhasePut::open(
                &self.backends,
                node.clone(),
                cairn_peer::backend_uri(&node, partition, path, None),
                headers.clone(),
                documents::boundary(),
                self.options.node_timeout,
            )
            .await;
            match opened {
                Ok(put) => {
                    let status = put.early.as_ref().map_or(100, |answer| answer.status);
                    if nodes.check_write(&node, status) {
                        return Some(put);
                    }
                }
                Err(error) => {
                    debug!(node = %node.name(), %error, "upload not opened");
                    nodes.limiter().increment(&node, "upload not opened");
                }
            }
        }
        None
    }

    fn check_enough(
        &self,
        incoming: &Incoming,
        uploads: &[Upload],
        quorum: Quorum,
    ) -> Result<(), Response> {
        if quorum.is_reached_by(uploads.len()) {
            return Ok(());
        }
        error!(
            path = %incoming.parts.uri.path(), left = uploads.len(), enough = quorum.size(),
            "too few object servers for an upload"
        );
        Err(status::too_few_servers())
    }

    /// Sends every fragment to its servers, then the footers. The next segment is read and coded
    /// while one is sent.
    async fn pump_fragments(
        &self,
        incoming: &mut Incoming,
        erasure: &Arc<Erasure>,
        uploads: &mut Vec<Upload>,
        quorum: Quorum,
        known: Option<u64>,
    ) -> Result<Etags, Response> {
        let body = std::mem::take(&mut incoming.body);
        let limit = self.constraints.max_file_size;
        let mut encoder = Encoder::new(erasure.clone(), body, self.options.client_timeout, limit);
        let timeout = self.options.node_timeout;
        let mut fragments: Option<Vec<Bytes>> = None;
        loop {
            let sending = async {
                let Some(fragments) = fragments.take() else {
                    return;
                };
                let sends = uploads.iter_mut().map(|upload| {
                    let fragment = fragments[upload.fragment].clone();
                    upload.put.send(fragment, timeout)
                });
                join_all(sends).await;
            };
            let (next, ()) = tokio::join!(encoder.next(), sending);
            uploads.retain(|upload| !upload.put.failed());
            self.check_enough(incoming, uploads, quorum)?;
            match next {
                Some(Ok(next)) => fragments = Some(next),
                Some(Err(error)) => return Err(self.broken_upload(incoming, &error)),
                None => break,
            }
        }
        let length = encoder.length;
        if known.is_some_and(|known| length < known) {
            return Err(self.broken_upload(incoming, &BodyError::Disconnected));
        }
        let etags = encoder.etags();
        let added = trailer(incoming, length)?.map(|trailer| trailer.headers);
        let given = match added.as_ref().and_then(|added| added.get(ETAG)) {
            Some(value) => value.to_str().ok(),
            None => incoming.header(ETAG.as_str()),
        };
        if given.is_some_and(|given| given.trim_matches('"') != etags.object) {
            return Err(status::other_etag());
        }
        let ends = uploads.iter_mut().map(|upload| {
            let mut footers = footers(&erasure.scheme, upload.fragment, &etags, length);
            add(&mut footers, added.as_ref());
            let footers = footers.to_string();
            async move { upload.put.end_content(&footers, timeout).await }
        });
        join_all(ends).await;
        Ok(etags)
    }

    /// Waits until a quorum is prepared, commits all, and returns their responses; missing ones are
    /// 503.
    async fn conclude_uploads(
        &self,
        uploads: Vec<Upload>,
        quorum: Quorum,
        nodes: &Arc<Nodes>,
        what: &str,
    ) -> Result<Vec<Answer>, Response> {
        let timeout = self.options.node_timeout;
        let mut gather = Gather::new(&self.backends, quorum, self.timeouts());
        for upload in uploads {
            let nodes = nodes.clone();
            gather.start_two_phase(|commit| conclude(upload.put, nodes, commit, timeout));
        }
        let Err(refused) = gather.commit().await else {
            return Ok(gather.answers().await);
        };
        error!(
            what,
            prepared = quorum.servers() - refused.len(),
            enough = quorum.size(),
            "too few fragments were written"
        );
        let best = best_response(&refused, quorum, what);
        // A refusal at this point is a protocol error between servers, whatever its status.
        Err(match best.status().is_client_error() {
            true => status::no_quorum(),
            false => best,
        })
    }
}

/// Completes one upload. This continues after the client has disconnected: an upload that was told
/// to commit does so.
async fn conclude(
    mut put: TwoPhasePut,
    nodes: Arc<Nodes>,
    commit: Commit,
    timeout: Duration,
) -> Option<Answer> {
    let node = put.node.clone();
    let note = |answer: &Answer, silence| match answer.node {
        Some(_) => drop(nodes.check_write(&node, answer.status)),
        None => nodes.limiter().increment(&node, silence),
    };
    if let Some(answer) = put.prepared(timeout).await {
        note(&answer, "no answer to an upload");
        return Some(answer);
    }
    // Without the commit the upload is dropped, and the server discards what it wrote.
    if !commit.is_told().await {
        return None;
    }
    let answer = put.commit(timeout).await;
    note(&answer, "no answer to a commit");
    Some(answer)
}

/// Assigns fragments to servers: a primary gets the fragment of its index, a handoff that of a
/// missing primary; with duplicated fragments, those with the fewest copies first.
fn assign(puts: Vec<TwoPhasePut>, scheme: &ErasureScheme) -> Vec<Upload> {
    let nodes: Vec<Option<usize>> = puts
        .iter()
        .map(|put| (!put.node.handoff).then_some(put.node.index))
        .collect();
    let fragments = destinations(&nodes, scheme);
    puts.into_iter()
        .zip(fragments)
        .filter_map(|(put, fragment)| {
            let fragment = fragment?;
            put.early.is_none().then_some(Upload { put, fragment })
        })
        .collect()
}

/// The fragment of each node, given as a primary's index or `None` for a handoff.
fn destinations(nodes: &[Option<usize>], scheme: &ErasureScheme) -> Vec<Option<usize>> {
    let mut copies = vec![0; scheme.unique()];
    for index in nodes.iter().flatten() {
        copies[scheme.fragment_of_node(*index)] += 1;
    }
    // Fragments with the most missing copies first, so that each gets at least one copy.
    let mut holes = (0..scheme.duplication()).flat_map(|kept| {
        let copies = &copies;
        (0..scheme.unique()).filter(move |fragment| copies[*fragment] <= kept)
    });
    let fragments = nodes.iter().map(|node| match node {
        Some(index) => Some(scheme.fragment_of_node(*index)),
        None => holes.next(),
    });
    fragments.collect()
}

/// The footers of one fragment as JSON: metadata known only at the end.
fn footers(scheme: &ErasureScheme, fragment: usize, etags: &Etags, length: u64) -> Value {
    let archive = etags.archives.get(fragment).map_or("", String::as_str);
    json!({
        "Etag": archive,
        "X-Object-Sysmeta-Ec-Etag": etags.object,
        "X-Object-Sysmeta-Ec-Content-Length": length.to_string(),
        "X-Object-Sysmeta-Ec-Frag-Index": fragment.to_string(),
        "X-Object-Sysmeta-Ec-Scheme": scheme.description(),
        "X-Object-Sysmeta-Ec-Segment-Size": scheme.segment_size().to_string(),
        "X-Backend-Container-Update-Override-Etag": etags.object,
        "X-Backend-Container-Update-Override-Size": length.to_string(),
    })
}

/// Adds the footers of filters; the fragment's own metadata takes precedence.
fn add(footers: &mut Value, added: Option<&HeaderMap>) {
    let (Some(footers), Some(added)) = (footers.as_object_mut(), added) else {
        return;
    };
    let added = footers_json(added).into_iter();
    footers.extend(added.filter(|(name, _)| name != "etag" && !name.starts_with(EC_PREFIX)));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cairn_types::EcType;

    use super::*;

    #[test]
    fn handoffs_stand_in_for_primaries() {
        let scheme = ErasureScheme::new(EcType::IsaLRsVand, 2, 1).unwrap();
        assert_eq!(
            destinations(&[Some(2), None, Some(0)], &scheme),
            [Some(2), Some(1), Some(0)]
        );
        // No node responded for one of the fragments.
        assert_eq!(destinations(&[None, Some(1)], &scheme), [Some(0), Some(1)]);
    }

    #[test]
    fn fragments_without_any_copy_come_first() {
        let scheme = ErasureScheme::new(EcType::IsaLRsVand, 2, 1)
            .unwrap()
            .with_duplication(2)
            .unwrap();
        // Fragment 0 has one of two copies, fragment 1 none, fragment 2 both.
        let nodes = [Some(0), Some(2), Some(5), None, None, None];
        assert_eq!(
            destinations(&nodes, &scheme)[3..],
            [Some(1), Some(0), Some(1)]
        );
    }

    #[test]
    fn footers_are_those_of_the_fragment() {
        let scheme = ErasureScheme::new(EcType::IsaLRsVand, 2, 1).unwrap();
        let etags = Etags {
            object: "o".into(),
            archives: vec!["a".into(), "b".into(), "c".into()],
        };
        let footers = footers(&scheme, 2, &etags, 7);
        assert_eq!(footers["Etag"], "c");
        assert_eq!(footers["X-Object-Sysmeta-Ec-Frag-Index"], "2");
        assert_eq!(footers["X-Object-Sysmeta-Ec-Scheme"], "isa_l_rs_vand 2+1");
    }
}
