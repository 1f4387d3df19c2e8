//! Extraction of an archive: each file becomes a PUT whose body is read from the archive as it
//! arrives. Missing containers are created.
//!
//! Names are used unchanged, except for a leading `.`; one that contains `..` could be meant for
//! another container, and is refused.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cairn_http::params::quote_path;
use cairn_http::{Body, Request, Response, respond};
use cairn_types::ServerKind;
use cairn_types::header_name;
use cairn_types::metadata::is_user_meta;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use tracing::info;

use super::archive::{Archive, ArchiveError, Entry};
use super::unpack::Packing;
use super::{AccountPath, Inner, Refusal, answer, check_length, failed, wanted_format};
use crate::heartbeat::{self, Beats};
use crate::report::{FORMATS, Report};
use crate::status;
use crate::subrequest::Subrequests;

/// Timeout of a client that sends nothing.
pub(super) const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);
const SOURCE: &str = "EA";
/// Maximum size of a file that is read before its PUT begins.
const BUFFERED_FILE_BYTES: u64 = 64 << 10;
/// Maximum bytes read after the archive's end, or after an error: a client that is still sending
/// would not see the response.
const DRAIN_MAX: u64 = 16 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_MAX: u64 = 64 << 10;

#[derive(Default)]
struct Tally {
    created: u64,
    errors: Vec<(String, String)>,
    server_failed: bool,
}

impl Tally {
    fn fail(&mut self, name: &[u8], longest: usize, status: StatusCode) {
        let name = &name[..name.len().min(longest)];
        let shown = quote_path(&String::from_utf8_lossy(name));
        self.errors.push((shown, respond::status_line(status)));
    }

    fn report(self, end: Result<(), Refusal>) -> Report {
        let mut report = match end {
            Err(refusal) => failed(&refusal),
            Ok(()) if !self.errors.is_empty() => failed(&Refusal::of(if self.server_failed {
                StatusCode::BAD_GATEWAY
            } else {
                StatusCode::BAD_REQUEST
            })),
            Ok(()) if self.created == 0 => {
                failed(&Refusal::bad("Invalid Tar File: No Valid Files"))
            }
            Ok(()) => failed(&Refusal::of(StatusCode::CREATED)),
        };
        report.set("Number Files Created", self.created);
        report.errors = self.errors;
        report
    }
}

/// An extraction in progress.
struct Extraction {
    bulk: Arc<Inner>,
    requests: Subrequests,
    /// Metadata and expiry that the client set for all objects.
    headers: HeaderMap,
    place: AccountPath,
    containers: HashSet<String>,
    created_containers: usize,
    tally: Tally,
}

impl Inner {
    pub(super) async fn extract_archive(
        self: Arc<Self>,
        request: Request,
        packing: Packing,
    ) -> Response {
        let (parts, body) = request.into_parts();
        let format = wanted_format(&parts);
        let shown = format.unwrap_or(FORMATS[0]);
        let every = self.yield_frequency;
        let job = async move {
            let report = match format {
                Some(_) => self.extract(&parts, body, packing).await,
                None => failed(&Refusal::of(StatusCode::NOT_ACCEPTABLE)),
            };
            report.render(shown, "extract")
        };
        let body = heartbeat::body(job, Beats::when_slow(every, shown)).await;
        answer(body, shown)
    }

    async fn extract(self: Arc<Self>, parts: &Parts, body: Body, packing: Packing) -> Report {
        let place = match check_length(parts).and_then(|()| AccountPath::of(parts)) {
            Ok(place) => place,
            Err(refusal) => return Tally::default().report(Err(refusal)),
        };
        let mut archive = Archive::new(body, packing, self.max_expansion_ratio, CLIENT_TIMEOUT);
        let mut extraction = Extraction {
            requests: Subrequests::of(parts, SOURCE, "BulkExpand"),
            headers: headers_for_all(&parts.headers),
            place,
            containers: HashSet::new(),
            created_containers: 0,
            tally: Tally::default(),
            bulk: self,
        };
        let end = extraction.run(&mut archive).await;
        let rest = archive.into_body().drain(DRAIN_MAX);
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, rest).await;
        extraction.tally.report(end)
    }
}

