//! Comparison of filters with recorded results of Swift's own: `golden/middleware/*.json`. Compared
//! are the response (status, body, significant headers) and every request that reached the inner
//! filter.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cairn_http::context::{Authorize, AuthorizeFuture, Context, Granted};
use cairn_http::params::{Params, quote_path, unquote};
use cairn_http::{
    AccountInfo, Body, ContainerInfo, Handler, Request, Response, handler_fn, respond,
};
use http::request::Parts;
use serde_json::{Map, Value, json};

use crate::testing::{self, OneOfEach, filter_in, request};

/// Response headers that are compared; the others are dates, lengths and the like.
const COMPARED: [&str; 12] = [
    "access-control-allow-origin",
    "content-disposition",
    "content-type",
    "etag",
    "expires",
    "location",
    "x-backend-content-generator",
    "x-custom-a",
    "x-custom-b",
    "x-object-meta-private",
    "x-object-meta-public-b",
    "www-authenticate",
];
/// Headers of inner requests that are not compared: they identify the requester, or the transfer of
/// the body.
const NOT_COMPARED: [&str; 4] = ["host", "user-agent", "transfer-encoding", "content-length"];

type Requests = Arc<Mutex<Vec<Value>>>;

/// An authorizer that grants or denies everything.
struct All(bool);

impl Authorize for All {
    fn authorize<'a>(&'a self, request: &'a Parts, _: Option<&'a str>) -> AuthorizeFuture<'a> {
        let account = crate::names::Names::of(request.uri.path()).map(|names| names.account);
        let denied = || crate::resellers::unauthorized(account.as_deref().unwrap_or("unknown"));
        let result = self.0.then(Granted::default).ok_or_else(denied);
        Box::pin(std::future::ready(result))
    }
}

fn texts(value: &Value) -> BTreeMap<String, String> {
    let map = value.as_object().unwrap();
    map.iter()
        .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()))
        .collect()
}

/// The inner handler of a case, with its table of paths, and the requests it got.
fn inner(case: &Value) -> (Handler, Requests) {
    let table = case["inner"].as_object().unwrap().clone();
    let asked = Requests::default();
    let into = asked.clone();
    let handler = handler_fn(move |request: Request| {
        let (table, into) = (table.clone(), into.clone());
        async move { answer_from(&table, request, &into).await }
    });
    (handler, asked)
}

async fn answer_from(table: &Map<String, Value>, request: Request, into: &Requests) -> Response {
    let (parts, body) = request.into_parts();
    let path = unquote(parts.uri.path()).unwrap();
    let query = parts.uri.query().unwrap_or("");
    let body = match (parts.method.as_str(), body.collect(1 << 20).await) {
        ("PUT", Ok(body)) => String::from_utf8_lossy(&body).into_owned(),
        ("PUT", Err(_)) => return respond::empty(respond::status(499)),
        _ => String::new(),
    };
    let headers: BTreeMap<String, String> = parts
        .headers
        .iter()
        .filter(|(name, _)| !NOT_COMPARED.contains(&name.as_str()))
        .map(|(name, value)| {
            let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.to_string(), text)
        })
        .collect();
    let context = Context::of(&parts);
    let mut granted = Value::Null;
    if context.authorized && !context.is_pre_authorized() {
        let mut decisions = Vec::new();
        for path in ["/v1/AUTH_a/c/other", "/v1/AUTH_a/d/o", "/v1/AUTH_b/c/o"] {
            let (other, _) = testing::request("GET", path, &[]).into_parts();
            decisions.push(context.authorize(&other, None).await.is_ok());
        }
        granted = json!(decisions);
    }
    into.lock().unwrap().push(json!({
        "method": parts.method.as_str(),
        "path": path,
        "query": sorted_query(query),
        "headers": headers,
        "body": body,
        "granted": granted,
    }));
    let same_query = |key: &&String| {
        key.split_once('?')
            .is_some_and(|(p, q)| p == path && sorted_query(q) == sorted_query(query))
    };
    let found = table.keys().find(same_query).and_then(|key| table.get(key));
    let found = found.or_else(|| table.get(&path)).cloned();
    let found = found.unwrap_or_else(|| {
        let headers = json!({"content-type": respond::HTML});
        json!({"status": "404", "headers": headers, "body": "missing"})
    });
    let mut response = Response::new(Body::from(found["body"].as_str().unwrap().to_owned()));
    let status = found["status"].as_str().unwrap();
    *response.status_mut() = respond::status(status[..3].parse().unwrap());
    for (name, value) in texts(&found["headers"]) {
        respond::set(response.headers_mut(), &name, value);
    }
    let length = response.body().length().unwrap();
    respond::set(response.headers_mut(), "content-length", length.to_string());
    response
}

/// The order of a query's parameters has no meaning.
fn sorted_query(query: &str) -> Value {
    let params = Params::parse(Some(query)).unwrap();
    let mut pairs: Vec<(&str, &str)> = params.iter().collect();
    pairs.sort_unstable();
    json!(pairs)
}

