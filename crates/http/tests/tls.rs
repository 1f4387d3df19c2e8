//! Listeners with TLS, with certificates made for the test.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_http::client::{CallError, Client};
use cairn_http::metrics::Metrics;
use cairn_http::serve::{ServeOptions, serve};
use cairn_http::tls::{ClientTls, ServerTls, TlsFiles, Trust};
use cairn_http::{Body, Context, Request, handler_fn, respond};
use http::StatusCode;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const TIMEOUT: Duration = Duration::from_secs(20);

/// A certificate authority, its certificate in `ca.pem`, and the folder of the certificates it
/// signs.
struct Authority {
    folder: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let cert = params.self_signed(&key).unwrap();
        std::fs::write(folder.path().join("ca.pem"), cert.pem()).unwrap();
        Authority {
            folder,
            issuer: Issuer::new(params, key),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes `file.pem` and `file.key`.
    fn sign(&self, file: &str, names: &[&str]) -> (PathBuf, PathBuf) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(names).unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let paths = (
            self.path(&format!("{file}.pem")),
            self.path(&format!("{file}.key")),
        );
        std::fs::write(&paths.0, cert.pem()).unwrap();
        std::fs::write(&paths.1, key.serialize_pem()).unwrap();
        paths
    }

    fn client(&self, own: Option<(&Path, &Path)>) -> ClientTls {
        ClientTls::new(&Trust::File(self.path("ca.pem")), own).unwrap()
    }
}

struct Server {
    address: SocketAddr,
    tls: Arc<ServerTls>,
    _stop: watch::Sender<bool>,
}

/// Responds with the scheme of the URLs that it would give its client.
async fn server(files: TlsFiles) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = watch::channel(false);
    let service = handler_fn(|request: Request| async move {
        respond::text(StatusCode::OK, Context::of_request(&request).scheme())
    });
    let tls = ServerTls::load(files).unwrap();
    let mut options = ServeOptions::new("test");
    options.tls = Some(tls.clone());
    tokio::spawn(serve(listener, service, options, Metrics::new(), stopped));
    Server {
        address,
        tls,
        _stop: stop,
    }
}

fn files(pairs: &[&(PathBuf, PathBuf)]) -> TlsFiles {
    TlsFiles {
        pairs: pairs.iter().map(|pair| (*pair).clone()).collect(),
        client_authorities: None,
    }
}

/// The body of a response on this connection, which is kept.
async fn ask(socket: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> std::io::Result<String> {
    let asked = async {
        let get = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
        socket.write_all(get).await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"http") && !answer.ends_with(b"https") {
            if socket.read_buf(&mut answer).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        }
        let text = String::from_utf8(answer).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
        Ok(text.rsplit("\r\n").next().unwrap().to_owned())
    };
    tokio::time::timeout(TIMEOUT, asked).await.unwrap()
}

async fn tcp(server: &Server) -> TcpStream {
    TcpStream::connect(server.address).await.unwrap()
}

#[tokio::test]
async fn requests_come_over_tls_and_know_it() {
    let authority = Authority::new();
    let pair = authority.sign("a", &["127.0.0.1"]);
    let server = server(files(&[&pair])).await;
    let client = authority.client(None);
    let mut socket = client
        .connect("127.0.0.1", tcp(&server).await)
        .await
        .unwrap();
    assert_eq!(ask(&mut socket).await.unwrap(), "https");
    assert_eq!(ask(&mut socket).await.unwrap(), "https");
    // The certificate is not valid for another name.
    let other = client.connect("other.example", tcp(&server).await).await;
    assert!(other.is_err());
    let named = client.with_name("other.example").unwrap();
    assert!(
        named
            .connect("127.0.0.1", tcp(&server).await)
            .await
            .is_err()
    );
}

#[tokio::test]
async fn a_request_without_tls_is_told_so() {
    let authority = Authority::new();
    let pair = authority.sign("a", &["127.0.0.1"]);
    let server = server(files(&[&pair])).await;
    let mut plain = tcp(&server).await;
    let get = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    plain.write_all(get).await.unwrap();
    let mut answer = String::new();
    plain.read_to_string(&mut answer).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 400 Bad Request\r\n"),
        "{answer}"
    );
    assert!(answer.ends_with("ask by https://\n"), "{answer}");
}

#[tokio::test]
async fn only_the_cluster_is_answered() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let pair = authority.sign("a", &["127.0.0.1"]);
    let mut files = files(&[&pair]);
    files.client_authorities = Some(authority.path("ca.pem"));
    let server = server(files).await;
    let (cert, key) = authority.sign("own", &["proxy"]);
    let (foreign_cert, foreign_key) = stranger.sign("own", &["proxy"]);
    for (own, is_answered) in [
        (Some((&*cert, &*key)), true),
        (Some((&*foreign_cert, &*foreign_key)), false),
        (None, false),
    ] {
        let client = authority.client(own);
        let answered = async {
            let mut socket = client.connect("127.0.0.1", tcp(&server).await).await?;
            ask(&mut socket).await
        };
        assert_eq!(answered.await.is_ok(), is_answered, "{own:?}");
    }
}

