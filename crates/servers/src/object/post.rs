//! POST: new user metadata for an object, or a new content type, each with its own timestamp.

use std::sync::Arc;

use cairn_disk::{DiskError, FragmentChoice, Metadata, ObjectInfo, OpenOptions};
use cairn_http::Response;
use cairn_http::respond::{header, set};
use cairn_index::content_type::extract_swift_bytes;
use cairn_types::metadata::{is_object_transient_sysmeta, is_sys_meta, is_user_meta};
use cairn_types::{ServerKind, Timestamp};
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::request::Parts;

use super::headers::{check_metadata, copy_metadata, opens_expired};
use super::promise;
use super::status::{self, Refusal};
use super::target::{Target, required_timestamp};
use super::updates::UpdateHeaders;
use super::{Inner, to_the_end};

/// A content type and its timestamp.
struct ContentType {
    value: Vec<u8>,
    timestamp: Timestamp,
}

impl ContentType {
    /// Adds `swift_bytes`, by which the container keeps a large object's size from its PUT.
    fn add_swift_bytes(&mut self, info: &ObjectInfo) {
        if self.timestamp == info.data_timestamp {
            return;
        }
        let of_put = info.datafile_metadata().get_str("Content-Type");
        if let (_, Some(bytes)) = extract_swift_bytes(of_put.unwrap_or("")) {
            self.value
                .extend_from_slice(format!(";swift_bytes={bytes}").as_bytes());
        }
    }
}

impl Inner {
    pub(super) async fn post(self: &Arc<Self>, parts: Parts) -> Result<Response, Refusal> {
        let target = self.target(&parts)?;
        let timestamp = required_timestamp(&parts)?;
        let new_delete_at = post_delete_at(&parts, timestamp)?;
        check_metadata(&parts.headers, &self.config)?;
        let new_type = content_type(&parts, timestamp)?;
        let inner = self.clone();
        to_the_end(async move {
            inner
                .carry_out_post(parts, target, timestamp, new_delete_at, new_type)
                .await
        })
        .await
    }

    async fn carry_out_post(
        self: &Arc<Self>,
        parts: Parts,
        target: Target,
        timestamp: Timestamp,
        new_delete_at: Option<u64>,
        new_type: Option<ContentType>,
    ) -> Result<Response, Refusal> {
        let mut writing = self.begin_promised(&parts, &target)?;
        if let Some(writing) = &mut writing {
            writing.is_not_written();
        }
        let options = OpenOptions {
            now: timestamp,
            open_expired: opens_expired(&parts.headers),
            inline_limit: 0,
            fragment: FragmentChoice::default(),
        };
        let (engine, key) = (target.engine.clone(), target.key.clone());
        let open = target
            .device
            .read(move |disk| engine.open(disk, &key, &options));
        let info = match open.await {
            Ok(open) => open.info,
            // The response to a POST does not include the time of the deletion.
            Err(DiskError::Deleted { .. } | DiskError::Expired(_)) => {
                return Err(DiskError::NotExist.into());
            }
            Err(error) => return Err(error.into()),
        };
        let before = info.timestamp();
        let type_before = info.content_type_timestamp();
        let type_time = new_type.as_ref().map_or(Timestamp::ZERO, |t| t.timestamp);
        if before >= timestamp && type_before >= type_time {
            return Err(Refusal::Conflict(Some(before)));
        }

        let mut metadata = Metadata::new();
        let mut old_delete_at = None;
        if timestamp > before {
            metadata.set("X-Timestamp", timestamp.internal());
            copy_metadata(&mut metadata, &parts.headers, &self.config, |name| {
                is_user_meta(ServerKind::Object, name) || is_object_transient_sysmeta(name)
            });
            old_delete_at = info.metadata.delete_at();
            if let Some(new) = new_delete_at {
                let datafile = info.datafile_metadata();
                self.enqueue_expiry(&parts, &target, timestamp, datafile, new)
                    .await?;
            }
        } else {
            // Only the content type is new.
            metadata = info.metafile_metadata.clone().unwrap_or_default();
            metadata.set("X-Timestamp", before.internal());
        }
        let is_new_type = type_time > type_before;
        let mut current = match new_type.filter(|_| is_new_type) {
            Some(new_type) => new_type,
            None => ContentType {
                value: info
                    .metadata
                    .get("Content-Type")
                    .unwrap_or_default()
                    .to_vec(),
                timestamp: type_before,
            },
        };
        if is_new_type || type_before != info.data_timestamp {
            metadata.set("Content-Type", current.value.clone());
            metadata.set("Content-Type-Timestamp", current.timestamp.internal());
        }
        current.add_swift_bytes(&info);
        let update = post_update(&info, &metadata, &current);
        let response = post_response(&info, &current);

        if let Some(writing) = &mut writing {
            writing.goes_to_disk();
        }
        let (engine, key) = (target.engine.clone(), target.key.clone());
        let written = target
            .device
            .commit(move |disk| engine.write_metadata(disk, &key, metadata));
        let written = written.await.map_err(Refusal::from);
        promise::note(&mut writing, &written);
        drop(writing);
        written?;
        // Only after the write: had that failed, the object would still expire at the old time
        // without an entry.
        if let Some(old) = old_delete_at.filter(|_| old_delete_at != new_delete_at) {
            self.dequeue_expiry(&parts, &target, timestamp, old).await;
        }
        self.update_container("PUT", &parts, &target, update)
            .await?;
        Ok(response)
    }
}

