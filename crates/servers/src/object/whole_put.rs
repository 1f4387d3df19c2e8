//! PUTs that a proxy of this process hands over by a call: checked once for all replicas, and written as those
//! of requests are.
//!
//! Only plain ones: whatever has a condition, a promise, an expiry or a row that is overridden comes as a
//! request, and so does whatever would be refused (`put.rs`).

use std::sync::Arc;

use cairn_disk::owed::Debt;
use cairn_disk::{Device, DiskError, Durability, Engine, Metadata, ObjectKey};
use cairn_http::Response;
use cairn_index::{DbKey, DbKind, ObjectRow};
use cairn_peer::whole_put::{Answering, Called};
use cairn_peer::{Node, TakesPuts, WholePut, backend_uri};
use cairn_types::ObjectHash;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, Method, Request};

use super::headers::check_metadata;
use super::owed::row_of;
use super::put::put_headers;
use super::small::{Check, SMALL_UPLOAD_MAX_BYTES, complete, received_etag, write_whole};
use super::status::{Refusal, created_by_call};
use super::target::Target;
use super::{Inner, ObjectServer, to_the_end};

/// Maximum size of a refusal's text.
const REFUSAL_MAX_BYTES: u64 = 64 << 10;

/// A PUT as its server has checked it, for all replicas that are its own.
struct Plain {
    server: Arc<Inner>,
    engine: Arc<dyn Engine>,
    /// Path of the object.
    name: Arc<str>,
    metadata: Metadata,
    row: ObjectRow,
    container: ObjectHash,
}

/// A replica of a PUT: its number, and the device that it is for.
struct Replica {
    number: usize,
    node: Node,
    device: Arc<Device>,
}

impl TakesPuts for ObjectServer {
    fn put(&self, put: &Arc<WholePut>, replica: usize, node: &Node) -> Option<Answering> {
        let make = || self.0.plain(put).map(Arc::new);
        let plain: &Arc<Plain> = put.prepared.get_or_make(make)?;
        if !Arc::ptr_eq(&plain.server, &self.0) {
            return None;
        }
        let replica = Replica {
            number: replica,
            node: node.clone(),
            device: self.0.device(&node.device.device).ok()?,
        };
        let (put, plain) = (put.clone(), plain.clone());
        let written =
            to_the_end(async move { plain.server.put_plain(&put, &plain, &replica).await });
        Some(Box::pin(async move {
            match written.await {
                Ok(called) => called,
                // Boxed, so that the future of a write is not as large.
                Err(refusal) => Box::pin(called(refusal.into_response())).await,
            }
        }))
    }
}

impl Inner {
    /// Checks a PUT; `None`: it is to come as a request.
    fn plain(self: &Arc<Self>, put: &WholePut) -> Option<Plain> {
        let (head, config) = (&put.heads.shared, &self.config);
        let limits = &config.constraints;
        let bytes = put.body.len() as u64;
        let is_small = bytes <= SMALL_UPLOAD_MAX_BYTES && bytes <= limits.max_file_size;
        let is_named = put.object.chars().count() <= limits.max_object_name_length
            && self
                .check_names(&put.account, &put.container, &put.object)
                .is_ok();
        let hash = |object| {
            config
                .hash_path
                .hash(&put.account, Some(&put.container), object)
        };
        if !is_small || !is_named || put.heads.expiry.is_some() || !is_plain(head) {
            return None;
        }
        // A proxy of another cluster in this process has other hashes.
        if hash(Some(&put.object)) != put.hash {
            return None;
        }
        std::str::from_utf8(head.get(CONTENT_TYPE)?.as_bytes()).ok()?;
        check_metadata(head, config).ok()?;
        config.policies.by_index(put.policy)?;
        let metadata = self.metadata_of(head, put.timestamp);
        let metadata = complete(metadata, bytes, put.md5, received_etag(head)).ok()?;
        Some(Plain {
            server: self.clone(),
            engine: self.engine(put.policy).ok()?,
            name: ["/", &put.account, "/", &put.container, "/", &put.object]
                .concat()
                .into(),
            row: row_of(&put.object, put.policy, &metadata)?,
            metadata,
            container: hash(None),
        })
    }

