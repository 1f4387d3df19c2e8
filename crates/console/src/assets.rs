//! The embedded page: the output of `npm run build` from `console/src`. A machine without npm
//! builds the binary from the committed `console/dist`; `cargo xtask console` checks that both
//! agree.

use cairn_http::{Request, Response};
use http::header::{CACHE_CONTROL, ETAG, HeaderValue, IF_NONE_MATCH};
use sha2::{Digest, Sha256};

use crate::status;

struct Asset {
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

const ASSETS: [Asset; 4] = [
    Asset {
        path: "/",
        content_type: "text/html; charset=utf-8",
        bytes: include_bytes!("../../../console/dist/index.html"),
    },
    Asset {
        path: "/console.js",
        content_type: "text/javascript; charset=utf-8",
        bytes: include_bytes!("../../../console/dist/console.js"),
    },
    Asset {
        path: "/console.css",
        content_type: "text/css; charset=utf-8",
        bytes: include_bytes!("../../../console/dist/console.css"),
    },
    Asset {
        path: "/icon.svg",
        content_type: "image/svg+xml",
        bytes: include_bytes!("../../../console/dist/icon.svg"),
    },
];

/// The page's file at the request's path; `None` if there is none.
pub(crate) fn get(request: &Request) -> Option<Response> {
    let path = match request.uri().path() {
        "/favicon.ico" => "/icon.svg",
        path => path,
    };
    let asset = ASSETS.iter().find(|asset| asset.path == path)?;
    let digest = Sha256::digest(asset.bytes);
    let tag = format!(
        "\"{:016x}\"",
        u64::from_be_bytes(digest[..8].try_into().ok()?)
    );
    let known = request
        .headers()
        .get(IF_NONE_MATCH)
        .is_some_and(|given| given.as_bytes() == tag.as_bytes());
    let mut response = if known {
        status::not_modified()
    } else {
        status::content(asset.content_type, asset.bytes.to_vec())
    };
    let headers = response.headers_mut();
    // Revalidated each time, usually with 304: the page of a new binary is shown at once.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(ETAG, HeaderValue::try_from(tag).ok()?);
    Some(response)
}
