//! PROMISE: reports this server's state of an object, and promises to write it next
//! (`docs/conditional-writes.md`). OpenStack Swift's object server answers 405.

use std::sync::Arc;

use cairn_disk::{DeviceError, DiskError, OpenOptions};
use cairn_http::Response;
use cairn_http::respond::{header, set};
use cairn_types::Timestamp;
use cairn_types::plant::Plant;
use http::request::Parts;

use super::Inner;
use super::get::alternate_etag;
use super::promises::{Begun, PromiseKey, Withheld, Writing};
use super::status::{Refusal, promise_response};
use super::target::{Target, required_timestamp};

/// Identifies the promise, in PROMISE and in the write under it.
const TOKEN: &str = "x-backend-promise-token";
/// `look` (report only), `give`, or `release` (of a promise given before).
const ACTION: &str = "x-backend-promise-action";

/// State of an object on this server.
#[derive(Default)]
struct LocalState {
    /// Timestamp of the content or the tombstone.
    data: Timestamp,
    /// Newest timestamp of content, tombstone and metadata.
    newest: Timestamp,
    etag: Option<String>,
}

impl Inner {
    pub(super) async fn promise(self: &Arc<Self>, parts: &Parts) -> Result<Response, Refusal> {
        let target = self.target(parts)?;
        let timestamp = required_timestamp(parts)?;
        let bad = |text: &str| Refusal::BadRequest(text.into());
        let token = header(&parts.headers, TOKEN).ok_or_else(|| bad("Missing promise token"))?;
        let promise_key = target.promise_key();
        let given = match header(&parts.headers, ACTION) {
            Some("look") => None,
            Some("release") => {
                self.promises.release(&promise_key, token, timestamp);
                return Ok(promise_response());
            }
            Some("give") if target.device.is_poisoned() => {
                let name = target.device.name().to_owned();
                return Err(DiskError::from(DeviceError::Poisoned(name)).into());
            }
            Some("give") => {
                let now = self.config.clock.now();
                Some(self.promises.ask(&promise_key, token, timestamp, now))
            }
            _ => {
                return Err(bad(
                    "X-Backend-Promise-Action is none of give, look, release",
                ));
            }
        };
        // Read after the promise: writes under earlier promises are visible by now.
        let seen = self.seen(parts, &target, timestamp).await;
        let is_given = given == Some(Ok(()));
        let is_older = seen.as_ref().is_ok_and(|seen| seen.newest >= timestamp);
        if is_given && (seen.is_err() || is_older) {
            self.promises.release(&promise_key, token, timestamp);
        }
        let seen = seen?;
        let mut response = promise_response();
        let headers = response.headers_mut();
        let word = match given {
            None => "none",
            Some(Ok(())) if is_older => "older",
            Some(Ok(())) => "given",
            Some(Err(Withheld::Busy)) => "busy",
            Some(Err(Withheld::Older(_))) => "older",
            Some(Err(Withheld::Clock)) => "clock",
            Some(Err(Withheld::Started)) => "started",
        };
        set(headers, "x-backend-promise", word);
        let newest = match given {
            Some(Err(Withheld::Older(at))) => at.max(seen.newest),
            _ => seen.newest,
        };
        set(headers, "x-backend-timestamp", newest.internal());
        set(headers, "x-backend-data-timestamp", seen.data.internal());
        if let Some(etag) = seen.etag {
            set(headers, "etag", format!("\"{etag}\""));
        }
        // A later POST is no evidence about the content.
        if let Some(at) = self.promises.in_doubt(&promise_key, seen.data) {
            set(headers, "x-backend-in-doubt", at.internal());
        }
        Ok(response)
    }

    /// Reads the object's state from the disk. An expired object counts as missing.
    async fn seen(
        &self,
        parts: &Parts,
        target: &Target,
        now: Timestamp,
    ) -> Result<LocalState, Refusal> {
        let of_gone = |at| LocalState {
            data: at,
            newest: at,
            etag: None,
        };
        match target.open(OpenOptions::metadata(now)).await {
            Ok(open) => {
                let info = open.info;
                let etag = alternate_etag(&parts.headers, &info).unwrap_or(info.etag());
                let newest = info.timestamp().max(info.content_type_timestamp());
                Ok(LocalState {
                    data: info.data_timestamp,
                    newest: newest.max(info.data_timestamp),
                    etag: Some(etag.to_owned()),
                })
            }
            Err(DiskError::Deleted { timestamp }) => Ok(of_gone(timestamp)),
            Err(DiskError::Expired(info)) => Ok(LocalState {
                data: info.data_timestamp,
                ..of_gone(info.timestamp().max(info.data_timestamp))
            }),
            Err(DiskError::NotExist | DiskError::Quarantined(_)) => Ok(LocalState::default()),
            Err(error) => Err(error.into()),
        }
    }

    /// Begins a promised write; `None` if it needs no promise. To be called once the whole body has
    /// been received.
    pub(super) fn begin_promised(
        &self,
        parts: &Parts,
        target: &Target,
    ) -> Result<Option<Writing>, Refusal> {
        let Some(token) = header(&parts.headers, TOKEN) else {
            return Ok(None);
        };
        match self.promises.begin(&target.promise_key(), token) {
            Begun::Writing(writing) => Ok(Some(writing)),
            Begun::CarriedOut(at) => Err(Refusal::Conflict(Some(at))),
            Begun::Lost if Plant::PromiseShared.is_on() => Ok(None),
            Begun::Lost => Err(Refusal::PromiseLost),
        }
    }
}

impl Target {
    fn promise_key(&self) -> PromiseKey {
        let key = &self.key;
        (self.device.name().to_owned(), key.policy, key.hash)
    }
}

impl Writing {
    /// Records the write's outcome.
    pub(super) fn note<T>(&mut self, result: &Result<T, Refusal>) {
        match result {
            Ok(_) => self.is_visible(),
            Err(Refusal::EtagMismatch | Refusal::Disconnected | Refusal::Conflict(_)) => {
                self.is_not_written();
            }
            Err(_) => {}
        }
    }
}

/// [`Writing::note`] for a write that may have a promise.
pub(super) fn note<T>(writing: &mut Option<Writing>, result: &Result<T, Refusal>) {
    if let Some(writing) = writing {
        writing.note(result);
    }
}