fn headers_for_all(asked: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in asked {
        let key = name.as_str();
        if key == "x-delete-at" || key == "x-delete-after" || is_user_meta(ServerKind::Object, key)
        {
            headers.append(name, value.clone());
        }
    }
    headers
}

fn invalid(error: &ArchiveError) -> Refusal {
    match error {
        ArchiveError::Upload(error) => Refusal::of(status::broken_body_code(error)),
        _ => Refusal::bad(format!("Invalid Tar File: {error}")),
    }
}

impl Extraction {
    async fn run(&mut self, archive: &mut Archive) -> Result<(), Refusal> {
        while let Some(entry) = archive.next().await.map_err(|e| invalid(&e))? {
            if self.tally.errors.len() >= self.bulk.max_failed_extractions {
                break;
            }
            if entry.is_file {
                self.file(archive, entry).await?;
            }
        }
        Ok(())
    }

    /// The object's path below the account, as bytes, since names in an archive may be arbitrary.
    fn name_of(&self, entry: &Entry) -> Vec<u8> {
        let name = entry.name.strip_prefix(b"./").unwrap_or(&entry.name);
        let start = name.iter().position(|b| *b != b'/').unwrap_or(name.len());
        let base = self.place.rest.trim_end_matches('/');
        if base.is_empty() {
            return name[start..].to_vec();
        }
        [base.as_bytes(), b"/", &name[start..]].concat()
    }

    async fn file(&mut self, archive: &mut Archive, entry: Entry) -> Result<(), Refusal> {
        let longest = self.bulk.max_path_length();
        let raw = self.name_of(&entry);
        let Some(slash) = raw.iter().position(|b| *b == b'/') else {
            // Not in any container.
            return Ok(());
        };
        let name = std::str::from_utf8(&raw).ok().filter(|n| !n.contains('\0'));
        let refused = match name {
            None => Some(StatusCode::PRECONDITION_FAILED),
            Some(name) if name.split('/').any(|part| part == "..") => Some(StatusCode::BAD_REQUEST),
            Some(_) if entry.is_sparse => Some(StatusCode::UNSUPPORTED_MEDIA_TYPE),
            Some(_) if entry.size > self.bulk.constraints.max_file_size => {
                Some(StatusCode::PAYLOAD_TOO_LARGE)
            }
            Some(_) => None,
        };
        let (Some(name), None) = (name, refused) else {
            let status = refused.unwrap_or(StatusCode::PRECONDITION_FAILED);
            self.tally.fail(&raw, longest, status);
            return Ok(());
        };
        let container = name[..slash].to_owned();
        let container_failure = if self.containers.contains(&container) {
            None
        } else {
            self.make_container(&container).await?
        };
        let status = self.put(archive, name, &entry).await?;
        self.containers.insert(container);
        if status.is_success() {
            self.tally.created += 1;
            return Ok(());
        }
        // Reported only now: a client that may not create containers may still write to this one.
        self.tally.errors.extend(container_failure);
        self.tally.server_failed |= status.is_server_error();
        self.tally.fail(&raw, longest, status);
        if status == StatusCode::UNAUTHORIZED {
            return Err(Refusal::of(status));
        }
        Ok(())
    }

    /// Creates the container if it is missing; a failure is returned for the report.
    async fn make_container(
        &mut self,
        container: &str,
    ) -> Result<Option<(String, String)>, Refusal> {
        let path = format!("/{}/{}/{container}", self.place.version, self.place.account);
        let mut status = self.ask(Method::HEAD, &path).await;
        if status.is_success() {
            return Ok(None);
        }
        if status == StatusCode::NOT_FOUND {
            status = self.ask(Method::PUT, &path).await;
            if status.is_success() {
                self.created_containers += 1;
                let most = self.bulk.max_containers_per_extraction;
                if self.created_containers > most {
                    return Err(Refusal::bad(format!(
                        "More than {most} containers to create from tar."
                    )));
                }
                return Ok(None);
            }
        }
        if status == StatusCode::UNAUTHORIZED {
            return Err(Refusal::of(status));
        }
        let shown: String = path.chars().take(self.bulk.max_path_length()).collect();
        Ok(Some((quote_path(&shown), respond::status_line(status))))
    }

