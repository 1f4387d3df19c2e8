use cairn_formats::ini::Section;
use cairn_http::respond;
use cairn_http::service::handler_fn;
use cairn_types::PolicySet;
use parking_lot::Mutex;

use super::*;
use crate::testing::write_rings;

const NOW: u64 = 1_700_000_000;

/// An expirer over a queue of one container, `1699920000`, with these entries; and what it asked.
fn expirer(
    entries: &'static [(&'static str, &'static str)],
    pairs: &[(&str, &str)],
    answer: StatusCode,
) -> (Arc<ObjectExpirer>, Arc<Mutex<Vec<String>>>) {
    let folder = tempfile::tempdir().unwrap();
    write_rings(folder.path());
    let policies = PolicySet::single();
    let rings = Rings::open(folder.path(), &policies).unwrap();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let backends = Backends::new(Duration::from_secs(1));
    let log = asked.clone();
    let container_server = handler_fn(move |request: Request| {
        let path = request.uri().path().to_owned();
        log.lock().push(format!("entry {path}"));
        async { respond::text(StatusCode::NO_CONTENT, "") }
    });
    for port in [6201, 6202, 6203] {
        let address = ([127, 0, 0, 1], port).into();
        backends.register_local(address, container_server.clone());
    }
    let log = asked.clone();
    let pipeline = handler_fn(move |request: Request| {
        let uri = request.uri().clone();
        let path = uri.path();
        let first = uri.query().is_some_and(|q| q.ends_with("marker="));
        let listing = |names: &[(&str, &str)]| {
            let rows: Vec<Value> = names
                .iter()
                .map(|(name, kind)| json!({"name": name, "content_type": kind}))
                .collect();
            respond::text(StatusCode::OK, Value::from(rows).to_string())
        };
        let response = match (request.method().as_str(), path) {
            ("GET", _) if !first => listing(&[]),
            ("GET", "/v1/.expiring_objects") => listing(&[("1699920000", ""), ("1800000000", "")]),
            ("GET", _) => listing(entries),
            (method, path) => {
                let only_if = request.headers().get("x-if-delete-at").is_some();
                let line = format!("{method} {path} {only_if}");
                log.lock().push(line);
                respond::text(answer, "")
            }
        };
        async { response }
    });
    let cache = folder.path().to_str().unwrap().to_owned();
    let mut all = vec![("recon_cache_path", &*cache)];
    all.extend(pairs);
    let section = Section::from_pairs("object-expirer", &all);
    let parts = ExpirerParts {
        client: InternalClient::new(pipeline, "Swift Object Expirer", 1),
        auto_create_account_prefix: ".".into(),
        hash_path: HashPath::new(b"".to_vec(), b"changeme".to_vec()),
        rings,
        backends,
        clock: Clock::manual(Timestamp::from_secs(NOW)),
    };
    let config = ObjectExpirerConfig::read(&section, true).unwrap();
    (ObjectExpirer::new(config, parts), asked)
}

fn lines(asked: &Mutex<Vec<String>>, start: &str) -> Vec<String> {
    let asked = asked.lock();
    let mut lines: Vec<String> = asked
        .iter()
        .filter(|line| line.starts_with(start))
        .cloned()
        .collect();
    lines.sort();
    lines
}

#[tokio::test]
async fn what_is_due_is_deleted_and_taken_off() {
    let entries = &[
        ("1699999999-AUTH_a/c/due", "text/plain"),
        ("1699999999-AUTH_a/c/now", "application/async-deleted"),
        ("1700000001-AUTH_a/c/later", "text/plain"),
    ];
    let (expirer, asked) = expirer(entries, &[], StatusCode::NO_CONTENT);
    let stats = expirer.pass().await;
    assert_eq!((stats.expired, stats.errors), (2, 0));
    assert_eq!(
        lines(&asked, "DELETE"),
        [
            "DELETE /v1/AUTH_a/c/due true",
            "DELETE /v1/AUTH_a/c/now false"
        ]
    );
    let removed = lines(&asked, "entry");
    // From three container servers each.
    assert_eq!(removed.len(), 6, "{removed:?}");
    assert!(removed[0].ends_with("/.expiring_objects/1699920000/1699999999-AUTH_a/c/due"));
}

#[tokio::test]
async fn what_cannot_be_deleted_stays_queued_for_the_reclaim_age() {
    let entries = &[
        ("1690000000-AUTH_a/c/old", "text/plain"),
        ("1699999999-AUTH_a/c/new", "text/plain"),
    ];
    let (expirer, asked) = expirer(entries, &[], StatusCode::PRECONDITION_FAILED);
    let stats = expirer.pass().await;
    assert_eq!((stats.expired, stats.errors), (1, 1));
    assert!(lines(&asked, "entry").iter().all(|l| l.ends_with("/old")));
    let (expirer, asked) = self::expirer(entries, &[], StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(expirer.pass().await.errors, 2);
    assert!(lines(&asked, "entry").is_empty());
}

#[tokio::test]
async fn processes_share_and_delays_wait() {
    let entries = &[
        ("1699999990-AUTH_a/c/1", "text/plain"),
        ("1699999990-AUTH_a/c/2", "text/plain"),
        ("1699999990-AUTH_a/c/3", "text/plain"),
        ("1699999990-AUTH_a/c/4", "text/plain"),
    ];
    let mut all = 0;
    for process in ["0", "1", "2"] {
        let pairs = [("processes", "3"), ("process", process)];
        let (expirer, _) = expirer(entries, &pairs, StatusCode::NO_CONTENT);
        all += expirer.pass().await.expired;
    }
    assert_eq!(all, 4);
    let pairs = [("delay_reaping_AUTH_a", "60")];
    let (expirer, _) = expirer(entries, &pairs, StatusCode::NO_CONTENT);
    assert_eq!(expirer.pass().await, ExpirerStats::default());
}

#[tokio::test]
async fn an_empty_container_of_the_queue_is_removed() {
    let (expirer, asked) = expirer(&[], &[], StatusCode::NO_CONTENT);
    expirer.pass().await;
    assert_eq!(
        lines(&asked, "DELETE"),
        ["DELETE /v1/.expiring_objects/1699920000 false"]
    );
}
