//! In-memory objects behind filters: content, metadata and footers like an object server's, with
//! ranges, conditions and listings.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use cairn_formats::conditional::{Conditions, Verdict};
use cairn_formats::range::{Multipart, Selection, content_range, select};
use cairn_http::params::unquote;
use cairn_http::{Body, Footers, Handler, Request, Response, handler_fn, respond};
use cairn_types::Timestamp;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderName, RANGE};
use http::{HeaderMap, Method, StatusCode};
use md5::{Digest, Md5};
use serde_json::{Value, json};

const ROW_ETAG: &str = "x-object-sysmeta-container-update-override-etag";

type Objects = BTreeMap<String, (HeaderMap, Vec<u8>)>;

#[derive(Clone, Default)]
pub struct Store(Arc<Mutex<Objects>>, Arc<Mutex<Times>>);

/// Times of the last writes of objects, and metadata of containers.
#[derive(Default)]
struct Times {
    ticks: u64,
    of: BTreeMap<String, Timestamp>,
    containers: BTreeMap<String, HeaderMap>,
}

fn is_kept(name: &HeaderName) -> bool {
    name.as_str().starts_with("x-object-") || *name == CONTENT_TYPE || *name == ETAG
}

fn kept(headers: &HeaderMap) -> HeaderMap {
    let headers = headers.iter().filter(|(name, _)| is_kept(name));
    headers
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

impl Store {
    pub fn insert<'a>(
        &self,
        path: &str,
        headers: impl Iterator<Item = (&'a str, &'a str)>,
        body: Vec<u8>,
    ) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            respond::set(&mut map, name, value);
        }
        self.0.lock().unwrap().insert(path.to_owned(), (map, body));
    }

    pub fn get(&self, path: &str) -> Option<(HeaderMap, Vec<u8>)> {
        self.0.lock().unwrap().get(path).cloned()
    }

    /// The system metadata of a container.
    pub fn container(&self, path: &str) -> HeaderMap {
        let times = self.1.lock().unwrap();
        times.containers.get(path).cloned().unwrap_or_default()
    }

    pub fn set_container(&self, path: &str, headers: HeaderMap) {
        let mut times = self.1.lock().unwrap();
        times.containers.insert(path.to_owned(), headers);
    }

    pub fn time_of(&self, path: &str) -> Timestamp {
        self.1.lock().unwrap().of[path]
    }

    /// Records a write at the request's timestamp, or at a new one; false if a later one was
    /// before.
    fn writes(&self, path: &str, headers: &HeaderMap) -> bool {
        let mut times = self.1.lock().unwrap();
        times.ticks += 1;
        let now = Timestamp::from_ticks(170_000_000_000_000 + times.ticks);
        let time = respond::header_timestamp(headers, "x-timestamp").unwrap_or(now);
        if times.of.get(path).is_some_and(|before| *before >= time) {
            return false;
        }
        times.of.insert(path.to_owned(), time);
        true
    }

    pub fn paths(&self) -> Vec<String> {
        self.0.lock().unwrap().keys().cloned().collect()
    }

    pub fn handler(&self) -> Handler {
        let store = self.clone();
        handler_fn(move |request| {
            let store = store.clone();
            async move { store.answer(request).await }
        })
    }

    async fn answer(&self, request: Request) -> Response {
        let (parts, body) = request.into_parts();
        let path = unquote(parts.uri.path()).unwrap();
        match parts.method {
            Method::PUT => {
                let Ok(body) = body.collect(1 << 30).await else {
                    return respond::empty(respond::status(499));
                };
                let mut headers = kept(&parts.headers);
                if let Some(footers) = parts.extensions.get::<Footers>() {
                    let trailer = match footers.conclude() {
                        Ok(trailer) => trailer,
                        Err(refused) => return refused,
                    };
                    assert_eq!(trailer.length, body.len() as u64);
                    assert_eq!(trailer.md5, <[u8; 16]>::from(Md5::digest(&body)));
                    for (name, value) in &trailer.headers {
                        headers.insert(name, value.clone());
                    }
                }
                self.writes(&path, &parts.headers);
                self.put(&path, headers, body)
            }
            Method::POST if path.split('/').count() == 4 => {
                let kept = |name: &str| name.starts_with("x-container-sysmeta-");
                let mut all = self.container(&path);
                for (name, value) in parts.headers.iter().filter(|(name, _)| kept(name.as_str())) {
                    all.insert(name, value.clone());
                }
                self.set_container(&path, all);
                respond::empty(StatusCode::NO_CONTENT)
            }
            Method::POST => self.post(&path, &parts.headers),
            _ if path.split('/').count() == 4 => self.list(&path),
            _ => self.read(&path, &parts),
        }
    }

    fn put(&self, path: &str, mut headers: HeaderMap, body: Bytes) -> Response {
        let digest = Md5::digest(&body);
        let etag = cairn_types::hex::encode(digest);
        if respond::header(&headers, "etag").is_some_and(|given| given != etag) {
            return respond::standard(StatusCode::UNPROCESSABLE_ENTITY);
        }
        respond::set(&mut headers, "etag", &etag);
        let object = (headers, body.to_vec());
        self.0.lock().unwrap().insert(path.to_owned(), object);
        let mut response = respond::empty(StatusCode::CREATED);
        respond::set(response.headers_mut(), "etag", format!("\"{etag}\""));
        response
    }

    fn post(&self, path: &str, given: &HeaderMap) -> Response {
        if !self.writes(path, given) {
            return respond::standard(StatusCode::CONFLICT);
        }
        let mut objects = self.0.lock().unwrap();
        let Some((headers, _)) = objects.get_mut(path) else {
            return respond::standard(StatusCode::NOT_FOUND);
        };
        let replaced = ["x-object-meta-", "x-object-transient-"];
        let stay = headers.iter().filter(|(name, _)| {
            let name = name.as_str();
            !replaced.iter().any(|prefix| name.starts_with(prefix))
        });
        let mut all: HeaderMap = stay
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        all.extend(kept(given));
        *headers = all;
        respond::empty(StatusCode::ACCEPTED)
    }

    fn list(&self, container: &str) -> Response {
        let objects = self.0.lock().unwrap();
        let rows: Vec<Value> = objects
            .iter()
            .filter_map(|(path, (headers, body))| {
                let name = path.strip_prefix(container)?.strip_prefix('/')?;
                let hash = respond::header(headers, ROW_ETAG)
                    .or_else(|| respond::header(headers, "etag"))?;
                let bytes =
                    respond::header(headers, "x-object-sysmeta-container-update-override-size")
                        .map_or(body.len() as u64, |text| text.parse().unwrap());
                Some(json!({"name": name, "bytes": bytes, "hash": hash}))
            })
            .collect();
        let json = Value::from(rows).to_string();
        let mut response = respond::typed(StatusCode::OK, "application/json; charset=utf-8", json);
        response.headers_mut().extend(self.container(container));
        response
    }

    fn read(&self, path: &str, parts: &http::request::Parts) -> Response {
        let Some((headers, body)) = self.get(path) else {
            return respond::standard(StatusCode::NOT_FOUND);
        };
        let asked = |name: &str| respond::header(&parts.headers, name);
        let names = |name: &str| {
            let list = asked(name).unwrap_or("").split(',');
            list.map(|name| name.trim().to_ascii_lowercase())
                .collect::<Vec<_>>()
        };
        let mut alternates = names("x-backend-etag-is-at").into_iter();
        let etag = alternates
            .find_map(|name| respond::header(&headers, &name))
            .or_else(|| respond::header(&headers, "etag"));
        let conditions = Conditions {
            if_match: asked("if-match"),
            if_none_match: asked("if-none-match"),
            ..Conditions::default()
        };
        let mut response = respond::empty(StatusCode::OK);
        *response.headers_mut() = headers.clone();
        if let Some(time) = self.1.lock().unwrap().of.get(path) {
            let time = time.internal();
            respond::set(response.headers_mut(), "x-backend-timestamp", time);
        }
        let verdict = match conditions.check(etag, None) {
            Verdict::Proceed => None,
            Verdict::NotModified => Some(StatusCode::NOT_MODIFIED),
            Verdict::PreconditionFailed => Some(StatusCode::PRECONDITION_FAILED),
        };
        if let Some(status) = verdict {
            *response.status_mut() = status;
            return response;
        }
        let wants_whole = names("x-backend-ignore-range-if-metadata-present")
            .iter()
            .any(|name| !name.is_empty() && headers.contains_key(name.as_str()));
        let range = asked(RANGE.as_str()).filter(|_| !wants_whole && parts.method == Method::GET);
        let body = match ranged(&mut response, range, &body) {
            Ok(body) => body,
            Err(refused) => return refused,
        };
        response
            .headers_mut()
            .insert(CONTENT_LENGTH, body.len().into());
        if parts.method == Method::GET {
            *response.body_mut() = Body::full(body);
        }
        response
    }
}

/// The requested part of the content.
fn ranged(response: &mut Response, range: Option<&str>, body: &[u8]) -> Result<Vec<u8>, Response> {
    let size = body.len() as u64;
    let cut = |range: &std::ops::Range<u64>| &body[range.start as usize..range.end as usize];
    match select(range, size) {
        Selection::Whole => Ok(body.to_vec()),
        Selection::Unsatisfiable => Err(respond::standard(StatusCode::RANGE_NOT_SATISFIABLE)),
        Selection::One(range) => {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            let text = content_range(&range, size);
            respond::set(response.headers_mut(), CONTENT_RANGE.as_str(), text);
            Ok(cut(&range).to_vec())
        }
        Selection::Several(ranges) => {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            let headers = response.headers_mut();
            let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], |v| v.as_bytes());
            let multipart = Multipart::new("abcdef", kind, size);
            let mut all = Vec::new();
            for range in &ranges {
                all.extend(multipart.head(range));
                all.extend_from_slice(cut(range));
                all.extend_from_slice(b"\r\n");
            }
            all.extend(multipart.end());
            respond::set(headers, CONTENT_TYPE.as_str(), multipart.content_type());
            Ok(all)
        }
    }
}
