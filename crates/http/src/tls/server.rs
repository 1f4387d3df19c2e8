//! A listener's certificates, chosen by the requested server name (SNI) and reloaded when their
//! files change.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, RwLock};
use rustls::ServerConfig;
use rustls::client::verify_server_name;
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;
use tracing::{error, info};

use super::{TlsError, authorities, certified_key, provider};

/// Interval of checks for changed files.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Paths of certificates and keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate chains and their keys. A client gets the first that is valid for the name it
    /// requests, or else the first of all.
    pub pairs: Vec<(PathBuf, PathBuf)>,
    /// If set, clients must present a certificate of one of these authorities.
    pub client_authorities: Option<PathBuf>,
}

impl TlsFiles {
    fn all(&self) -> impl Iterator<Item = &Path> {
        let pairs = self.pairs.iter().flat_map(|(cert, key)| [cert, key]);
        pairs.chain(&self.client_authorities).map(PathBuf::as_path)
    }

    /// Modification time of each file; `None` for a missing one.
    fn times(&self) -> Vec<Option<SystemTime>> {
        let time = |path: &Path| std::fs::metadata(path).and_then(|m| m.modified()).ok();
        self.all().map(time).collect()
    }
}

/// A listener's TLS configuration.
pub struct ServerTls {
    files: TlsFiles,
    config: RwLock<Arc<ServerConfig>>,
    /// Modification times at the last load, whether that succeeded or not.
    seen: Mutex<Vec<Option<SystemTime>>>,
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerTls").field(&self.files).finish()
    }
}

impl ServerTls {
    /// Loads the files.
    ///
    /// # Errors
    /// `File` if one cannot be read, has nothing of its kind, or a key is not its certificate's.
    pub fn load(files: TlsFiles) -> Result<Arc<ServerTls>, TlsError> {
        let seen = Mutex::new(files.times());
        let config = RwLock::new(config(&files)?);
        Ok(Arc::new(ServerTls {
            files,
            config,
            seen,
        }))
    }

    /// The acceptor for the next connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        let config = self.config.read();
        TlsAcceptor::from(config.clone())
    }

    /// Reloads the files if they have changed. If they cannot be used, the old ones stay.
    pub fn reload(&self) {
        let times = self.files.times();
        let mut seen = self.seen.lock();
        if *seen == times {
            return;
        }
        match config(&self.files) {
            Ok(config) => {
                *self.config.write() = config;
                info!(files = ?self.files.pairs, "new connections have the changed certificates");
            }
            Err(error) => {
                error!(%error, "changed certificates cannot be used; those before stay in use");
            }
        }
        *seen = times;
    }

    /// Checks for changed files until it is dropped.
    pub(crate) async fn follow(self: Arc<Self>) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let tls = self.clone();
            let _ = tokio::task::spawn_blocking(move || tls.reload()).await;
        }
    }
}

fn config(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let keys = files
        .pairs
        .iter()
        .map(|(cert, key)| certified_key(cert, key).map(Arc::new))
        .collect::<Result<Vec<_>, _>>()?;
    let builder =
        ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match &files.client_authorities {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let verifier =
                WebPkiClientVerifier::builder_with_provider(authorities(path)?, provider())
                    .build()
                    .map_err(|error| super::file_error(path, error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(ByName(keys)));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Chooses a certificate by the name that a client requests.
#[derive(Debug)]
struct ByName(Vec<Arc<CertifiedKey>>);

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().filter(|_| self.0.len() > 1);
        let name = name.and_then(|name| ServerName::try_from(name).ok());
        let fits = |key: &&Arc<CertifiedKey>| {
            let parsed = key.end_entity_cert().ok();
            let parsed = parsed.and_then(|cert| ParsedCertificate::try_from(cert).ok());
            let valid = |cert| name.as_ref().map(|name| verify_server_name(&cert, name));
            parsed.and_then(valid).is_some_and(|valid| valid.is_ok())
        };
        self.0.iter().find(fits).or(self.0.first()).cloned()
    }
}
