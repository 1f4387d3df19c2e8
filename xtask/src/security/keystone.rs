//! A store whose identity is an external Keystone: identity headers of a client are ignored, and
//! only a valid answer of Keystone about a token grants access.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use anyhow::{Result, ensure};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{Options, Store, all_held, tenants};
use cairn_testkit::wire::Connection;

const LATER: &str = "2099-01-01T00:00:00.000000Z";
const BEFORE: &str = "2001-01-01T00:00:00.000000Z";

/// A Keystone that knows a few tokens by their names.
pub(super) struct Keystone {
    port: u16,
    /// Tokens that it was asked to validate.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Keystone {
    pub(super) fn start() -> Result<Keystone> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let seen = seen.clone();
                // The client may have hung up.
                std::thread::spawn(move || serve(stream, port, &seen).ok());
            }
        });
        Ok(Keystone { port, asked })
    }

    /// Options of the filters that use it.
    pub(super) fn settings(&self) -> Vec<(&'static str, &'static str, String)> {
        let url = format!("http://127.0.0.1:{}", self.port);
        let authtoken = [
            (
                "paste.filter_factory",
                "keystonemiddleware.auth_token:filter_factory",
            ),
            ("www_authenticate_uri", &url),
            ("auth_url", &url),
            ("auth_type", "password"),
            ("username", "swift"),
            ("password", "swiftpw"),
            ("project_name", "service"),
            ("user_domain_id", "default"),
            ("project_domain_id", "default"),
            ("delay_auth_decision", "true"),
        ];
        let mut all: Vec<_> = authtoken
            .into_iter()
            .map(|(option, value)| ("filter:authtoken", option, value.to_owned()))
            .collect();
        for (option, value) in [
            ("use", "egg:swift#keystoneauth"),
            ("operator_roles", "admin, swiftoperator"),
        ] {
            all.push(("filter:keystoneauth", option, value.to_owned()));
        }
        all
    }
}

