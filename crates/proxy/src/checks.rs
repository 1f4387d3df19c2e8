//! Validation of client input: names, metadata, lengths, expiry. Each check returns a response with
//! Swift's status and an explanation.

use cairn_http::{Response, limits, params, respond};
use cairn_types::{Constraints, ServerKind, Timestamp};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, TRANSFER_ENCODING};

use crate::headers;
use crate::request::Incoming;
use crate::status::{self, malformed};

type Check = Result<(), Response>;

/// Checks like [`limits::check_metadata`]; the error is the response.
pub(crate) fn check_metadata(headers: &HeaderMap, kind: ServerKind, limits: &Constraints) -> Check {
    limits::check_metadata(headers, kind, limits).map_err(malformed)
}

/// The framing of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageLength {
    Known(u64),
    Chunked,
    Absent,
}

pub(crate) fn message_length(headers: &HeaderMap) -> Result<MessageLength, Response> {
    if let Some(encodings) = respond::header(headers, TRANSFER_ENCODING.as_str()) {
        let last = encodings
            .rsplit(',')
            .next()
            .unwrap_or("")
            .trim()
            .to_ascii_lowercase();
        return match last.as_str() {
            "chunked" if encodings.split(',').count() == 1 => Ok(MessageLength::Chunked),
            "chunked" => Err(status::unsupported(format!(
                "Unsupported Transfer-Coding header value specified in Transfer-Encoding header: {encodings}"
            ))),
            _ => Err(malformed("Invalid Transfer-Encoding header value")),
        };
    }
    match headers.get(CONTENT_LENGTH) {
        None => Ok(MessageLength::Absent),
        Some(value) => respond_number(value)
            .map(MessageLength::Known)
            .ok_or_else(|| malformed("Invalid Content-Length header value")),
    }
}

fn respond_number(value: &HeaderValue) -> Option<u64> {
    value.to_str().ok()?.trim().parse().ok()
}

/// Checks everything about an object to be created, except its expiry.
pub(crate) fn check_object_creation(
    incoming: &Incoming,
    object: &str,
    limits: &Constraints,
) -> Result<MessageLength, Response> {
    let length = message_length(incoming.headers())?;
    match length {
        MessageLength::Known(n) if n > limits.max_file_size => {
            return Err(status::too_large());
        }
        MessageLength::Absent => {
            return Err(status::unknown_length());
        }
        _ => {}
    }
    if object.len() > limits.max_object_name_length {
        return Err(malformed(format!(
            "Object name length of {} longer than {}",
            object.len(),
            limits.max_object_name_length
        )));
    }
    let Some(content_type) = incoming.headers().get(CONTENT_TYPE) else {
        return Err(malformed("No content type"));
    };
    let Ok(content_type) = std::str::from_utf8(content_type.as_bytes()) else {
        return Err(malformed("Invalid Content-Type"));
    };
    check_metadata(incoming.headers(), ServerKind::Object, limits)?;
    let reserved = content_type
        .split(';')
        .skip(1)
        .any(|param| param.trim_start().starts_with("swift_"));
    if reserved && !incoming.context.content_type_overridden {
        return Err(malformed(
            "Invalid Content-Type, swift_* is not a valid parameter name.",
        ));
    }
    Ok(length)
}

/// The largest expiry time that can be stored: ten digits.
const MAX_DELETE_AT: i128 = 9_999_999_999;

/// Parses a whole number of any length; one beyond 128 bits is replaced by the bound.
fn whole_number(value: &HeaderValue) -> Option<i128> {
    let text = value.to_str().ok()?.trim();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(
        sign * digits
            .parse::<i64>()
            .map_or(i128::from(i64::MAX), i128::from),
    )
}

