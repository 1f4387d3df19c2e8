//! Listings collected in memory for rewriting. One that exceeds the maximum size of a listing is
//! passed on unchanged instead.

use crate::status;
use bytes::{Bytes, BytesMut};
use cairn_formats::listing::MAX_LISTING_BYTES;
use cairn_http::{Body, Response, own_thread, respond};
use futures_util::{StreamExt, stream};
use http::header::CONTENT_LENGTH;
use http::response::Parts;
use memchr::memmem;
use serde_json::{Map, Value};
use tracing::error;

/// A response's head and whole body; the error is the response to return: the original if it is too
/// large, or 503 if it broke off.
pub(crate) async fn listing(response: Response) -> Result<(Parts, Bytes), Response> {
    collect(response, MAX_LISTING_BYTES).await
}

async fn collect(response: Response, limit: u64) -> Result<(Parts, Bytes), Response> {
    let announced = respond::header(response.headers(), CONTENT_LENGTH.as_str())
        .and_then(|length| length.parse().ok())
        .or_else(|| response.body().length());
    if announced.is_some_and(|length: u64| length > limit) {
        return Err(response);
    }
    let (parts, mut body) = response.into_parts();
    let mut all = BytesMut::new();
    let mut first = None;
    loop {
        match body.next_chunk().await {
            None => break,
            Some(Ok(chunk)) if all.is_empty() && first.is_none() => first = Some(chunk),
            Some(Ok(chunk)) => {
                if let Some(first) = first.take() {
                    all.reserve(announced.unwrap_or(0).min(limit) as usize);
                    all.extend_from_slice(&first);
                }
                all.extend_from_slice(&chunk);
            }
            Some(Err(error)) => {
                error!(%error, "a listing broke off");
                return Err(status::unavailable());
            }
        }
        let held = all.len() + first.as_ref().map_or(0, Bytes::len);
        if held as u64 > limit {
            let held = first.unwrap_or_else(|| all.freeze());
            return Err(Response::from_parts(parts, chained(held, body)));
        }
    }
    Ok((parts, first.unwrap_or_else(|| all.freeze())))
}

/// The bytes read already, followed by the rest.
fn chained(held: Bytes, rest: Body) -> Body {
    let length = rest.length().map(|length| length + held.len() as u64);
    let rest = stream::unfold(rest, |mut rest| async move {
        rest.next_chunk().await.map(|chunk| (chunk, rest))
    });
    Body::from_stream(stream::once(async { Ok(held) }).chain(rest), length)
}

/// A row of a listing.
pub(crate) type Row = Map<String, Value>;

/// A JSON listing with its rows changed, off the event loop if they are many; `None` if the mark
/// does not occur in it, or it is not a listing.
pub(crate) async fn with_rows(
    json: &Bytes,
    mark: &str,
    mut change: impl FnMut(&mut Row) + Send + 'static,
) -> Option<Vec<u8>> {
    memmem::find(json, mark.as_bytes())?;
    let json = json.clone();
    let changed = own_thread::heavy(json.len(), move || {
        let mut rows: Vec<Row> = serde_json::from_slice(&json).ok()?;
        rows.iter_mut().for_each(&mut change);
        serde_json::to_vec(&rows).ok()
    });
    changed.await.flatten()
}

/// A response with a new body.
pub(crate) fn rewritten(mut parts: Parts, body: impl Into<Bytes>) -> Response {
    let body = body.into();
    parts.headers.insert(CONTENT_LENGTH, body.len().into());
    Response::from_parts(parts, Body::full(body))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn response(chunks: &[&'static str]) -> Response {
        let chunks: Vec<_> = chunks
            .iter()
            .map(|c| Ok(Bytes::from_static(c.as_bytes())))
            .collect();
        Response::new(Body::from_stream(stream::iter(chunks), None))
    }

    #[tokio::test]
    async fn whole_or_as_it_comes() {
        for chunks in [&["ab", "cd"][..], &["abcd"], &["a", "b", "c", "d"]] {
            let (_, bytes) = collect(response(chunks), 4).await.unwrap();
            assert_eq!(bytes, "abcd");
            let passed = collect(response(chunks), 3).await.unwrap_err();
            assert_eq!(passed.into_body().collect(9).await.unwrap(), "abcd");
        }
        let (_, bytes) = collect(response(&[]), 4).await.unwrap();
        assert_eq!(bytes, "");
    }
}