fn serve(stream: TcpStream, port: u16, asked: &Mutex<Vec<String>>) -> Result<()> {
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let (mut subject, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.split_once(':') else {
            break;
        };
        match &*name.to_lowercase() {
            "x-subject-token" => subject = value.trim().to_owned(),
            "content-length" => length = value.trim().parse()?,
            _ => (),
        }
    }
    reader.read_exact(&mut vec![0; length])?;
    let is_about_tokens = first.contains("/auth/tokens");
    let own = token("swift", "service", &["admin", "service"], LATER, port);
    let (status, body) = match (first.split(' ').next(), is_about_tokens) {
        (Some("POST"), true) => ("201 Created", own.to_string()),
        (_, true) => {
            asked.lock().push(subject.clone());
            described(&subject, port)
        }
        _ => ("200 OK", versions(&first, port).to_string()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nX-Subject-Token: own\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    writer.write_all(head.as_bytes())?;
    Ok(writer.write_all(body.as_bytes())?)
}

/// The version document, for clients that request it first.
fn versions(request: &str, port: u16) -> Value {
    let version = json!({"id": "v3.14", "status": "stable", "links": [
        {"rel": "self", "href": format!("http://127.0.0.1:{port}/v3/")}]});
    match request.contains("/v3") {
        true => json!({"version": version}),
        false => json!({"versions": {"values": [version]}}),
    }
}

fn token(user: &str, project: &str, roles: &[&str], expires: &str, port: u16) -> Value {
    let domain = json!({"id": "default", "name": "Default"});
    let roles: Vec<Value> = roles
        .iter()
        .map(|name| json!({"id": name, "name": name}))
        .collect();
    let endpoints: Vec<Value> = ["public", "internal", "admin"]
        .iter()
        .map(|kind| {
            let url = format!("http://127.0.0.1:{port}");
            json!({"id": kind, "interface": kind, "region": "R", "region_id": "R", "url": url})
        })
        .collect();
    json!({"token": {
        "methods": ["password"],
        "user": {"id": user, "name": user, "domain": domain},
        "project": {"id": project, "name": project, "domain": domain},
        "roles": roles,
        "issued_at": BEFORE,
        "expires_at": expires,
        "catalog": [{"id": "1", "type": "identity", "name": "keystone", "endpoints": endpoints}],
    }})
}

/// The answer about a token, whose name determines how the answer is wrong.
fn described(name: &str, port: u16) -> (&'static str, String) {
    let of = |roles: &[&str], project: &str, expires: &str| {
        token("tester", project, roles, expires, port)
    };
    let good = of(&["swiftoperator"], "test", LATER);
    let mut odd = good.clone();
    let body = match name {
        "good" | "refused" | "broken" => good,
        "expired" => of(&["swiftoperator"], "test", BEFORE),
        "member" => of(&["member"], "test", LATER),
        "stranger" => of(&["swiftoperator"], "test2", LATER),
        "unscoped" => {
            odd["token"]["project"] = Value::Null;
            odd
        }
        "without-time" => {
            odd["token"]["expires_at"] = "some day".into();
            odd
        }
        "roles-of-text" => {
            odd["token"]["roles"] = "swiftoperator".into();
            odd
        }
        "empty" => json!({}),
        "list" => json!([good]),
        "html" => return ("200 OK", "<html>Welcome</html>".to_owned()),
        "deep" => return ("200 OK", "[".repeat(100_000)),
        _ => return ("404 Not Found", json!({"error": {"code": 404}}).to_string()),
    };
    let status = match name {
        "refused" => "403 Forbidden",
        "broken" => "500 Internal Server Error",
        _ => "200 OK",
    };
    (status, body.to_string())
}

/// Headers that claim a confirmed identity, by keystonemiddleware's names.
const CLAIMS: [(&str, &str); 14] = [
    ("X-Identity-Status", "Confirmed"),
    ("X-Service-Identity-Status", "Confirmed"),
    ("X-Roles", "swiftoperator,admin,ResellerAdmin"),
    ("X-Service-Roles", "service,admin"),
    ("X-Project-Id", "test"),
    ("X-Project-Name", "test"),
    ("X-Project-Domain-Id", "default"),
    ("X-Tenant-Id", "test"),
    ("X-Tenant-Name", "test"),
    ("X-User-Id", "tester"),
    ("X-User-Name", "tester"),
    ("X-User-Domain-Id", "default"),
    ("X-User", "tester"),
    ("X-Role", "admin"),
];

pub(super) fn claims(store: &Store, _: &Options) -> Result<String> {
    let doors = &store.doors;
    // Logs in as the owner, so that the account exists.
    tenants::owner(store)?;
    let status = |token: Option<&str>, more: &[(&str, &str)]| -> Result<u16> {
        let mut headers: Vec<(&str, &str)> = more.to_vec();
        headers.extend(token.map(|token| ("X-Auth-Token", token)));
        let mut connection = Connection::new(doors.keystone);
        Ok(connection
            .call("GET", "/v1/AUTH_test", &headers, b"")?
            .status)
    };
    let good = status(Some("good"), &[])?;
    ensure!(good / 100 == 2, "a good token opens nothing: {good}");
    let mut broken = Vec::new();
    let names = [
        "expired",
        "member",
        "stranger",
        "unscoped",
        "without-time",
        "roles-of-text",
        "empty",
        "list",
        "html",
        "deep",
        "refused",
        "broken",
        "unknown",
        "Good",
        "good=",
        "good/",
        "goo",
        "good,good",
        "good good",
        "own",
        "../tokens",
    ];
    let long = "g".repeat(9000);
    let tokens = names.into_iter().chain([&*long]).map(Some).chain([None]);
    let mut tried = 0;
    for token in tokens {
        for more in [&[][..], &CLAIMS] {
            tried += 1;
            let status = status(token, more)?;
            let shown: String = token.unwrap_or("none").chars().take(30).collect();
            if status / 100 == 2 || status == 500 {
                let with = if more.is_empty() { "" } else { " with claims" };
                broken.push(format!("the token {shown:?}{with}: {status}"));
            }
        }
    }
    // A service token extends an expired user token; none of these has the service role.
    for service in ["good", "member", "unknown"] {
        tried += 1;
        let status = status(Some("expired"), &[("X-Service-Token", service)])?;
        if status / 100 == 2 {
            broken.push(format!(
                "an expired token beside the service token {service:?}: {status}"
            ));
        }
    }
    let asked = doors
        .tokens
        .asked
        .lock()
        .iter()
        .any(|token| token.len() > 8192);
    if store.is_cairn && asked {
        broken.push("Keystone is asked about a token of 9,000 bytes".to_owned());
    }
    all_held(broken, format!("{tried} ways tried"))
}