/// A client whose name no certificate matches gets the first.
#[tokio::test]
async fn a_name_has_its_certificate() {
    let authority = Authority::new();
    let first = authority.sign("a", &["a.example"]);
    let second = authority.sign("b", &["*.b.example"]);
    let server = server(files(&[&first, &second])).await;
    let client = authority.client(None);
    let unchecked = ClientTls::new(&Trust::Unchecked, None).unwrap();
    for (name, good) in [
        ("a.example", true),
        ("x.b.example", true),
        ("c.example", false),
    ] {
        let connected = client.connect(name, tcp(&server).await).await;
        assert_eq!(connected.is_ok(), good, "{name}");
        let connected = unchecked.connect(name, tcp(&server).await).await;
        assert!(connected.is_ok(), "{name}");
    }
}

#[tokio::test]
async fn changed_certificates_are_for_new_connections() {
    let (authority, next) = (Authority::new(), Authority::new());
    let pair = authority.sign("a", &["127.0.0.1"]);
    let server = server(files(&[&pair])).await;
    let (old, new) = (authority.client(None), next.client(None));
    let mut kept = old.connect("127.0.0.1", tcp(&server).await).await.unwrap();
    assert_eq!(ask(&mut kept).await.unwrap(), "https");

    // Files that cannot be read do not change the configuration.
    std::fs::write(&pair.0, "no certificate").unwrap();
    server.tls.reload();
    assert!(old.connect("127.0.0.1", tcp(&server).await).await.is_ok());

    let (cert, key) = next.sign("a", &["127.0.0.1"]);
    let later = std::time::SystemTime::now() + Duration::from_secs(9);
    for (from, to) in [(cert, &pair.0), (key, &pair.1)] {
        std::fs::copy(from, to).unwrap();
        let file = std::fs::File::options().write(true).open(to).unwrap();
        file.set_modified(later).unwrap();
    }
    server.tls.reload();
    assert!(new.connect("127.0.0.1", tcp(&server).await).await.is_ok());
    assert!(old.connect("127.0.0.1", tcp(&server).await).await.is_err());
    assert_eq!(ask(&mut kept).await.unwrap(), "https");
}

/// The pooled client uses TLS, also for a connection outside of the pool, and checks a host's name.
#[tokio::test]
async fn calls_go_over_tls() {
    let authority = Authority::new();
    let pair = authority.sign("a", &["127.0.0.1"]);
    let named = authority.sign("b", &["localhost"]);
    let mut files = files(&[&pair, &named]);
    files.client_authorities = Some(authority.path("ca.pem"));
    let server = server(files).await;
    let (cert, key) = authority.sign("own", &["proxy"]);
    let tls = authority.client(Some((&cert, &key)));
    let client = Client::with_tls(TIMEOUT, 1, TIMEOUT, Some(tls));
    for name in ["x-plain", "x-f^195^168"] {
        let mut request = http::Request::get("/x").body(Body::empty()).unwrap();
        let name = http::HeaderName::from_bytes(name.as_bytes()).unwrap();
        let value = http::HeaderValue::from_static("1");
        request.headers_mut().insert(name, value);
        let answer = client.call(server.address, request, TIMEOUT).await;
        let body = answer.unwrap().into_body().collect(100).await.unwrap();
        assert_eq!(body, "https");
    }
    let request = || http::Request::get("/x").body(Body::empty()).unwrap();
    let by_name = client
        .call_by_name("localhost", server.address, request(), TIMEOUT)
        .await;
    assert_eq!(by_name.unwrap().status(), StatusCode::OK);
    // A client without a certificate of the cluster's authority is refused, and so is one without
    // TLS.
    let stranger = Authority::new().client(None);
    let stranger = Client::with_tls(TIMEOUT, 1, TIMEOUT, Some(stranger));
    let refused = stranger.call(server.address, request(), TIMEOUT).await;
    assert!(
        matches!(refused, Err(CallError::Connect { .. })),
        "{refused:?}"
    );
    let plain = Client::new(TIMEOUT, 1, TIMEOUT);
    let answer = plain.call(server.address, request(), TIMEOUT).await;
    assert_eq!(answer.unwrap().status(), StatusCode::BAD_REQUEST);
}

#[test]
fn what_cannot_be_used_is_named() {
    let authority = Authority::new();
    let (cert, key) = authority.sign("a", &["a"]);
    let (_, other) = authority.sign("b", &["b"]);
    let load = |cert: &Path, key: &Path| {
        let pair = (cert.to_owned(), key.to_owned());
        ServerTls::load(files(&[&pair])).unwrap_err().to_string()
    };
    assert!(load(&cert, &other).contains("b.key: not the key of"));
    assert!(load(&key, &key).contains("no certificate"));
    assert!(load(&cert, &authority.path("none")).contains("none: "));
}
