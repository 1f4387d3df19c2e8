//! AES-256 in counter mode, Swift's cipher for content, metadata and keys. It gives confidentiality
//! but no integrity. The `aes` crate uses the CPU's instructions if available.

use aes::Aes256;
use cairn_formats::crypto_meta::Iv;
use ctr::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};

use super::CryptoError;
use super::keys::{KEY_BYTES, Key};

/// A position in a key stream.
pub(crate) struct CtrStream(ctr::Ctr128BE<Aes256>);

impl CtrStream {
    /// The key stream from byte `offset` on.
    pub(crate) fn new(key: &Key, iv: &Iv, offset: u64) -> Self {
        let mut stream = ctr::Ctr128BE::<Aes256>::new(key.bytes().into(), iv.into());
        if offset > 0 {
            // A 128-bit counter can represent every 64-bit offset.
            let _ = stream.try_seek(offset);
        }
        CtrStream(stream)
    }

    /// Encrypts or decrypts, which is the same operation.
    pub(crate) fn apply(&mut self, bytes: &mut [u8]) {
        self.0.apply_keystream(bytes);
    }

    /// Like [`CtrStream::apply`], from one slice into another of the same length.
    pub(crate) fn apply_into(&mut self, bytes: &[u8], into: &mut [u8]) {
        self.0.apply_keystream_b2b(bytes, into);
    }
}

/// Encrypts or decrypts data in one piece.
pub(crate) fn ctr(key: &Key, iv: &Iv, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    CtrStream::new(key, iv, 0).apply(&mut bytes);
    bytes
}

/// Decrypts a 32-byte key that was encrypted with another one.
pub(crate) fn unwrap_key(wrapping: &Key, iv: &Iv, wrapped: &[u8]) -> Result<Key, CryptoError> {
    let mut bytes: [u8; KEY_BYTES] = wrapped
        .try_into()
        .map_err(|_| CryptoError::bad_meta("a wrapped key must have 32 bytes"))?;
    CtrStream::new(wrapping, iv, 0).apply(&mut bytes);
    Ok(Key::new(bytes))
}
