//! Copies, metadata, bulk deletions and versions by Swift's API.

use super::super::http::{Simple, Sink, Upload, push_encoded, push_header, push_number};
use super::super::{Done, Failure, Request};
use super::{Session, finish};
use crate::record::ErrorKind;

/// Versions asked for at once by a deletion of all of them.
const VERSIONS_LISTED: u64 = 1000;
/// Lists of versions that one deletion asks for at most.
const LISTS_MAX: u32 = 100;

impl Session {
    /// `COPY`, which moves nothing over the network.
    pub(super) async fn copy(&mut self, request: &Request<'_>) -> Result<Done, Failure> {
        self.begin("COPY", "", request.container, request.object, "");
        let (container, object) = request.to;
        let mut destination = Vec::new();
        push_encoded(&mut destination, container);
        destination.push(b'/');
        push_encoded(&mut destination, object);
        let head = &mut self.client.head;
        // Percent-encoding leaves ASCII only.
        push_header(head, "Destination", &String::from_utf8_lossy(&destination));
        self.end_without_body(request).await
    }

    /// `POST` of an object's metadata: the workload's headers, else one that differs by object.
    pub(super) async fn post(&mut self, request: &Request<'_>) -> Result<Done, Failure> {
        self.begin("POST", "", request.container, request.object, "");
        if request.headers.is_empty() {
            let value = request.number.to_string();
            push_header(&mut self.client.head, "X-Object-Meta-Lab", &value);
        }
        self.end_without_body(request).await
    }

    async fn end_without_body(&mut self, request: &Request<'_>) -> Result<Done, Failure> {
        let head = &mut self.client.head;
        for (name, value) in request.headers {
            push_header(head, name, value);
        }
        head.extend_from_slice(b"Content-Length: 0\r\n\r\n");
        finish(&mut self.client, Upload::None, request).await
    }

    /// `POST ?bulk-delete`. The answer's status is 200 whatever happened; its body counts.
    pub(super) async fn bulk_delete(&mut self, request: &Request<'_>) -> Result<Done, Failure> {
        let mut names = Vec::new();
        for (container, object) in request.batch {
            push_encoded(&mut names, container);
            names.push(b'/');
            push_encoded(&mut names, object);
            names.push(b'\n');
        }
        self.begin_at_account("POST", "?bulk-delete");
        let head = &mut self.client.head;
        push_header(head, "Accept", "application/json");
        push_header(head, "Content-Type", "text/plain");
        head.extend_from_slice(b"Content-Length: ");
        push_number(head, names.len() as u64);
        head.extend_from_slice(b"\r\n\r\n");
        let (body, first_byte) = self.keep(&names).await?;
        judge(&body)?;
        Ok(Done {
            first_byte,
            bytes: 0,
            checked: false,
        })
    }

    /// The list of versions of an object, or of all of a container.
    pub(super) async fn list_versions(&mut self, request: &Request<'_>) -> Result<Done, Failure> {
        let query = versions_query(request.object, None);
        self.begin("GET", "", request.container, "", &query);
        self.client.head.extend_from_slice(b"\r\n");
        finish(&mut self.client, Upload::None, request).await
    }

    /// Deletes all versions of an object, markers of deletions among them.
    pub(super) async fn delete_versions(&mut self, request: &Request<'_>) -> Result<Done, Failure> {
        let (container, object) = (request.container, request.object);
        let mut first_byte = None;
        for _ in 0..LISTS_MAX {
            let query = versions_query(object, Some(VERSIONS_LISTED));
            self.begin("GET", "", container, "", &query);
            self.client.head.extend_from_slice(b"\r\n");
            let (body, at) = self.keep(b"").await?;
            let listed = versions(&body, object)?;
            if listed.is_empty() {
                break;
            }
            for version in &listed {
                let mut query = b"?version-id=".to_vec();
                push_encoded(&mut query, version);
                let query = String::from_utf8_lossy(&query);
                self.begin("DELETE", "", container, object, &query);
                self.client.head.extend_from_slice(b"\r\n");
                first_byte = Some(
                    finish(&mut self.client, Upload::None, request)
                        .await?
                        .first_byte,
                );
            }
            first_byte.get_or_insert(at);
        }
        let first_byte = first_byte.ok_or(ErrorKind::Status(404))?;
        Ok(Done {
            first_byte,
            bytes: 0,
            checked: false,
        })
    }