    /// Writes a replica, and updates its container.
    async fn put_plain(
        self: &Arc<Self>,
        put: &WholePut,
        plain: &Plain,
        replica: &Replica,
    ) -> Result<Called, Refusal> {
        let key = ObjectKey {
            policy: put.policy,
            partition: put.partition,
            hash: put.hash,
            name: plain.name.clone(),
        };
        let check = Check {
            timestamp: put.timestamp,
            if_none_match: None,
            fragment: None,
        };
        let metadata = plain.metadata.clone();
        let owes = put.heads.tells(replica.number);
        let written = write_whole(
            (&replica.device, &plain.engine, &key),
            check,
            put.body.clone(),
            move |_| Ok(metadata),
            (Durability::AtOnce, owes),
        );
        let (existing, metadata, debt) = written.await?;
        // Both are boxed, so that the future of a write without them is not as large.
        if let Some(old) = existing.delete_at {
            let (parts, target) = request_of(put, plain, replica);
            Box::pin(self.dequeue_expiry(&parts, &target, put.timestamp, old)).await;
        }
        if let Err(debt) = self.give(put, plain, replica, debt) {
            Box::pin(self.send_row(put, plain, replica, debt)).await?;
        }
        Ok(created_by_call(metadata.get_str("ETag").unwrap_or("")))
    }

    /// Gives the row, where it is owed, to a database of this process; gives the debt back where a request has to
    /// be made.
    fn give(
        &self,
        put: &WholePut,
        plain: &Plain,
        replica: &Replica,
        debt: Option<Debt>,
    ) -> Result<(), Option<Debt>> {
        let Some(debt) = debt else { return Err(None) };
        let place = put.heads.row_of(replica.number);
        let databases = place.and_then(|(node, _)| self.config.local_rows.at(node.address));
        let (Some((node, partition)), Some(databases)) = (place, databases) else {
            return Err(Some(debt));
        };
        let (device, partition) = (&node.device.device, partition.to_string());
        let key = DbKey::new(device, &partition, DbKind::Container, plain.container);
        let given = databases.take_row(&key, plain.row.clone(), debt);
        given.map_err(|(_, debt)| Some(debt))
    }

    /// Sends the row as a request does, and settles what is owed.
    async fn send_row(
        self: &Arc<Self>,
        put: &WholePut,
        plain: &Plain,
        replica: &Replica,
        debt: Option<Debt>,
    ) -> Result<(), DiskError> {
        let (parts, target) = request_of(put, plain, replica);
        let headers = put_headers(&plain.metadata, parts.headers.iter());
        self.update_container("PUT", &parts, &target, headers)
            .await?;
        if let Some(debt) = debt {
            debt.settle();
        }
        Ok(())
    }
}

/// A refusal as the answer to a call.
async fn called(response: Response) -> Called {
    let (parts, body) = response.into_parts();
    Called {
        status: parts.status,
        headers: parts.headers,
        // It is in memory.
        body: body.collect(REFUSAL_MAX_BYTES).await.unwrap_or_default(),
    }
}

/// The request that a replica's call stands for, and its target.
fn request_of(put: &WholePut, plain: &Plain, replica: &Replica) -> (Parts, Target) {
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.method = Method::PUT;
    parts.uri = backend_uri(&replica.node, put.partition, &plain.name, None);
    parts.headers = put.heads.head(replica.number);
    let target = Target {
        device: replica.device.clone(),
        engine: plain.engine.clone(),
        key: ObjectKey {
            policy: put.policy,
            partition: put.partition,
            hash: put.hash,
            name: plain.name.clone(),
        },
        account: put.account.clone(),
        container: put.container.clone(),
        object: put.object.clone(),
    };
    (parts, target)
}

/// Whether the headers say nothing but what is stored and who asks.
fn is_plain(head: &HeaderMap) -> bool {
    head.keys().all(|name| match name.as_str() {
        "x-delete-at" | "x-delete-after" | "if-match" | "if-none-match" | "expect"
        | "transfer-encoding" => false,
        "x-backend-storage-policy-index" => true,
        other => !other.starts_with("x-backend-"),
    })
}
