//! The change feed of a container, where the store announces one.

use std::time::Duration;

use http::{Method, StatusCode};
use serde::Deserialize;

use crate::call::Call;
use crate::error::ClientError;
use crate::object::protocol;
use crate::swift::Swift;
use crate::url::encode_value;

const CURSOR: &str = "x-container-changes-cursor";
const RESET: &str = "x-container-changes-reset";
/// Maximum bytes of an answer: 10,000 rows with names of 1,024 bytes, each byte escaped.
const ROWS_MAX_BYTES: u64 = 128 << 20;

/// A row that has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub name: String,
    /// MD5 in hex, of a large object its ETag; none of an object that was deleted.
    pub etag: Option<String>,
    pub content_type: String,
}

/// Changes of a container since a cursor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Start of the next request.
    pub cursor: String,
    /// Changes before the cursor may be missing: what is known of the container may be out of date.
    pub is_reset: bool,
    pub rows: Vec<Change>,
}

#[derive(Deserialize)]
struct Row {
    name: String,
    #[serde(default)]
    hash: String,
    slo_etag: Option<String>,
    #[serde(default)]
    content_type: String,
    #[serde(default)]
    deleted: bool,
}

impl Swift {
    /// Reads the changes of a container since `cursor`, which is empty at first; where there are none,
    /// after at most `wait`.
    ///
    /// # Errors
    /// [`ClientError`], as for every call here; also where the store has no feed for the container.
    pub async fn changes(
        &self,
        container: &str,
        cursor: &str,
        wait: Duration,
    ) -> Result<Changes, ClientError> {
        let path = format!("/{}", encode_value(container));
        let query = format!(
            "?changes={}&wait={:.3}",
            encode_value(cursor),
            wait.as_secs_f64()
        );
        let call = Call {
            query: &query,
            timeout: Some(wait + self.options().answer_timeout),
            ..Call::new(Method::GET)
        };
        let answer = self.send_call(&path, call).await?;
        let header = |name: &str| {
            let value = answer.headers().get(name)?;
            value.to_str().ok().map(str::to_owned)
        };
        let no_feed = || protocol(Method::GET, &path, "the store has no change feed");
        let (cursor, is_reset) = (header(CURSOR).ok_or_else(no_feed)?, header(RESET).is_some());
        let body = match answer.status() {
            StatusCode::NO_CONTENT => bytes::Bytes::from_static(b"[]"),
            _ => self.whole(answer, &path, ROWS_MAX_BYTES).await?,
        };
        let rows = parse(&body).map_err(|error| protocol(Method::GET, &path, error))?;
        Ok(Changes {
            cursor,
            is_reset,
            rows,
        })
    }
}

fn parse(body: &[u8]) -> Result<Vec<Change>, serde_json::Error> {
    let rows: Vec<Row> = serde_json::from_slice(body)?;
    let change = |row: Row| {
        let etag = row
            .slo_etag
            .unwrap_or(row.hash)
            .trim_matches('"')
            .to_owned();
        Change {
            name: row.name,
            etag: (!row.deleted).then_some(etag),
            content_type: row.content_type,
        }
    };
    Ok(rows.into_iter().map(change).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn reads_rows() {
        let body = br#"[{"name":"a","bytes":3,"hash":"h","content_type":"t"},
            {"name":"b","hash":"h","slo_etag":"\"e\""}, {"name":"c","hash":"","deleted":true}]"#;
        let change = |name: &str, etag: Option<&str>| Change {
            name: name.into(),
            etag: etag.map(str::to_owned),
            content_type: if name == "a" { "t" } else { "" }.to_owned(),
        };
        assert_eq!(
            parse(body).unwrap(),
            [
                change("a", Some("h")),
                change("b", Some("e")),
                change("c", None)
            ]
        );
        assert!(parse(b"{}").is_err());
    }
}
