//! A pipeline over a socket around a fake proxy, and a client for it.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

pub mod store;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cairn_formats::ini::Section;
use cairn_http::client::Client;
use cairn_http::context::Context;
use cairn_http::metrics::Metrics;
use cairn_http::serve::{ServeOptions, bind, serve};
use cairn_http::{
    AccountInfo, Body, Clock, ContainerInfo, Handler, InfoFuture, InfoSource, Request, Response,
    SwiftInfo, handler_fn, respond,
};
use cairn_middleware::{CrossOrigin, FilterEnv, Logins, Random, build};
use cairn_types::{Constraints, HashPath, PolicySet};
use http::Method;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub const PASSWORD: &str = "pass-word-1";
pub const URL_KEY: &str = "url-key-1";

const SECURED: [&str; 13] = [
    "catch_errors",
    "gatekeeper",
    "healthcheck",
    "proxy_logging",
    "memcache",
    "listing_formats",
    "ratelimit",
    "tempurl",
    "formpost",
    "tempauth",
    "staticweb",
    "copy",
    "proxy_logging",
];

/// Information source with one account, whose key for temporary URLs is known.
struct Accounts;

impl InfoSource for Accounts {
    fn account<'a>(&'a self, _: &'a Context, _: &'a str) -> InfoFuture<'a, AccountInfo> {
        let info = AccountInfo {
            status: 204,
            meta: [("temp-url-key".to_owned(), URL_KEY.to_owned())].into(),
            ..AccountInfo::default()
        };
        Box::pin(std::future::ready(Arc::new(info)))
    }
    fn container<'a>(
        &'a self,
        _: &'a Context,
        _: &'a str,
        _: &'a str,
    ) -> InfoFuture<'a, ContainerInfo> {
        Box::pin(std::future::ready(Arc::default()))
    }
}

/// The filters of these names around `proxy`, the first outermost, all with the same options.
pub fn pipeline(names: &[&str], options: &[(&str, &str)], proxy: Handler) -> Handler {
    let env = FilterEnv {
        info_source: Arc::new(Accounts),
        swift_info: Arc::new(SwiftInfo::default()),
        constraints: Arc::new(Constraints::default()),
        policies: Arc::new(PolicySet::single()),
        hash_path: HashPath::new("", "changeme"),
        clock: Clock::system(),
        random: Random::system(),
        logins: Logins::default(),
        cross_origin: CrossOrigin::default(),
    };
    let section = Section::from_pairs("filter:any", options);
    names.iter().rev().fold(proxy, |next, name| {
        build(name, &section, next, &env).unwrap()
    })
}

/// A pipeline with all authentication filters, for the user `test:tester`.
pub fn secured(proxy: Handler) -> Handler {
    let user = format!("{PASSWORD} .admin");
    let options = [
        ("user_test_tester", user.as_str()),
        ("access_log_headers", "true"),
    ];
    pipeline(&SECURED, &options, proxy)
}

/// A proxy that authorizes requests and stores nothing.
pub fn proxy() -> Handler {
    handler_fn(|request: Request| async move {
        let (parts, body) = request.into_parts();
        let context = Context::of(&parts);
        if let Err(denied) = context.authorize(&parts, None).await {
            return denied;
        }
        let _ = body.collect(1 << 20).await;
        let code = if parts.method == Method::PUT {
            201
        } else {
            200
        };
        respond::text(respond::status(code), "done")
    })
}

pub struct Server {
    pub address: SocketAddr,
    pub client: Client,
    pub metrics: Arc<Metrics>,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

pub fn start(app: Handler) -> Server {
    let listener = bind("127.0.0.1:0".parse().unwrap(), 16).unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopping) = watch::channel(false);
    let metrics = Metrics::new();
    let serving = tokio::spawn(serve(
        tokio::net::TcpListener::from_std(listener).unwrap(),
        app,
        ServeOptions::new("proxy"),
        metrics.clone(),
        stopping,
    ));
    Server {
        address,
        client: Client::new(Duration::from_secs(5), 4, Duration::from_secs(5)),
        metrics,
        stop,
        serving,
    }
}

impl Server {
    pub async fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Response {
        let mut request = http::Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let call = self
            .client
            .call(self.address, request, Duration::from_secs(60));
        call.await.unwrap()
    }

    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        self.ask("GET", path, headers, "").await
    }

    /// Stops like on an operator's signal: ends when the client's connections are closed.
    pub async fn stop(self) {
        self.stop.send(true).unwrap();
        drop(self.client);
        self.serving.await.unwrap();
    }
}
