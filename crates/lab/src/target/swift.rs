//! OpenStack Swift's object API: one token for all workers, one connection for each, several
//! proxies in turn.

mod operations;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use super::content::Checker;
use super::http::{Client, Endpoint, Sink, Upload, push_encoded, push_header, push_number};
use super::swift_auth::{self, SignedIn};
use super::url::Url;
use super::{Done, Failure, Request, TargetError, TargetOptions, Verb, content, number};
use crate::plan::Access;
use crate::record::ErrorKind;

/// A store that is signed in to.
#[derive(Debug)]
pub struct Swift {
    access: Access,
    options: TargetOptions,
    proxies: Vec<Arc<Endpoint>>,
    /// `/v1/AUTH_test`
    path: String,
    server: String,
    policy: Option<String>,
    timeout: Duration,
    token: RwLock<Arc<str>>,
    /// One worker signs in anew, others wait for it.
    renewal: tokio::sync::Mutex<()>,
}

impl Swift {
    pub(crate) async fn open(
        access: &Access,
        options: &TargetOptions,
    ) -> Result<Self, TargetError> {
        let config = &access.storage.config;
        let timeout = match number(config, "timeout")? {
            Some(0) | None => options.timeout,
            Some(ms) => Duration::from_millis(ms),
        };
        let SignedIn {
            token,
            storage_url,
            server,
        } = swift_auth::sign_in(access, options).await?;
        let url = Url::parse(&storage_url)?;
        let mut proxies = Vec::new();
        for proxy in config
            .get("proxies")
            .iter()
            .flat_map(|list| list.split(','))
        {
            let mut proxy_url = match proxy.contains("://") {
                true => Url::parse(proxy.trim())?,
                false => {
                    let scheme = if url.tls { "https" } else { "http" };
                    Url::parse(&format!("{scheme}://{}", proxy.trim()))?
                }
            };
            proxy_url.path.clone_from(&url.path);
            proxies.push(Endpoint::resolve(proxy_url, options)?);
        }
        let path = url.path.clone();
        if proxies.is_empty() {
            options.check_host(&url)?;
            proxies.push(Endpoint::resolve(url, options)?);
        }
        let swift = Self {
            access: access.clone(),
            options: options.clone(),
            proxies,
            path,
            server,
            policy: config
                .get("policy")
                .filter(|policy| !policy.is_empty())
                .cloned(),
            timeout,
            token: RwLock::new(token.into()),
            renewal: tokio::sync::Mutex::new(()),
        };
        swift.find().await?;
        Ok(swift)
    }

    /// Whether the store is there: one proxy at least takes connections, and a token that nobody
    /// has signed in for is taken.
    async fn find(&self) -> Result<(), TargetError> {
        let mut found = Ok(());
        for proxy in &self.proxies {
            let mut client = Client::new(proxy.clone(), self.timeout);
            found = match swift_auth::is_fixed(&self.access) {
                true => self.try_token(&mut client).await,
                false => client.probe().await,
            };
            if found.is_ok() {
                break;
            }
        }
        found
    }

    async fn try_token(&self, client: &mut Client) -> Result<(), TargetError> {
        client.probe().await?;
        let token = self.token();
        let answer = client
            .simple("HEAD", &self.path, &[("X-Auth-Token", &token)], b"")
            .await;
        let url = client.endpoint().url.to_string();
        match answer {
            Ok(answer) if answer.status == 401 => Err(TargetError::Refused {
                url,
                user: "the token".into(),
                status: 401,
            }),
            Ok(_) => Ok(()),
            Err(kind) => Err(TargetError::Unreachable {
                why: client.explain(&kind),
                url,
            }),
        }
    }

    /// A store within the test, whose account is at `/v1/AUTH_test`.
    #[cfg(test)]
    pub(crate) fn in_memory(dial: super::http::memory::Dial) -> Result<Self, TargetError> {
        let url = Url::parse("http://in.memory/v1/AUTH_test")?;
        Ok(Self {
            access: Access::default(),
            options: TargetOptions::default(),
            path: url.path.clone(),
            proxies: vec![Endpoint::in_memory(url, dial)],
            server: String::new(),
            policy: None,
            timeout: Duration::from_secs(60),
            token: RwLock::new("token".into()),
            renewal: tokio::sync::Mutex::new(()),
        })
    }

