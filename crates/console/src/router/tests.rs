use cairn_console_api::{Password, StoreState, StoreView};
use cairn_http::Clock;
use cairn_http::audit::AuditLog;
use cairn_http::metrics::Metrics;
use cairn_http::{Body, handler_fn, respond};
use cairn_lab::footprint::LocalAccess;
use http::{HeaderMap, StatusCode};
use tokio::sync::watch;

use super::*;
use crate::session::Sessions;
use crate::{guard, history, queue};

/// A console over a store that accepts every sign-in and records requests.
struct Bench {
    dir: tempfile::TempDir,
    router: Router,
    cookie: Option<String>,
    _stop: watch::Sender<bool>,
}

impl Bench {
    fn new() -> Bench {
        Bench::audited(None)
    }

    fn audited(audit: Option<Arc<AuditLog>>) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let runs = dir.path().join("runs");
        let history = Arc::new(history::History::open(&runs).unwrap());
        let (stop_sender, stop) = watch::channel(false);
        let store = StoreView {
            swift: handler_fn(|request| async move { told(&request) }),
            endpoint: "http://127.0.0.1:8080".into(),
            metrics: Metrics::new(),
            state: Arc::new(StoreState::default),
            recon: Vec::new(),
        };
        let console = Console {
            guard: guard::Guard::new(Vec::new()),
            sessions: Sessions::new(8081, false),
            password: Password::given("a good password", "test").unwrap(),
            queue: Arc::new(queue::Queue::new(
                history.clone(),
                crate::command::Program {
                    store_ca: None,
                    path: "/bin/false".into(),
                    allow_local: vec![dir.path().join("allowed")],
                },
            )),
            local: LocalAccess::Below(vec![dir.path().join("allowed")]),
            history,
            store: Some(Store::new(store)),
            stop,
            views: Arc::new(tokio::sync::Semaphore::new(1)),
            audit,
        };
        Bench {
            dir,
            router: Router(Arc::new(console)),
            cookie: None,
            _stop: stop_sender,
        }
    }

    async fn call(&self, method: &str, path: &str, body: &str, more: &[(&str, &str)]) -> Response {
        let body = Body::full(body.to_owned());
        let request = self.request(method, path, body, more);
        self.router.call(request).await
    }

    fn request(&self, method: &str, path: &str, body: Body, more: &[(&str, &str)]) -> Request {
        let mut request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost:8081")
            .header("x-cairn-console", "1")
            .header("content-type", "application/json");
        if let Some(cookie) = &self.cookie {
            request = request.header("cookie", cookie);
        }
        for (name, value) in more {
            request = request.header(*name, *value);
        }
        let mut request = request.body(body).unwrap();
        request.extensions_mut().insert(Context {
            remote: Some("10.0.0.1:99".parse().unwrap()),
            ..Context::default()
        });
        request
    }

    async fn status(&self, method: &str, path: &str, body: &str) -> u16 {
        self.call(method, path, body, &[]).await.status().as_u16()
    }

    async fn signed_in() -> Bench {
        Bench::new().sign_in().await
    }

    async fn sign_in(self) -> Bench {
        let mut bench = self;
        let body = r#"{"password":"a good password"}"#;
        let response = bench.call("POST", "/api/session", body, &[]).await;
        let cookie = response.headers()["set-cookie"].to_str().unwrap();
        bench.cookie = Some(cookie.split(';').next().unwrap().to_owned());
        bench
    }
}

