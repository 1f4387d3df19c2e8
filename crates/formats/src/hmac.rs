//! HMACs: keyed digests for the signatures of formats, tokens and logins.

use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::Sha256;

#[expect(clippy::expect_used, reason = "the error is of other kinds of MAC")]
fn keyed<M: KeyInit>(key: &[u8]) -> M {
    M::new_from_slice(key).expect("HMAC takes keys of any length")
}

/// HMAC-SHA1 of a message.
pub fn sha1(key: &[u8], message: &[u8]) -> [u8; 20] {
    let mut mac: Hmac<Sha1> = keyed(key);
    mac.update(message);
    mac.finalize().into_bytes().into()
}

/// HMAC-SHA256 of a message.
pub fn sha256(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut mac: Hmac<Sha256> = keyed(key);
    mac.update(message);
    mac.finalize().into_bytes().into()
}

/// HMAC-SHA256 over a list of parts, each preceded by its length in eight bytes, so that no two
/// lists give the same message.
pub fn sha256_of_parts(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac: Hmac<Sha256> = keyed(key);
    for part in parts {
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use cairn_types::hex;

    use super::*;

    /// Second test case of RFC 2202 and of RFC 4231.
    #[test]
    fn known_answers() {
        let message = b"what do ya want for nothing?";
        let expected = "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79";
        assert_eq!(hex::encode(sha1(b"Jefe", message)), expected);
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(hex::encode(sha256(b"Jefe", message)), expected);
    }

    #[test]
    fn parts_are_apart() {
        let of = |parts: &[&[u8]]| sha256_of_parts(b"", parts);
        assert_ne!(of(&[b"a", b"bc"]), of(&[b"ab", b"c"]));
        assert_eq!(of(&[b"a"]), sha256(b"", b"\0\0\0\0\0\0\0\x01a"));
    }
}
