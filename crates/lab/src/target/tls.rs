//! TLS towards stores: the system's certificates, a file's, or none checked.

use std::sync::Arc;

use cairn_http::tls::AnyCertificate;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use rustls::{ClientConfig, RootCertStore};

use super::{TargetError, TargetOptions};

pub(crate) fn client_config(options: &TargetOptions) -> Result<Arc<ClientConfig>, TargetError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| TargetError::Other(format!("TLS: {error}")))?;
    if options.insecure {
        let verifier = Arc::new(AnyCertificate::new(provider));
        let config = builder
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        return Ok(Arc::new(config));
    }
    let mut roots = RootCertStore::empty();
    match &options.ca {
        Some(path) => {
            let wrong = |why: String| TargetError::Setting {
                key: "--ca".into(),
                value: path.display().to_string(),
                why,
            };
            let certificates =
                CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
                roots
                    .add(certificate)
                    .map_err(|error| wrong(error.to_string()))?;
            }
        }
        None => {
            for certificate in rustls_native_certs::load_native_certs().certs {
                // The system's store may hold some that rustls does not take.
                let _ = roots.add(certificate);
            }
        }
    }
    Ok(Arc::new(
        builder.with_root_certificates(roots).with_no_client_auth(),
    ))
}
