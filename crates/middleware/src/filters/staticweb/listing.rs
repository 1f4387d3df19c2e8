//! Listings as HTML pages, in the structure of Swift's, for which style sheets are written.

use std::fmt::Write;

use cairn_formats::listing::MAX_LISTING_BYTES;
use cairn_http::params::quote_path;
use cairn_http::{Response, respond};
use http::StatusCode;
use serde_json::Value;
use tracing::error;

use super::site::{Site, link};
use super::{StaticWeb, Visit};
use crate::filters::tempurl;
use crate::html::escape;
use crate::status;

const DISABLED_STYLE: &str = "  <style type=\"text/css\">\n\
    \x20  h1 {font-size: 1em; font-weight: bold;}\n\
    \x20  p {font-size: 2}\n\
    \x20 </style>\n";
const STYLE: &str = "  <style type=\"text/css\">\n\
    \x20  h1 {font-size: 1em; font-weight: bold;}\n\
    \x20  th {text-align: left; padding: 0px 1em 0px 1em;}\n\
    \x20  td {padding: 0px 1em 0px 1em;}\n\
    \x20  a {text-decoration: none;}\n\
    \x20 </style>\n";

impl StaticWeb {
    /// The page that lists a prefix; the error is the response if there is none.
    pub(super) async fn listing(&self, visit: &Visit, site: &Site, prefix: &str) -> Response {
        let label = label(visit, site);
        if !site.shows_listings() {
            let page = disabled_page(site, &label, prefix);
            let refused = respond::typed(StatusCode::NOT_FOUND, respond::HTML, page);
            return self.error_page(visit, site, refused).await;
        }
        let entries = match self.entries(visit, prefix, None).await {
            Ok(entries) => entries,
            Err(refused) => return self.error_page(visit, site, refused).await,
        };
        if entries.is_empty() && !prefix.is_empty() {
            let missing = respond::standard(StatusCode::NOT_FOUND);
            return self.error_page(visit, site, missing).await;
        }
        let signed = Signed::of(visit);
        let page = page(site, &label, prefix, &entries, &signed);
        let mut response = respond::typed(StatusCode::OK, respond::HTML, page);
        let headers = response.headers_mut();
        respond::set(headers, "x-backend-content-generator", "staticweb");
        response
    }

    /// The container's entries with a prefix, up to the next slash.
    pub(super) async fn entries(
        &self,
        visit: &Visit,
        prefix: &str,
        limit: Option<usize>,
    ) -> Result<Vec<Value>, Response> {
        let mut query = String::from("delimiter=/");
        if let Some(limit) = limit {
            let _ = write!(query, "&limit={limit}");
        }
        if !prefix.is_empty() {
            let _ = write!(query, "&prefix={}", quote_path(prefix));
        }
        let Some(request) = self.get(visit, &visit.container_path(), Some(&query)) else {
            return Err(respond::standard(StatusCode::NOT_FOUND));
        };
        let response = self.next.call(request).await;
        if !response.status().is_success() {
            return Err(response);
        }
        let json = response.into_body().collect(MAX_LISTING_BYTES).await;
        let unavailable = |why: String| {
            error!(
                container = visit.container_path(),
                why, "a listing is not to be had"
            );
            status::unavailable()
        };
        let json = json.map_err(|error| unavailable(error.to_string()))?;
        if json.is_empty() {
            return Ok(Vec::new());
        }
        serde_json::from_slice(&json).map_err(|error| unavailable(error.to_string()))
    }
}

/// Parameters that a signature for a prefix adds to links, and the limit of those links.
#[derive(Default)]
struct Signed {
    query: String,
    prefix: String,
}

impl Signed {
    fn of(visit: &Visit) -> Signed {
        let Some(query) = visit.parts.extensions.get::<tempurl::Query>() else {
            return Signed::default();
        };
        let Some(prefix) = query.prefix.as_deref() else {
            return Signed::default();
        };
        let expires = query.expires.as_deref().unwrap_or("");
        let mut parts = vec![
            format!("temp_url_prefix={}", quote_path(prefix)),
            format!("temp_url_expires={}", quote_path(expires)),
            format!("temp_url_sig={}", query.signature.as_deref().unwrap_or("")),
        ];
        if let Some(range) = query.ip_range.as_deref().filter(|range| !range.is_empty()) {
            parts.push(format!("temp_url_ip_range={}", quote_path(range)));
        }
        if query.inline {
            parts.push("inline".to_owned());
        }
        Signed {
            query: format!("?{}", parts.join("&amp;")),
            prefix: prefix.to_owned(),
        }
    }
}