/// Converts `X-Delete-After` to `X-Delete-At`, checks that it is in the future, and returns it.
pub(crate) fn check_delete_headers(
    headers: &mut HeaderMap,
    now: Timestamp,
) -> Result<Option<u64>, Response> {
    let mut delete_at = None;
    if let Some(value) = headers.get("x-delete-after") {
        let after = whole_number(value).ok_or_else(|| malformed("Non-integer X-Delete-After"))?;
        // Like float arithmetic: the fraction of the request's time is added, and the sum
        // truncated.
        let at = (now.ticks() as i128 + after * 100_000).div_euclid(100_000);
        let at = at.clamp(0, MAX_DELETE_AT);
        if at * 100_000 <= now.ticks() as i128 {
            return Err(malformed("X-Delete-After in past"));
        }
        delete_at = Some(at);
        headers.remove("x-delete-after");
    } else if let Some(value) = headers.get("x-delete-at") {
        let at = whole_number(value).ok_or_else(|| malformed("Non-integer X-Delete-At"))?;
        let at = at.clamp(0, MAX_DELETE_AT);
        let replication = respond::header(headers, "x-backend-replication");
        if at * 100_000 <= now.ticks() as i128 && !replication.is_some_and(params::is_true) {
            return Err(malformed("X-Delete-At in past"));
        }
        delete_at = Some(at);
    }
    Ok(delete_at.map(|at| {
        headers::insert(headers, "x-delete-at", &format!("{at:010}"));
        at as u64
    }))
}

/// Checks the length in bytes of a container's or account's name.
pub(crate) fn check_name_length(
    kind: ServerKind,
    account: &str,
    name: &str,
    limits: &Constraints,
) -> Check {
    let twice = account.starts_with(&limits.auto_create_account_prefix);
    let (what, limit) = match kind {
        ServerKind::Account => ("Account", limits.max_account_name_length),
        ServerKind::Container => ("Container", limits.max_container_name_length),
        ServerKind::Object => ("Object", limits.max_object_name_length),
    };
    let limit = if twice { limit * 2 } else { limit };
    if name.len() > limit {
        let text = format!("{what} name length of {} longer than {limit}", name.len());
        return Err(status::name_too_long(text));
    }
    Ok(())
}

/// Checks a listing's parameter `limit`.
pub(crate) fn check_listing_limit(params: &params::Params, most: usize) -> Check {
    let over = params
        .get("limit")
        .filter(|text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()))
        .is_some_and(|text| text.parse::<u64>().is_ok_and(|n| n > most as u64) || text.len() > 19);
    if over {
        return Err(status::long_listing(most));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap()))
            .collect()
    }

    fn status(result: Result<impl Sized, Response>) -> u16 {
        result.map_or_else(|r| r.status().as_u16(), |_| 0)
    }

    #[test]
    fn metadata_limits() {
        let limits = Constraints::default();
        let check = |pairs: &[(&'static str, &str)]| {
            status(check_metadata(&headers(pairs), ServerKind::Object, &limits))
        };
        assert_eq!(check(&[("x-object-meta-a", &"v".repeat(256))]), 0);
        assert_eq!(check(&[("x-object-meta-a", &"v".repeat(257))]), 400);
        assert_eq!(check(&[("x-object-meta-", "v")]), 400);
        assert_eq!(check(&[("content-type", &"v".repeat(8193))]), 400);
    }

    #[test]
    fn lengths() {
        assert_eq!(
            message_length(&headers(&[("transfer-encoding", "chunked")])).unwrap(),
            MessageLength::Chunked
        );
        assert_eq!(
            status(message_length(&headers(&[("transfer-encoding", "gzip")]))),
            400
        );
        assert_eq!(
            status(message_length(&headers(&[(
                "transfer-encoding",
                "gzip,chunked"
            )]))),
            501
        );
        assert_eq!(
            status(message_length(&headers(&[("content-length", "x")]))),
            400
        );
    }

    #[test]
    fn expiry() {
        let now = Timestamp::parse("1000.5").unwrap();
        let check = |pairs: &[(&'static str, &str)]| {
            let mut headers = headers(pairs);
            check_delete_headers(&mut headers, now).map_err(|r| r.status().as_u16())
        };
        assert_eq!(check(&[("x-delete-after", "10")]), Ok(Some(1010)));
        assert_eq!(check(&[("x-delete-after", "0")]), Err(400));
        assert_eq!(check(&[("x-delete-after", "x")]), Err(400));
        assert_eq!(check(&[("x-delete-at", "1000")]), Err(400));
        assert_eq!(check(&[("x-delete-at", "1001")]), Ok(Some(1001)));
        assert_eq!(
            check(&[("x-delete-at", "99999999999")]),
            Ok(Some(9_999_999_999))
        );
        assert_eq!(
            check(&[("x-delete-at", &"1".repeat(100))]),
            Ok(Some(9_999_999_999))
        );
        assert_eq!(check(&[("x-delete-after", "-5")]), Err(400));
        assert_eq!(check(&[]), Ok(None));
    }
}
