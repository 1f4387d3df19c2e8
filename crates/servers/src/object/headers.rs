//! Conversion of headers: request headers to stored metadata, and metadata to response headers.

use cairn_disk::{Metadata, ObjectInfo};
use cairn_http::params::is_true;
use cairn_http::respond::{header, http_date, set};
use cairn_types::metadata::{is_object_transient_sysmeta, is_sys_or_user_meta, title_case};
use cairn_types::{ServerKind, Timestamp, header_name};
use http::HeaderMap;
use http::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, LAST_MODIFIED,
};

use super::config::ObjectServerConfig;
use super::fragments::found;
use super::status::Refusal;

/// A boolean header.
pub(super) fn flag(headers: &HeaderMap, name: &str) -> bool {
    header(headers, name).is_some_and(is_true)
}

/// Whether an expired object may be opened.
pub(super) fn opens_expired(headers: &HeaderMap) -> bool {
    flag(headers, "x-backend-open-expired") || flag(headers, "x-backend-replication")
}

/// A header's values, joined as by WSGI.
fn joined(headers: &HeaderMap, name: &HeaderName) -> Vec<u8> {
    let mut joined = Vec::new();
    for (i, value) in headers.get_all(name).iter().enumerate() {
        if i > 0 {
            joined.push(b',');
        }
        joined.extend_from_slice(value.as_bytes());
    }
    joined
}

/// Copies headers that are metadata: those accepted by `is_meta`, the allowed ones, and those named
/// by replication.
pub(super) fn copy_metadata(
    metadata: &mut Metadata,
    headers: &HeaderMap,
    config: &ObjectServerConfig,
    is_meta: impl Fn(&str) -> bool,
) {
    let replicated = header(headers, "x-backend-replication-headers").unwrap_or("");
    let is_replicated = |name: &str| {
        replicated
            .split_ascii_whitespace()
            .any(|n| n.eq_ignore_ascii_case(name))
    };
    for name in headers.keys() {
        let lower = name.as_str();
        if is_meta(lower) || config.is_allowed_header(lower) || is_replicated(lower) {
            metadata.set(title_case(lower), joined(headers, name));
        }
    }
}

/// Adds the metadata among the footers.
pub(super) fn copy_footers(metadata: &mut Metadata, footers: &HeaderMap) {
    for (name, value) in footers {
        let lower = name.as_str();
        if is_sys_or_user_meta(ServerKind::Object, lower) || is_object_transient_sysmeta(lower) {
            metadata.set(title_case(lower), value.as_bytes());
        }
    }
}

/// Checks the limits on metadata (`check_metadata` upstream).
pub(super) fn check_metadata(
    headers: &HeaderMap,
    config: &ObjectServerConfig,
) -> Result<(), Refusal> {
    let limits = &config.constraints;
    let bad = |reason: String| Err(Refusal::BadRequest(reason));
    let prefix = ServerKind::Object.user_meta_prefix();
    let (mut count, mut size) = (0, 0);
    for (name, value) in headers {
        let name = name.as_str();
        if value.len() > limits.max_header_size {
            let name: String = name.chars().take(limits.max_meta_name_length).collect();
            return bad(format!("Header value too long: {}", title_case(&name)));
        }
        let Some(short) = name.strip_prefix(prefix) else {
            continue;
        };
        if short.is_empty() {
            return bad("Metadata name cannot be empty".into());
        }
        count += 1;
        let length = header_name::wire_len(short);
        size += length + value.len();
        if length > limits.max_meta_name_length {
            return bad(format!("Metadata name too long: {name}"));
        }
        if value.len() > limits.max_meta_value_length {
            let longest = limits.max_meta_value_length;
            return bad(format!("Metadata value longer than {longest}: {name}"));
        }
        if count > limits.max_meta_count {
            let most = limits.max_meta_count;
            return bad(format!("Too many metadata items; max {most}"));
        }
        if size > limits.max_meta_overall_size {
            let most = limits.max_meta_overall_size;
            return bad(format!("Total metadata too large; max {most}"));
        }
    }
    Ok(())
}

