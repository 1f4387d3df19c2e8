//! Structure of an upload's body according to its headers: plain content, or MIME documents with
//! metadata after the content (`X-Backend-Obj-Metadata-Footer`) and a second phase in which the
//! proxy commits once enough servers have it (`X-Backend-Obj-Multiphase-Commit`).

use std::time::Duration;

use bytes::Bytes;
use cairn_http::respond::header;
use cairn_http::{Body, BodyError, Interim};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;

use super::documents::Documents;
use super::headers::flag;
use super::status::Refusal;

/// Documents beside the content.
#[derive(Clone, Debug)]
pub(super) struct Phases {
    has_footers: bool,
    has_commit: bool,
    boundary: String,
    interim: Option<Interim>,
}

impl Phases {
    /// Parses the headers; `None` if the body is plain content.
    pub(super) fn read(parts: &Parts) -> Result<Option<Self>, Refusal> {
        let headers = &parts.headers;
        let has_footers = flag(headers, "x-backend-obj-metadata-footer");
        let has_commit = flag(headers, "x-backend-obj-multiphase-commit");
        if !has_footers && !has_commit {
            return Ok(None);
        }
        let boundary = header(headers, "x-backend-obj-multipart-mime-boundary");
        let boundary = boundary.filter(|text| !text.is_empty());
        Ok(Some(Phases {
            has_footers,
            has_commit,
            boundary: boundary
                .ok_or_else(|| Refusal::BadRequest("no MIME boundary".into()))?
                .to_owned(),
            interim: parts.extensions.get::<Interim>().cloned(),
        }))
    }

    /// Sends `100 Continue`, with headers that acknowledge the phases.
    fn send_interim(&self) {
        let yes = HeaderValue::from_static("yes");
        let mut headers = HeaderMap::new();
        if self.has_commit {
            let name = HeaderName::from_static("x-obj-multiphase-commit");
            headers.insert(name, yes.clone());
        }
        if self.has_footers {
            headers.insert(HeaderName::from_static("x-obj-metadata-footer"), yes);
        }
        if let Some(interim) = &self.interim {
            interim.send(&headers);
        }
    }

    /// Requests the body, and reads up to the content.
    pub(super) async fn begin(self, body: Body, timeout: Duration) -> Result<Content, Refusal> {
        if let Some(interim) = self.interim.as_ref().filter(|_| self.has_commit) {
            interim.join_bodies();
        }
        self.send_interim();
        let documents = Documents::open(body, &self.boundary, timeout).await?;
        Ok(Content::Documents(Box::new(documents), self))
    }
}

/// An upload's content, and the documents after it.
pub(super) enum Content {
    Plain(Body),
    Documents(Box<Documents>, Phases),
}

impl Content {
    /// The next chunk of the content; `None` at its end.
    pub(super) async fn next_chunk(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<Bytes>, BodyError> {
        match self {
            Content::Plain(body) => body.next_chunk_within(timeout).await.transpose(),
            Content::Documents(documents, _) => documents.chunk().await,
        }
    }

    /// Metadata that follows the content.
    pub(super) async fn footers(&mut self) -> Result<HeaderMap, Refusal> {
        match self {
            Content::Documents(documents, phases) if phases.has_footers => {
                documents.footers().await
            }
            _ => Ok(HeaderMap::new()),
        }
    }

    /// Whether the proxy commits the object in a second phase.
    pub(super) fn waits_for_commit(&self) -> bool {
        matches!(self, Content::Documents(_, phases) if phases.has_commit)
    }

    /// Reports that all is on disk, and waits for the commit.
    pub(super) async fn commit(&mut self) -> Result<(), Refusal> {
        let Content::Documents(documents, phases) = self else {
            return Ok(());
        };
        if !phases.has_commit {
            return Ok(());
        }
        phases.send_interim();
        match documents.reads_commit().await? {
            true => Ok(()),
            false => Err(Refusal::Failed),
        }
    }

    /// Reads the rest of the body.
    pub(super) async fn finish(&mut self) -> Result<(), Refusal> {
        match self {
            Content::Plain(_) => Ok(()),
            Content::Documents(documents, _) => documents.drain().await,
        }
    }
}
