//! PROMISE: what this server has of an object, and a promise to write it next
//! (`docs/conditional-writes.md`). OpenStack Swift's object server answers 405 to it.

use std::sync::Arc;

use cairn_disk::{DeviceError, DiskError, OpenOptions};
use cairn_http::Response;
use cairn_http::respond::{header, set};
use cairn_types::Timestamp;
use cairn_types::plant::Plant;
use http::request::Parts;

use super::Inner;
use super::get::alternate_etag;
use super::promises::{Begun, Place, Withheld, Writing};
use super::status::{Refusal, heard};
use super::target::{Target, required_timestamp};

/// Names the promise, in PROMISE and in the write under it.
const TOKEN: &str = "x-backend-promise-token";
/// `look`: only what there is; `give`; `release`: the one given before.
const ACTION: &str = "x-backend-promise-action";

/// The state of an object on this server.
#[derive(Default)]
struct Seen {
    /// The time of the content, or of the tombstone.
    data: Timestamp,
    /// The newest time of content, tombstone and metadata.
    newest: Timestamp,
    etag: Option<String>,
}

impl Inner {
    pub(super) async fn promise(self: &Arc<Self>, parts: &Parts) -> Result<Response, Refusal> {
        let target = self.target(parts)?;
        let timestamp = required_timestamp(parts)?;
        let bad = |text: &str| Refusal::BadRequest(text.into());
        let token = header(&parts.headers, TOKEN).ok_or_else(|| bad("Missing promise token"))?;
        let place = target.place();
        let given = match header(&parts.headers, ACTION) {
            Some("look") => None,
            Some("release") => {
                self.promises.release(&place, token, timestamp);
                return Ok(heard());
            }
            Some("give") if target.device.is_poisoned() => {
                let name = target.device.name().to_owned();
                return Err(DiskError::from(DeviceError::Poisoned(name)).into());
            }
            Some("give") => {
                let now = self.config.clock.now();
                Some(self.promises.ask(&place, token, timestamp, now))
            }
            _ => {
                return Err(bad(
                    "X-Backend-Promise-Action is none of give, look, release",
                ));
            }
        };
        // After the promise: what others were promised before is there by now.
        let seen = self.seen(parts, &target, timestamp).await;
        let is_given = given == Some(Ok(()));
        let is_older = seen.as_ref().is_ok_and(|seen| seen.newest >= timestamp);
        if is_given && (seen.is_err() || is_older) {
            self.promises.release(&place, token, timestamp);
        }
        let seen = seen?;
        let mut response = heard();
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
        // A POST that came since says nothing of the content.
        if let Some(at) = self.promises.in_doubt(&place, seen.data) {
            set(headers, "x-backend-in-doubt", at.internal());
        }
        Ok(response)
    }

    /// The object's state on the disk. An expired object is none.
    async fn seen(&self, parts: &Parts, target: &Target, now: Timestamp) -> Result<Seen, Refusal> {
        let (engine, key) = (target.engine.clone(), target.key.clone());
        let opened = target
            .device
            .read(move |disk| engine.open(disk, &key, &OpenOptions::metadata(now)));
        let of_gone = |at| Seen {
            data: at,
            newest: at,
            etag: None,
        };
        match opened.await {
            Ok(open) => {
                let info = open.info;
                let etag = alternate_etag(&parts.headers, &info).unwrap_or(info.etag());
                let newest = info.timestamp().max(info.content_type_timestamp());
                Ok(Seen {
                    data: info.data_timestamp,
                    newest: newest.max(info.data_timestamp),
                    etag: Some(etag.to_owned()),
                })
            }
            Err(DiskError::Deleted { timestamp }) => Ok(of_gone(timestamp)),
            Err(DiskError::Expired(info)) => Ok(Seen {
                data: info.data_timestamp,
                ..of_gone(info.timestamp().max(info.data_timestamp))
            }),
            Err(DiskError::NotExist | DiskError::Quarantined(_)) => Ok(Seen::default()),
            Err(error) => Err(error.into()),
        }
    }

    /// Begins a write that was promised; `None` for one that needs no promise. To be called when all
    /// that is to be written is here.
    pub(super) fn begin_promised(
        &self,
        parts: &Parts,
        target: &Target,
    ) -> Result<Option<Writing>, Refusal> {
        let Some(token) = header(&parts.headers, TOKEN) else {
            return Ok(None);
        };
        match self.promises.begin(&target.place(), token) {
            Begun::Writing(writing) => Ok(Some(writing)),
            Begun::CarriedOut(at) => Err(Refusal::Conflict(Some(at))),
            Begun::Lost if Plant::PromiseShared.is_on() => Ok(None),
            Begun::Lost => Err(Refusal::PromiseLost),
        }
    }
}

impl Target {
    fn place(&self) -> Place {
        let key = &self.key;
        (self.device.name().to_owned(), key.policy, key.hash)
    }
}

impl Writing {
    /// Notes how it went.
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

/// [`Writing::note`] of a write that may have been promised.
pub(super) fn note<T>(writing: &mut Option<Writing>, result: &Result<T, Refusal>) {
    if let Some(writing) = writing {
        writing.note(result);
    }
}
