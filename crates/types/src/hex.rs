//! Lower-case hexadecimal encoding, used for all digests.

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Encodes each byte as two digits.
pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    let bytes = bytes.as_ref();
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn digits() {
        assert_eq!(super::encode(b"\x00\x0f\xa5\xff"), "000fa5ff");
        assert_eq!(super::encode(b""), "");
    }
}