/// The fake proxy: a sign-in, or an echo with headers that must not be passed on.
fn told(request: &Request) -> Response {
    let mut response = respond::empty(StatusCode::OK);
    let headers = response.headers_mut();
    if request.uri().path() == "/auth/v1.0" {
        assert_eq!(request.headers()["host"], "127.0.0.1:8080");
        let remote = Context::of_request(request).remote;
        assert_eq!(remote, Some("10.0.0.1:99".parse().unwrap()));
        let refused = match request.headers()["x-auth-key"].to_str() {
            Ok("wrong") => StatusCode::UNAUTHORIZED,
            Ok("busy") => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::OK,
        };
        *response.status_mut() = refused;
        let headers = response.headers_mut();
        headers.insert("x-auth-token", HeaderValue::from_static("AUTH_tk1"));
        let url = HeaderValue::from_static("http://127.0.0.1:8080/v1/AUTH_test");
        headers.insert("x-storage-url", url);
        return response;
    }
    for (name, value) in [
        ("set-cookie", "cairn_console_8081=stolen"),
        ("www-authenticate", "Basic"),
        ("access-control-allow-origin", "*"),
        ("content-type", "text/html"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let names: Vec<&str> = request.headers().keys().map(|name| name.as_str()).collect();
    // A token that is marked as sensitive is not shown by its header.
    let token = request.headers()["x-auth-token"].to_str().unwrap();
    let text = format!("{} {token:?} {}", request.uri(), names.join(" "));
    *response.body_mut() = Body::full(text);
    response
}

async fn text(response: Response) -> String {
    let bytes = response.into_body().collect(1 << 20).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn nothing_without_a_session() {
    let bench = Bench::new();
    for (method, path) in [
        ("GET", "/api/runs"),
        ("POST", "/api/runs"),
        ("POST", "/api/check"),
        ("POST", "/api/compare"),
        ("GET", "/api/runs/a/files/run.json"),
        ("GET", "/api/runs/a/events"),
        ("GET", "/api/store"),
        ("POST", "/api/store/user"),
        ("GET", "/swift/v1/AUTH_test"),
    ] {
        assert_eq!(bench.status(method, path, "{}").await, 401, "{path}");
    }
    assert_eq!(bench.status("GET", "/", "").await, 200);
    let wrong = r#"{"password":"a bad password"}"#;
    assert_eq!(bench.status("POST", "/api/session", wrong).await, 403);
    let about = text(bench.call("GET", "/api/session", "", &[]).await).await;
    assert_eq!(about, r#"{"signed_in":false}"#);
}

#[tokio::test]
async fn every_answer_is_hardened() {
    let bench = Bench::signed_in().await;
    for path in ["/", "/api/runs", "/nothing"] {
        let response = bench.call("GET", path, "", &[]).await;
        let policy = response.headers()["content-security-policy"]
            .to_str()
            .unwrap();
        assert!(policy.starts_with("default-src 'none'"), "{path}: {policy}");
        assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    }
}

#[tokio::test]
async fn files_of_a_run_and_no_others() {
    let bench = Bench::signed_in().await;
    let folder = bench.dir.path().join("runs/one");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("run.json"), "{}").unwrap();
    std::fs::write(folder.join("report.html"), "<script>1</script>").unwrap();
    std::fs::write(bench.dir.path().join("secret"), "s").unwrap();
    let report = bench
        .call("GET", "/api/runs/one/files/report.html", "", &[])
        .await;
    let policy = report.headers()["content-security-policy"]
        .to_str()
        .unwrap();
    assert!(policy.starts_with("sandbox allow-scripts"), "{policy}");
    assert_eq!(text(report).await, "<script>1</script>");
    for path in [
        "/api/runs/one/files/../../secret",
        "/api/runs/one/files/..%2f..%2fsecret",
        "/api/runs/one/files/%2fetc%2fpasswd",
        "/api/runs/.console/files/one.json",
        "/api/runs/%2e%2e/files/secret",
        "/api/runs/two/files/run.json",
    ] {
        assert_eq!(bench.status("GET", path, "").await, 404, "{path}");
    }
    assert_eq!(
        bench
            .status("DELETE", "/api/runs/one/files/run.json", "")
            .await,
        405
    );
}

#[tokio::test]
async fn a_run_that_is_over_gets_another_name_and_tags() {
    let bench = Bench::signed_in().await;
    let folder = bench.dir.path().join("runs/one");
    std::fs::create_dir(&folder).unwrap();
    let record = r#"{"version":1,"id":"one","name":"old","tags":["hdd"],"state":"completed"}"#;
    std::fs::write(folder.join("run.json"), record).unwrap();
    std::fs::write(folder.join("plan.json"), "{}").unwrap();
    let path = "/api/runs/one";
    let asked = r#"{"name":"new","tags":[" ssd ","ssd","monday"]}"#;
    assert_eq!(bench.status("PATCH", path, asked).await, 204);
    let told = text(bench.call("GET", path, "", &[]).await).await;
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["entry"]["name"], "new");
    assert_eq!(told["entry"]["run"]["tags"], json!(["ssd", "monday"]));
    for (wrong, field) in [
        (r#"{"name":""}"#, "name"),
        (r#"{"name":"a\nb"}"#, "name"),
        (r#"{"name":"a","tags":["x,y"]}"#, "tags"),
    ] {
        let refused = bench.call("PATCH", path, wrong, &[]).await;
        assert_eq!(refused.status(), 400, "{wrong}");
        let refused: serde_json::Value = serde_json::from_str(&text(refused).await).unwrap();
        assert_eq!(refused["field"], field);
    }
    let many: Vec<String> = (0..21).map(|n| format!("\"{n}\"")).collect();
    let many = format!(r#"{{"name":"a","tags":[{}]}}"#, many.join(","));
    assert_eq!(bench.status("PATCH", path, &many).await, 409);
    let unknown = r#"{"name":"a"}"#;
    assert_eq!(bench.status("PATCH", "/api/runs/two", unknown).await, 404);
    let meta = std::fs::read_to_string(folder.join("run.json")).unwrap();
    let under_way = meta.replace("completed", "running");
    std::fs::write(folder.join("run.json"), under_way).unwrap();
    assert_eq!(bench.status("PATCH", path, asked).await, 409);
}

#[tokio::test]
async fn the_store_is_asked_as_its_user_and_within_the_account() {
    let bench = Bench::signed_in().await;
    assert_eq!(bench.status("GET", "/swift/v1/AUTH_test/c", "").await, 401);
    for (key, words) in [
        ("wrong", "no such user"),
        ("busy", "answered 503"),
        ("", "expected text"),
    ] {
        let user = format!(r#"{{"user":"test:tester","key":"{key}"}}"#);
        let refused = bench.call("POST", "/api/store/user", &user, &[]).await;
        assert!(refused.status().is_client_error(), "{key}");
        let told = text(refused).await;
        assert!(told.contains(words) && told.contains(r#""key""#), "{told}");
    }
    let user = r#"{"user":"test:tester","key":"testing"}"#;
    assert_eq!(bench.status("POST", "/api/store/user", user).await, 200);
    let more = [
        ("x-auth-token", "other"),
        ("authorization", "x"),
        ("x-object-meta-a", "b"),
    ];
    let response = bench
        .call("GET", "/swift/v1/AUTH_test/c/o%2Fp?x=1", "", &more)
        .await;
    let headers: HeaderMap = response.headers().clone();
    for name in [
        "set-cookie",
        "www-authenticate",
        "access-control-allow-origin",
    ] {
        assert!(!headers.contains_key(name), "{name}");
    }
    assert_eq!(
        headers["content-security-policy"],
        "sandbox; default-src 'none'"
    );
    assert!(
        headers["content-disposition"]
            .to_str()
            .unwrap()
            .starts_with("attachment")
    );
    let told = text(response).await;
    assert!(
        told.starts_with("/v1/AUTH_test/c/o%2Fp?x=1 \"AUTH_tk1\" "),
        "{told}"
    );
    assert!(told.contains("x-object-meta-a"), "{told}");
    for name in ["cookie", "authorization", "x-cairn-console"] {
        assert!(!told.contains(name), "{told}");
    }
    for path in [
        "/swift/v1/AUTH_other",
        "/swift/v1/AUTH_test2/c",
        "/swift/auth/v1.0",
        "/swift",
    ] {
        assert_eq!(bench.status("GET", path, "").await, 403, "{path}");
    }
    assert_eq!(bench.status("DELETE", "/api/store/user", "").await, 204);
    assert_eq!(bench.status("GET", "/swift/v1/AUTH_test/c", "").await, 401);
}

#[tokio::test]
async fn a_workload_is_judged_before_it_waits() {
    let bench = Bench::signed_in().await;
    let body = r#"{"file_name":"w.xml","text":"<workload>\n<nonsense"}"#;
    let response = bench.call("POST", "/api/runs", body, &[]).await;
    assert_eq!(response.status(), 400);
    let told = text(response).await;
    assert!(
        told.contains(r#""field":"text""#) && told.contains("w.xml:"),
        "{told}"
    );
    assert_eq!(bench.status("POST", "/api/runs", "{").await, 400);
    let long = format!(r#"{{"file_name":"w","text":"{}"}}"#, "x".repeat(5 << 20));
    assert_eq!(bench.status("POST", "/api/runs", &long).await, 400);
    assert_eq!(
        text(bench.call("GET", "/api/runs", "", &[]).await).await,
        "[]"
    );
}

/// Runs have the console's rights, whoever submitted them.
#[tokio::test]
async fn workloads_that_use_local_files_are_refused_unless_allowed() {
    let bench = Bench::signed_in().await;
    let allowed = bench.dir.path().join("allowed");
    std::fs::create_dir(&allowed).unwrap();
    let workload = |storage: &str, operation: &str| {
        format!(
            r#"<workload name="w">{storage}<workflow><workstage name="m">
            <work name="m" workers="1" totalOps="1">{operation}</work></workstage></workflow>
            </workload>"#
        )
    };
    let read = r#"<operation type="read" ratio="100" config="containers=c(1);objects=s(1,1)"/>"#;
    let upload = |folder: &str| {
        let files = format!(
            r#"<operation type="filewrite" ratio="100"
            config="containers=c(1);fileselection=s;files={folder}"/>"#
        );
        workload(r#"<storage type="mock"/>"#, &files)
    };
    let files = |folder: &str| {
        let storage = format!(r#"<storage type="file" config="path={folder}"/>"#);
        workload(&storage, read)
    };
    let to_url = |url: &str| json!({"kind": "url", "url": url});
    let file = json!({"kind": "file"});
    let inside = allowed.join("x").display().to_string();
    for (text, target, status) in [
        (upload("/etc"), file.clone(), 403),
        (files("/var/lib"), file.clone(), 403),
        (workload("", read), to_url("file:/var/lib"), 403),
        (workload("", read), to_url("/var/lib"), 403),
        (upload(&inside), file.clone(), 200),
        (workload("", read), to_url(&format!("file:{inside}")), 200),
    ] {
        for api in ["/api/check", "/api/runs"] {
            let body = json!({"file_name": "w.xml", "text": text, "target": target}).to_string();
            assert_eq!(
                bench.status("POST", api, &body).await,
                status,
                "{api} {body}"
            );
        }
    }
}

#[tokio::test]
async fn a_check_names_what_a_run_would_use() {
    let bench = Bench::signed_in().await;
    let text = r#"<workload name="w"><storage type="swift"/><workflow><workstage name="m">
        <work name="m" workers="1" totalOps="1">
        <operation type="read" ratio="100" config="containers=c(1);objects=s(1,1)"/>
        </work></workstage></workflow></workload>"#;
    let target = json!({"kind": "url", "url": "http://10.1.2.3:8080/auth/v1.0"});
    let body = json!({"file_name": "w.xml", "text": text, "target": target}).to_string();
    let response = bench.call("POST", "/api/check", &body, &[]).await;
    let told = response.into_body().collect(1 << 20).await.unwrap();
    let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
    assert_eq!(told["uses"], json!(["sends to 10.1.2.3:8080"]));
}

#[tokio::test]
async fn who_changes_something_is_told_without_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.log");
    let log = AuditLog::open(file.to_str(), Clock::system()).unwrap();
    let bench = Bench::audited(Some(Arc::new(log)));
    let wrong = r#"{"password":"a hidden guess"}"#;
    assert_eq!(bench.status("POST", "/api/session", wrong).await, 403);
    assert_eq!(bench.status("DELETE", "/api/runs/a", "").await, 401);
    let bench = bench.sign_in().await;
    let user = r#"{"user":"test:tester","key":"hidden"}"#;
    assert_eq!(bench.status("POST", "/api/store/user", user).await, 200);
    let path = "/swift/v1/AUTH_test/c/o%2Fp?signature=hidden";
    assert_eq!(bench.status("GET", path, "").await, 200);
    assert_eq!(bench.status("PUT", path, "hidden").await, 200);
    let text = r#"<workload name="w"><storage type="swift"/><workflow><workstage name="m">
        <work name="m" workers="1" totalOps="1">
        <operation type="read" ratio="100" config="containers=c(1);objects=s(1,1)"/>
        </work></workstage></workflow></workload><!-- hidden -->"#;
    let target = json!({"kind": "url", "url": "http://10.1.2.3:8080/auth/v1.0?token=hidden",
                        "user": "u", "key": "hidden"});
    let body = json!({"file_name": "w.xml", "text": text, "target": target}).to_string();
    assert_eq!(bench.status("POST", "/api/check", &body).await, 200);
    assert_eq!(bench.status("POST", "/api/runs", &body).await, 200);
    let id = bench.router.0.history.list()[0].note.id.clone();
    for (method, path, status) in [
        ("POST", format!("/api/runs/{id}/cancel"), 204),
        ("DELETE", format!("/api/runs/{id}"), 204),
        ("DELETE", format!("/api/runs/{id}"), 404),
        ("DELETE", "/api/store/user".to_owned(), 204),
        ("DELETE", "/api/session".to_owned(), 204),
    ] {
        assert_eq!(bench.status(method, &path, "").await, status, "{path}");
    }
    let submitted = format!("run submit accepted {id} w.xml http://10.1.2.3:8080/auth/v1.0");
    let expected = [
        "console login wrong".to_owned(),
        "run delete refused a".to_owned(),
        "console login accepted".to_owned(),
        "console store login accepted test:tester".to_owned(),
        "console change accepted test:tester PUT /v1/AUTH_test/c/o%2Fp".to_owned(),
        submitted,
        format!("run cancel accepted {id}"),
        format!("run delete accepted {id}"),
        format!("run delete refused {id}"),
        "console store logout accepted test:tester".to_owned(),
        "console logout accepted".to_owned(),
    ];
    let mut text = String::new();
    for _ in 0..1000 {
        text = std::fs::read_to_string(&file).unwrap_or_default();
        if text.lines().count() >= expected.len() && text.ends_with('\n') {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let told = text.lines().map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["address"], "10.0.0.1");
        let names = [
            "action", "outcome", "user", "run", "file", "method", "path", "target",
        ];
        let words = names.iter().filter_map(|name| line[*name].as_str());
        words.collect::<Vec<_>>().join(" ")
    });
    assert_eq!(told.collect::<Vec<_>>(), expected);
    assert!(!text.contains("hidden"), "{text}");
}

/// The request is dropped while the store is slow.
#[tokio::test]
async fn who_leaves_the_console_is_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.log");
    let log = AuditLog::open(file.to_str(), Clock::system()).unwrap();
    let mut request = http::Request::put("/swift/v1/AUTH_test/c")
        .body(Body::empty())
        .unwrap();
    drop(crate::audit::Watched::begin(&Arc::new(log), &mut request));
    let mut text = String::new();
    for _ in 0..1000 {
        text = std::fs::read_to_string(&file).unwrap_or_default();
        if text.ends_with('\n') {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(line["outcome"], "unknown");
    assert_eq!(line["path"], "/v1/AUTH_test/c");
}

/// Heads are sent first on many connections, and then all bodies at once.
#[tokio::test]
async fn a_guess_is_counted_before_its_body_has_come() {
    let (right, guess) = (
        r#"{"password":"a good password"}"#,
        r#"{"password":"a guess"}"#,
    );
    for path in ["/api/session", "/api/store/user"] {
        let bench = Bench::signed_in().await;
        let mut unsent = Vec::new();
        let mut guesses = tokio::task::JoinSet::new();
        for _ in 0..30 {
            let (sender, body) = Body::channel(None, 1);
            let request = bench.request("POST", path, body, &[]);
            let router = Router(bench.router.0.clone());
            guesses.spawn(async move { router.call(request).await.status() });
            unsent.push(sender);
        }
        for _ in 0..20 {
            let refused = guesses.join_next().await.unwrap().unwrap();
            assert_eq!(refused, StatusCode::TOO_MANY_REQUESTS, "{path}");
        }
        let late = bench.status("POST", "/api/session", guess).await;
        assert_eq!(late, 429, "{path}: ten are under way");
        // Connections that were closed have used up their attempts.
        drop(unsent);
        while let Some(ended) = guesses.join_next().await {
            assert_eq!(ended.unwrap(), StatusCode::BAD_REQUEST, "{path}");
        }
        assert_eq!(bench.status("POST", "/api/session", right).await, 429);
    }
}
