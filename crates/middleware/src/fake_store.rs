//! In-memory fake of a proxy with a few objects, for tests of filters that read and write many:
//! PUT, GET and HEAD with one range, DELETE, and paginated listings.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use cairn_formats::range::{Selection, content_range, select};
use cairn_http::params::{Params, unquote};
use cairn_http::{Body, Handler, Request, Response, handler_fn, respond};
use cairn_types::hex;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, RANGE};
use http::{HeaderMap, Method, StatusCode};
use md5::{Digest, Md5};
use serde_json::json;

#[derive(Clone)]
pub(crate) struct Object {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Object {
    pub(crate) fn header(&self, name: &str) -> &str {
        respond::header(&self.headers, name).unwrap_or("")
    }
}

#[derive(Default)]
struct State {
    /// Objects by decoded path.
    objects: BTreeMap<String, Object>,
    /// Requests as `METHOD path?query range`.
    log: Vec<String>,
    /// Statuses to respond with instead of accessing objects, by `METHOD path`.
    instead: BTreeMap<String, u16>,
    /// Objects whose bodies break off midway.
    broken: Vec<String>,
}

#[derive(Clone, Default)]
pub(crate) struct FakeStore(Arc<Mutex<State>>);

pub(crate) fn md5_hex(bytes: &[u8]) -> String {
    hex::encode(Md5::digest(bytes))
}

impl FakeStore {
    pub(crate) fn with(objects: &[(&str, &str)]) -> FakeStore {
        let store = FakeStore::default();
        for (path, body) in objects {
            store.put(path, &[], body.as_bytes());
        }
        store
    }

    pub(crate) fn put(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            respond::set(&mut all, name, *value);
        }
        let body = Bytes::copy_from_slice(body);
        self.store(path, Object { headers: all, body });
    }

    fn store(&self, path: &str, mut object: Object) {
        let etag = md5_hex(&object.body);
        respond::set(&mut object.headers, ETAG.as_str(), etag);
        let objects = &mut self.0.lock().unwrap().objects;
        objects.insert(path.to_owned(), object);
    }

    pub(crate) fn answer_instead(&self, what: &str, status: u16) {
        let instead = &mut self.0.lock().unwrap().instead;
        instead.insert(what.to_owned(), status);
    }

    pub(crate) fn break_off(&self, path: &str) {
        self.0.lock().unwrap().broken.push(path.to_owned());
    }

    pub(crate) fn get(&self, path: &str) -> Option<Object> {
        self.0.lock().unwrap().objects.get(path).cloned()
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.0.lock().unwrap().objects.keys().cloned().collect()
    }

    /// Takes the log of requests.
    pub(crate) fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().log)
    }

    pub(crate) fn handler(&self) -> Handler {
        let store = self.clone();
        handler_fn(move |request| {
            let store = store.clone();
            async move { store.answer(request).await }
        })
    }

    async fn answer(&self, request: Request) -> Response {
        let (parts, body) = request.into_parts();
        let path = unquote(parts.uri.path()).unwrap();
        let range = respond::header(&parts.headers, RANGE.as_str());
        let line = format!("{} {} {}", parts.method, parts.uri, range.unwrap_or(""));
        let what = format!("{} {path}", parts.method);
        let instead = {
            let mut state = self.0.lock().unwrap();
            state.log.push(line.trim_end().to_owned());
            state.instead.get(&what).copied()
        };
        if let Some(status) = instead {
            return respond::standard(respond::status(status));
        }
        let is_object = path.split('/').count() > 4;
        match parts.method {
            Method::PUT if is_object => {
                let Ok(body) = body.collect(1 << 30).await else {
                    return respond::standard(respond::status(499));
                };
                let headers = parts.headers;
                self.store(&path, Object { headers, body });
                let etag = self.get(&path).unwrap().header("etag").to_owned();
                let mut response = respond::empty(StatusCode::CREATED);
                respond::set(response.headers_mut(), ETAG.as_str(), format!("\"{etag}\""));
                response
            }
            Method::PUT => respond::empty(StatusCode::CREATED),
            Method::DELETE => match self.0.lock().unwrap().objects.remove(&path) {
                Some(_) => respond::empty(StatusCode::NO_CONTENT),
                None => respond::standard(StatusCode::NOT_FOUND),
            },
            Method::GET if !is_object => self.list(&path, parts.uri.query()),
            Method::HEAD if !is_object => respond::empty(StatusCode::NO_CONTENT),
            _ => self.read(&parts.method, &path, range, &parts.headers),
        }
    }

    fn read(
        &self,
        method: &Method,
        path: &str,
        range: Option<&str>,
        asked: &HeaderMap,
    ) -> Response {
        let Some(object) = self.get(path) else {
            return respond::standard(StatusCode::NOT_FOUND);
        };
        let whole_for = "x-backend-ignore-range-if-metadata-present";
        let wants_whole = respond::header(asked, whole_for).is_some_and(|names| {
            let mut names = names.split(',');
            names.any(|n| object.headers.contains_key(n.trim().to_ascii_lowercase()))
        });
        let mut response = respond::empty(StatusCode::OK);
        *response.headers_mut() = object.headers.clone();
        let size = object.body.len() as u64;
        let range = range.filter(|_| !wants_whole && *method == Method::GET);
        let body = match select(range, size) {
            Selection::Unsatisfiable => {
                return respond::standard(StatusCode::RANGE_NOT_SATISFIABLE);
            }
            Selection::One(range) => {
                *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                let text = content_range(&range, size);
                respond::set(response.headers_mut(), CONTENT_RANGE.as_str(), text);
                object.body.slice(range.start as usize..range.end as usize)
            }
            _ => object.body,
        };
        let length = body.len();
        response.headers_mut().insert(CONTENT_LENGTH, length.into());
        if *method == Method::HEAD {
            return response;
        }
        *response.body_mut() = Body::full(body.clone());
        if self.0.lock().unwrap().broken.iter().any(|b| b == path) {
            let half = Ok(body.slice(..length / 2));
            let stream = futures_util::stream::iter([half]);
            *response.body_mut() = Body::from_stream(stream, Some(length as u64));
        }
        response
    }

    /// A listing in pages of three.
    fn list(&self, container: &str, query: Option<&str>) -> Response {
        let params = Params::parse(query).unwrap();
        let (prefix, marker) = (params.get("prefix"), params.get("marker"));
        let state = self.0.lock().unwrap();
        let rows: Vec<_> = state
            .objects
            .iter()
            .filter_map(|(path, object)| {
                let name = path.strip_prefix(container)?.strip_prefix('/')?;
                Some((name, object))
            })
            .filter(|(name, _)| name.starts_with(prefix.unwrap_or("")))
            .filter(|(name, _)| marker.is_none_or(|marker| *name > marker))
            .take(3)
            .map(|(name, object)| {
                json!({"name": name, "bytes": object.body.len(), "hash": object.header("etag")})
            })
            .collect();
        let json = serde_json::Value::from(rows).to_string();
        let mut response = respond::typed(StatusCode::OK, "application/json", json);
        respond::set(
            response.headers_mut(),
            CONTENT_TYPE.as_str(),
            "application/json",
        );
        response
    }
}
