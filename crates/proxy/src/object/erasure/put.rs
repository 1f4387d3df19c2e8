//! PUT: fragments to as many servers as there are, in two phases. What enough of them have
//! written is committed on all; only then is it durable, and the client told so.

use std::sync::Arc;

use bytes::Bytes;
use cairn_http::{BodyError, Response, respond};
use cairn_peer::fan_out::{self, Answer};
use cairn_peer::two_phase::TwoPhasePut;
use cairn_peer::{Nodes, documents, quorum};
use cairn_types::ErasureScheme;
use futures_util::future::join_all;
use http::header::{CONTENT_LENGTH, ETAG};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, error};

use super::Erasure;
use super::encode::{Encoder, Etags};
use crate::app::Proxy;
use crate::checks::MessageLength;
use crate::object::Place;
use crate::object::put::{footers_json, refused_by_state, trailer};
use crate::request::Incoming;
use crate::write::best_response;

/// System metadata of the fragment, not of the object.
const EC_PREFIX: &str = "x-object-sysmeta-ec-";

/// An upload to one server, and which fragments it gets.
struct Upload {
    put: TwoPhasePut,
    fragment: usize,
}

/// What one server said: that it is prepared to commit, or its answer.
enum Said {
    Prepared,
    Refused(Answer),
    Final(Answer),
}

impl Proxy {
    pub(in crate::object) async fn put_fragments(
        &self,
        incoming: &mut Incoming,
        place: Place,
        erasure: Arc<Erasure>,
        mut headers: Vec<HeaderMap>,
        length: MessageLength,
    ) -> Response {
        let scheme = erasure.scheme;
        let known = match length {
            MessageLength::Known(length) => Some(length),
            _ => None,
        };
        for headers in &mut headers {
            // Theirs are those of the fragments.
            headers.remove(CONTENT_LENGTH);
            headers.remove(ETAG);
            if let Some(length) = known.filter(|length| *length > 0) {
                let archive = erasure.codec.archive_size(length, scheme.segment_size());
                let name = "x-backend-obj-content-length";
                respond::set(headers, name, archive.to_string());
            }
        }
        let nodes = self.upload_nodes(&place);
        let puts = self
            .open_uploads(incoming, &nodes, place.partition, headers)
            .await;
        let early = puts
            .iter()
            .filter_map(|put| put.early.as_ref().map(|answer| answer.status));
        if let Some(refused) = refused_by_state(incoming, early) {
            return refused;
        }
        let mut uploads = assign(puts, &scheme);
        if let Err(few) = self.check_enough(incoming, &uploads, &scheme) {
            return few;
        }
        let etags = match self
            .pump_fragments(incoming, &erasure, &mut uploads, known)
            .await
        {
            Ok(etags) => etags,
            Err(broken) => return broken,
        };
        let what = format!("PUT {}", incoming.target.entity_path());
        let answers = match self.conclude_uploads(uploads, &scheme, &nodes, &what).await {
            Ok(answers) => answers,
            Err(refused) => return refused,
        };
        let mut response = best_response(&answers, Some(scheme.quorum()), &what);
        if response.status().is_success() {
            respond::set(response.headers_mut(), ETAG.as_str(), &etags.object);
        }
        response
    }