    pub(crate) fn describe(&self) -> String {
        let urls: Vec<String> = self
            .proxies
            .iter()
            .map(|proxy| proxy.url.to_string())
            .collect();
        format!("swift {}", urls.join(","))
    }

    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    fn token(&self) -> Arc<str> {
        self.token.read().clone()
    }

    pub(crate) fn session(self: &Arc<Self>, worker: u32) -> Session {
        let proxy = self.proxies[worker as usize % self.proxies.len()].clone();
        Session {
            client: Client::new(proxy, self.timeout),
            authority: self.proxies[worker as usize % self.proxies.len()]
                .url
                .authority(),
            token: self.token(),
            swift: self.clone(),
        }
    }

    /// A token newer than `old`; false when there is none to be had.
    async fn renew(&self, old: &Arc<str>) -> bool {
        let _turn = self.renewal.lock().await;
        if !Arc::ptr_eq(&self.token(), old) {
            return true;
        }
        if swift_auth::is_fixed(&self.access) {
            return false;
        }
        match swift_auth::sign_in(&self.access, &self.options).await {
            Ok(signed_in) => {
                let mut token = self.token.write();
                *token = signed_in.token.into();
                true
            }
            Err(_) => false,
        }
    }
}

/// One worker's side.
#[derive(Debug)]
pub struct Session {
    swift: Arc<Swift>,
    client: Client,
    authority: String,
    token: Arc<str>,
}

impl Session {
    pub(crate) fn transaction(&self) -> &str {
        self.client.transaction()
    }

    pub(crate) async fn perform(&mut self, request: &Request<'_>) -> Result<Done, Failure> {
        match self.attempt(request).await {
            Err(Failure {
                kind: ErrorKind::Status(401),
            }) => {
                let old = self.token.clone();
                if !self.swift.renew(&old).await {
                    return Err(ErrorKind::Status(401).into());
                }
                self.token = self.swift.token();
                self.attempt(request).await
            }
            result => result,
        }
    }

    async fn attempt(&mut self, request: &Request<'_>) -> Result<Done, Failure> {
        match (request.verb, request.part_bytes) {
            (Verb::Write, Some(part)) if part > 0 && request.size > part => {
                self.write_in_parts(request, part).await
            }
            (Verb::Copy, _) => self.copy(request).await,
            (Verb::Post, _) => self.post(request).await,
            (Verb::BulkDelete, _) => self.bulk_delete(request).await,
            (Verb::Versions, _) => self.list_versions(request).await,
            (Verb::Delete, _) if request.versioned => self.delete_versions(request).await,
            _ => self.single(request).await,
        }
    }

    /// Starts a head: request line, host, token.
    fn begin(&mut self, method: &str, suffix: &str, container: &str, object: &str, query: &str) {
        let head = &mut self.client.head;
        head.clear();
        head.extend_from_slice(method.as_bytes());
        head.push(b' ');
        head.extend_from_slice(self.swift.path.as_bytes());
        head.push(b'/');
        push_encoded(head, container);
        head.extend_from_slice(suffix.as_bytes());
        if !object.is_empty() {
            head.push(b'/');
            push_encoded(head, object);
        }
        head.extend_from_slice(query.as_bytes());
        head.extend_from_slice(b" HTTP/1.1\r\nHost: ");
        head.extend_from_slice(self.authority.as_bytes());
        head.extend_from_slice(b"\r\n");
        if !self.token.is_empty() {
            push_header(head, "X-Auth-Token", &self.token);
        }
    }

    /// Starts the head of a request to the account.
    fn begin_at_account(&mut self, method: &str, query: &str) {
        let head = &mut self.client.head;
        head.clear();
        for part in [method, " ", &self.swift.path, query, " HTTP/1.1\r\n"] {
            head.extend_from_slice(part.as_bytes());
        }
        push_header(head, "Host", &self.authority);
        if !self.token.is_empty() {
            push_header(head, "X-Auth-Token", &self.token);
        }
    }

