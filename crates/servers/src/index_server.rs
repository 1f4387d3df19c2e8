//! Common parts of the account and the container server: parsing a backend request's path, headers
//! and parameters, stored metadata, and responses.
//!
//! The path is `/<device>/<partition>/<account>[/<container>[/<object>]]`; times are in
//! `X-Timestamp`.

pub(crate) mod listing;
pub(crate) mod replicate;
pub(crate) mod status;

use cairn_http::params::{is_true, quote, quote_path, split_path, unquote};
use cairn_http::{Body, Response, own_thread, respond};
use cairn_index::{DriveCheck, IndexError, Metadata, Reserve};
use cairn_types::metadata::{is_sys_or_user_meta, title_case};
use cairn_types::{Constraints, PolicyIndex, PolicySet, ServerKind, Timestamp, header_name};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderValue};

use status::Refused;

pub(crate) type Answer = Result<Response, Refused>;

/// Parses a body with `read`, off the event loop if it is long.
pub(crate) async fn read_body<T: Send + 'static>(
    body: Body,
    bytes_max: u64,
    read: fn(&[u8]) -> Result<T, Refused>,
) -> Result<T, Refused> {
    let bytes = body.collect(bytes_max).await;
    let bytes = bytes.map_err(|error| Refused::BadRequest(error.to_string()))?;
    let read = own_thread::heavy(bytes.len(), move || read(&bytes)).await;
    read.unwrap_or(Err(Refused::Index(IndexError::Closed)))
}

/// Parsed path of a request.
#[derive(Clone, Debug)]
pub(crate) struct RequestPath {
    pub(crate) device: String,
    pub(crate) partition: String,
    pub(crate) account: String,
    pub(crate) container: Option<String>,
    pub(crate) object: Option<String>,
}

impl RequestPath {
    /// Parses a path; `segments` are the minimum and maximum number, including device and
    /// partition.
    pub(crate) fn of(path: &str, segments: (usize, usize)) -> Result<RequestPath, Refused> {
        let path = unquote(path).map_err(|_| Refused::PathNotUtf8)?;
        let invalid = || Refused::BadRequest(format!("Invalid path: {}", quote_path(&path)));
        let parts =
            split_path(&path, segments.0, segments.1, segments.1 == 5).ok_or_else(invalid)?;
        let mut parts = parts.iter().map(|part| part.map(str::to_owned));
        let mut next = || parts.next().flatten();
        let target = RequestPath {
            device: next().unwrap_or_default(),
            partition: next().unwrap_or_default(),
            account: next().ok_or_else(invalid)?,
            container: next(),
            object: next(),
        };
        for (what, name) in [("device", &target.device), ("partition", &target.partition)] {
            if matches!(name.as_str(), "" | "." | "..") {
                return Err(Refused::BadRequest(format!(
                    "Invalid {what}: {}",
                    quote(name)
                )));
            }
        }
        // A name that Python's `quote_plus` would change cannot be a device's.
        if quote(&target.device) != target.device {
            return Err(Refused::NoDrive);
        }
        Ok(target)
    }

    /// Refuses a NUL except at the start of a name, where it marks a reserved name.
    pub(crate) fn check_reserved(&self, auto_create_prefix: &str) -> Result<(), Refused> {
        let check = |name: &str, what: &str| match name.rfind('\0') {
            Some(_) if !name.starts_with('\0') => Err(Refused::BadRequest(format!(
                "Invalid reserved-namespace {what}"
            ))),
            _ => Ok(()),
        };
        check(&self.account, "account")?;
        let Some(container) = &self.container else {
            return Ok(());
        };
        check(container, "container")?;
        let Some(object) = &self.object else {
            return Ok(());
        };
        if self.account.starts_with(auto_create_prefix) {
            return Ok(());
        }
        check(object, "object")?;
        match (container.starts_with('\0'), object.starts_with('\0')) {
            (true, false) => Err(Refused::BadRequest(
                "Invalid user-namespace object in reserved-namespace container".into(),
            )),
            (false, true) => Err(Refused::BadRequest(
                "Invalid reserved-namespace object in user-namespace container".into(),
            )),
            _ => Ok(()),
        }
    }
}

