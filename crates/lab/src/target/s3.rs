//! S3 and what speaks it: path-style requests signed with Signature Version 4.

mod operations;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::http::{Client, Endpoint, Sink, Upload, push_encoded, push_header};
use super::sigv4::{self, Signer};
use super::swift::{finish, write_upload};
use super::url::Url;
use super::{Done, Failure, Request, TargetError, TargetOptions, Verb, number};
use crate::plan::Settings;
use crate::record::ErrorKind;

/// Objects of one bulk deletion at most (`DeleteObjects`).
pub(super) const BATCH_MAX: u32 = 1000;

#[derive(Debug)]
pub struct S3 {
    endpoint: Arc<Endpoint>,
    access_key: String,
    secret_key: String,
    region: String,
    timeout: Duration,
    server: String,
}

impl S3 {
    pub(crate) async fn open(
        settings: &Settings,
        options: &TargetOptions,
    ) -> Result<Self, TargetError> {
        let need = |key: &'static str, option: &'static str| {
            let value = settings.config.get(key).filter(|value| !value.is_empty());
            value.cloned().ok_or(TargetError::Missing {
                part: "storage",
                key,
                option,
            })
        };
        let url = Url::parse(&need("endpoint", "--target")?)?;
        let endpoint = Endpoint::resolve(url.clone(), options)?;
        let timeout = match number(&settings.config, "timeout")? {
            Some(0) | None => options.timeout,
            Some(ms) => Duration::from_millis(ms),
        };
        let region = settings
            .config
            .get("region")
            .filter(|region| !region.is_empty());
        let mut s3 = Self {
            endpoint: endpoint.clone(),
            access_key: need("accesskey", "--user")?,
            secret_key: need("secretkey", "--key")?,
            region: region.cloned().unwrap_or_else(|| "us-east-1".into()),
            timeout,
            server: String::new(),
        };
        s3.server = s3.sign_in(&url).await?;
        Ok(s3)
    }

    /// Asks for the list of buckets, to tell a wrong key before the load does a million times.
    async fn sign_in(&self, url: &Url) -> Result<String, TargetError> {
        let mut client = Client::new(self.endpoint.clone(), self.timeout);
        let timestamp = sigv4::timestamp(SystemTime::now());
        let path = format!("{}/", self.endpoint.url.path);
        let host = self.endpoint.url.authority();
        let authorization = self
            .signer()
            .authorization("GET", &path, "", &host, &timestamp, &[]);
        let headers = [
            ("x-amz-content-sha256", sigv4::UNSIGNED),
            ("x-amz-date", timestamp.as_str()),
            ("Authorization", authorization.as_str()),
        ];
        let answer = client.simple("GET", &path, &headers, b"").await;
        let answer = answer.map_err(|kind| TargetError::Unreachable {
            url: url.to_string(),
            why: client.explain(&kind),
        })?;
        if matches!(answer.status, 401 | 403) && answer.body.windows(9).any(|w| w == b"Signature") {
            let (url, user) = (url.to_string(), self.access_key.clone());
            return Err(TargetError::Refused {
                url,
                user,
                status: answer.status,
            });
        }
        Ok(answer.header("Server").unwrap_or_default().to_owned())
    }

    fn signer(&self) -> Signer {
        Signer::new(
            self.access_key.clone(),
            self.secret_key.clone(),
            self.region.clone(),
        )
    }

    pub(crate) fn describe(&self) -> String {
        format!("s3 {}", self.endpoint.url)
    }

    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    pub(crate) fn session(self: &Arc<Self>) -> Session {
        Session {
            client: Client::new(self.endpoint.clone(), self.timeout),
            signer: self.signer(),
            host: self.endpoint.url.authority(),
            path: Vec::new(),
        }
    }
}

/// One worker's side.
#[derive(Debug)]
pub struct Session {
    client: Client,
    signer: Signer,
    host: String,
    path: Vec<u8>,
}

impl Session {
    pub(crate) fn transaction(&self) -> &str {
        self.client.transaction()
    }

    fn begin(&mut self, method: &str, container: &str, object: &str, query: &str) {
        self.begin_with(method, container, object, query, &BTreeMap::new());
    }

    /// Starts a head with more headers, of which S3 wants those signed that begin with `x-amz-`.
    fn begin_with(
        &mut self,
        method: &str,
        container: &str,
        object: &str,
        query: &str,
        headers: &BTreeMap<String, String>,
    ) {
        self.path.clear();
        self.path
            .extend_from_slice(self.client.endpoint().url.path.as_bytes());
        self.path.push(b'/');
        push_encoded(&mut self.path, container);
        if !object.is_empty() {
            self.path.push(b'/');
            push_encoded(&mut self.path, object);
        }
        // Percent-encoding leaves ASCII only.
        let path = std::str::from_utf8(&self.path).unwrap_or("/");
        let timestamp = sigv4::timestamp(SystemTime::now());
        let own = headers.iter().filter_map(|(name, value)| {
            let name = name.to_ascii_lowercase();
            name.starts_with("x-amz-").then(|| (name, value.clone()))
        });
        let signed: Vec<(String, String)> = own.collect();
        let authorization = self
            .signer
            .authorization(method, path, query, &self.host, &timestamp, &signed);
        let head = &mut self.client.head;
        head.clear();
        for part in [
            method,
            " ",
            path,
            if query.is_empty() { "" } else { "?" },
            query,
        ] {
            head.extend_from_slice(part.as_bytes());
        }
        head.extend_from_slice(b" HTTP/1.1\r\n");
        push_header(head, "Host", &self.host);
        push_header(head, "x-amz-content-sha256", sigv4::UNSIGNED);
        push_header(head, "x-amz-date", &timestamp);
        push_header(head, "Authorization", &authorization);
        for (name, value) in headers {
            push_header(head, name, value.trim());
        }
    }

