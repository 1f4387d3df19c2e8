//! Deferred deletion of segments: adds rows to the expirer's queue, which makes the expirer delete
//! them as if they had expired. A row's name is `timestamp-account/container/object`, its content
//! type marks it as such a deletion.

use cairn_formats::ini::{ConfError, Section};
use cairn_http::{Body, Context, Request};
use cairn_types::{HashPath, Timestamp, expirer};
use http::Method;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use serde_json::json;

use crate::api_path::ObjectPath;

const MD5_OF_NOTHING: &str = "d41d8cd98f00b204e9800998ecf8427e";
const CONTENT_TYPE_OF_ROW: &str = "application/async-deleted";

/// Location of the expirer's queue.
pub(super) struct Queue {
    account: String,
    divisor: u64,
}

impl Queue {
    pub(super) fn read(section: &Section) -> Result<Self, ConfError> {
        let divisor = section.u64_or("expiring_objects_container_divisor", 86_400)?;
        if divisor <= 100 {
            return Err(section.bad("expiring_objects_container_divisor", "must be over 100"));
        }
        let name = section.str_or("expiring_objects_account_name", "expiring_objects");
        Ok(Queue {
            account: format!(".{name}"),
            divisor,
        })
    }

    /// The request that queues the deletion of `objects` in `container` as of `at`; they are the
    /// segments of the large object at `path`. `None` if it cannot be addressed.
    pub(super) fn request(
        &self,
        context: &Context,
        hash_path: &HashPath,
        path: &ObjectPath,
        container: &str,
        objects: &[String],
        at: Timestamp,
    ) -> Option<Request> {
        let rows: Vec<_> = objects
            .iter()
            .map(|object| {
                json!({
                    "name": format!("{}-{}/{container}/{object}", at.normal(), path.account),
                    "deleted": 0,
                    "created_at": at.internal(),
                    "etag": MD5_OF_NOTHING,
                    "size": 0,
                    "storage_policy_index": 0,
                    "content_type": CONTENT_TYPE_OF_ROW,
                })
            })
            .collect();
        let rows = serde_json::Value::from(rows).to_string();
        let queue = expirer::task_container(
            hash_path,
            self.divisor,
            at.secs(),
            &path.account,
            &path.container,
            &path.object,
        );
        let mut request = Request::new(Body::empty());
        *request.method_mut() = Method::from_bytes(b"UPDATE").ok()?;
        *request.uri_mut() = format!("/v1/{}/{queue}", self.account).parse().ok()?;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CONTENT_LENGTH, rows.len().into());
        headers.insert(
            "x-backend-storage-policy-index",
            HeaderValue::from_static("0"),
        );
        headers.insert(
            "x-backend-allow-private-methods",
            HeaderValue::from_static("True"),
        );
        *request.body_mut() = Body::full(rows);
        let context = context.pre_authorized(super::SOURCE);
        request.extensions_mut().insert(context);
        Some(request)
    }
}
