//! The row that an object has in its container, as its metadata and the request say.
//!
//! Middleware and erasure coding override what it says, by headers of a request
//! (`X-Backend-Container-Update-Override-*`) and by system metadata that stays with the object
//! (`X-Object-Sysmeta-Container-Update-Override-*`), which takes precedence.

use std::borrow::Cow;

use cairn_types::PolicyIndex;

use crate::async_pending::AsyncUpdate;
use crate::metadata::Metadata;

const BACKEND: &str = "x-backend-container-update-override-";
const SYSMETA: &str = "x-object-sysmeta-container-update-override-";

/// Headers of an object's row, lower case, and the metadata that each is from.
const OF_METADATA: [(&str, &str); 4] = [
    ("x-size", "Content-Length"),
    ("x-content-type", "Content-Type"),
    ("x-timestamp", "X-Timestamp"),
    ("x-etag", "ETag"),
];

/// The header that one of this prefix overrides, `etag` of `x-etag`.
fn overridden<'n>(name: &'n str, prefix: &str) -> Option<&'n str> {
    let (start, rest) = name.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}

fn row_header(rest: &str) -> Cow<'static, str> {
    format!("x-{}", rest.to_ascii_lowercase()).into()
}

/// The headers of a row that `items` override, lower case, in the order in which they count.
pub fn overrides<'a>(
    items: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> Vec<(Cow<'static, str>, &'a [u8])> {
    let (mut headers, mut last) = (Vec::new(), Vec::new());
    for (name, value) in items {
        if let Some(rest) = overridden(name, BACKEND) {
            headers.push((row_header(rest), value));
        } else if let Some(rest) = overridden(name, SYSMETA) {
            last.push((row_header(rest), value));
        }
    }
    headers.append(&mut last);
    headers
}

/// The headers of a PUT's row that its metadata says.
pub fn of_metadata(metadata: &Metadata) -> impl Iterator<Item = (&'static str, &[u8])> {
    let names = OF_METADATA.iter();
    names.map(|(header, name)| (*header, metadata.get(name).unwrap_or_default()))
}

/// The headers of a PUT's row, as what is stored with the object says. A name may come more than once: the
/// last counts.
pub fn row_headers(metadata: &Metadata) -> Vec<(Cow<'static, str>, &[u8])> {
    let headers = of_metadata(metadata).map(|(name, value)| (Cow::Borrowed(name), value));
    headers.chain(overrides(metadata.iter())).collect()
}

/// Whether a request overrides the row by what is not kept with the object.
pub fn is_overridden<'a>(mut names: impl Iterator<Item = &'a str>) -> bool {
    names.any(|name| overridden(name, BACKEND).is_some())
}

/// The update of a container for a PUT or, without metadata of an object, a DELETE, from what is stored:
/// `name` is `/account/container/object`. `None`: it is no name of an object.
pub fn update_of(
    name: &str,
    policy: PolicyIndex,
    metadata: &Metadata,
    is_put: bool,
) -> Option<AsyncUpdate> {
    let mut parts = name.strip_prefix('/')?.splitn(3, '/');
    let (account, container, object) = (parts.next()?, parts.next()?, parts.next()?);
    let mut headers: Vec<(String, Vec<u8>)> = Vec::new();
    let mut set = |name: &str, value: &[u8]| {
        headers.retain(|(other, _)| other != name);
        headers.push((name.to_owned(), value.to_vec()));
    };
    match is_put {
        true => {
            for (name, value) in row_headers(metadata) {
                set(&cairn_types::metadata::title_case(&name), value);
            }
        }
        false => set("X-Timestamp", metadata.get("X-Timestamp")?),
    }
    set(
        "X-Backend-Storage-Policy-Index",
        policy.0.to_string().as_bytes(),
    );
    set("X-Trans-Id", b"-");
    set("Referer", b"-");
    Some(AsyncUpdate {
        op: if is_put { "PUT" } else { "DELETE" }.to_owned(),
        account: account.to_owned(),
        container: container.to_owned(),
        object: object.to_owned(),
        headers,
        ..AsyncUpdate::default()
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_with_the_object_overrides_what_a_request_says() {
        let metadata: Metadata = [
            ("Content-Length", "3"),
            ("Content-Type", "text/plain"),
            ("X-Timestamp", "0000000001.00000"),
            ("ETag", "abc"),
            ("X-Object-Sysmeta-Container-Update-Override-Etag", "sealed"),
        ]
        .into_iter()
        .collect();
        let request = [
            (
                "x-backend-container-update-override-etag",
                &b"of the request"[..],
            ),
            ("x-backend-container-update-override-size", b"9"),
        ];
        let all = overrides(metadata.iter().chain(request));
        let last = |name: &str| all.iter().rfind(|(n, _)| n == name).unwrap().1;
        assert_eq!(
            (last("x-etag"), last("x-size")),
            (&b"sealed"[..], &b"9"[..])
        );
        assert!(is_overridden(request.iter().map(|(name, _)| *name)));

        let update = update_of("/a/c/o/p", PolicyIndex(1), &metadata, true).unwrap();
        assert_eq!(update.header("x-etag").unwrap(), b"sealed");
        assert_eq!((&*update.container, &*update.object), ("c", "o/p"));
        let deleted = update_of("/a/c/o", PolicyIndex(0), &metadata, false).unwrap();
        assert_eq!(deleted.op, "DELETE");
        assert!(deleted.header("x-size").is_none());
        assert!(update_of("/a/c", PolicyIndex(0), &metadata, true).is_none());
    }
}
