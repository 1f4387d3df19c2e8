//! Certificates made for a test, and requests that show them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cairn_http::Body;
use cairn_http::client::{CallError, Client};
use cairn_http::tls::{ClientTls, Trust};
use http::{HeaderMap, StatusCode};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

const PATIENCE: Duration = Duration::from_secs(20);

/// A certificate authority and the folder of what it signed, its own certificate in `ca.pem`.
pub(crate) struct Authority {
    folder: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let cert = params.self_signed(&key).unwrap();
        std::fs::write(folder.path().join("ca.pem"), cert.pem()).unwrap();
        let issuer = Issuer::new(params, key);
        Authority { folder, issuer }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes `file.pem` and `file.key`.
    pub(crate) fn sign(&self, file: &str, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let paths = (
            self.path(&format!("{file}.pem")),
            self.path(&format!("{file}.key")),
        );
        std::fs::write(&paths.0, cert.pem()).unwrap();
        std::fs::write(&paths.1, key.serialize_pem()).unwrap();
        paths
    }
}

/// A client that trusts the authorities of this file, and shows a certificate with its key.
pub(crate) fn client(ca: &Path, own: Option<&(PathBuf, PathBuf)>) -> Client {
    let own = own.map(|(cert, key)| (cert.as_path(), key.as_path()));
    let tls = ClientTls::new(&Trust::File(ca.to_owned()), own).unwrap();
    Client::with_tls(PATIENCE, 1, PATIENCE, Some(tls))
}

/// A client without TLS.
pub(crate) fn plain() -> Client {
    Client::new(PATIENCE, 1, PATIENCE)
}

/// Status, body and headers of the answer to a request without content.
pub(crate) fn ask(
    client: &Client,
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> Result<(StatusCode, Vec<u8>, HeaderMap), CallError> {
    let mut request = http::Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::empty()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let answer = client.call(address, request, PATIENCE).await?;
        let (head, body) = answer.into_parts();
        let body = body.collect(100_000).await.unwrap();
        Ok((head.status, body.to_vec(), head.headers))
    })
}