    pub(crate) async fn perform(&mut self, request: &Request<'_>) -> Result<Done, Failure> {
        match (request.verb, request.part_bytes) {
            (Verb::Write, Some(part)) if part > 0 && request.size > part => {
                self.write_in_parts(request, part).await
            }
            (Verb::Copy, _) => self.copy(request).await,
            (Verb::Post, _) => self.post(request).await,
            (Verb::BulkDelete, _) => self.bulk_delete(request).await,
            (Verb::Versions, _) => self.list_versions(request).await,
            (Verb::Delete, _) if request.versioned => self.delete_versions(request).await,
            (Verb::MakeContainer, _) if request.versioned => {
                self.single(request).await?;
                self.keep_versions(request).await
            }
            _ => self.single(request).await,
        }
    }

    async fn single(&mut self, request: &Request<'_>) -> Result<Done, Failure> {
        let (method, object, query) = match request.verb {
            Verb::Read => ("GET", request.object, ""),
            Verb::Write => ("PUT", request.object, ""),
            Verb::Head => ("HEAD", request.object, ""),
            Verb::Delete => ("DELETE", request.object, ""),
            Verb::List => ("GET", "", "list-type=2"),
            Verb::MakeContainer => ("PUT", "", ""),
            Verb::DropContainer => ("DELETE", "", ""),
            // Not here: they have requests of their own.
            Verb::Copy | Verb::Post | Verb::BulkDelete | Verb::Versions => ("POST", "", ""),
        };
        self.begin_with(method, request.container, object, query, request.headers);
        let head = &mut self.client.head;
        if let (Verb::Read, Some((offset, length))) = (request.verb, request.range) {
            push_header(
                head,
                "Range",
                &format!("bytes={offset}-{}", offset + length.max(1) - 1),
            );
        }
        if request.verb == Verb::Write {
            // S3 knows no chunked transfer without a length told before.
            let request = &Request {
                chunked: false,
                ..copy(request)
            };
            let upload = write_upload(&mut self.client.head, request, 0, request.size)?;
            return finish(&mut self.client, upload.borrow(), request).await;
        }
        if request.verb == Verb::MakeContainer {
            head.extend_from_slice(b"Content-Length: 0\r\n");
        }
        head.extend_from_slice(b"\r\n");
        finish(&mut self.client, Upload::None, request).await
    }

    /// A multipart upload.
    async fn write_in_parts(&mut self, request: &Request<'_>, part: u64) -> Result<Done, Failure> {
        let (container, object) = (request.container, request.object);
        let answer = self
            .keep("POST", container, object, "uploads=", b"")
            .await?;
        let upload_id = tag(&answer, "UploadId").ok_or(ErrorKind::Protocol)?;
        let mut id = Vec::new();
        push_encoded(&mut id, &upload_id);
        let id = String::from_utf8_lossy(&id).replace('/', "%2F");
        let mut list = String::from("<CompleteMultipartUpload>");
        for index in 0..request.size.div_ceil(part) {
            let offset = index * part;
            let size = part.min(request.size - offset);
            let number = index + 1;
            let query = format!("partNumber={number}&uploadId={id}");
            self.begin("PUT", container, object, &query);
            let plain = Request {
                chunked: false,
                ..copy(request)
            };
            let upload = write_upload(&mut self.client.head, &plain, offset, size)?;
            let mut kept = super::http::Simple::keeper();
            let mut sink = Sink::Keep(&mut kept);
            let reply = self
                .client
                .exchange(upload.borrow(), &mut sink, false)
                .await?;
            if reply.status != 200 {
                return Err(ErrorKind::Status(reply.status).into());
            }
            let etag = kept.header("ETag").ok_or(ErrorKind::Protocol)?;
            list.push_str(&format!(
                "<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
            ));
        }
        list.push_str("</CompleteMultipartUpload>");
        let query = format!("uploadId={id}");
        let answer = self
            .keep("POST", container, object, &query, list.as_bytes())
            .await?;
        // A 200 may still carry an error, told after the head had gone out.
        if tag(&answer, "Code").is_some() {
            return Err(ErrorKind::Other("complete multipart upload".into()).into());
        }
        Ok(Done {
            first_byte: super::http::now(),
            bytes: request.size,
            checked: false,
        })
    }

    async fn keep(
        &mut self,
        method: &str,
        container: &str,
        object: &str,
        query: &str,
        body: &[u8],
    ) -> Result<String, Failure> {
        self.begin(method, container, object, query);
        self.end_and_keep(body).await
    }

    /// Sends what is built, with a body, and keeps the answer's.
    async fn end_and_keep(&mut self, body: &[u8]) -> Result<String, Failure> {
        push_header(
            &mut self.client.head,
            "Content-Length",
            &body.len().to_string(),
        );
        self.client.head.extend_from_slice(b"\r\n");
        let mut kept = super::http::Simple::keeper();
        let mut sink = Sink::Keep(&mut kept);
        let reply = self
            .client
            .exchange(Upload::bytes(body), &mut sink, false)
            .await?;
        if !(200..300).contains(&reply.status) {
            return Err(ErrorKind::Status(reply.status).into());
        }
        Ok(String::from_utf8_lossy(kept.body()).into_owned())
    }
}

fn copy<'a>(request: &Request<'a>) -> Request<'a> {
    Request { ..*request }
}

/// The text of the first element of this name.
fn tag(xml: &str, name: &str) -> Option<String> {
    let start = xml.find(&format!("<{name}>"))? + name.len() + 2;
    let end = xml[start..].find('<')? + start;
    Some(xml[start..end].to_owned())
}
