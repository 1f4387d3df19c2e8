//! A store in the same process: the same calls, without a socket.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cairn_client::{
    Accepts, Call, ClientError, Condition, Login, LoginError, Options, Payload, Retries,
    RetryCauses, StoreUrl, Swift, Transport,
};
use cairn_http::{Body, BodyError, Context, Handler, Request, Response, handler_fn, respond};
use http::{HeaderMap, Method, StatusCode};

/// TempAuth, and an account whose objects are in a list; tokens are good for one request.
#[derive(Default)]
struct Store {
    tokens: AtomicU32,
    objects: Mutex<Vec<(String, Bytes)>>,
}

impl Store {
    async fn answer(&self, request: Request) -> Response {
        let (head, body) = request.into_parts();
        let header = |name: &str| {
            let value = head.headers.get(name)?;
            std::str::from_utf8(value.as_bytes()).ok()
        };
        if head.uri.path() == "/auth/v1.0" {
            let mut answer = respond::empty(match header("x-auth-key") {
                Some("kéy") => StatusCode::OK,
                _ => StatusCode::UNAUTHORIZED,
            });
            let token = self.tokens.fetch_add(1, Ordering::Relaxed) + 1;
            let storage = format!("http://{}/v1/AUTH_a", header("host").unwrap());
            respond::set(answer.headers_mut(), "x-auth-token", token.to_string());
            respond::set(answer.headers_mut(), "x-storage-url", storage);
            return answer;
        }
        let token = self.tokens.load(Ordering::Relaxed).to_string();
        if header("x-auth-token") != Some(&*token) {
            return respond::empty(StatusCode::UNAUTHORIZED);
        }
        let path = head.uri.path().to_owned();
        match head.method {
            Method::PUT => {
                let body = body.collect(100).await.unwrap();
                self.objects.lock().unwrap().push((path, body));
                respond::empty(StatusCode::CREATED)
            }
            Method::GET => {
                let text = head.uri.query().unwrap();
                let marker = text.split("marker=").nth(1).unwrap_or("").to_owned();
                let objects = self.objects.lock().unwrap();
                let names = objects.iter().map(|(path, _)| path.rsplit('/').next());
                let after: Vec<_> = names.flatten().filter(|n| **n > *marker).collect();
                let page = after.iter().take(2);
                let rows: Vec<_> = page.map(|n| format!("{{\"name\":\"{n}\"}}")).collect();
                respond::text(StatusCode::OK, format!("[{}]", rows.join(",")))
            }
            _ => respond::empty(StatusCode::NOT_FOUND),
        }
    }
}

async fn swift(key: &str) -> Result<(Swift, Arc<Store>), LoginError> {
    let store = Arc::new(Store::default());
    let own = store.clone();
    let handler = handler_fn(move |request| {
        let store = own.clone();
        async move { store.answer(request).await }
    });
    let transport = Transport::in_process(handler, Context::default(), &Options::default());
    let login = Login::Tempauth {
        url: StoreUrl::parse("http://here:8080/auth/v1.0").unwrap(),
        user: "a:u".into(),
        key: key.into(),
    };
    Ok((Swift::over(transport, login, None).await?, store))
}

