//! Container listings as JSON.

use serde::Deserialize;

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

/// Parses the body of a listing.
pub(crate) fn parse(body: &[u8]) -> Result<Vec<Entry>, serde_json::Error> {
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