/// Runs a case; returns its result in the format of the file.
async fn run(name: &str, case: &Value) -> (Value, Vec<Value>) {
    let (inner, asked) = inner(case);
    let mut env = testing::env();
    env.info_source = Arc::new(OneOfEach {
        account: Arc::new(AccountInfo {
            status: 204,
            meta: texts(&case["account"]),
            ..AccountInfo::default()
        }),
        container: Arc::new(ContainerInfo {
            status: 204,
            meta: texts(&case["container"]),
            ..ContainerInfo::default()
        }),
    });
    let options = texts(&case["options"]);
    let options: Vec<(&str, &str)> = options.iter().map(|(n, v)| (&**n, &**v)).collect();
    let app = filter_in(&env, name, &options, inner);

    let wanted = &case["request"];
    let text = |key: &str| wanted[key].as_str().unwrap();
    let headers = texts(&wanted["headers"]);
    let headers: Vec<(&str, &str)> = headers.iter().map(|(n, v)| (&**n, &**v)).collect();
    let mut asking = request(text("method"), text("uri"), &headers);
    let body = text("body").to_owned();
    respond::set(asking.headers_mut(), "host", "localhost");
    *asking.body_mut() = Body::from(body);
    let context = Context {
        remote: Some(std::net::SocketAddr::new(
            text("remote").parse().unwrap(),
            1,
        )),
        authorizer: case["deny"].as_bool().map(|deny| {
            let all: Arc<dyn Authorize> = Arc::new(All(!deny));
            all
        }),
        ..Context::default()
    };
    if let Some(user) = case["user"].as_str() {
        context.notes.set_user(user);
    }
    asking.extensions_mut().insert(context);
    let response = app.call(asking).await;
    let (head, body) = response.into_parts();
    let headers: BTreeMap<&str, String> = COMPARED
        .into_iter()
        .filter_map(|name| Some((name, respond::header(&head.headers, name)?.to_owned())))
        .collect();
    let body = body.collect(1 << 20).await.unwrap();
    let answer = json!({
        "status": head.status.as_u16(),
        "headers": headers,
        "body": String::from_utf8_lossy(&body),
    });
    let asked = asked.lock().unwrap().clone();
    (answer, asked)
}

/// The recorded result, without parts that are not compared or differ on purpose.
fn expected(case: &Value) -> (Value, Vec<Value>) {
    let mut answer = case["answer"].clone();
    let headers = answer["headers"].as_object_mut().unwrap();
    headers.retain(|name, _| COMPARED.contains(&name.as_str()));
    let location = headers.get("location").and_then(|value| value.as_str());
    if let Some(location) = location {
        // The port of a test request in Swift.
        let location = location.replace("://localhost:80/", "://localhost/");
        headers.insert("location".into(), location.into());
    }
    let mut asked = case["seen"].as_array().unwrap().clone();
    for request in &mut asked {
        request["query"] = sorted_query(request["query"].as_str().unwrap());
        let headers = request["headers"].as_object_mut().unwrap();
        headers.retain(|name, _| !NOT_COMPARED.contains(&name.as_str()));
    }
    (answer, asked)
}

/// Runs a file's cases; `alike` removes from both sides what differs on purpose.
async fn compare(name: &str, alike: impl Fn(&Value, &mut Value, &mut Vec<Value>)) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/middleware");
    let text = std::fs::read_to_string(format!("{folder}/{name}.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert!(cases.len() >= 200);
    let mut wrong = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let (mut here, mut asked) = run(name, case).await;
        let (mut there, mut asked_there) = expected(case);
        if case["request"]["method"] == "HEAD" {
            // Bodies of responses to HEAD are dropped by the server.
            here["body"] = Value::Null;
            there["body"] = Value::Null;
        }
        alike(case, &mut here, &mut asked);
        alike(case, &mut there, &mut asked_there);
        if here != there || asked != asked_there {
            wrong.push(format!(
                "case {number}: {}\nhere:  {here}\nSwift: {there}\nhere asks:  {}\nSwift asks: {}\n",
                json!({"request": case["request"], "options": case["options"],
                       "container": case["container"], "account": case["account"]}),
                json!(asked),
                json!(asked_there)
            ));
        }
    }
    let (count, all) = (wrong.len(), cases.len());
    wrong.truncate(4);
    assert!(count == 0, "{count} of {all} differ\n{}", wrong.join("\n"));
}

fn remove_header(request: &mut Value, name: &str) {
    request["headers"].as_object_mut().unwrap().remove(name);
}

#[tokio::test]
async fn temporary_urls() {
    compare("tempurl", |_, _, asked| {
        for request in asked {
            // Links in listings keep the range too, which Swift omits.
            let query = request["query"].as_array_mut().unwrap();
            query.retain(|pair| pair[0] != "temp_url_ip_range");
        }
    })
    .await;
}

#[tokio::test]
async fn forms() {
    compare("formpost", |_, answer, asked| {
        // The page's link is escaped here, and has a type.
        let body = answer["body"].as_str().unwrap_or("").replace("&amp;", "&");
        answer["body"] = body.into();
        if answer["status"] == 303 {
            remove_header(answer, "content-type");
        }
        for request in asked {
            remove_header(request, "content-type");
        }
    })
    .await;
}

#[tokio::test]
async fn sites() {
    compare("staticweb", |_, answer, _| {
        // Swift's way of making a test request adds this header to every 401.
        remove_header(answer, "www-authenticate");
    })
    .await;
}

#[test]
fn paths_are_quoted_as_pythons() {
    assert_eq!(quote_path("a b/ü~'"), "a%20b/%C3%BC~%27");
}