    async fn single(&mut self, request: &Request<'_>) -> Result<Done, Failure> {
        let of_container = matches!(
            request.verb,
            Verb::List | Verb::MakeContainer | Verb::DropContainer
        );
        let method = match request.verb {
            Verb::Read | Verb::List => "GET",
            Verb::Write | Verb::MakeContainer => "PUT",
            Verb::Head => "HEAD",
            Verb::Delete | Verb::DropContainer => "DELETE",
            // Not here: they have requests of their own.
            Verb::Copy | Verb::Post | Verb::BulkDelete | Verb::Versions => "POST",
        };
        let object = if of_container { "" } else { request.object };
        let query = match request.verb {
            Verb::Delete if request.part_bytes.is_some() => "?multipart-manifest=delete",
            _ => "",
        };
        self.begin(method, "", request.container, object, query);
        let head = &mut self.client.head;
        if let (Verb::Read, Some((offset, length))) = (request.verb, request.range) {
            push_header(
                head,
                "Range",
                &format!("bytes={offset}-{}", offset + length.max(1) - 1),
            );
        }
        if let (Verb::MakeContainer, Some(policy)) = (request.verb, &self.swift.policy) {
            push_header(head, "X-Storage-Policy", policy);
        }
        if request.verb == Verb::MakeContainer && request.versioned {
            push_header(head, "X-Versions-Enabled", "true");
        }
        for (name, value) in request.headers {
            push_header(head, name, value);
        }
        let upload = match request.verb {
            Verb::Write => write_upload(head, request, 0, request.size)?,
            Verb::MakeContainer => {
                head.extend_from_slice(b"Content-Length: 0\r\n\r\n");
                OwnedUpload::None
            }
            _ => {
                head.extend_from_slice(b"\r\n");
                OwnedUpload::None
            }
        };
        finish(&mut self.client, upload.borrow(), request).await
    }

    /// A static large object: segments, then their manifest.
    async fn write_in_parts(&mut self, request: &Request<'_>, part: u64) -> Result<Done, Failure> {
        let count = request.size.div_ceil(part);
        let mut manifest = Vec::new();
        for index in 0..count {
            let offset = index * part;
            let size = part.min(request.size - offset);
            let segment = format!("{}/{}/{index:08}", request.object, request.size);
            let mut made = self.write_segment(request, &segment, offset, size).await;
            if made
                == Err(Failure {
                    kind: ErrorKind::Status(404),
                })
            {
                self.make_segments_container(request).await?;
                made = self.write_segment(request, &segment, offset, size).await;
            }
            made?;
            let path = format!("/{}_segments/{segment}", request.container);
            manifest.push(serde_json::json!({ "path": path, "size_bytes": size }));
        }
        let body = serde_json::Value::from(manifest).to_string();
        let query = "?multipart-manifest=put";
        self.begin("PUT", "", request.container, request.object, query);
        for (name, value) in request.headers {
            push_header(&mut self.client.head, name, value);
        }
        push_header(
            &mut self.client.head,
            "Content-Length",
            &body.len().to_string(),
        );
        self.client.head.extend_from_slice(b"\r\n");
        let mut done = finish(&mut self.client, Upload::bytes(body.as_bytes()), request).await?;
        done.bytes = request.size;
        Ok(done)
    }

    async fn write_segment(
        &mut self,
        request: &Request<'_>,
        segment: &str,
        offset: u64,
        size: u64,
    ) -> Result<(), Failure> {
        self.begin("PUT", "_segments", request.container, segment, "");
        let upload = write_upload(&mut self.client.head, request, offset, size)?;
        finish(&mut self.client, upload.borrow(), request)
            .await
            .map(|_| ())
    }

    async fn make_segments_container(&mut self, request: &Request<'_>) -> Result<(), Failure> {
        self.begin("PUT", "_segments", request.container, "", "");
        self.client
            .head
            .extend_from_slice(b"Content-Length: 0\r\n\r\n");
        finish(&mut self.client, Upload::None, request)
            .await
            .map(|_| ())
    }
}

/// An upload that keeps its file open.
pub(super) enum OwnedUpload {
    None,
    Made {
        content: crate::plan::Content,
        key: u64,
        offset: u64,
        size: u64,
        chunked: bool,
    },
    File(std::fs::File, u64),
}

impl OwnedUpload {
    pub(super) fn borrow(&self) -> Upload<'_> {
        match self {
            Self::None => Upload::None,
            Self::Made {
                content,
                key,
                offset,
                size,
                chunked,
            } => Upload::Made {
                content: *content,
                key: *key,
                offset: *offset,
                size: *size,
                chunked: *chunked,
            },
            Self::File(file, size) => Upload::File(file, *size),
        }
    }
}

