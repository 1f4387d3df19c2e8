//! `Content-Disposition` by RFC 6266: the name in ASCII, and once more encoded.

use cairn_http::params::quote_path;

pub(super) fn inline(filename: Option<&str>) -> String {
    filename.map_or_else(|| "inline".to_owned(), |name| named("inline", name))
}

pub(super) fn attachment(filename: &str) -> String {
    named("attachment", filename)
}

fn named(kind: &str, filename: &str) -> String {
    let encoded = quote_path(filename);
    let plain = encoded.replace("%20", " ");
    format!("{kind}; filename=\"{plain}\"; filename*=UTF-8''{encoded}")
}
