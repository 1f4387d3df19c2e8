//! Certificates for tests of calls by TLS.

use std::sync::Arc;

/// A certificate and its key in files, with the authorities that sign it.
pub(crate) struct Certificate {
    _folder: tempfile::TempDir,
    pub(crate) cert: std::path::PathBuf,
    key: std::path::PathBuf,
}

impl Certificate {
    pub(crate) fn of(name: &str) -> Certificate {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
        let write = |file: &str, label: &str, der: &[u8]| {
            use base64::Engine as _;
            let text = base64::engine::general_purpose::STANDARD.encode(der);
            let path = folder.path().join(file);
            let pem = format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n");
            std::fs::write(&path, pem).unwrap();
            path
        };
        Certificate {
            cert: write("cert.pem", "CERTIFICATE", made.cert.der()),
            key: write("key.pem", "PRIVATE KEY", &made.signing_key.serialize_der()),
            _folder: folder,
        }
    }

    /// Configuration for a listener.
    pub(crate) fn served(&self) -> Arc<cairn_http::tls::ServerTls> {
        let files = cairn_http::tls::TlsFiles {
            pairs: vec![(self.cert.clone(), self.key.clone())],
            client_authorities: None,
        };
        cairn_http::tls::ServerTls::load(files).unwrap()
    }
}
