//! Escaping of header names with arbitrary bytes into ASCII names.
//!
//! Swift takes any bytes in the name of a header, and clients do name their metadata in UTF-8. The
//! HTTP library accepts tokens only, so inside Cairn such a byte is written `^195` (its value in
//! three decimal digits), and a literal `^` is written `^094`. Digits have no case, so
//! [`crate::metadata::title_case`] treats an escaped name as Swift treats the original.

use std::borrow::Cow;

const MARK: u8 = b'^';

/// Is this byte of a header name escaped?
pub const fn is_escaped(byte: u8) -> bool {
    byte >= 0x80 || byte == MARK
}

/// Appends one byte of a header name, escaped if necessary.
pub fn push_escaped(out: &mut Vec<u8>, byte: u8) {
    if !is_escaped(byte) {
        return out.push(byte);
    }
    let digit = |n: u8| b'0' + n % 10;
    out.extend_from_slice(&[MARK, digit(byte / 100), digit(byte / 10), digit(byte)]);
}

/// The escaped form of a header name as received from the network.
pub fn escape(name: &[u8]) -> Cow<'_, [u8]> {
    if !name.iter().any(|byte| is_escaped(*byte)) {
        return Cow::Borrowed(name);
    }
    let mut out = Vec::with_capacity(name.len() + 12);
    for byte in name {
        push_escaped(&mut out, *byte);
    }
    Cow::Owned(out)
}

/// The escaped form of a header name given as text: see [`escape`].
pub fn escape_text(name: &str) -> Cow<'_, str> {
    match escape(name.as_bytes()) {
        Cow::Borrowed(_) => Cow::Borrowed(name),
        // All non-ASCII bytes are escaped by now.
        Cow::Owned(bytes) => Cow::Owned(bytes.into_iter().map(char::from).collect()),
    }
}

/// Does this escaped name differ from its form on the network?
pub fn has_escapes(name: &str) -> bool {
    name.as_bytes().contains(&MARK)
}

/// The reverse of [`escape`]; a `^` that [`escape`] cannot have written is left as it is.
pub fn unescape(name: &str) -> Cow<'_, [u8]> {
    let mut rest = name.as_bytes();
    if !rest.contains(&MARK) {
        return Cow::Borrowed(rest);
    }
    let mut out = Vec::with_capacity(rest.len());
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let number = after.first_chunk::<3>().filter(|_| *first == MARK);
        let byte = number
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| digits.parse::<u8>().ok())
            .filter(|byte| is_escaped(*byte));
        match byte {
            Some(byte) => {
                out.push(byte);
                rest = &after[3..];
            }
            None => out.push(*first),
        }
    }
    Cow::Owned(out)
}

/// Length in bytes of an escaped name's form on the network.
pub fn wire_len(name: &str) -> usize {
    match has_escapes(name) {
        true => unescape(name).len(),
        false => name.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::title_case;

    #[test]
    fn names_come_back() {
        for name in [
            "x-object-meta-color",
            "x-object-meta-fr\u{e8}d",
            "x-object-meta-^094",
            "x-^",
            "",
        ] {
            let escaped = escape_text(name);
            assert!(escaped.is_ascii());
            assert_eq!(unescape(&escaped), name.as_bytes());
            assert_eq!(wire_len(&escaped), name.len());
            assert_eq!(has_escapes(&escaped), escaped != name);
        }
        assert_eq!(escape_text("x-\u{e8}"), "x-^195^168");
        // Not written by `escape`: passed through unchanged.
        for name in ["x-^", "x-^19", "x-^999", "x-^065", "x-^+95"] {
            assert_eq!(unescape(name), name.as_bytes());
        }
    }

    #[test]
    fn letters_are_those_of_the_name() {
        // Python: b"x-meta-fr\xc3\xa9d".title()
        let titled = title_case(&escape_text("x-meta-fr\u{e9}d"));
        assert_eq!(unescape(&titled), "X-Meta-Fr\u{e9}D".as_bytes());
    }
}
