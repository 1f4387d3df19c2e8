//! Cost that each filter of the default pipeline adds to a request that it only passes on: the
//! median over rounds of a GET and a PUT of an object, by a user who is logged in.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use cairn_formats::ini::Section;
use cairn_http::context::Context;
use cairn_http::{
    AccountInfo, Body, Clock, ContainerInfo, Handler, InfoFuture, InfoSource, Request, SwiftInfo,
    handler_fn, respond,
};
use cairn_middleware::{CrossOrigin, FilterEnv, Logins, Random, build};
use cairn_types::{Constraints, HashPath, PolicySet};
use http::{HeaderValue, Method, StatusCode};

const FILTERS: [&str; 21] = [
    "catch_errors",
    "gatekeeper",
    "healthcheck",
    "proxy_logging",
    "memcache",
    "etag_quoter",
    "domain_remap",
    "listing_formats",
    "bulk",
    "tempurl",
    "formpost",
    "crossdomain",
    "keystoneauth",
    "tempauth",
    "staticweb",
    "copy",
    "container_quotas",
    "account_quotas",
    "slo",
    "dlo",
    // The first needs the second.
    "versioned_writes symlink",
];
const OPTIONS: [(&str, &str); 3] = [
    ("user_test_tester", "testing .admin"),
    ("allow_versioned_writes", "true"),
    ("allow_object_versioning", "true"),
];
const ROUNDS: usize = 15;
const REQUESTS: u32 = 2_000;

/// Information source whose account and container exist, and are cached.
struct Known(Arc<AccountInfo>, Arc<ContainerInfo>);

impl InfoSource for Known {
    fn account<'a>(&'a self, _: &'a Context, _: &'a str) -> InfoFuture<'a, AccountInfo> {
        Box::pin(std::future::ready(self.0.clone()))
    }
    fn container<'a>(
        &'a self,
        _: &'a Context,
        _: &'a str,
        _: &'a str,
    ) -> InfoFuture<'a, ContainerInfo> {
        Box::pin(std::future::ready(self.1.clone()))
    }
}

fn env() -> FilterEnv {
    let account = AccountInfo {
        status: 204,
        ..AccountInfo::default()
    };
    let container = ContainerInfo {
        status: 204,
        ..ContainerInfo::default()
    };
    FilterEnv {
        info_source: Arc::new(Known(Arc::new(account), Arc::new(container))),
        swift_info: Arc::new(SwiftInfo::default()),
        constraints: Arc::new(Constraints::default()),
        policies: Arc::new(PolicySet::single()),
        hash_path: HashPath::new("", "changeme"),
        clock: Clock::system(),
        random: Random::system(),
        logins: Logins::default(),
        cross_origin: CrossOrigin::default(),
    }
}

fn proxy() -> Handler {
    handler_fn(|request: Request| async move {
        let code = match *request.method() {
            Method::PUT => StatusCode::CREATED,
            _ => StatusCode::OK,
        };
        respond::text(code, "done")
    })
}

fn pipeline(filters: &[&str], env: &FilterEnv) -> Result<Handler, Box<dyn Error>> {
    let section = Section::from_pairs("filter:any", &OPTIONS);
    let mut app = proxy();
    for name in filters.iter().rev() {
        app = build(name, &section, app, env)?;
    }
    Ok(app)
}

fn request(method: Method, token: &HeaderValue) -> Result<Request, http::Error> {
    http::Request::builder()
        .method(method)
        .uri("/v1/AUTH_test/container/object")
        .header("host", "127.0.0.1:8080")
        .header("user-agent", "bench")
        .header("x-auth-token", token)
        .header("content-length", "0")
        .body(Body::empty())
}

/// Nanoseconds per request, in one round.
async fn round(app: &Handler, method: &Method, token: &HeaderValue) -> Result<f64, http::Error> {
    let mut requests = Vec::new();
    for _ in 0..REQUESTS {
        requests.push(request(method.clone(), token)?);
    }
    let started = Instant::now();
    for request in requests {
        std::hint::black_box(app.call(request).await);
    }
    Ok(started.elapsed().as_nanos() as f64 / f64::from(REQUESTS))
}

/// A token from this filter, if it issues tokens.
async fn token(name: &str, app: &Handler) -> Result<HeaderValue, Box<dyn Error>> {
    if name != "tempauth" {
        return Ok(HeaderValue::from_static("none"));
    }
    let login = http::Request::get("/auth/v1.0")
        .header("host", "127.0.0.1:8080")
        .header("x-auth-user", "test:tester")
        .header("x-auth-key", "testing")
        .body(Body::empty())?;
    let answer = app.call(login).await;
    let token = answer.headers().get("x-auth-token");
    Ok(token.ok_or("no token was given")?.clone())
}

async fn run() -> Result<(), Box<dyn Error>> {
    let env = env();
    println!("| filter | GET ns | PUT ns |\n| --- | --- | --- |");
    let mut sums = [0.0; 2];
    for name in FILTERS {
        let filters: Vec<&str> = name.split_whitespace().collect();
        let with = pipeline(&filters, &env)?;
        let without = pipeline(&[], &env)?;
        let token = token(name, &with).await?;
        let mut line = format!("| {name} |");
        for (sum, method) in sums.iter_mut().zip([Method::GET, Method::PUT]) {
            let mut added = Vec::new();
            for _ in 0..ROUNDS {
                let base = round(&without, &method, &token).await?;
                added.push(round(&with, &method, &token).await? - base);
            }
            added.sort_by(f64::total_cmp);
            let median = added[ROUNDS / 2];
            *sum += median;
            line.push_str(&format!(" {median:.0} |"));
        }
        println!("{line}");
    }
    println!("| all | {:.0} | {:.0} |", sums[0], sums[1]);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run())
}
