//! Authenticated encryption by AES-256 in Galois/counter mode, which detects every change.
//!
//! Content is sealed in segments of 64 KiB, each followed by its 16-byte tag; only the last may be
//! shorter. The nonce consists of the segment's number and whether it is the last (as in STREAM,
//! Hoang et al. 2015), so segments cannot be omitted, added, repeated or reordered. The key is
//! random and seals one object's content only; it is itself sealed with the object's key, bound to
//! the object's path. Values are sealed under random nonces, bound to their name and the path.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use super::CryptoError;
use super::keys::{KEY_BYTES, Key};

pub(super) const SEGMENT_BYTES: usize = 64 << 10;
pub(super) const TAG_BYTES: usize = 16;
pub(super) const SEALED_SEGMENT_BYTES: usize = SEGMENT_BYTES + TAG_BYTES;
pub(super) const NONCE_BYTES: usize = 12;

/// Length of the sealed form of `plain` bytes of content.
pub(super) fn sealed_length(plain: u64) -> u64 {
    plain + plain.div_ceil(SEGMENT_BYTES as u64) * TAG_BYTES as u64
}

/// Number of segments, and length of content, for a sealed length; `None` if no content has this
/// sealed length.
pub(super) fn opened_length(sealed: u64) -> Option<(u64, u64)> {
    let segments = sealed.div_ceil(SEALED_SEGMENT_BYTES as u64);
    let plain = sealed.checked_sub(segments * TAG_BYTES as u64)?;
    (plain > 0 && sealed_length(plain) == sealed).then_some((segments, plain))
}

fn cipher(key: &Key) -> Result<LessSafeKey, CryptoError> {
    let key = UnboundKey::new(&AES_256_GCM, key.bytes());
    let key = key.map_err(|_| CryptoError::bad_meta("a key must have 32 bytes"))?;
    Ok(LessSafeKey::new(key))
}

/// Seals a value. `bound_to` is needed to open it again.
pub(super) fn seal(
    key: &Key,
    nonce: [u8; NONCE_BYTES],
    bound_to: &str,
    value: &[u8],
) -> Result<Vec<u8>, CryptoError> {
    let mut sealed = value.to_vec();
    let nonce = Nonce::assume_unique_for_key(nonce);
    cipher(key)?
        .seal_in_place_append_tag(nonce, Aad::from(bound_to.as_bytes()), &mut sealed)
        .map_err(|_| CryptoError::Tampered)?;
    Ok(sealed)
}

pub(super) fn open(
    key: &Key,
    nonce: &[u8],
    bound_to: &str,
    sealed: &[u8],
) -> Result<Vec<u8>, CryptoError> {
    let nonce = Nonce::try_assume_unique_for_key(nonce);
    let nonce = nonce.map_err(|_| CryptoError::bad_meta("iv must have 12 bytes"))?;
    let mut value = sealed.to_vec();
    let aad = Aad::from(bound_to.as_bytes());
    let opened = cipher(key)?.open_in_place(nonce, aad, &mut value);
    let length = opened.map_err(|_| CryptoError::Tampered)?.len();
    value.truncate(length);
    Ok(value)
}

/// Opens a sealed key.
pub(super) fn open_key(
    key: &Key,
    nonce: &[u8],
    bound_to: &str,
    sealed: &[u8],
) -> Result<Key, CryptoError> {
    let opened = zeroize::Zeroizing::new(open(key, nonce, bound_to, sealed)?);
    let bytes: [u8; KEY_BYTES] = opened[..]
        .try_into()
        .map_err(|_| CryptoError::bad_meta("a key must have 32 bytes"))?;
    Ok(Key::new(bytes))
}

/// The context that a value is bound to.
pub(super) fn place(name: &str, path: &str) -> String {
    format!("{name}\n{path}")
}

/// The key for the segments of one object's content.
pub(super) struct Segments(LessSafeKey);

impl Segments {
    pub(super) fn new(key: &Key) -> Result<Self, CryptoError> {
        Ok(Segments(cipher(key)?))
    }

    fn nonce(number: u64, is_last: bool) -> Nonce {
        let mut nonce = [0; NONCE_BYTES];
        nonce[..8].copy_from_slice(&number.to_be_bytes());
        nonce[NONCE_BYTES - 1] = u8::from(is_last);
        Nonce::assume_unique_for_key(nonce)
    }

    /// Seals a segment and appends it.
    pub(super) fn seal(
        &self,
        number: u64,
        is_last: bool,
        segment: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), CryptoError> {
        let from = out.len();
        out.extend_from_slice(segment);
        let nonce = Self::nonce(number, is_last);
        let tag = self
            .0
            .seal_in_place_separate_tag(nonce, Aad::empty(), &mut out[from..])
            .map_err(|_| CryptoError::Tampered)?;
        out.extend_from_slice(tag.as_ref());
        Ok(())
    }

    /// Opens a segment in place; returns its length.
    pub(super) fn open(
        &self,
        number: u64,
        is_last: bool,
        sealed: &mut [u8],
    ) -> Result<usize, CryptoError> {
        let nonce = Self::nonce(number, is_last);
        let opened = self.0.open_in_place(nonce, Aad::empty(), sealed);
        opened
            .map(|plain| plain.len())
            .map_err(|_| CryptoError::Tampered)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lengths_fit(plain in 1u64..6_000_000_000) {
            let sealed = sealed_length(plain);
            let segments = plain.div_ceil(SEGMENT_BYTES as u64);
            prop_assert_eq!(opened_length(sealed), Some((segments, plain)));
        }

        #[test]
        fn no_other_length_fits(sealed in 0u64..1_000_000) {
            if let Some((_, plain)) = opened_length(sealed) {
                prop_assert_eq!(sealed_length(plain), sealed);
            }
        }
    }

    #[test]
    fn values_are_bound() {
        let key = Key::new([7; 32]);
        let sealed = seal(&key, [1; 12], "a\n/p", b"value").unwrap();
        assert_eq!(open(&key, &[1; 12], "a\n/p", &sealed).unwrap(), b"value");
        for (key, nonce, place) in [
            (Key::new([8; 32]), [1; 12], "a\n/p"),
            (key.clone(), [2; 12], "a\n/p"),
            (key.clone(), [1; 12], "a\n/q"),
        ] {
            assert_eq!(
                open(&key, &nonce, place, &sealed),
                Err(CryptoError::Tampered)
            );
        }
        let mut changed = sealed.clone();
        changed[0] ^= 1;
        assert_eq!(
            open(&key, &[1; 12], "a\n/p", &changed),
            Err(CryptoError::Tampered)
        );
        assert!(open(&key, &[1; 11], "a\n/p", &sealed).is_err());
        assert!(open(&key, &[1; 12], "a\n/p", b"").is_err());
    }
}
