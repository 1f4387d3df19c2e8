use std::net::SocketAddr;

use cairn_http::{Body, handler_fn, respond};
use cairn_index::{ContainerRow, IndexConfig, NewDb};
use cairn_types::PolicySet;
use http::{Method, StatusCode};

use super::*;
use crate::testing::write_rings;

/// Servers that list two objects in every container, and say what they are asked.
fn servers(backends: &Backends) -> Arc<Mutex<Vec<String>>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    for port in [6201, 6202, 6203] {
        let seen = seen.clone();
        let handler = handler_fn(move |request: cairn_http::Request| {
            let uri = request.uri().clone();
            let answer = if request.method() == Method::DELETE {
                let path = uri.path().splitn(4, '/').nth(3).unwrap_or_default();
                let tells = request.headers().contains_key("x-account-override-deleted")
                    || request.headers().contains_key("x-container-host");
                seen.lock().push(format!("{path} {tells}"));
                respond::text(StatusCode::NO_CONTENT, "")
            } else if uri.query().unwrap_or_default().ends_with("marker=") {
                let listing = r#"[{"name": "o1"}, {"name": "o \u00e9"}]"#;
                let mut response = respond::typed(
                    StatusCode::OK,
                    "application/json",
                    Body::full(listing.as_bytes()),
                );
                respond::set(
                    response.headers_mut(),
                    "x-backend-storage-policy-index",
                    "0",
                );
                response
            } else {
                respond::typed(StatusCode::OK, "application/json", "[]")
            };
            async move { answer }
        });
        backends.register_local(SocketAddr::from(([127, 0, 0, 1], port)), handler);
    }
    seen
}

fn row(name: &str) -> ContainerRow {
    ContainerRow {
        name: name.into(),
        put_timestamp: "0000000002.00000".into(),
        delete_timestamp: "0".into(),
        object_count: 2,
        bytes_used: 5,
        deleted: false,
        storage_policy_index: 0,
    }
}

#[tokio::test]
async fn a_deleted_account_is_emptied() {
    let folder = tempfile::tempdir().unwrap();
    write_rings(folder.path());
    let rings = Rings::open(folder.path(), &PolicySet::single()).unwrap();
    let root = folder.path().join("dev");
    let hash_path = HashPath::new("", "end");
    let pool = IndexPool::new(IndexConfig::new(&root));
    let partition = rings.account().partition(&hash_path, "a", None, None);
    let containers: Vec<String> = (0..6).map(|number| format!("c{number}")).collect();
    for device in ["d1", "d2", "d3"] {
        std::fs::create_dir_all(root.join(device)).unwrap();
        let db = pool.account(&hash_path, device, &partition.to_string(), "a");
        let new = NewDb::Account {
            account: "a".into(),
            put_timestamp: "0000000001.00000".into(),
        };
        let rows = containers.iter().map(|name| row(name)).collect();
        db.merge_items(Some(new), rows).await.unwrap();
    }
    let backends = Backends::new(Duration::from_secs(1));
    let seen = servers(&backends);
    let reaper = |port: &str, delay: &str| {
        let section = Section::from_pairs(
            "account-reaper",
            &[
                ("mount_check", "no"),
                ("bind_port", port),
                ("delay_reaping", delay),
            ],
        );
        let config = AccountReaperConfig::read(&section).unwrap();
        let (rings, pool, backends) = (rings.clone(), pool.clone(), backends.clone());
        AccountReaper::new(config, hash_path.clone(), rings, pool, backends)
    };
    // Not deleted, or not for long enough: nothing is touched.
    assert_eq!(reaper("6201", "0").pass().await, ReaperStats::default());
    let now = (pool.config().clock)().internal();
    for device in ["d1", "d2", "d3"] {
        let db = pool.account(&hash_path, device, &partition.to_string(), "a");
        let now = now.clone();
        db.write(None, move |broker| broker.delete_db(&now))
            .await
            .unwrap();
    }
    assert_eq!(reaper("6201", "3600").pass().await, ReaperStats::default());
    assert!(seen.lock().is_empty());

    // Each primary has its share; together they do all, once.
    let mut containers_deleted = 0;
    for port in ["6201", "6202", "6203"] {
        let stats = reaper(port, "0").pass().await;
        assert_eq!(stats.accounts, 1);
        assert_eq!(stats.objects_deleted, 2 * stats.containers_deleted);
        containers_deleted += stats.containers_deleted;
    }
    assert_eq!(containers_deleted, 6);
    let mut seen = std::mem::take(&mut *seen.lock());
    seen.sort();
    let mut expected: Vec<String> = Vec::new();
    for name in &containers {
        for path in ["", "/o1", "/o%20%C3%A9"] {
            expected.extend(std::iter::repeat_n(format!("a/{name}{path} true"), 3));
        }
    }
    expected.sort();
    assert_eq!(seen, expected);
}

#[test]
fn options() {
    let read = |pairs: &[(&str, &str)]| {
        let section = Section::from_pairs("account-reaper", pairs);
        AccountReaperConfig::read(&section).map_err(|error| error.to_string())
    };
    let defaults = read(&[]).unwrap();
    assert_eq!(Some(defaults.own), OwnAddress::of("0.0.0.0", Some(6202)));
    assert_eq!(defaults.interval, Duration::from_secs(3600));
    assert_eq!(defaults.concurrency, 25);
    assert!(
        read(&[("concurrency", "0")])
            .unwrap_err()
            .contains("1 to 1024")
    );
    assert!(read(&[("delay_reaping", "later")]).is_err());
}