pub(crate) fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    respond::header(headers, name)
}

pub(crate) fn is_yes(headers: &HeaderMap, name: &str) -> bool {
    text(headers, name).is_some_and(is_true)
}

/// A mandatory header.
pub(crate) fn required<'h>(headers: &'h HeaderMap, name: &str) -> Result<&'h str, Refused> {
    text(headers, name).ok_or_else(|| Refused::BadRequest(format!("Missing {name} header")))
}

pub(crate) fn required_number(headers: &HeaderMap, name: &str) -> Result<i64, Refused> {
    let number = required(headers, name)?.trim().parse();
    number.map_err(|_| Refused::BadRequest(format!("Invalid {name} header")))
}

pub(crate) fn timestamp(headers: &HeaderMap) -> Result<Timestamp, Refused> {
    let header = headers
        .get("x-timestamp")
        .ok_or_else(|| Refused::BadRequest("Missing X-Timestamp header".into()))?;
    let time = header.to_str().ok().map(Timestamp::parse);
    match time {
        Some(Ok(time)) => Ok(time),
        _ => Err(Refused::BadRequest("Invalid X-Timestamp header".into())),
    }
}

/// The storage policy in the request, if any.
pub(crate) fn policy_index(
    headers: &HeaderMap,
    policies: &PolicySet,
) -> Result<Option<i64>, Refused> {
    const NAME: &str = "X-Backend-Storage-Policy-Index";
    let Some(header) = headers.get(NAME) else {
        return Ok(None);
    };
    let index = header
        .to_str()
        .ok()
        .and_then(|text| text.trim().parse().ok());
    let known = index.filter(|index| policies.by_index(PolicyIndex(*index)).is_some());
    match known {
        Some(index) => Ok(Some(i64::from(index))),
        None => Err(Refused::BadRequest(format!(
            "Invalid {NAME} '{}'",
            String::from_utf8_lossy(header.as_bytes())
        ))),
    }
}

/// Metadata to store: names in stored form, and values.
pub(crate) fn metadata_of(
    headers: &HeaderMap,
    kind: ServerKind,
    saved_headers: &[&str],
) -> Result<Vec<(String, String)>, Refused> {
    let mut metadata = Vec::new();
    for (name, value) in headers {
        let name = name.as_str();
        if !saved_headers.contains(&name) && !is_sys_or_user_meta(kind, name) {
            continue;
        }
        let no_text = || Refused::BadRequest("Metadata must be valid UTF-8".into());
        let value = std::str::from_utf8(value.as_bytes()).map_err(|_| no_text())?;
        let name = header_name::unescape(&title_case(name)).into_owned();
        let name = String::from_utf8(name).map_err(|_| no_text())?;
        metadata.push((name, value.to_owned()));
    }
    Ok(metadata)
}

/// Adds metadata to a response: items not removed, of the kinds visible to clients.
pub(crate) fn add_metadata(
    headers: &mut HeaderMap,
    metadata: &Metadata,
    is_shown: impl Fn(&str) -> bool,
) {
    for (name, value, _) in metadata.iter() {
        if !value.is_empty() && is_shown(&name.to_ascii_lowercase()) {
            respond::set(headers, &header_name::escape_text(name), value);
        }
    }
}

pub(crate) fn set(headers: &mut HeaderMap, name: &'static str, value: impl ToString) {
    respond::set(headers, name, value.to_string());
}

/// The response to OPTIONS of a server with these methods.
pub(crate) fn options(allow: &'static str, server: &'static str) -> Response {
    let mut response = status::ok();
    set(response.headers_mut(), "Allow", allow);
    set(response.headers_mut(), "Server", server);
    response
}

/// Converts an answer to a response; a HEAD's has no body.
pub(crate) fn response(answer: Answer, is_head: bool) -> Response {
    let mut response = answer.unwrap_or_else(Refused::into_response);
    if is_head {
        *response.body_mut() = Body::empty();
    }
    response
}

