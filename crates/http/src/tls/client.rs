//! TLS for calls to other servers.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{ReadAhead, Slices, TlsError, authorities, certified_key, provider};

/// Certificate authorities that are trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// The operating system's authorities.
    #[default]
    System,
    /// The authorities in this file, and no others.
    File(PathBuf),
    /// Certificates are not checked, for users who ask for that (`--insecure`).
    Unchecked,
}

/// TLS configuration for calls. Cheap to clone.
#[derive(Clone)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    /// The name that servers' certificates must have, instead of the name they are called by.
    name: Option<ServerName<'static>>,
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls")
            .field("name", &self.name)
            .finish()
    }
}

impl ClientTls {
    /// `own` is the certificate, and its key, for servers that request a client certificate.
    ///
    /// # Errors
    /// `File` if one cannot be read, has nothing of its kind, or the key is not the certificate's.
    pub fn new(trust: &Trust, own: Option<(&Path, &Path)>) -> Result<ClientTls, TlsError> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?;
        let builder = match trust {
            Trust::File(path) => builder.with_root_certificates(authorities(path)?),
            Trust::System => {
                let mut roots = RootCertStore::empty();
                // The system's store may contain some that rustls does not accept.
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                builder.with_root_certificates(roots)
            }
            Trust::Unchecked => {
                let verifier = AnyCertificate::new(provider());
                let builder = builder.dangerous();
                builder.with_custom_certificate_verifier(Arc::new(verifier))
            }
        };
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let key = Arc::new(certified_key(cert, key)?);
                builder.with_client_cert_resolver(Arc::new(OwnCertificate(key)))
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(ClientTls {
            config: Arc::new(config),
            name: None,
        })
    }

    /// Requires servers' certificates to have this name, whatever name they are called by.
    ///
    /// # Errors
    /// `Name` for a text that is no host name.
    pub fn with_name(mut self, name: &str) -> Result<ClientTls, TlsError> {
        let wrong = || TlsError::Name(name.to_owned());
        self.name = Some(ServerName::try_from(name.to_owned()).map_err(|_| wrong())?);
        Ok(self)
    }

    /// Performs the TLS handshake on a connection to `host`, a name or an address.
    ///
    /// # Errors
    /// A `host` that is no name or address, and a handshake that fails: for a bad certificate, say.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        host: &str,
        socket: S,
    ) -> std::io::Result<Slices<TlsStream<ReadAhead<S>>>> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
                .map_err(std::io::Error::other)?,
        };
        let connector = TlsConnector::from(self.config.clone());
        let stream = connector.connect(name, ReadAhead::new(socket)).await?;
        Ok(Slices::new(stream))
    }
}

/// Presents one certificate to every server that requests one.
#[derive(Debug)]
struct OwnCertificate(Arc<rustls::sign::CertifiedKey>);

impl rustls::client::ResolvesClientCert for OwnCertificate {
    fn resolve(
        &self,
        _authorities: &[&[u8]],
        _schemes: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// A verifier that accepts any certificate. Signatures are still checked.
#[derive(Debug)]
pub struct AnyCertificate(Arc<CryptoProvider>);

impl AnyCertificate {
    pub fn new(provider: Arc<CryptoProvider>) -> AnyCertificate {
        AnyCertificate(provider)
    }
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.0.signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}
