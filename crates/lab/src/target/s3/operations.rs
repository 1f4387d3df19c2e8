//! Copies, metadata, bulk deletions and versions by S3's API.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use md5::{Digest, Md5};
use quick_xml::escape::{escape, unescape};

use super::super::http::{Upload, push_encoded, push_header};
use super::super::swift::finish;
use super::super::{Done, Failure, Request};
use super::{Session, tag};
use crate::record::ErrorKind;

/// Lists of versions that one deletion asks for at most.
const LISTS_MAX: u32 = 100;

impl Session {
    /// `PUT` with a source.
    pub(super) async fn copy(&mut self, request: &Request<'_>) -> Result<Done, Failure> {
        let (container, object) = request.to;
        let headers = request.headers.clone();
        self.copy_to(request, container, object, headers).await
    }

    /// Metadata of an object can only be replaced by a copy onto itself: the workload's headers, else
    /// one that differs by object.
    pub(super) async fn post(&mut self, request: &Request<'_>) -> Result<Done, Failure> {
        let mut headers = request.headers.clone();
        if headers.is_empty() {
            headers.insert("x-amz-meta-lab".into(), request.number.to_string());
        }
        headers.insert("x-amz-metadata-directive".into(), "REPLACE".into());
        self.copy_to(request, request.container, request.object, headers)
            .await
    }

    async fn copy_to(
        &mut self,
        request: &Request<'_>,
        container: &str,
        object: &str,
        mut headers: BTreeMap<String, String>,
    ) -> Result<Done, Failure> {
        let mut source = vec![b'/'];
        push_encoded(&mut source, request.container);
        source.push(b'/');
        push_encoded(&mut source, request.object);
        // Percent-encoding leaves ASCII only.
        let source = String::from_utf8_lossy(&source).into_owned();
        headers.insert("x-amz-copy-source".into(), source);
        self.begin_with("PUT", container, object, "", &headers);
        let answer = self.end_and_keep(b"").await?;
        without_error(&answer)
    }

    /// `DeleteObjects`, one request for each bucket of the batch.
    pub(super) async fn bulk_delete(&mut self, request: &Request<'_>) -> Result<Done, Failure> {
        let containers: BTreeSet<&str> = request.batch.iter().map(|(c, _)| &**c).collect();
        for container in containers {
            let own = request.batch.iter().filter(|(c, _)| c == container);
            let objects: Vec<String> = own
                .map(|(_, object)| format!("<Object><Key>{}</Key></Object>", escape(object)))
                .collect();
            let list = format!("<Delete><Quiet>true</Quiet>{}</Delete>", objects.concat());
            self.begin("POST", container, "", "delete=");
            let digest = Md5::digest(list.as_bytes());
            let digest = base64::engine::general_purpose::STANDARD.encode(digest);
            push_header(&mut self.client.head, "Content-MD5", &digest);
            let answer = self.end_and_keep(list.as_bytes()).await?;
            without_error(&answer)?;
        }
        Ok(done())
    }

    pub(super) async fn list_versions(&mut self, request: &Request<'_>) -> Result<Done, Failure> {
        self.begin(
            "GET",
            request.container,
            "",
            &versions_query(request.object),
        );
        self.client.head.extend_from_slice(b"\r\n");
        finish(&mut self.client, Upload::None, request).await
    }

    /// Deletes all versions of an object, markers of deletions among them.
    pub(super) async fn delete_versions(&mut self, request: &Request<'_>) -> Result<Done, Failure> {
        let (container, object) = (request.container, request.object);
        let mut deleted = None;
        for _ in 0..LISTS_MAX {
            self.begin("GET", container, "", &versions_query(object));
            let answer = self.end_and_keep(b"").await?;
            let listed = versions(&answer, object);
            if listed.is_empty() {
                break;
            }
            for version in listed {
                let mut query = b"versionId=".to_vec();
                push_encoded(&mut query, &version);
                let query = String::from_utf8_lossy(&query);
                self.begin("DELETE", container, object, &query);
                self.client.head.extend_from_slice(b"\r\n");
                deleted = Some(finish(&mut self.client, Upload::None, request).await?);
            }
        }
        deleted.ok_or_else(|| ErrorKind::Status(404).into())
    }

    /// Has a bucket keep versions.
    pub(super) async fn keep_versions(&mut self, request: &Request<'_>) -> Result<Done, Failure> {
        self.begin("PUT", request.container, "", "versioning=");
        let setting = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
        self.end_and_keep(setting.as_bytes()).await?;
        Ok(done())
    }
}

fn done() -> Done {
    Done {
        first_byte: super::super::http::now(),
        bytes: 0,
        checked: false,
    }
}

/// A 200 may carry an error, told after the head had gone out.
fn without_error(answer: &str) -> Result<Done, Failure> {
    match tag(answer, "Code") {
        None => Ok(done()),
        Some(code) if code == "NoSuchKey" => Err(ErrorKind::Status(404).into()),
        Some(code) if code == "AccessDenied" => Err(ErrorKind::Status(403).into()),
        // A store's own text may be as long as it likes.
        Some(code) => Err(ErrorKind::Other(code.chars().take(40).collect()).into()),
    }
}

/// The query's parts are in order, as their signature wants.
fn versions_query(object: &str) -> String {
    let mut query = Vec::new();
    if !object.is_empty() {
        query.extend_from_slice(b"prefix=");
        push_encoded(&mut query, object);
        query.push(b'&');
    }
    let query = String::from_utf8_lossy(&query).replace('/', "%2F");
    format!("{query}versions=")
}

/// Ids of an object's versions and markers; other names with the same beginning come behind it.
fn versions(xml: &str, object: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (start, end) in [
        ("<Version>", "</Version>"),
        ("<DeleteMarker>", "</DeleteMarker>"),
    ] {
        for part in xml.split(start).skip(1) {
            let entry = part.split(end).next().unwrap_or_default();
            let key = tag(entry, "Key").unwrap_or_default();
            if unescape(&key).is_ok_and(|key| key == object) {
                found.extend(tag(entry, "VersionId"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_markers_of_one_object() {
        let entry = |kind: &str, key: &str, id: &str| {
            format!("<{kind}><Key>{key}</Key><VersionId>{id}</VersionId></{kind}>")
        };
        let xml = [
            entry("Version", "a&amp;b", "1"),
            entry("DeleteMarker", "a&amp;b", "2"),
            entry("Version", "a&amp;bc", "3"),
        ];
        let xml = format!("<ListVersionsResult>{}</ListVersionsResult>", xml.concat());
        assert_eq!(versions(&xml, "a&b"), ["1", "2"]);
        assert_eq!(versions_query("a/b"), "prefix=a%2Fb&versions=");
    }

    #[test]
    fn an_answer_of_200_may_tell_of_failures() {
        let kind = |answer: &str| without_error(answer).map(|_| ()).map_err(|f| f.kind);
        assert_eq!(kind("<DeleteResult></DeleteResult>"), Ok(()));
        let answer = "<DeleteResult><Error><Key>k</Key><Code>NoSuchKey</Code></Error>";
        assert_eq!(kind(answer), Err(ErrorKind::Status(404)));
        let answer = "<Error><Code>InternalError</Code></Error>";
        assert_eq!(kind(answer), Err(ErrorKind::Other("InternalError".into())));
    }
}