    /// One upload for each fragment kept, to handoffs where primaries don't answer.
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
                fan_out::backend_uri(&node, partition, path, None),
                headers.clone(),
                documents::boundary(),
                self.options.node_timeout,
            )
            .await;
            match opened {
                Ok(put) => {
                    let status = put.early.as_ref().map_or(100, |answer| answer.status);
                    if fan_out::check_write(&node, status, nodes) {
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
        scheme: &ErasureScheme,
    ) -> Result<(), Response> {
        if uploads.len() >= scheme.quorum() {
            return Ok(());
        }
        error!(
            path = %incoming.parts.uri.path(), left = uploads.len(), enough = scheme.quorum(),
            "too few object servers for an upload"
        );
        Err(respond::standard(StatusCode::SERVICE_UNAVAILABLE))
    }

    /// Hands every fragment to its servers, then the footers; the next segment is read and coded
    /// while one is sent.
    async fn pump_fragments(
        &self,
        incoming: &mut Incoming,
        erasure: &Arc<Erasure>,
        uploads: &mut Vec<Upload>,
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
            self.check_enough(incoming, uploads, &erasure.scheme)?;
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
            return Err(respond::standard(StatusCode::UNPROCESSABLE_ENTITY));
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

    /// Has enough of the uploads prepared, has all of them committed, and gives their answers;
    /// missing ones are 503.
    async fn conclude_uploads(
        &self,
        uploads: Vec<Upload>,
        scheme: &ErasureScheme,
        nodes: &Arc<Nodes>,
        what: &str,
    ) -> Result<Vec<Answer>, Response> {
        let count = uploads.len();
        let (said, mut heard) = mpsc::channel(2 * count.max(1));
        // One each: a channel for all would wake them in an order that nobody can repeat.
        let mut words = Vec::with_capacity(count);
        let timeout = self.options.node_timeout;
        for upload in uploads {
            let (word, going) = oneshot::channel();
            words.push(word);
            let conversation = conclude(upload.put, nodes.clone(), said.clone(), going, timeout);
            tokio::spawn(conversation);
        }
        drop(said);
        let mut answers = self.prepare(&mut heard, count, scheme, what).await?;
        for word in words {
            let _ = word.send(());
        }
        self.finals(&mut heard, &mut answers, count, scheme).await;
        answers.resize_with(answers.len().max(scheme.replicas()), Answer::none);
        Ok(answers)
    }

    /// Waits until enough are prepared; the answers of those that are not.
    async fn prepare(
        &self,
        heard: &mut mpsc::Receiver<Said>,
        count: usize,
        scheme: &ErasureScheme,
        what: &str,
    ) -> Result<Vec<Answer>, Response> {
        let (mut prepared, mut refused) = (0, Vec::new());
        while prepared + refused.len() < count && prepared < scheme.quorum() {
            match heard.recv().await {
                Some(Said::Prepared) => prepared += 1,
                Some(Said::Refused(answer) | Said::Final(answer)) => refused.push(answer),
                None => break,
            }
        }
        if prepared >= scheme.quorum() {
            return Ok(refused);
        }
        error!(
            what,
            prepared,
            enough = scheme.quorum(),
            "too few fragments were written"
        );
        let mut all = refused;
        all.resize_with(scheme.replicas() - prepared, Answer::none);
        let best = best_response(&all, Some(scheme.quorum()), what);
        // A refusal now is a misunderstanding between servers, whatever it says.
        Err(match best.status().is_client_error() {
            true => respond::standard(StatusCode::SERVICE_UNAVAILABLE),
            false => best,
        })
    }

    /// Answers to the commit until a quorum agrees and the rest have had their time.
    async fn finals(
        &self,
        heard: &mut mpsc::Receiver<Said>,
        answers: &mut Vec<Answer>,
        count: usize,
        scheme: &ErasureScheme,
    ) {
        let mut next = async |answers: &mut Vec<Answer>| match heard.recv().await {
            Some(Said::Prepared) => true,
            Some(Said::Refused(answer) | Said::Final(answer)) => {
                answers.push(answer);
                answers.len() < count
            }
            None => false,
        };
        while next(answers).await {
            let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
            if quorum::have_quorum(&statuses, scheme.quorum()) {
                let rest = async { while next(answers).await {} };
                let _ = tokio::time::timeout(self.options.post_quorum_timeout, rest).await;
                return;
            }
        }
    }
}

/// One server's part in the end of an upload. It goes on when the client has gone: what is told
/// to commit, does.
async fn conclude(
    mut put: TwoPhasePut,
    nodes: Arc<Nodes>,
    said: mpsc::Sender<Said>,
    going: oneshot::Receiver<()>,
    timeout: std::time::Duration,
) {
    let node = put.node.clone();
    if let Some(answer) = put.prepared(timeout).await {
        match answer.node {
            Some(_) => drop(fan_out::check_write(&node, answer.status, &nodes)),
            None => nodes.limiter().increment(&node, "no answer to an upload"),
        }
        let _ = said.send(Said::Refused(answer)).await;
        return;
    }
    let _ = said.send(Said::Prepared).await;
    // Without the word the upload is dropped, and with it what was written.
    if going.await.is_err() {
        return;
    }
    let answer = put.commit(timeout).await;
    match answer.node {
        Some(_) => drop(fan_out::check_write(&node, answer.status, &nodes)),
        None => nodes.limiter().increment(&node, "no answer to a commit"),
    }
    let _ = said.send(Said::Final(answer)).await;
}

/// Which fragments each server gets: a primary those of its place, a handoff those of a primary
/// that is missing; of fragments kept several times, those that have fewest copies first.
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

/// The fragment of each node, which is a primary's index or a handoff.
fn destinations(nodes: &[Option<usize>], scheme: &ErasureScheme) -> Vec<Option<usize>> {
    let mut copies = vec![0; scheme.unique()];
    for index in nodes.iter().flatten() {
        copies[scheme.fragment_of_node(*index)] += 1;
    }
    // The more copies miss, the earlier: first those that would otherwise have none.
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

/// What is only known at the end, as the JSON of one fragment's headers.
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

/// Adds what filters say of the object; what erasure coding says of the fragment stays.
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
        // Nobody answered for one of the fragments.
        assert_eq!(destinations(&[None, Some(1)], &scheme), [Some(0), Some(1)]);
    }

    #[test]
    fn fragments_without_any_copy_come_first() {
        let scheme = ErasureScheme::new(EcType::IsaLRsVand, 2, 1)
            .unwrap()
            .with_duplication(2)
            .unwrap();
        // Fragment 0 has one copy of two, fragment 1 none, fragment 2 both.
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
