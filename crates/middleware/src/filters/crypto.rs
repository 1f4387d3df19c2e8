//! Encryption at rest: objects are encrypted on their way to the object servers, and decrypted on
//! their way back, so that disks, the servers' network and container databases hold ciphertext.
//!
//! Two filters, as in Swift: `keymaster` derives keys from root secrets (`keymaster.rs`), and
//! `encryption` uses them (`encrypter.rs` for requests, `decrypter.rs` for responses). Encrypted
//! are content, values of user metadata, the content's ETag and that of the container's row; not
//! names, sizes, content types and timestamps.
//!
//! With `authenticated`, content and values are sealed by authenticated encryption instead
//! (`sealed.rs`, `open.rs`): changes are detected, but Swift cannot read them.
//!
//! Keys of sealed objects can be re-wrapped under another root secret while the content stays
//! (`rekey.rs`, `kept.rs`).
//!
//! Otherwise the format is Swift's own, and each program can read what the other wrote: see
//! `docs/encryption.md`.

mod cipher;
mod conditions;
mod decrypter;
mod encrypter;
mod kept;
mod keymaster;
mod keys;
mod listing;
mod md5_pair;
mod multipart;
mod open;
mod rekey;
mod sealed;
mod status;
mod upload;

pub(crate) use encrypter::make as make_encryption;
pub(crate) use keymaster::{make as make_keymaster, make_kmip, make_kms};

use cairn_formats::crypto_meta::BadMeta;
use cairn_http::{Response, respond};
use http::StatusCode;
use thiserror::Error;

/// Header with the object's own ETag, encrypted.
const ETAG: &str = "x-object-sysmeta-crypto-etag";
/// Header with the ETag's HMAC, against which object servers evaluate conditional requests.
const ETAG_MAC: &str = "x-object-sysmeta-crypto-etag-mac";
/// Header with the crypto metadata of the content.
const BODY_META: &str = "x-object-sysmeta-crypto-body-meta";
/// Header with the id of the key that encrypts the metadata.
const METADATA_META: &str = "x-object-transient-sysmeta-crypto-meta";
/// Prefix, before the short name, of an encrypted value of user metadata.
const METADATA_PREFIX: &str = "x-object-transient-sysmeta-crypto-meta-";
/// Header that marks content in sealed segments, whose ranges only the filter can read.
const SEALED_MARK: &str = "x-object-sysmeta-crypto-sealed";
/// Size in the container's row, instead of the length of the sealed content.
const ROW_SIZE: &str = "x-object-sysmeta-container-update-override-size";
/// ETag in the container's row, instead of the object's own.
const ROW_ETAG: &str = "x-object-sysmeta-container-update-override-etag";

/// Reasons why something cannot be encrypted or decrypted. Messages contain neither keys nor
/// protected data.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub(crate) enum CryptoError {
    #[error("encryption needs a keymaster in front of it in the pipeline")]
    NoKeymaster,
    #[error("no root secret is loaded with the id {}", .0.as_deref().unwrap_or("(none)"))]
    UnknownSecret(Option<String>),
    #[error("bad key id: {0}")]
    BadKeyId(String),
    #[error(transparent)]
    BadMeta(#[from] BadMeta),
    #[error("crypto metadata is missing")]
    NoMeta,
    #[error("it is not what was encrypted: it was changed, cut, or is of another object")]
    Tampered,
}

impl CryptoError {
    fn bad_meta(what: impl Into<String>) -> Self {
        CryptoError::BadMeta(BadMeta(what.into()))
    }
}

/// The response if there are no keys.
fn no_keys() -> Response {
    respond::text(
        StatusCode::INTERNAL_SERVER_ERROR,
        "Unable to retrieve encryption keys.",
    )
}

#[cfg(test)]
mod tests;
