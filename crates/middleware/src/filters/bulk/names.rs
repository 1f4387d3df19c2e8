//! The body of a bulk delete: percent-encoded names, `/container/object` or `/container`, one per
//! line. It is read completely before the first deletion, so that a list that is too long deletes
//! nothing.

use std::sync::Arc;

use bytes::{Buf, BytesMut};
use cairn_http::params::{quote_path, unquote};
use cairn_http::{Body, BodyError, respond};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use http::request::Parts;

use super::delete::{Deletion, NextDeletion, Targets};
use super::{AccountPath, Inner, Refusal, check_length};
use crate::status;

pub(super) struct Names {
    bulk: Arc<Inner>,
    parts: Parts,
    body: Option<Body>,
    read: std::vec::IntoIter<Deletion>,
}

impl Names {
    pub(super) fn new(bulk: Arc<Inner>, parts: Parts, body: Body) -> Self {
        Names {
            bulk,
            parts,
            body: Some(body),
            read: Vec::new().into_iter(),
        }
    }

    async fn read_all(&self, mut body: Body) -> Result<Vec<Deletion>, Refusal> {
        check_length(&self.parts)?;
        let most = self.bulk.max_deletes_per_request;
        let longest = self.bulk.max_path_length();
        let mut names = Vec::new();
        let mut line = BytesMut::new();
        while let Some(chunk) = body.next_chunk_within(super::extract::CLIENT_TIMEOUT).await {
            line.extend_from_slice(&chunk.map_err(gone)?);
            while let Some(end) = line.iter().position(|b| *b == b'\n') {
                names.push(deletion(&line[..end]));
                line.advance(end + 1);
                check_count(names.len(), most)?;
            }
            if line.len() > longest * 2 {
                return Err(Refusal::bad("Invalid File Name"));
            }
        }
        if !line.trim_ascii().is_empty() {
            names.push(deletion(&line));
            check_count(names.len(), most)?;
        }
        Ok(names)
    }
}

fn check_count(count: usize, most: usize) -> Result<(), Refusal> {
    if count <= most {
        return Ok(());
    }
    Err(Refusal {
        status: StatusCode::PAYLOAD_TOO_LARGE,
        body: format!("Maximum Bulk Deletes: {most} per request"),
    })
}

fn gone(error: BodyError) -> Refusal {
    Refusal {
        status: status::broken_body_code(&error),
        body: error.to_string(),
    }
}

/// The deletion for a line. Empty lines are counted, and delete nothing.
fn deletion(line: &[u8]) -> Deletion {
    let line = line.trim_ascii();
    let text = std::str::from_utf8(line).ok();
    match text.and_then(|text| unquote(text).ok()) {
        Some(name) if !name.contains('\0') => Deletion::of(&name),
        _ => Deletion {
            name: "/".to_owned(),
            shown: quote_path(&String::from_utf8_lossy(line)).replace("%25", "%"),
            version_id: None,
            error: Some((
                StatusCode::PRECONDITION_FAILED,
                respond::status_line(StatusCode::PRECONDITION_FAILED),
            )),
        },
    }
}

impl Targets for Names {
    fn place(&mut self) -> Result<Option<(String, String)>, Refusal> {
        let place = AccountPath::of(&self.parts)?;
        let content_type = respond::header(&self.parts.headers, CONTENT_TYPE.as_str());
        if content_type.is_some_and(|t| !t.is_empty() && !t.starts_with("text/plain")) {
            return Err(Refusal::of(StatusCode::NOT_ACCEPTABLE));
        }
        Ok(Some((place.version, place.account)))
    }

    fn next<'a>(&'a mut self) -> NextDeletion<'a> {
        Box::pin(async move {
            if let Some(body) = self.body.take() {
                self.read = self.read_all(body).await?.into_iter();
            }
            Ok(self.read.next())
        })
    }
}