/// Title of the page: the path, or the site's label and the path in it.
fn label(visit: &Visit, site: &Site) -> String {
    let path = visit.path();
    if site.listings_label.is_empty() {
        return escape(&path);
    }
    let inside = path.splitn(5, '/').nth(4).unwrap_or("");
    escape(&format!("{}/{inside}", site.listings_label))
}

fn style(site: &Site, prefix: &str, default: &str) -> String {
    match site.css(prefix) {
        None => default.to_owned(),
        Some(css) => format!("  <link rel=\"stylesheet\" type=\"text/css\" href=\"{css}\" />\n"),
    }
}

fn disabled_page(site: &Site, label: &str, prefix: &str) -> String {
    let style = style(site, prefix, DISABLED_STYLE);
    let mut page = format!(
        "<!DOCTYPE html>\n<html>\n<head>\n<title>Listing of {label}</title>\n{style}</head>\n\
         <body>  <h1>Web Listing Disabled</h1>   <p>The owner of this web site has disabled web \
         listing.   <p>If you are the owner of this web site, you can enable   web listing by \
         setting X-Container-Meta-Web-Listings.</p>"
    );
    if !site.index.is_empty() {
        let _ = write!(
            page,
            "<h1>Index File Not Found</h1> <p>The owner of this web site has set  \
             <b>X-Container-Meta-Web-Index: {}</b>.  However, this file is not found.</p>",
            escape(&site.index)
        );
    }
    page.push_str(" </body>\n</html>\n");
    page
}

fn page(site: &Site, label: &str, prefix: &str, entries: &[Value], signed: &Signed) -> String {
    let style = style(site, prefix, STYLE);
    let mut page = format!(
        "<!DOCTYPE html>\n<html>\n <head>\n  <title>Listing of {label}</title>\n{style} </head>\n \
         <body>\n  <h1 id=\"title\">Listing of {label}</h1>\n  <table id=\"listing\">\n   \
         <tr id=\"heading\">\n    <th class=\"colname\">Name</th>\n    \
         <th class=\"colsize\">Size</th>\n    <th class=\"coldate\">Date</th>\n   </tr>\n"
    );
    if prefix.chars().count() > signed.prefix.chars().count() {
        let query = &signed.query;
        row(
            &mut page,
            "id=\"parent\" class=\"item\"",
            &format!("../{query}"),
            "../",
            None,
        );
    }
    for subdir in entries.iter().filter_map(|entry| entry["subdir"].as_str()) {
        let name = subdir.strip_prefix(prefix).unwrap_or(subdir);
        let target = format!("./{}{}", link(name), signed.query);
        row(
            &mut page,
            "class=\"item subdir\"",
            &target,
            &escape(name),
            None,
        );
    }
    for entry in entries {
        let Some(full) = entry["name"].as_str() else {
            continue;
        };
        let name = full.strip_prefix(prefix).unwrap_or(full);
        let target = format!("./{}{}", link(name), signed.query);
        let kinds: Vec<String> = entry["content_type"]
            .as_str()
            .unwrap_or("")
            .split('/')
            .map(|kind| format!("type-{}", escape(&kind.to_lowercase())))
            .collect();
        let class = format!("class=\"item {}\"", kinds.join(" "));
        let size = human_readable(entry["bytes"].as_u64().unwrap_or(0));
        let modified = escape(entry["last_modified"].as_str().unwrap_or(""));
        let date = modified.split('.').next().unwrap_or("").replace('T', " ");
        row(
            &mut page,
            &class,
            &target,
            &escape(name),
            Some((&size, &date)),
        );
    }
    page.push_str("  </table>\n </body>\n</html>\n");
    page
}

/// A row of the table. `attributes`, `target` and `name` are HTML.
fn row(
    page: &mut String,
    attributes: &str,
    target: &str,
    name: &str,
    size_and_date: Option<(&str, &str)>,
) {
    let (size, date) = size_and_date.unwrap_or(("&nbsp;", "&nbsp;"));
    let _ = write!(
        page,
        "   <tr {attributes}>\n    <td class=\"colname\"><a href=\"{target}\">{name}</a></td>\n    \
         <td class=\"colsize\">{size}</td>\n    <td class=\"coldate\">{date}</td>\n   </tr>\n"
    );
}

/// Formats `1048576` as `1Mi`; each step rounds half to even.
fn human_readable(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "";
    for next in ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"] {
        if value < 1024.0 {
            break;
        }
        value = (value / 1024.0).round_ties_even();
        unit = next;
    }
    format!("{value}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1Ki"),
            (1535, "1Ki"),
            (1536, "2Ki"),
            (2560, "2Ki"),
            (1_048_576, "1Mi"),
            (1_073_741_824, "1Gi"),
            (u64::MAX, "16Ei"),
        ] {
            assert_eq!(human_readable(bytes), text);
        }
    }
}
