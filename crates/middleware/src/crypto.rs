//! Encryption at rest: objects are encrypted on their way to the object servers, and decrypted on
//! their way back, so that disks, the servers' network and container databases hold ciphertext.
//!
//! Two filters, as in Swift: `keymaster` derives keys from root secrets (`keymaster.rs`), and
//! `encryption` uses them (`encrypter.rs` on the way in, `decrypter.rs` on the way out). What is
//! encrypted: content, the values of users' metadata, the ETag of the content and that of the
//! container's row. Names, sizes, content types and timestamps are not.
//!
//! With `authenticated`, content and values are sealed instead (`sealed.rs`, `open.rs`): changes are
//! noticed, and Swift cannot read them.
//!
//! Keys of sealed objects can be put under another root secret while their content stays (`rekey.rs`,
//! `kept.rs`).
//!
//! The format is Swift's own else, and objects that either wrote can be read by the other: see
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

/// Has the object's own ETag, encrypted.
const ETAG: &str = "x-object-sysmeta-crypto-etag";
/// Has the ETag's HMAC: object servers hold conditional requests against it.
const ETAG_MAC: &str = "x-object-sysmeta-crypto-etag-mac";
/// Has what it takes to decrypt the content.
const BODY_META: &str = "x-object-sysmeta-crypto-body-meta";
/// Has which key the metadata is encrypted with.
const METADATA_META: &str = "x-object-transient-sysmeta-crypto-meta";
/// With the short name behind it: a value of the user's metadata, encrypted.
const METADATA_PREFIX: &str = "x-object-transient-sysmeta-crypto-meta-";
/// There where content is in sealed segments, whose ranges only the filter can read.
const SEALED_MARK: &str = "x-object-sysmeta-crypto-sealed";
/// What the container's row has instead of the length of the sealed content.
const ROW_SIZE: &str = "x-object-sysmeta-container-update-override-size";
/// What the container's row has instead of the object's own ETag.
const ROW_ETAG: &str = "x-object-sysmeta-container-update-override-etag";

/// Why something cannot be encrypted or decrypted. Never says a key, nor what it protects.
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

/// The answer where there are no keys.
fn no_keys() -> Response {
    respond::text(
        StatusCode::INTERNAL_SERVER_ERROR,
        "Unable to retrieve encryption keys.",
    )
}

#[cfg(test)]
mod tests;