    /// Sends what is built and keeps the answer's body; also returns when its first byte came.
    async fn keep(&mut self, body: &[u8]) -> Result<(Vec<u8>, tokio::time::Instant), Failure> {
        let mut kept = Simple::keeper();
        let mut sink = Sink::Keep(&mut kept);
        let upload = Upload::bytes(body);
        let reply = self.client.exchange(upload, &mut sink, false).await?;
        match reply.status {
            200..300 => Ok((kept.body().to_vec(), reply.first_byte)),
            status => Err(ErrorKind::Status(status).into()),
        }
    }
}

/// The failure that the answer to a bulk deletion tells: the first error's, or 404 when something
/// was not there.
fn judge(body: &[u8]) -> Result<(), Failure> {
    #[derive(serde::Deserialize)]
    struct Answer {
        #[serde(rename = "Response Status")]
        status: String,
        #[serde(rename = "Number Not Found")]
        absent: u64,
        #[serde(rename = "Errors")]
        errors: Vec<(String, String)>,
    }
    // Spaces before it keep the connection alive while the store works.
    let answer: Answer = serde_json::from_slice(body).map_err(|_| ErrorKind::Protocol)?;
    let code = |status: &str| -> Option<u16> { status.split(' ').next()?.parse().ok() };
    let of_object = answer.errors.first().map(|(_, status)| status);
    let status = code(of_object.unwrap_or(&answer.status)).ok_or(ErrorKind::Protocol)?;
    match (status, answer.absent) {
        (200..300, 0) => Ok(()),
        (200..300, _) => Err(ErrorKind::Status(404).into()),
        (status, _) => Err(ErrorKind::Status(status).into()),
    }
}

fn versions_query(object: &str, limit: Option<u64>) -> String {
    let mut query = b"?versions&format=json".to_vec();
    if !object.is_empty() {
        query.extend_from_slice(b"&prefix=");
        push_encoded(&mut query, object);
    }
    if let Some(limit) = limit {
        query.extend_from_slice(format!("&limit={limit}").as_bytes());
    }
    String::from_utf8_lossy(&query).into_owned()
}

/// Ids of an object's versions; other names with the same beginning come behind it.
fn versions(body: &[u8], object: &str) -> Result<Vec<String>, Failure> {
    #[derive(serde::Deserialize)]
    struct Row {
        #[serde(default)]
        name: String,
        #[serde(default)]
        version_id: String,
    }
    let rows: Vec<Row> = serde_json::from_slice(body).map_err(|_| ErrorKind::Protocol)?;
    let own = rows.into_iter().filter(|row| row.name == object);
    Ok(own.map(|row| row.version_id).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_200_may_tell_of_failures() {
        let kind = |body: &str| judge(body.as_bytes()).map_err(|failure| failure.kind);
        let answer = |status: &str, absent: u32, errors: &str| {
            format!(
                r#"  {{"Response Status": "{status}", "Response Body": "", "Number Deleted": 1,
                "Number Not Found": {absent}, "Errors": [{errors}]}}"#
            )
        };
        assert_eq!(kind(&answer("200 OK", 0, "")), Ok(()));
        assert_eq!(kind(&answer("200 OK", 2, "")), Err(ErrorKind::Status(404)));
        let failed = answer(
            "400 Bad Request",
            0,
            r#"["/c/o", "503 Service Unavailable"]"#,
        );
        assert_eq!(kind(&failed), Err(ErrorKind::Status(503)));
        let refused = answer("413 Request Entity Too Large", 0, "");
        assert_eq!(kind(&refused), Err(ErrorKind::Status(413)));
        assert_eq!(kind("<html>"), Err(ErrorKind::Protocol));
    }

    #[test]
    fn versions_of_one_object_alone() {
        let body = r#"[{"name": "a", "version_id": "2"}, {"name": "a", "version_id": "null"},
            {"name": "a1", "version_id": "3"}, {"subdir": "a/"}]"#;
        assert_eq!(versions(body.as_bytes(), "a").unwrap(), ["2", "null"]);
        assert!(versions(b"{}", "a").is_err());
        assert_eq!(
            versions_query("a b", Some(2)),
            "?versions&format=json&prefix=a%20b&limit=2"
        );
    }
}