/// The 204 response to a HEAD, with the content type that a GET would have.
pub(crate) fn head(content_type: &str, headers: HeaderMap) -> Response {
    let mut response = status::empty();
    *response.headers_mut() = headers;
    set_content_type(response.headers_mut(), content_type);
    response
}

/// The response to a GET with these headers: a listing, or 204.
pub(crate) fn listed(content_type: &str, headers: HeaderMap, body: Option<Body>) -> Response {
    let mut response = status::listing(body);
    let length = response.headers_mut().remove(CONTENT_LENGTH);
    *response.headers_mut() = headers;
    if let Some(length) = length {
        response.headers_mut().insert(CONTENT_LENGTH, length);
    }
    set_content_type(response.headers_mut(), content_type);
    response
}

pub(crate) fn set_content_type(headers: &mut HeaderMap, content_type: &str) {
    if let Ok(value) = HeaderValue::from_str(&format!("{content_type}; charset=utf-8")) {
        headers.insert(http::header::CONTENT_TYPE, value);
    }
}

/// The device's condition: for reads and deletions, or with a reserve for additions.
pub(crate) fn drive_check(mount_check: bool, reserve: Option<Reserve>) -> DriveCheck {
    DriveCheck {
        mount_check,
        reserve,
    }
}

/// Whether the account is created by its first container.
pub(crate) fn is_auto_created(account: &str, constraints: &Constraints) -> bool {
    account.starts_with(&constraints.auto_create_account_prefix)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let target = RequestPath::of("/sda/p/a%20b/c/o/p", (4, 5)).unwrap();
        assert_eq!(target.account, "a b");
        assert_eq!(target.object.as_deref(), Some("o/p"));
        assert!(
            RequestPath::of("/sda/p/a", (3, 4))
                .unwrap()
                .container
                .is_none()
        );
        for (path, status) in [
            ("/sda/p", 400),
            ("/sda/p/a/c/d", 400),
            ("/../p/a", 400),
            ("/sda/./a", 400),
            ("/s%20a/p/a", 507),
            ("/sda/p/%ff", 412),
        ] {
            let refused = RequestPath::of(path, (3, 4)).unwrap_err();
            assert_eq!(refused.into_response().status(), status, "{path}");
        }
    }

    #[test]
    fn metadata_is_named_in_utf_8() {
        let header = |name: &str| -> HeaderMap {
            let name = http::HeaderName::from_bytes(name.as_bytes()).unwrap();
            [(name, HeaderValue::from_static("v"))]
                .into_iter()
                .collect()
        };
        let kind = ServerKind::Container;
        let saved = metadata_of(&header("x-container-meta-fr^195^169d"), kind, &[]).unwrap();
        assert_eq!(
            saved,
            [("X-Container-Meta-Fr\u{e9}D".to_owned(), "v".to_owned())]
        );
        let column = r#"{"X-Container-Meta-Fr\u00e9D": ["v", "0000000001.00000"]}"#;
        let metadata = Metadata::parse(column).unwrap();
        let mut shown = HeaderMap::new();
        add_metadata(&mut shown, &metadata, |_| true);
        assert_eq!(shown["x-container-meta-fr^195^169d"], "v");
        let refused = metadata_of(&header("x-container-meta-^255"), kind, &[]).unwrap_err();
        assert_eq!(refused.into_response().status(), 400);
    }

    #[test]
    fn reserved_names() {
        let check = |path: &str| {
            RequestPath::of(path, (3, 5))
                .unwrap()
                .check_reserved(".")
                .is_ok()
        };
        assert!(check("/d/p/%00a/%00c/%00o"));
        assert!(check("/d/p/.a/c/%00o"));
        assert!(!check("/d/p/a%00"));
        assert!(!check("/d/p/a/c%00"));
        assert!(!check("/d/p/a/c/%00o"));
        assert!(!check("/d/p/a/%00c/o"));
    }
}
