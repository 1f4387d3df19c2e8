use std::collections::BTreeMap;

use cairn_client::{Login, StoreUrl};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::store::EMPTY_ETAG;

#[test]
fn names_fit_by_their_bytes_and_by_their_encoded_form() {
    let limits = NameLimits {
        name_bytes: 4096,
        request_line_bytes: 8192,
        header_bytes: 8192,
    };
    assert!(limits.fits(&"a".repeat(3900), 20));
    assert!(!limits.fits(&"a".repeat(4097), 20));
    assert!(!limits.fits(&"a".repeat(4096), 20), "a listing has two");
    // Two bytes each, six when encoded.
    assert!(!limits.fits(&"é".repeat(700), 20));
    assert!(limits.fits(&"é".repeat(650), 20));
    let long = NameLimits {
        request_line_bytes: 100_000,
        ..limits
    };
    assert!(long.fits(&"a".repeat(4096), 20));
    assert!(!long.fits(&"é".repeat(1400), 20), "a copy's header");
}

/// The container `c` of a store whose `/info` says this.
async fn store_with(account: &str, info: &str) -> SwiftStore {
    let variables = BTreeMap::from([("OS_STORAGE_URL", account), ("OS_AUTH_TOKEN", "token")]);
    let login = Login::from_environment(|name| variables.get(name).map(|v| (*v).to_owned()));
    let options = options(Duration::from_secs(5));
    let url = StoreUrl::parse(account).unwrap();
    let swift = Swift::connect(login.unwrap(), Some(url), &options).await;
    let capabilities = Capabilities::parse(info.as_bytes()).unwrap();
    SwiftStore::new(swift.unwrap(), "c", &capabilities, "gold")
}

/// Answers of a store in which one server has missed the last commit, and is the one that is asked
/// first: only a request for the newest version finds it.
async fn answer(mut stream: TcpStream, asked: Arc<Mutex<Vec<String>>>) {
    let mut head = Vec::new();
    while let Ok(byte) = stream.read_u8().await {
        head.push(byte);
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        let text = String::from_utf8(std::mem::take(&mut head)).unwrap();
        let text = text.to_ascii_lowercase();
        let is_newest = text.contains("x-newest: true");
        let etag = if is_newest { "new" } else { "old" };
        let is_read = text.starts_with("get");
        let (status, body) = match is_read {
            true if text.contains(&format!("if-match: \"{etag}\"")) => (206, "bytes"),
            true => (412, ""),
            false => (200, ""),
        };
        let length = if is_read { body.len() } else { 5 };
        asked.lock().push(text);
        let answer = format!(
            "HTTP/1.1 {status} Status\r\nETag: \"{etag}\"\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_missed_a_commit_is_not_believed_also_where_nothing_is_decided() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let account = format!("http://{}/v1/a", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, seen.clone()));
        }
    });
    let store = store_with(&account, "{}").await;
    assert!(!store.decides());
    assert_eq!(store.head("f").await.unwrap().etag, "new");
    let object = ObjectName::new("c", "f");
    let read = store.read(&object, Some("new"), 0, 5).await.unwrap();
    assert_eq!(read.concat(), b"bytes");
    store.check("f", Expect::Version("new")).await.unwrap();
    let changed = store.check("f", Expect::Version("old")).await.unwrap_err();
    assert_eq!(changed.why, Why::Changed);
    let first_read = asked.lock().iter().position(|text| text.starts_with("get"));
    let first_read = asked.lock()[first_read.unwrap()].clone();
    assert!(!first_read.contains("x-newest"), "{first_read}");
}

/// Answers of a store with a link, which shows the object that it leads to.
async fn answer_of_link(mut stream: TcpStream) {
    let mut head = Vec::new();
    while let Ok(byte) = stream.read_u8().await {
        head.push(byte);
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        head.clear();
        let answer = "HTTP/1.1 200 OK\r\nETag: \"d41d8cd98f00b204e9800998ecf8427e\"\r\n\
                      X-Symlink-Target: c/.segments/links/x\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
}

#[tokio::test]
async fn a_link_has_the_version_that_conditions_of_writes_are_held_against() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let account = format!("http://{}/v1/a", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer_of_link(stream));
        }
    });
    for (info, version) in [
        (
            r#"{"policies":["gold"],"links":true}"#,
            "c/.segments/links/x",
        ),
        (r#"{"policies":["gold"]}"#, EMPTY_ETAG),
        (r#"{"policies":["other"],"links":true}"#, EMPTY_ETAG),
    ] {
        let store = store_with(&account, &format!("{{\"conditional_writes\":{info}}}")).await;
        assert_eq!(store.head_link("f").await.unwrap().etag, version, "{info}");
        assert_eq!(store.tells_links(), version != EMPTY_ETAG, "{info}");
    }
}
