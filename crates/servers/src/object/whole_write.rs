//! Writes that a proxy of this process hands over by a call: checked once for all replicas, and written as those
//! of requests are.
//!
//! Only plain ones: whatever has a condition, a promise, an expiry or a row that is overridden comes as a
//! request, and so does whatever would be refused (`put.rs`, `delete.rs`).

use std::sync::Arc;

use bytes::Bytes;
use cairn_disk::owed::Debt;
use cairn_disk::{Device, DiskError, Durability, Engine, Metadata, ObjectKey};
use cairn_http::Response;
use cairn_index::{DbKey, DbKind, ObjectRow};
use cairn_peer::calls::{Answering, Called};
use cairn_peer::{Change, Node, WholeWrite, backend_uri};
use cairn_types::ObjectHash;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, Method, Request};

use super::delete::{Deletion, update_headers, write_tombstone};
use super::headers::check_metadata;
use super::owed::{row_of, tombstone_of};
use super::put::put_headers;
use super::small::{Check, complete, received_etag, whole_max_bytes, write_whole};
use super::status::{self, Refusal, created_by_call};
use super::target::{RESERVED, Target};
use super::{Inner, to_the_end};

/// Maximum size of a refusal's text.
const REFUSAL_MAX_BYTES: u64 = 64 << 10;

/// A write as its server has checked it, for all replicas that are its own.
struct Plain {
    server: Arc<Inner>,
    engine: Arc<dyn Engine>,
    /// Path of the object.
    name: Arc<str>,
    change: PlainChange,
    row: ObjectRow,
    container: ObjectHash,
}

enum PlainChange {
    Put { body: Bytes, metadata: Metadata },
    Delete,
}

/// A replica of a write: its number, and the device that it is for.
struct Replica {
    number: usize,
    node: Node,
    device: Arc<Device>,
}

impl Inner {
    /// Begins to write a replica; `None`: the write is to come as a request.
    pub(super) fn write_by_call(
        self: &Arc<Self>,
        write: &Arc<WholeWrite>,
        replica: usize,
        node: &Node,
    ) -> Option<Answering> {
        let make = || self.plain(write).map(Arc::new);
        let plain: &Arc<Plain> = write.prepared.get_or_make(make)?;
        if !Arc::ptr_eq(&plain.server, self) {
            return None;
        }
        let replica = Replica {
            number: replica,
            node: node.clone(),
            device: self.device(&node.device.device).ok()?,
        };
        let (write, plain) = (write.clone(), plain.clone());
        let written =
            to_the_end(async move { plain.server.write_plain(&write, &plain, &replica).await });
        Some(Box::pin(async move {
            match written.await {
                Ok(called) => called,
                // Boxed, so that the future of a write is not as large.
                Err(refusal) => Box::pin(called(refusal.into_response())).await,
            }
        }))
    }

    /// Checks a write; `None`: it is to come as a request.
    fn plain(self: &Arc<Self>, write: &WholeWrite) -> Option<Plain> {
        let config = &self.config;
        let is_named = write.object.chars().count() <= config.constraints.max_object_name_length
            && self
                .check_names(&write.account, &write.container, &write.object)
                .is_ok();
        let is_own = self.is_own(&write.hash_path);
        if !is_own || !is_named || write.heads.expiry.is_some() || !is_plain(&write.heads.shared) {
            return None;
        }
        config.policies.by_index(write.policy)?;
        let engine = self.engine(write.policy).ok()?;
        let (change, row) = match &write.change {
            Change::Put { body, .. } if body.len() as u64 > whole_max_bytes(&*engine) => {
                return None;
            }
            Change::Put { body, md5 } => self.plain_put(write, body, *md5)?,
            // The answer says what a version was.
            Change::Delete if write.container.contains(RESERVED) => return None,
            Change::Delete => (
                PlainChange::Delete,
                tombstone_of(&write.object, write.policy, write.timestamp),
            ),
        };
        Some(Plain {
            server: self.clone(),
            engine,
            name: [
                "/",
                &write.account,
                "/",
                &write.container,
                "/",
                &write.object,
            ]
            .concat()
            .into(),
            change,
            row,
            container: config
                .hash_path
                .hash(&write.account, Some(&write.container), None),
        })
    }

    /// Checks what a PUT alone has.
    fn plain_put(
        &self,
        write: &WholeWrite,
        body: &Bytes,
        md5: [u8; 16],
    ) -> Option<(PlainChange, ObjectRow)> {
        let (head, config) = (&write.heads.shared, &self.config);
        let bytes = body.len() as u64;
        if bytes > config.constraints.max_file_size {
            return None;
        }
        std::str::from_utf8(head.get(CONTENT_TYPE)?.as_bytes()).ok()?;
        check_metadata(head, config).ok()?;
        let metadata = self.metadata_of(head, write.timestamp);
        let metadata = complete(metadata, bytes, md5, received_etag(head)).ok()?;
        let row = row_of(&write.object, write.policy, &metadata)?;
        let body = body.clone();
        Some((PlainChange::Put { body, metadata }, row))
    }

