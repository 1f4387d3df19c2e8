//! Listings of containers, and of accounts, as JSON.

use http::{HeaderMap, Method, StatusCode};
use serde::Deserialize;

use crate::error::ClientError;
use crate::object::protocol;
use crate::payload::Payload;
use crate::swift::Swift;
use crate::url::encode_value;

/// Maximum bytes of a listing: a page of 10,000 names of 1,024 bytes, each byte escaped.
const LISTING_MAX_BYTES: u64 = 128 << 20;

/// Parameters of a listing: the container's part to list, and the starting point.
#[derive(Clone, Debug, Default)]
pub struct ListQuery<'a> {
    pub prefix: &'a str,
    /// Names are cut after it, and names with the same beginning are listed once.
    pub delimiter: Option<char>,
    /// List only names after this one.
    pub marker: &'a str,
    /// Maximum number of rows; 0: the store's own maximum (10,000).
    pub limit: u32,
}

/// A row of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    Object {
        name: String,
        bytes: u64,
        /// MD5 in hex; for a static large object that of the manifest.
        hash: String,
        content_type: String,
        /// Time of the last write, `2026-01-02T03:04:05.678900`.
        last_modified: String,
        /// The ETag of the large object, without quotes.
        slo_etag: Option<String>,
    },
    /// A pseudo-folder: the common beginning of names, up to the delimiter.
    Subdir(String),
}

impl Entry {
    pub fn name(&self) -> &str {
        match self {
            Entry::Object { name, .. } | Entry::Subdir(name) => name,
        }
    }

    fn into_name(self) -> String {
        match self {
            Entry::Object { name, .. } | Entry::Subdir(name) => name,
        }
    }
}

#[derive(Deserialize)]
struct Row {
    name: Option<String>,
    subdir: Option<String>,
    #[serde(default)]
    bytes: u64,
    #[serde(default)]
    hash: String,
    #[serde(default)]
    content_type: String,
    #[serde(default)]
    last_modified: String,
    slo_etag: Option<String>,
}

impl ListQuery<'_> {
    fn encode(&self) -> String {
        let mut text = "?format=json".to_owned();
        let mut add = |name: &str, value: &str| {
            if !value.is_empty() {
                text.push_str(&format!("&{name}={}", encode_value(value)));
            }
        };
        add("prefix", self.prefix);
        add(
            "delimiter",
            &self.delimiter.map(String::from).unwrap_or_default(),
        );
        add("marker", self.marker);
        if self.limit > 0 {
            add("limit", &self.limit.to_string());
        }
        text
    }
}

impl Swift {
    /// Reads one page of a container's listing.
    ///
    /// # Errors
    /// [`ClientError`], as for every call here.
    pub async fn list(
        &self,
        container: &str,
        query: &ListQuery<'_>,
    ) -> Result<Vec<Entry>, ClientError> {
        let path = format!("/{}", encode_value(container));
        let body = self.page(&path, query).await?;
        parse(&body).map_err(|error| protocol(Method::GET, &path, error))
    }

    /// Reads all names with this prefix: of a container's objects, or of the account's containers.
    /// They are read page by page, and all kept in memory.
    ///
    /// # Errors
    /// [`ClientError`], as for every call here.
    pub async fn names(
        &self,
        container: Option<&str>,
        prefix: &str,
    ) -> Result<Vec<String>, ClientError> {
        let path = container.map_or(String::new(), |name| format!("/{}", encode_value(name)));
        let mut names: Vec<String> = Vec::new();
        loop {
            let query = ListQuery {
                prefix,
                marker: names.last().map_or("", String::as_str),
                ..ListQuery::default()
            };
            let body = self.page(&path, &query).await?;
            let rows = parse(&body).map_err(|error| protocol(Method::GET, &path, error))?;
            let Some(last) = rows.last() else {
                return Ok(names);
            };
            // A server that ignores markers would be asked for ever.
            if last.name() <= query.marker {
                let reason = format!("names after {:?} end with {:?}", query.marker, last.name());
                return Err(protocol(Method::GET, &path, reason));
            }
            names.extend(rows.into_iter().map(Entry::into_name));
        }
    }

    async fn page(&self, path: &str, query: &ListQuery<'_>) -> Result<bytes::Bytes, ClientError> {
        let (headers, query) = (HeaderMap::new(), query.encode());
        let answer = self
            .request(Method::GET, path, &query, headers, Payload::Empty)
            .await?;
        match answer.status() {
            StatusCode::NO_CONTENT => Ok(bytes::Bytes::from_static(b"[]")),
            _ => self.whole(answer, path, LISTING_MAX_BYTES).await,
        }
    }
}

/// Parses the body of a listing.
fn parse(body: &[u8]) -> Result<Vec<Entry>, serde_json::Error> {
    let rows: Vec<Row> = serde_json::from_slice(body)?;
    let entries = rows
        .into_iter()
        .filter_map(|row| match (row.subdir, row.name) {
            (Some(subdir), _) => Some(Entry::Subdir(subdir)),
            (None, Some(name)) => Some(Entry::Object {
                name,
                bytes: row.bytes,
                hash: row.hash,
                content_type: row.content_type,
                last_modified: row.last_modified,
                slo_etag: row.slo_etag.map(|etag| etag.trim_matches('"').to_owned()),
            }),
            (None, None) => None,
        });
    Ok(entries.collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn reads_rows() {
        let body = br#"[{"name":"a","bytes":3,"hash":"h","content_type":"t;x=1",
            "last_modified":"2026-01-02T03:04:05.678900","slo_etag":"\"e\""},{"subdir":"b/"}]"#;
        let entries = parse(body).unwrap();
        assert_eq!(entries.len(), 2);
        assert!(
            matches!(&entries[0], Entry::Object { slo_etag: Some(e), bytes: 3, .. } if e == "e")
        );
        assert_eq!(entries[1], Entry::Subdir("b/".into()));
        assert!(parse(b"{").is_err());
    }
}
