//! Protocol between a controller and its drivers: JSON messages over TLS 1.3, each preceded by its
//! length in four bytes, big-endian.
//!
//! A driver generates a certificate at every start, so certificates prove nothing; authentication
//! uses the shared secret. Both ends prove knowledge of it by an HMAC-SHA256 over their role and 32
//! bytes exported from the TLS session (RFC 8446, 7.5), the controller first. A man in the middle
//! has two sessions with different exports, and can forward neither proof.

use cairn_formats::hmac;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use subtle::ConstantTimeEq;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::drive::{Event, Share};
use crate::plan::{Access, Stage};
use crate::record::HostMeta;
use crate::target::TargetOptions;

/// Version of the messages; both ends must have the same.
pub(super) const VERSION: u32 = 1;
const EXPORT_LABEL: &[u8] = b"EXPORTER-cairn-lab-driver";
/// Maximum size of a message.
const MESSAGE_MAX_BYTES: u32 = 64 << 20;
/// Bytes accepted before authentication.
const PROOF_BYTES: usize = 32;

pub(super) type Proof = [u8; PROOF_BYTES];

/// Messages from the controller.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Command {
    Hello {
        version: u32,
        name: String,
        share: Share,
        seed: u64,
        access: Box<Access>,
        options: TargetOptions,
        #[serde(with = "crate::plan::seconds")]
        resources: std::time::Duration,
        watched: Vec<String>,
    },
    Ping,
    Stage {
        number: u32,
        stage: Box<Stage>,
        /// Time of the driver's clock.
        begin_at: f64,
    },
    EndWork(u32),
    Cancel,
}

/// Messages from a driver.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Welcome {
        host: HostMeta,
    },
    Refused(String),
    Pong {
        at: f64,
    },
    /// A keep-alive.
    Alive,
    Event(Box<Event>),
}

#[derive(Debug, Error)]
pub(super) enum WireError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("a message of {0} bytes: at most {MESSAGE_MAX_BYTES} are read")]
    Large(u32),
    #[error("a message that makes no sense: {0}; are both of the same version?")]
    Message(#[from] serde_json::Error),
    #[error("the shared secret is not the same on both ends")]
    Secret,
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
}

pub(super) async fn send(
    out: &mut (impl AsyncWrite + Unpin),
    message: &impl Serialize,
) -> Result<(), WireError> {
    let text = serde_json::to_vec(message)?;
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    if length > MESSAGE_MAX_BYTES {
        return Err(WireError::Large(length));
    }
    out.write_all(&length.to_be_bytes()).await?;
    out.write_all(&text).await?;
    out.flush().await?;
    Ok(())
}

pub(super) async fn receive<T: DeserializeOwned>(
    input: &mut (impl AsyncRead + Unpin),
) -> Result<T, WireError> {
    let mut length = [0; 4];
    input.read_exact(&mut length).await?;
    let length = u32::from_be_bytes(length);
    if length > MESSAGE_MAX_BYTES {
        return Err(WireError::Large(length));
    }
    let mut text = Vec::new();
    // The buffer grows as data arrives: a length alone allocates nothing.
    input.take(u64::from(length)).read_to_end(&mut text).await?;
    if text.len() < length as usize {
        return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
    }
    Ok(serde_json::from_slice(&text)?)
}

/// The proof that `role` knows the secret in this session.
pub(super) fn proof<Data>(
    connection: &rustls::ConnectionCommon<Data>,
    secret: &str,
    role: &[u8],
) -> Result<Proof, WireError> {
    let export = connection.export_keying_material([0u8; 32], EXPORT_LABEL, None)?;
    Ok(hmac::sha256(
        secret.as_bytes(),
        &[role, &export[..]].concat(),
    ))
}

pub(super) const CONTROLLER: &[u8] = b"controller";
pub(super) const DRIVER: &[u8] = b"driver";

pub(super) async fn send_proof(
    out: &mut (impl AsyncWrite + Unpin),
    proof: Proof,
) -> Result<(), WireError> {
    out.write_all(&proof).await?;
    out.flush().await?;
    Ok(())
}

pub(super) async fn check_proof(
    input: &mut (impl AsyncRead + Unpin),
    expected: Proof,
) -> Result<(), WireError> {
    let mut shown = [0; PROOF_BYTES];
    input.read_exact(&mut shown).await?;
    if bool::from(shown.ct_eq(&expected)) {
        Ok(())
    } else {
        Err(WireError::Secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_come_through_and_giants_do_not() {
        let mut bytes = Vec::new();
        send(&mut bytes, &Command::EndWork(3)).await.unwrap();
        let back: Command = receive(&mut bytes.as_slice()).await.unwrap();
        assert!(matches!(back, Command::EndWork(3)));
        let giant = [0xff; 8];
        let refused = receive::<Command>(&mut giant.as_slice()).await;
        assert!(matches!(refused, Err(WireError::Large(_))));
        let cut = receive::<Command>(&mut &bytes[..bytes.len() - 1]).await;
        assert!(matches!(cut, Err(WireError::Io(_))));
    }
}
