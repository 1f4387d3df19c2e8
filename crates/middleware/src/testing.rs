//! Fakes for this crate's tests: an environment, and inner handlers that record requests.

#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use cairn_formats::ini::Section;
use cairn_http::context::Context;
use cairn_http::{
    AccountInfo, Body, Clock, ContainerInfo, Handler, InfoFuture, InfoSource, Request, Response,
    SwiftInfo, handler_fn, respond,
};
use cairn_types::{Constraints, HashPath, PolicySet, Timestamp};

use crate::{CrossOrigin, FilterEnv, Logins, Random, build};

/// Information source with the same account and container for every name.
#[derive(Default)]
pub(crate) struct OneOfEach {
    pub(crate) account: Arc<AccountInfo>,
    pub(crate) container: Arc<ContainerInfo>,
}

impl InfoSource for OneOfEach {
    fn account<'a>(&'a self, _: &'a Context, _: &'a str) -> InfoFuture<'a, AccountInfo> {
        Box::pin(async { self.account.clone() })
    }
    fn container<'a>(
        &'a self,
        _: &'a Context,
        _: &'a str,
        _: &'a str,
    ) -> InfoFuture<'a, ContainerInfo> {
        Box::pin(async { self.container.clone() })
    }
}

pub(crate) fn env() -> FilterEnv {
    FilterEnv {
        info_source: Arc::new(OneOfEach::default()),
        swift_info: Arc::new(SwiftInfo::default()),
        constraints: Arc::new(Constraints::default()),
        policies: Arc::new(PolicySet::single()),
        hash_path: HashPath::new("pre", "fix"),
        clock: Clock::manual(Timestamp::from_secs(1_700_000_000)),
        random: Random::seeded(1),
        logins: Logins::default(),
        cross_origin: CrossOrigin::default(),
    }
}

pub(crate) fn filter(name: &str, options: &[(&str, &str)], next: Handler) -> Handler {
    filter_in(&env(), name, options, next)
}

pub(crate) fn filter_in(
    env: &FilterEnv,
    name: &str,
    options: &[(&str, &str)],
    next: Handler,
) -> Handler {
    build(
        name,
        &Section::from_pairs(&format!("filter:{name}"), options),
        next,
        env,
    )
    .unwrap()
}

pub(crate) fn answers(code: u16) -> Handler {
    handler_fn(move |_| async move { respond::text(respond::status(code), "inner") })
}

/// Requests recorded by an inner handler, with their bodies.
pub(crate) type Seen = Arc<Mutex<Vec<(http::request::Parts, Bytes)>>>;

/// A handler that records every request and responds by `answer`.
pub(crate) fn recorder<F>(answer: F) -> (Handler, Seen)
where
    F: Fn(&http::request::Parts) -> Response + Send + Sync + 'static,
{
    let seen: Seen = Arc::default();
    let into = seen.clone();
    let answer = Arc::new(answer);
    let handler = handler_fn(move |request: Request| {
        let (into, answer) = (into.clone(), answer.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect(1 << 20).await.unwrap_or_default();
            let response = answer(&parts);
            into.lock().unwrap().push((parts, body));
            response
        }
    });
    (handler, seen)
}

pub(crate) fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> Request {
    let mut builder = http::Request::builder().method(method).uri(path);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(Body::empty()).unwrap()
}

pub(crate) fn header(response: &Response, name: &str) -> Option<String> {
    respond::header(response.headers(), name).map(str::to_owned)
}

pub(crate) async fn text(response: Response) -> String {
    let body = response.into_body().collect(1 << 20).await.unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

/// A certificate and its key in files, with the authorities that sign it.
pub(crate) struct Certificate {
    _folder: tempfile::TempDir,
    pub(crate) cert: std::path::PathBuf,
    key: std::path::PathBuf,
}

impl Certificate {
    pub(crate) fn of(name: &str) -> Certificate {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
        let write = |file: &str, label: &str, der: &[u8]| {
            use base64::Engine as _;
            let text = base64::engine::general_purpose::STANDARD.encode(der);
            let path = folder.path().join(file);
            let pem = format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n");
            std::fs::write(&path, pem).unwrap();
            path
        };
        Certificate {
            cert: write("cert.pem", "CERTIFICATE", made.cert.der()),
            key: write("key.pem", "PRIVATE KEY", &made.signing_key.serialize_der()),
            _folder: folder,
        }
    }

    /// Configuration for a listener.
    pub(crate) fn served(&self) -> Arc<cairn_http::tls::ServerTls> {
        let files = cairn_http::tls::TlsFiles {
            pairs: vec![(self.cert.clone(), self.key.clone())],
            client_authorities: None,
        };
        cairn_http::tls::ServerTls::load(files).unwrap()
    }
}
