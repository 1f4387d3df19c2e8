//! Bulk deletion in a container: queues all listed objects for the expirer, which deletes them as
//! of one timestamp. Until then listings show them.
//!
//! Rows equal those of Swift's own tool: in the queue's container for that second, one row for each
//! object, named by the exact timestamp.

use bytes::Bytes;
use cairn_http::params::quote;
use cairn_types::Timestamp;
use http::StatusCode;
use serde_json::{Value, json};

use crate::internal_client::{InternalClient, InternalClientError};

const QUEUE_ACCOUNT: &str = ".expiring_objects";
const MD5_OF_NOTHING: &str = "d41d8cd98f00b204e9800998ecf8427e";
/// Marks a row that is not the object's own expiry.
const CONTENT_TYPE_OF_ROW: &str = "application/async-deleted";

/// Parameters of a bulk deletion.
#[derive(Clone, Debug)]
pub struct Deletion {
    pub account: String,
    pub container: String,
    /// Selects names with this prefix, after `marker` and before `end_marker`; empty imposes no
    /// condition.
    pub prefix: String,
    pub marker: String,
    pub end_marker: String,
    /// Timestamp of the deletion; newer objects stay.
    pub at: Timestamp,
}

impl Deletion {
    /// Queues page by page, calling `on_page` after each with the total so far and the last name.
    /// Returns the total.
    ///
    /// # Errors
    /// The first failed request, for a listing or to the queue; what was queued stays.
    pub async fn queue(
        &self,
        client: &InternalClient,
        mut on_page: impl FnMut(u64, &str),
    ) -> Result<u64, InternalClientError> {
        let mut marker = self.marker.clone();
        let mut queued = 0;
        loop {
            let names = self.page(client, &marker).await?;
            let Some(last) = names.last() else {
                return Ok(queued);
            };
            marker.clone_from(last);
            let headers = [
                ("x-backend-allow-private-methods", "True".to_owned()),
                ("x-backend-storage-policy-index", "0".to_owned()),
                ("x-timestamp", self.at.internal()),
                ("content-type", "application/json".to_owned()),
            ];
            let queue = format!("/v1/{QUEUE_ACCOUNT}/{}", self.at.secs());
            client.update(&queue, &headers, self.rows(&names)).await?;
            queued += names.len() as u64;
            on_page(queued, &marker);
        }
    }

    /// A page of names; empty for a nonexistent container.
    async fn page(
        &self,
        client: &InternalClient,
        marker: &str,
    ) -> Result<Vec<String>, InternalClientError> {
        let path = format!("/v1/{}/{}", self.account, self.container);
        let mut query = format!("format=json&marker={}", quote(marker));
        for (name, value) in [("end_marker", &self.end_marker), ("prefix", &self.prefix)] {
            if !value.is_empty() {
                query += &format!("&{name}={}", quote(value));
            }
        }
        let rows = client.rows(&path, &query, &[StatusCode::NOT_FOUND]).await?;
        let name = |row: &Value| row.get("name")?.as_str().map(str::to_owned);
        Ok(rows.iter().filter_map(name).collect())
    }

    fn rows(&self, names: &[String]) -> Bytes {
        let (account, container, at) = (&self.account, &self.container, self.at.internal());
        let row = |object: &String| {
            json!({
                "name": format!("{at}-{account}/{container}/{object}"),
                "deleted": 0,
                "created_at": at,
                "etag": MD5_OF_NOTHING,
                "size": 0,
                "storage_policy_index": 0,
                "content_type": CONTENT_TYPE_OF_ROW,
            })
        };
        let rows: Vec<Value> = names.iter().map(row).collect();
        Value::Array(rows).to_string().into()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use cairn_http::{Body, Request, Response, handler_fn};

    use super::*;

    /// A fake container of three objects in pages of two; records queued rows.
    #[derive(Default)]
    struct Store {
        asked: Mutex<Vec<String>>,
        queued: Mutex<Vec<Value>>,
    }

    impl Store {
        async fn answer(&self, request: Request) -> Response {
            let (head, body) = request.into_parts();
            let uri = head.uri.to_string();
            self.asked.lock().push(format!("{} {uri}", head.method));
            if head.method.as_str() == "UPDATE" {
                assert_eq!(head.headers["x-backend-allow-private-methods"], "True");
                let rows = body.collect(1 << 20).await.unwrap();
                let rows: Vec<Value> = serde_json::from_slice(&rows).unwrap();
                self.queued.lock().extend(rows);
                return Response::new(Body::empty());
            }
            let after = uri.split_once("marker=").unwrap().1;
            let after = after.split('&').next().unwrap();
            let left = ["p1", "p2", "p3"].into_iter().filter(|name| *name > after);
            let rows: Vec<Value> = left.take(2).map(|name| json!({"name": name})).collect();
            Response::new(Body::full(Value::Array(rows).to_string()))
        }
    }

    #[tokio::test]
    async fn all_of_a_prefix_is_queued() {
        let store = Arc::new(Store::default());
        let pipeline = store.clone();
        let pipeline = handler_fn(move |request| {
            let store = pipeline.clone();
            async move { store.answer(request).await }
        });
        let client = InternalClient::new(pipeline, "test", 1);
        let deletion = Deletion {
            account: "AUTH_a".into(),
            container: "c d".into(),
            prefix: "p".into(),
            marker: String::new(),
            end_marker: String::new(),
            at: Timestamp::from_secs(1_700_000_000),
        };
        let mut on_page = Vec::new();
        let queued = deletion.queue(&client, |count, last| {
            on_page.push((count, last.to_owned()))
        });
        assert_eq!(queued.await.unwrap(), 3);
        assert_eq!(on_page, [(2, "p2".to_owned()), (3, "p3".to_owned())]);
        let asked = store.asked.lock().clone();
        assert_eq!(
            asked[0],
            "GET /v1/AUTH_a/c%20d?format=json&marker=&prefix=p"
        );
        assert_eq!(asked[1], "UPDATE /v1/.expiring_objects/1700000000");
        let rows = store.queued.lock();
        assert_eq!(rows[2]["name"], "1700000000.00000-AUTH_a/c d/p3");
        assert_eq!(rows[2]["content_type"], "application/async-deleted");
    }
}