    async fn ask(&self, method: Method, path: &str) -> StatusCode {
        let Some(mut request) = self.requests.request(method, path, None) else {
            return StatusCode::URI_TOO_LONG;
        };
        let nothing = HeaderValue::from_static("0");
        request.headers_mut().insert(CONTENT_LENGTH, nothing);
        let response = self.bulk.next.call(request).await;
        let status = response.status();
        response.into_body().drain(ANSWER_MAX).await;
        status
    }

    /// Stores one file. The status is the PUT's; an error is the archive's.
    async fn put(
        &self,
        archive: &mut Archive,
        name: &str,
        entry: &Entry,
    ) -> Result<StatusCode, Refusal> {
        let path = format!("/{}/{}/{name}", self.place.version, self.place.account);
        let request = self.requests.request(Method::PUT, &path, None);
        let Some(mut request) = request else {
            return Ok(StatusCode::URI_TOO_LONG);
        };
        request.headers_mut().extend(self.headers.clone());
        if !add_attributes(request.headers_mut(), entry) {
            return Ok(StatusCode::BAD_REQUEST);
        }
        request
            .headers_mut()
            .insert(CONTENT_LENGTH, entry.size.into());
        let response = if entry.size <= BUFFERED_FILE_BYTES {
            let content = whole(archive, entry.size).await;
            *request.body_mut() = Body::full(content.map_err(|e| invalid(&e))?);
            self.bulk.next.call(request).await
        } else {
            let (sender, body) = Body::channel(Some(entry.size), 4);
            *request.body_mut() = body;
            let feed = async {
                while let Some(chunk) = archive.content().await? {
                    if !sender.send(chunk).await {
                        // The PUT was refused before the file's end; the rest is skipped.
                        return Ok(());
                    }
                }
                sender.finish().await;
                Ok(())
            };
            let put = self.bulk.next.call(request);
            let (response, fed) = futures_util::future::join(put, feed).await;
            fed.map_err(|error: ArchiveError| {
                info!(path, %error, "an archive broke off within a file");
                invalid(&error)
            })?;
            response
        };
        let status = response.status();
        response.into_body().drain(ANSWER_MAX).await;
        Ok(status)
    }
}

async fn whole(archive: &mut Archive, size: u64) -> Result<Bytes, ArchiveError> {
    let mut all = BytesMut::with_capacity(size as usize);
    while let Some(chunk) = archive.content().await? {
        all.extend_from_slice(&chunk);
    }
    Ok(all.freeze())
}

/// Adds headers for extended attributes `user.mime_type` and `user.meta.NAME`, as both common tar
/// programs store them. Returns false if one cannot be a header.
fn add_attributes(headers: &mut HeaderMap, entry: &Entry) -> bool {
    for (record, value) in &entry.records {
        let attribute = record
            .strip_prefix("SCHILY.xattr.user.")
            .or_else(|| record.strip_prefix("LIBARCHIVE.xattr.user."));
        let name = match attribute {
            Some("mime_type") => Ok(CONTENT_TYPE),
            Some(name) => match name.strip_prefix("meta.") {
                Some(meta) => {
                    let name = format!("x-object-meta-{meta}");
                    HeaderName::from_bytes(&header_name::escape(name.as_bytes()))
                }
                None => continue,
            },
            None => continue,
        };
        match (name, HeaderValue::from_bytes(value)) {
            (Ok(name), Ok(value)) => headers.insert(name, value),
            _ => return false,
        };
    }
    true
}
