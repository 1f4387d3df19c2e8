//! JSON bodies of requests.

use cairn_http::{Body, BodyError, Request};
use http::header::CONTENT_TYPE;
use serde::de::DeserializeOwned;

use crate::status::Refusal;

/// Parses a JSON body of at most `limit` bytes.
pub(crate) async fn read_json<T: DeserializeOwned>(
    request: Request,
    limit: u64,
) -> Result<T, Refusal> {
    let json_type = request
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|t| t.as_bytes().starts_with(b"application/json"));
    if !json_type {
        return Err(Refusal::not_json());
    }
    let bytes = collect(request.into_body(), limit).await?;
    serde_json::from_slice(&bytes).map_err(|error| Refusal::malformed(format!("body: {error}")))
}

async fn collect(body: Body, limit: u64) -> Result<bytes::Bytes, Refusal> {
    let wait = std::time::Duration::from_secs(30);
    match tokio::time::timeout(wait, body.collect(limit)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(BodyError::TooLarge(limit))) => Err(Refusal::too_large(limit)),
        Ok(Err(error)) => Err(Refusal::malformed(format!("body: {error}"))),
        Err(_) => Err(Refusal::too_slow()),
    }
}
