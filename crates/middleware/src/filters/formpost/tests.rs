//! Cases beyond `golden.rs`, which compares with Swift's own filter.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::signature::Digest;
use crate::testing::{self, OneOfEach, Seen, filter_in, recorder, request, text};
use cairn_http::{AccountInfo, handler_fn};

fn app(inner: Handler) -> Handler {
    let mut env = testing::env();
    env.info_source = Arc::new(OneOfEach {
        account: Arc::new(AccountInfo {
            meta: [("temp-url-key-2".to_owned(), "key".to_owned())].into(),
            ..AccountInfo::default()
        }),
        ..OneOfEach::default()
    });
    filter_in(&env, "formpost", &[], inner)
}

fn recording() -> (Handler, Seen) {
    let (inner, seen) = recorder(|_| respond::empty(StatusCode::CREATED));
    (app(inner), seen)
}

/// The beginning of a form that allows `count` files of `size` bytes.
fn fields(size: &str, count: &str) -> String {
    let expires = "1700000010";
    let message = format!("/v1/a/c/p/\n\n{size}\n{count}\n{expires}");
    let mac = Digest::Sha512.mac(b"key", message.as_bytes()).unwrap();
    let signature = cairn_types::hex::encode(mac);
    [
        ("max_file_size", size),
        ("max_file_count", count),
        ("expires", expires),
        ("signature", &signature),
    ]
    .map(|(name, value)| {
        format!("--B\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    })
    .concat()
}

fn file(name: &str) -> String {
    format!("--B\r\nContent-Disposition: form-data; name=\"f\"; filename=\"{name}\"\r\n\r\n")
}

fn form(body: impl Into<Body>) -> Request {
    let content_type = [("content-type", "multipart/form-data; boundary=B")];
    let mut form = request("POST", "/v1/a/c/p/", &content_type);
    *form.body_mut() = body.into();
    form
}

#[tokio::test]
async fn files_are_stored_in_the_clusters_name() {
    let (app, seen) = recording();
    let text = format!(
        "{}{}one\r\n{}two\r\n--B--\r\n",
        fields("3", "2"),
        file("1"),
        file("2")
    );
    let answer = app.call(form(text)).await;
    assert_eq!(answer.status(), 201);
    let seen = seen.lock().unwrap();
    for ((parts, body), (path, data)) in seen
        .iter()
        .zip([("/v1/a/c/p/1", "one"), ("/v1/a/c/p/2", "two")])
    {
        assert_eq!(
            (parts.method.as_str(), parts.uri.path(), &body[..]),
            ("PUT", path, data.as_bytes())
        );
        let context = Context::of(parts);
        assert!(context.is_pre_authorized());
        assert_eq!(context.source, Some("FP"));
    }
    assert_eq!(seen.len(), 2);
}

#[tokio::test]
async fn other_posts_pass() {
    let (app, seen) = recording();
    for content_type in [
        "",
        "text/plain; boundary=B",
        "multipart/form-data",
        "multipart/mixed; boundary=B",
    ] {
        app.call(request(
            "POST",
            "/v1/a/c/p/",
            &[("content-type", content_type)],
        ))
        .await;
    }
    assert_eq!(seen.lock().unwrap().len(), 4);
    assert!(
        seen.lock()
            .unwrap()
            .iter()
            .all(|(parts, _)| parts.method == Method::POST)
    );
}

/// An endless file: the PUT fails, so that nothing is stored, and the form ends.
#[tokio::test]
async fn an_endless_file_is_stopped() {
    let stored = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let into = stored.clone();
    let inner = handler_fn(move |request: Request| {
        let into = into.clone();
        async move {
            let mut body = request.into_body();
            while let Some(chunk) = body.next_chunk().await {
                let Ok(chunk) = chunk else {
                    return respond::empty(respond::status(499));
                };
                into.fetch_add(chunk.len() as u64, std::sync::atomic::Ordering::SeqCst);
            }
            respond::empty(StatusCode::CREATED)
        }
    });
    let app = app(inner);
    let (sender, body) = Body::channel(None, 2);
    let feed = async move {
        sender
            .send(format!("{}{}", fields("100000", "1"), file("x")).into())
            .await;
        let chunk = Bytes::from(vec![b'x'; 5000]);
        while sender.send(chunk.clone()).await {}
    };
    let (answer, ()) = tokio::join!(app.call(form(body)), feed);
    assert_eq!(answer.status(), 400);
    assert_eq!(text(answer).await, "FormPost: max_file_size exceeded");
    assert!(stored.load(std::sync::atomic::Ordering::SeqCst) <= 100_000);
}

/// An early error ends the form although its file is still being sent.
#[tokio::test]
async fn a_refusal_is_passed_on_at_once() {
    let inner = handler_fn(|_| async {
        respond::text(StatusCode::PAYLOAD_TOO_LARGE, "Upload exceeds quota.")
    });
    let app = app(inner);
    let (sender, body) = Body::channel(None, 4);
    sender
        .send(format!("{}{}data", fields("100", "1"), file("x")).into())
        .await;
    let answer = app.call(form(body)).await;
    assert_eq!(answer.status(), 413);
    assert_eq!(text(answer).await, "Upload exceeds quota.");
    drop(sender);
}

#[tokio::test]
async fn a_client_that_leaves_stores_nothing() {
    let (inner, seen) = recorder(|_| respond::empty(StatusCode::CREATED));
    let (app, (sender, body)) = (app(inner), Body::channel(None, 4));
    sender
        .send(format!("{}{}half of it", fields("100", "1"), file("x")).into())
        .await;
    drop(sender);
    assert_eq!(app.call(form(body)).await.status(), 499);
    // The recorder stores a failed body as empty.
    assert!(seen.lock().unwrap().iter().all(|(_, body)| body.is_empty()));
}

#[tokio::test]
async fn fields_are_bounded() {
    let (app, seen) = recording();
    let field =
        |n: usize| format!("--B\r\nContent-Disposition: form-data; name=\"n{n}\"\r\n\r\nv\r\n");
    let many: String = (0..300).map(field).collect();
    let answer = app.call(form(format!("{many}--B--"))).await;
    assert_eq!(text(answer).await, "FormPost: too many fields");
    let bad = b"--B\r\nContent-Disposition: form-data; name=\"n\"\r\n\r\n\xff\r\n--B--".to_vec();
    let answer = app.call(form(bad)).await;
    assert_eq!(answer.status(), 400);
    let redirect = "--B\r\nContent-Disposition: form-data; name=\"redirect\"\r\n\r\nhttp://x/\r\nX-A: b\r\n--B--";
    let answer = app.call(form(redirect)).await;
    assert_eq!(answer.status(), 400, "a line break in a header");
    assert!(seen.lock().unwrap().is_empty());
}