/// The expiry time; none or 0 is never.
fn post_delete_at(parts: &Parts, timestamp: Timestamp) -> Result<Option<u64>, Refusal> {
    let bad = |reason: &str| Err(Refusal::BadRequest(reason.into()));
    let Some(value) = parts.headers.get("x-delete-at").filter(|v| !v.is_empty()) else {
        return Ok(None);
    };
    let number = value
        .to_str()
        .ok()
        .and_then(|t| t.trim().parse::<i64>().ok());
    let Some(number) = number else {
        return bad("Non-integer X-Delete-At");
    };
    match u64::try_from(number) {
        Ok(0) => Ok(None),
        Ok(at) if Timestamp::from_secs(at) >= timestamp => Ok(Some(at)),
        _ => bad("X-Delete-At in past"),
    }
}

/// The request's content type with its own timestamp, or else the request's.
fn content_type(parts: &Parts, timestamp: Timestamp) -> Result<Option<ContentType>, Refusal> {
    let Some(value) = parts.headers.get(CONTENT_TYPE).filter(|v| !v.is_empty()) else {
        return Ok(None);
    };
    let timestamp = match header(&parts.headers, "content-type-timestamp") {
        None => timestamp,
        Some(text) => {
            Timestamp::parse(text).map_err(|error| Refusal::BadRequest(error.to_string()))?
        }
    };
    Ok(Some(ContentType {
        value: value.as_bytes().to_vec(),
        timestamp,
    }))
}

/// The container's update: the row of the PUT, with the new timestamps.
fn post_update(info: &ObjectInfo, metadata: &Metadata, current: &ContentType) -> UpdateHeaders {
    let of_put = |name: &str| info.metadata.get(name).unwrap_or_default();
    let mut update = UpdateHeaders::new();
    update.set("x-size", of_put("Content-Length"));
    update.set("x-content-type", current.value.clone());
    update.set("x-timestamp", info.data_timestamp.internal());
    update.set("x-content-type-timestamp", current.timestamp.internal());
    update.set(
        "x-meta-timestamp",
        metadata.get("X-Timestamp").unwrap_or_default(),
    );
    update.set("x-etag", of_put("ETag"));
    for (header, name) in [
        ("x-etag", "X-Object-Sysmeta-Ec-Etag"),
        ("x-size", "X-Object-Sysmeta-Ec-Content-Length"),
    ] {
        if let Some(value) = info.metadata.get(name) {
            update.set(header, value);
        }
    }
    update.apply_overrides(info.metadata.iter());
    update
}

fn post_response(info: &ObjectInfo, current: &ContentType) -> Response {
    let mut response = status::accepted();
    let headers = response.headers_mut();
    let content_type = String::from_utf8_lossy(&current.value);
    set(headers, "x-backend-content-type", content_type);
    for (name, value) in info.metadata.iter() {
        let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(name.as_bytes()),
            HeaderValue::from_bytes(value),
        ) else {
            continue;
        };
        if is_sys_meta(ServerKind::Object, name.as_str()) {
            headers.insert(name, value);
        }
    }
    response
}