    /// Writes a replica, and updates its container.
    async fn write_plain(
        self: &Arc<Self>,
        write: &WholeWrite,
        plain: &Plain,
        replica: &Replica,
    ) -> Result<Called, Refusal> {
        match &plain.change {
            PlainChange::Put { body, metadata } => {
                self.put_plain(write, plain, replica, (body, metadata))
                    .await
            }
            PlainChange::Delete => self.delete_plain(write, plain, replica).await,
        }
    }

    async fn put_plain(
        self: &Arc<Self>,
        write: &WholeWrite,
        plain: &Plain,
        replica: &Replica,
        (body, metadata): (&Bytes, &Metadata),
    ) -> Result<Called, Refusal> {
        let key = key_of(write, plain);
        let check = Check {
            timestamp: write.timestamp,
            if_none_match: None,
            fragment: None,
        };
        let metadata = metadata.clone();
        let owes = write.heads.tells(replica.number);
        let written = write_whole(
            (&replica.device, &plain.engine, &key),
            check,
            body.clone(),
            move |_| Ok(metadata),
            (Durability::AtOnce, owes),
        );
        let (existing, metadata, debt) = written.await?;
        self.dequeue(write, plain, replica, existing.delete_at)
            .await;
        self.tell(write, plain, replica, debt).await?;
        Ok(created_by_call(metadata.get_str("ETag").unwrap_or("")))
    }

    async fn delete_plain(
        self: &Arc<Self>,
        write: &WholeWrite,
        plain: &Plain,
        replica: &Replica,
    ) -> Result<Called, Refusal> {
        let key = key_of(write, plain);
        let object = (&replica.device, &plain.engine, &key);
        let deletion = Deletion {
            timestamp: write.timestamp,
            if_delete_at: None,
            owes: write.heads.tells(replica.number),
            needs_type: false,
        };
        let mut deleted = write_tombstone(object, deletion).await?;
        self.dequeue(write, plain, replica, deleted.expiry()).await;
        if deleted.is_told() {
            self.tell(write, plain, replica, deleted.debt.take())
                .await?;
        }
        let (previous, newer, _) = deleted.answer()?;
        Ok(called(status::deleted(previous, newer)).await)
    }

    /// Takes the expiry of what was there before out of the queue.
    async fn dequeue(
        self: &Arc<Self>,
        write: &WholeWrite,
        plain: &Plain,
        replica: &Replica,
        expiry: Option<u64>,
    ) {
        let Some(old) = expiry else { return };
        let (parts, target) = request_of(write, plain, replica);
        // Boxed, so that the future of a write without one is not as large.
        Box::pin(self.dequeue_expiry(&parts, &target, write.timestamp, old)).await;
    }

    /// Updates the container, whose row may be owed.
    async fn tell(
        self: &Arc<Self>,
        write: &WholeWrite,
        plain: &Plain,
        replica: &Replica,
        debt: Option<Debt>,
    ) -> Result<(), DiskError> {
        match self.give(write, plain, replica, debt) {
            Ok(()) => Ok(()),
            // Boxed as above.
            Err(debt) => Box::pin(self.send_row(write, plain, replica, debt)).await,
        }
    }

    /// Gives the row, where it is owed, to a database of this process; gives the debt back where a request has to
    /// be made.
    fn give(
        &self,
        write: &WholeWrite,
        plain: &Plain,
        replica: &Replica,
        debt: Option<Debt>,
    ) -> Result<(), Option<Debt>> {
        let Some(debt) = debt else { return Err(None) };
        let place = write.heads.row_of(replica.number);
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
        write: &WholeWrite,
        plain: &Plain,
        replica: &Replica,
        debt: Option<Debt>,
    ) -> Result<(), DiskError> {
        let (parts, target) = request_of(write, plain, replica);
        let (op, headers) = match &plain.change {
            PlainChange::Put { metadata, .. } => {
                ("PUT", put_headers(metadata, parts.headers.iter()))
            }
            PlainChange::Delete => ("DELETE", update_headers(write.timestamp)),
        };
        self.update_container(op, &parts, &target, headers).await?;
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

fn key_of(write: &WholeWrite, plain: &Plain) -> ObjectKey {
    ObjectKey {
        policy: write.policy,
        partition: write.partition,
        hash: write.hash,
        name: plain.name.clone(),
    }
}

/// The request that a replica's call stands for, and its target.
fn request_of(write: &WholeWrite, plain: &Plain, replica: &Replica) -> (Parts, Target) {
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.method = match &plain.change {
        PlainChange::Put { .. } => Method::PUT,
        PlainChange::Delete => Method::DELETE,
    };
    parts.uri = backend_uri(&replica.node, write.partition, &plain.name, None);
    parts.headers = write.heads.head(replica.number);
    let target = Target {
        device: replica.device.clone(),
        engine: plain.engine.clone(),
        key: key_of(write, plain),
        account: write.account.clone(),
        container: write.container.clone(),
        object: write.object.clone(),
    };
    (parts, target)
}

/// Whether the headers say nothing but what is stored and who asks.
fn is_plain(head: &HeaderMap) -> bool {
    head.keys().all(|name| match name.as_str() {
        "x-delete-at" | "x-delete-after" | "x-if-delete-at" | "if-match" | "if-none-match"
        | "expect" | "transfer-encoding" => false,
        "x-backend-storage-policy-index" => true,
        other => !other.starts_with("x-backend-"),
    })
}
