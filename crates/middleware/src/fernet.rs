//! Fernet, version 0x80: URL-safe base64 of
//!
//!
//! ```text
//! 0x80 | time, u64 big-endian seconds | IV, 16 bytes | AES-128-CBC, PKCS #7 | HMAC-SHA256
//! ```
//!
//! The HMAC covers everything before it. A key has 32 bytes: 16 for signing, 16 for encrypting.

use aes::Aes128;
use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use cairn_formats::hmac;
use cbc::cipher::block_padding::Pkcs7;
use cbc::cipher::{BlockModeDecrypt, BlockModeEncrypt, KeyIvInit};
use subtle::ConstantTimeEq;

const VERSION: u8 = 0x80;
/// Bytes of a token besides the ciphertext.
const OVERHEAD_BYTES: usize = 1 + 8 + 16 + 32;
/// Tolerated seconds by which a token's time may be in the future.
const CLOCK_SKEW_SECONDS: u64 = 60;
/// Maximum length of a token's text.
const TOKEN_MAX_BYTES: usize = 16 * 1024;

/// URL-safe base64, written with padding, read with or without.
pub(crate) const URL_SAFE: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

#[derive(Clone)]
pub struct Fernet {
    sign: [u8; 16],
    encrypt: [u8; 16],
}

/// A decrypted message, and its creation time in seconds.
#[derive(Debug, PartialEq, Eq)]
pub struct Opened {
    pub message: Vec<u8>,
    pub made: u64,
}

impl Fernet {
    /// The cipher of a key: its first half signs, its second half encrypts.
    pub fn new(key: [u8; 32]) -> Fernet {
        let (mut sign, mut encrypt) = ([0; 16], [0; 16]);
        sign.copy_from_slice(&key[..16]);
        encrypt.copy_from_slice(&key[16..]);
        Fernet { sign, encrypt }
    }

    /// Parses a key: URL-safe base64 of 32 bytes.
    pub fn from_text(text: &str) -> Option<Fernet> {
        let key: [u8; 32] = URL_SAFE.decode(text.trim()).ok()?.try_into().ok()?;
        Some(Fernet::new(key))
    }

    /// A token with `message`, as of `now`.
    pub fn seal(&self, message: &[u8], now: u64, iv: [u8; 16]) -> String {
        let encryptor = cbc::Encryptor::<Aes128>::new(&self.encrypt.into(), &iv.into());
        let ciphertext = encryptor.encrypt_padded_vec::<Pkcs7>(message);
        let mut token = Vec::with_capacity(OVERHEAD_BYTES + ciphertext.len());
        token.push(VERSION);
        token.extend_from_slice(&now.to_be_bytes());
        token.extend_from_slice(&iv);
        token.extend_from_slice(&ciphertext);
        let signature = hmac::sha256(&self.sign, &token);
        token.extend_from_slice(&signature);
        URL_SAFE.encode(token)
    }

    /// The message, if the token was made with this key and is no older than `life` seconds.
    pub fn open(&self, token: &str, now: u64, life: u64) -> Option<Opened> {
        if token.len() > TOKEN_MAX_BYTES {
            return None;
        }
        let bytes = URL_SAFE.decode(token).ok()?;
        if bytes.len() < OVERHEAD_BYTES || bytes[0] != VERSION {
            return None;
        }
        let made = u64::from_be_bytes(bytes[1..9].try_into().ok()?);
        if made.saturating_add(life) < now || made > now.saturating_add(CLOCK_SKEW_SECONDS) {
            return None;
        }
        let (signed, signature) = bytes.split_at(bytes.len() - 32);
        let is_ours = hmac::sha256(&self.sign, signed).ct_eq(signature);
        if !bool::from(is_ours) {
            return None;
        }
        let iv: [u8; 16] = signed[9..25].try_into().ok()?;
        let decryptor = cbc::Decryptor::<Aes128>::new(&self.encrypt.into(), &iv.into());
        let message = decryptor.decrypt_padded_vec::<Pkcs7>(&signed[25..]).ok()?;
        Some(Opened { message, made })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A key of the bytes 0 to 31; the token was made by Python's cryptography with the IV 0 to 15.
    const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const TOKEN: &str = "gAAAAABlU_EAAAECAwQFBgcICQoLDA0OD8FKOU5MVX32RitbTtjYFWQxvwJDLjxLgx63zn3KJJ36PS6ElBMRQrwIrNa_kXOWoPXVR_9BTh3sbkMVsBYlb14=";
    const MADE: u64 = 1_700_000_000;
    const MESSAGE: &[u8] = b"test,test:tester,AUTH_test";

    #[test]
    fn as_the_reference_has_it() {
        let fernet = Fernet::from_text(KEY).unwrap();
        let iv: [u8; 16] = std::array::from_fn(|i| i as u8);
        assert_eq!(fernet.seal(MESSAGE, MADE, iv), TOKEN);
        let opened = Some(Opened {
            message: MESSAGE.to_vec(),
            made: MADE,
        });
        assert_eq!(fernet.open(TOKEN, MADE, 10), opened);
        assert_eq!(
            fernet.open(TOKEN.trim_end_matches('='), MADE + 10, 10),
            opened
        );
        assert_eq!(fernet.open(TOKEN, MADE - 60, 10), opened);
    }

    #[test]
    fn what_is_not_right_does_not_open() {
        let fernet = Fernet::from_text(KEY).unwrap();
        assert_eq!(fernet.open(TOKEN, MADE + 11, 10), None);
        assert_eq!(fernet.open(TOKEN, MADE - 61, 10), None);
        assert_eq!(Fernet::new([7; 32]).open(TOKEN, MADE, 10), None);
        for at in 0..TOKEN.len() - 2 {
            let mut changed = TOKEN.as_bytes().to_vec();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(
                fernet.open(std::str::from_utf8(&changed).unwrap(), MADE, 10),
                None,
                "{at}"
            );
        }
        for text in ["", "gAAA", "é", &"A".repeat(100_000)] {
            assert_eq!(fernet.open(text, MADE, 10), None);
        }
        for key in ["", "AAAA", "not base64 at all"] {
            assert!(Fernet::from_text(key).is_none());
        }
    }
}
