//! Secrets in logs (CVE-2017-8761). In a test program of its own, since whether a `tracing` target
//! is enabled is decided per process.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::Write;
use std::sync::{Arc, Mutex};

use cairn_http::{Clock, respond};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use common::{PASSWORD, URL_KEY, proxy, secured, start};

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn sign(message: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(URL_KEY.as_bytes()).unwrap();
    mac.update(message.as_bytes());
    cairn_types::hex::encode(mac.finalize().into_bytes())
}

/// With everything logged at the lowest level, with all headers and the metrics: no password, key,
/// token or signature appears.
#[tokio::test]
async fn secrets_reach_neither_logs_nor_metrics() {
    let lines = Lines::default();
    let into = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || into.clone())
        .with_ansi(false)
        .with_env_filter("trace")
        .finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let server = start(secured(proxy()));

    let login = [("x-auth-user", "test:tester"), ("x-auth-key", PASSWORD)];
    let answer = server.get("/auth/v1.0", &login).await;
    let token = respond::header(answer.headers(), "x-auth-token")
        .unwrap()
        .to_owned();
    let wrong = [
        ("x-storage-user", "test:tester"),
        ("x-storage-pass", "wrong-pass-2"),
    ];
    assert_eq!(server.get("/auth/v1.0", &wrong).await.status(), 401);

    let auth = ("x-auth-token", token.as_str());
    for name in [
        "X-Account-Meta-Temp-URL-Key",
        "X-Account-Meta-Temp-URL-Key-2",
    ] {
        let headers = [auth, (name, "new-url-key-3")];
        let answer = server.ask("POST", "/v1/AUTH_test", &headers, "").await;
        assert_eq!(answer.status(), 200);
    }
    for name in ["X-Container-Meta-Temp-URL-Key", "X-Container-Sync-Key"] {
        let headers = [("x-storage-token", token.as_str()), (name, "new-url-key-3")];
        let answer = server.ask("PUT", "/v1/AUTH_test/c", &headers, "").await;
        assert_eq!(answer.status(), 201);
    }
    let service = [auth, ("x-service-token", token.as_str())];
    assert_eq!(
        server.get("/v1/AUTH_test/c/o", &service).await.status(),
        200
    );

    let until = Clock::system().now().secs() + 100;
    let path = "/v1/AUTH_test/c/o";
    let signature = sign(&format!("GET\n{until}\n{path}"));
    let url = format!("{path}?temp_url_sig={signature}&temp_url_expires={until}");
    let referer = format!("http://store.example{url}");
    let answer = server.get(&url, &[("referer", &referer)]).await;
    assert_eq!(answer.status(), 200);
    let refused = server.get(&url.replace("/o?", "/p?"), &[]).await;
    assert_eq!(refused.status(), 401);

    let form_signature = sign(&format!("/v1/AUTH_test/c/\n\n10\n1\n{until}"));
    let until = until.to_string();
    let fields = [
        ("max_file_size", "10"),
        ("max_file_count", "1"),
        ("expires", &until),
        ("signature", &form_signature),
    ];
    let mut form = fields
        .map(|(name, value)| {
            format!("--B\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        })
        .concat();
    form.push_str(
        "--B\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\nx\r\n--B--",
    );
    let headers = [("content-type", "multipart/form-data; boundary=B")];
    let answer = server
        .ask("POST", "/v1/AUTH_test/c/", &headers, &form)
        .await;
    assert_eq!(answer.status(), 201);

    let metrics = server.metrics.encode();
    let log = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert!(
        log.contains("temp_url_sig") && log.contains("X-Auth-Key"),
        "the log is empty: {log}"
    );
    for (what, secret) in [
        ("the password", PASSWORD),
        ("a wrong password", "wrong-pass-2"),
        ("the account's key", URL_KEY),
        ("a new key", "new-url-key-3"),
        // Its end may be padding, which is escaped in lines.
        ("the token", &token[..60]),
        ("the URL's signature", &signature),
        ("the form's signature", &form_signature),
    ] {
        for (place, text) in [("log", &log), ("metrics", &metrics)] {
            let line = text.lines().find(|line| line.contains(secret));
            assert!(line.is_none(), "{what} is in the {place}: {line:?}");
        }
    }
    // Exactly the configured prefix, which identifies tokens, and no more.
    assert!(log.contains(&token[..16]) && !log.contains(&token[..17]));
    assert!(log.contains(&signature[..16]) && !log.contains(&signature[..17]));
}