#[tokio::test]
async fn a_session_works_as_over_a_network() {
    let (swift, store) = swift("kéy").await.unwrap();
    assert_eq!(swift.account().to_string(), "http://here:8080/v1/AUTH_a");
    for (name, content) in [("a", "1"), ("b c", "2"), ("dir/", "3")] {
        let body = Payload::from(Bytes::from(content));
        let put = swift.put("c", name, HeaderMap::new(), body, Condition::None);
        put.await.unwrap();
    }
    let paths: Vec<String> = store
        .objects
        .lock()
        .unwrap()
        .iter()
        .map(|(path, body)| format!("{path}={}", String::from_utf8_lossy(body)))
        .collect();
    // A slash at the end belongs to a name.
    assert_eq!(
        paths,
        [
            "/v1/AUTH_a/c/a=1",
            "/v1/AUTH_a/c/b%20c=2",
            "/v1/AUTH_a/c/dir/=3"
        ]
    );
    // An expired token is renewed.
    store.tokens.fetch_add(1, Ordering::Relaxed);
    assert!(!swift.delete("c", "x", Condition::None).await.unwrap());
    assert_eq!(store.tokens.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn names_are_read_to_the_end() {
    let (swift, store) = swift("kéy").await.unwrap();
    for name in ["a", "b", "c", "d", "e"] {
        let path = format!("/v1/AUTH_a/{name}");
        store.objects.lock().unwrap().push((path, Bytes::new()));
    }
    let names = swift.names(None, "").await.unwrap();
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
}

#[tokio::test]
async fn a_refused_login_says_so() {
    let refused = swift("other").await.err().unwrap();
    assert!(
        matches!(&refused, LoginError::Refused { user, .. } if user == "a:u"),
        "{refused}"
    );
}

fn patient(handler: Handler, attempts: u32) -> Transport {
    let options = Options {
        answer_timeout: Duration::from_secs(60),
        retries: Retries {
            attempts,
            pause_min: Duration::from_secs(2),
            pause_max: Duration::from_secs(64),
            has_jitter: false,
            causes: RetryCauses::ServerErrors,
        },
        ..Options::default()
    };
    let context = Context {
        allow_reserved: true,
        ..Context::default()
    };
    Transport::in_process(handler, context, &options)
}

#[tokio::test(start_paused = true)]
async fn server_errors_and_broken_bodies_are_repeated_with_a_context_of_their_own() {
    let seen = Arc::new(AtomicU32::new(0));
    let number = seen.clone();
    let handler = handler_fn(move |request: Request| {
        let context = Context::of_request(&request);
        assert!(context.allow_reserved && context.notes.user().is_none());
        context.notes.set_user("u");
        assert_eq!(request.extensions().get::<u8>(), Some(&7));
        let number = number.fetch_add(1, Ordering::Relaxed);
        async move {
            match number {
                0 => respond::text(StatusCode::INSUFFICIENT_STORAGE, "full"),
                1 => {
                    let pieces = [Ok(Bytes::from_static(b"abc")), Err(BodyError::Disconnected)];
                    let stream = futures_util::stream::iter(pieces);
                    Response::new(Body::from_stream(stream, Some(6)))
                }
                2 => std::future::pending().await,
                _ => respond::text(StatusCode::CONFLICT, "abcdef"),
            }
        }
    });
    let transport = patient(handler, 4);
    let url = StoreUrl::in_process("/v1/a/c");
    let mut call = Call {
        accepts: Accepts::Also(&[StatusCode::CONFLICT]),
        ..Call::new(Method::GET)
    };
    call.extensions.insert(7u8);
    let start = tokio::time::Instant::now();
    let answer = transport.fetch(&url, &mut call, 6).await.unwrap();
    assert_eq!(answer.status(), StatusCode::CONFLICT);
    assert_eq!(answer.body(), "abcdef");
    assert_eq!(transport.repeats(), 3);
    // The pauses, and one timeout.
    assert_eq!(start.elapsed().as_secs(), 2 + 4 + 8 + 60);
    // An answer that is larger than it may be is no better when asked for again.
    let error = transport.fetch(&url, &mut call, 5).await.unwrap_err();
    assert!(matches!(error, ClientError::Protocol { .. }), "{error}");
    assert_eq!(seen.load(Ordering::Relaxed), 5);
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_sent_once_and_clients_errors_are_final() {
    let seen = Arc::new(AtomicU32::new(0));
    let number = seen.clone();
    let handler = handler_fn(move |request: Request| {
        number.fetch_add(1, Ordering::Relaxed);
        async move {
            match *request.method() {
                Method::PUT => respond::empty(StatusCode::SERVICE_UNAVAILABLE),
                _ => respond::text(StatusCode::TOO_MANY_REQUESTS, "slow down"),
            }
        }
    });
    let transport = patient(handler, 4);
    let url = StoreUrl::in_process("/v1/a/c/o");
    let stream = futures_util::stream::iter([Ok(Bytes::from_static(b"abc"))]);
    let mut put = Call {
        payload: Payload::Stream(Body::from_stream(stream, None)),
        ..Call::new(Method::PUT)
    };
    let error = transport.call(&url, &mut put).await.unwrap_err();
    assert_eq!(error.status(), Some(StatusCode::SERVICE_UNAVAILABLE));
    let mut get = Call::new(Method::GET);
    let error = transport.call(&url, &mut get).await.unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("429 Too Many Requests (slow down)")
    );
    assert_eq!(seen.load(Ordering::Relaxed), 2);
}
