//! Fakes for tests of filters, here and in other crates (feature `testing`): an environment, and
//! inner handlers that record requests.

#![allow(clippy::unwrap_used)]

#[cfg(test)]
mod certificate;

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use cairn_formats::ini::Section;
use cairn_http::context::Context;
use cairn_http::{
    AccountInfo, Body, Clock, ContainerInfo, Handler, InfoFuture, InfoSource, Request, Response,
    SwiftInfo, handler_fn, respond,
};
use cairn_types::{Constraints, HashPath, PolicySet, Timestamp};

#[cfg(test)]
pub(crate) use certificate::Certificate;

use crate::{CrossOrigin, FilterEnv, Logins, Random, build};

/// Information source with the same account and container for every name.
#[derive(Default)]
pub struct OneOfEach {
    pub account: Arc<AccountInfo>,
    pub container: Arc<ContainerInfo>,
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

pub fn env() -> FilterEnv {
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

pub fn filter(name: &str, options: &[(&str, &str)], next: Handler) -> Handler {
    filter_in(&env(), name, options, next)
}

pub fn filter_in(env: &FilterEnv, name: &str, options: &[(&str, &str)], next: Handler) -> Handler {
    build(
        name,
        &Section::from_pairs(&format!("filter:{name}"), options),
        next,
        env,
    )
    .unwrap()
}

pub fn answers(code: u16) -> Handler {
    handler_fn(move |_| async move { respond::text(respond::status(code), "inner") })
}

/// Requests recorded by an inner handler, with their bodies.
pub type Seen = Arc<Mutex<Vec<(http::request::Parts, Bytes)>>>;

/// A handler that records every request and responds by `answer`.
pub fn recorder<F>(answer: F) -> (Handler, Seen)
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

pub fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> Request {
    let mut builder = http::Request::builder().method(method).uri(path);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(Body::empty()).unwrap()
}

pub fn header(response: &Response, name: &str) -> Option<String> {
    respond::header(response.headers(), name).map(str::to_owned)
}

pub async fn text(response: Response) -> String {
    let body = response.into_body().collect(1 << 20).await.unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}