/// The expiry time in seconds by `X-Delete-After` or `X-Delete-At`, if any.
pub(super) fn delete_at(headers: &HeaderMap, now: Timestamp) -> Result<Option<u64>, Refusal> {
    let bad = |reason: &str| Err(Refusal::BadRequest(reason.into()));
    let number = |text: &str| text.trim().parse::<i64>().ok();
    if let Some(after) = header(headers, "x-delete-after") {
        let Some(after) = number(after) else {
            return bad("Non-integer X-Delete-After");
        };
        let at = i64::try_from(now.secs()).unwrap_or(i64::MAX);
        let at = normalize_delete_at(at.saturating_add(after));
        if Timestamp::from_secs(at) <= now {
            return bad("X-Delete-After in past");
        }
        return Ok(Some(at));
    }
    if !headers.contains_key("x-delete-at") {
        return Ok(None);
    }
    let Some(at) = header(headers, "x-delete-at").and_then(number) else {
        return bad("Non-integer X-Delete-At");
    };
    let at = normalize_delete_at(at);
    if Timestamp::from_secs(at) <= now && !flag(headers, "x-backend-replication") {
        return bad("X-Delete-At in past");
    }
    Ok(Some(at))
}

/// Limits a time to ten digits: the expirer sorts them as text.
pub(super) fn normalize_delete_at(seconds: i64) -> u64 {
    seconds.clamp(0, 9_999_999_999).unsigned_abs()
}

/// Adds an object's metadata to the response to GET and HEAD.
pub(super) fn show(headers: &mut HeaderMap, info: &ObjectInfo, config: &ObjectServerConfig) {
    headers.reserve(16);
    let content_type = info.metadata.get("Content-Type");
    let content_type = content_type.and_then(|v| HeaderValue::from_bytes(v).ok());
    headers.insert(
        CONTENT_TYPE,
        content_type.unwrap_or(HeaderValue::from_static("application/octet-stream")),
    );
    for (name, value) in info.metadata.iter() {
        let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(name.as_bytes()),
            HeaderValue::from_bytes(value),
        ) else {
            continue;
        };
        let lower = name.as_str();
        if is_sys_or_user_meta(ServerKind::Object, lower)
            || is_object_transient_sysmeta(lower)
            || config.is_allowed_header(lower)
            || name == CONTENT_ENCODING
        {
            headers.insert(name, value);
        }
    }
    let timestamp = info.timestamp();
    let texts = [
        (ETAG, ["\"", info.etag(), "\""].concat()),
        (LAST_MODIFIED, http_date(timestamp)),
        (HeaderName::from_static("x-timestamp"), timestamp.normal()),
    ];
    for (name, text) in texts {
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(name, value);
        }
    }
    // Usually the same text, converted once.
    let data = HeaderValue::try_from(info.data_timestamp.internal()).ok();
    let newest = match timestamp == info.data_timestamp {
        true => data.clone(),
        false => HeaderValue::try_from(timestamp.internal()).ok(),
    };
    let durable = match &info.fragments {
        None => data.clone(),
        Some(fragments) => {
            set(headers, "x-backend-fragments", found(fragments));
            if let Some(deleted) = fragments.deleted {
                // Beyond Swift, whose servers hide a tombstone behind non-durable fragments.
                set(headers, "x-backend-deleted-timestamp", deleted.internal());
            }
            let durable = fragments.durable.map(Timestamp::internal);
            durable.and_then(|text| HeaderValue::try_from(text).ok())
        }
    };
    for (name, value) in [
        ("x-backend-timestamp", newest),
        ("x-backend-data-timestamp", data),
        ("x-backend-durable-timestamp", durable),
    ] {
        if let Some(value) = value {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    headers.insert(CONTENT_LENGTH, info.size.into());
}