/// Ends the head of a write with its length, and says what follows it.
pub(super) fn write_upload(
    head: &mut Vec<u8>,
    request: &Request<'_>,
    offset: u64,
    size: u64,
) -> Result<OwnedUpload, Failure> {
    if let Some(path) = request.file {
        let file = std::fs::File::open(path)?;
        head.extend_from_slice(b"Content-Length: ");
        push_number(head, size);
        head.extend_from_slice(b"\r\n\r\n");
        return Ok(OwnedUpload::File(file, size));
    }
    if request.chunked {
        head.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
    } else {
        head.extend_from_slice(b"Content-Length: ");
        push_number(head, size);
        head.extend_from_slice(b"\r\n\r\n");
    }
    let key = content::key(request.container, request.object);
    let (content, chunked) = (request.content, request.chunked);
    Ok(OwnedUpload::Made {
        content,
        key,
        offset,
        size,
        chunked,
    })
}

/// Sends what is built and judges the answer.
pub(super) async fn finish(
    client: &mut Client,
    upload: Upload<'_>,
    request: &Request<'_>,
) -> Result<Done, Failure> {
    let reads = request.verb == Verb::Read;
    let mut sink = match reads && request.check {
        true => {
            let key = content::key(request.container, request.object);
            let offset = request.range.map_or(0, |(offset, _)| offset);
            Sink::Check(Checker::new(request.content, key, offset))
        }
        false => Sink::Discard,
    };
    let reply = client
        .exchange(upload, &mut sink, request.verb == Verb::Head)
        .await?;
    if !(200..300).contains(&reply.status) {
        return Err(ErrorKind::Status(reply.status).into());
    }
    let checked = match &sink {
        Sink::Check(checker) if !checker.is_right() => return Err(ErrorKind::Integrity.into()),
        Sink::Check(_) => true,
        _ => false,
    };
    let bytes = match request.verb {
        Verb::Write => request.size,
        Verb::Read | Verb::List | Verb::Versions => reply.bytes,
        _ => 0,
    };
    Ok(Done {
        first_byte: reply.first_byte,
        bytes,
        checked,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::{BufRead, BufReader, ErrorKind, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::footprint::Footprint;
    use crate::plan::{Plan, Settings};

    /// A sign-in of which the answer names the store at `storage`.
    fn sign_in_that_names(storage: String) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/auth/v1.0", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                lines
                    .map_while(Result::ok)
                    .take_while(|l| !l.is_empty())
                    .for_each(drop);
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nX-Auth-Token: t\r\nX-Storage-Url: {storage}\r\n\
                     Content-Length: 0\r\n\r\n"
                );
            }
        });
        url
    }

    fn settings(kind: &str, config: &[(&str, &str)]) -> Settings {
        let config = config
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        Settings {
            kind: kind.to_owned(),
            config: config.collect::<BTreeMap<_, _>>(),
        }
    }

    #[tokio::test]
    async fn a_confined_run_goes_to_the_hosts_of_its_plan_alone() {
        let elsewhere = TcpListener::bind("127.0.0.2:0").unwrap();
        elsewhere.set_nonblocking(true).unwrap();
        let storage = format!("http://{}/v1/AUTH_a", elsewhere.local_addr().unwrap());
        let auth_url = sign_in_that_names(storage.clone());
        let user = [
            ("auth_url", &*auth_url),
            ("username", "u"),
            ("password", "p"),
        ];
        let open = async |storage: &[(&str, &str)], is_confined: bool| {
            let access = Access {
                auth: settings("swauth", &user),
                storage: settings("swift", storage),
            };
            let plan = Plan {
                access: access.clone(),
                ..Plan::default()
            };
            let options = TargetOptions {
                hosts: is_confined.then(|| Footprint::of(&plan).host_names()),
                ..TargetOptions::default()
            };
            Swift::open(&access, &options).await
        };
        let refused = open(&[], true).await.unwrap_err();
        assert!(matches!(&refused, TargetError::UnnamedHost { host, .. } if host == "127.0.0.2"));
        let came = elsewhere.accept().map(|_| ()).map_err(|e| e.kind());
        assert_eq!(came, Err(ErrorKind::WouldBlock), "nothing is sent there");
        // As the error says; and what nobody confines.
        assert!(open(&[("storage_url", &storage)], true).await.is_ok());
        assert!(open(&[], false).await.is_ok());
    }
}
