//! The pickle of an object's metadata, a dictionary of byte strings. Every PUT writes one and every
//! GET reads one, so both have a fast path here that avoids the general stack machine.
//!
//! The output is a third shorter than that of Python's `pickle`: each string is a Python 2 string,
//! which OpenStack Swift reads as bytes (`encoding='bytes'`). The codec name that Swift looks for
//! near the start, to decide which Python wrote the values (`_decode_metadata` in
//! `swift/obj/diskfile.py`), is pushed and popped. With short names an XFS inode of 512 bytes then
//! holds all of a file's attributes; otherwise they need a block of their own.

/// Opcodes before the first key, in the short form.
const SHORT_HEAD: &[u8] = b"\x80\x02c_codecs\nencode\n0}(";
/// Opcodes before the first key, as [`super::dumps`] writes a dictionary of byte strings.
const HEAD: &[u8] = b"\x80\x02}(c_codecs\nencode\nq\x00X";
/// Opcodes after the first key, as [`super::dumps`] writes them: the codec's name, and the call.
const FIRST_TAIL: &[u8] = b"X\x06\x00\x00\x00latin1q\x01\x86R";
const NEXT_HEAD: &[u8] = b"h\x00X";
const NEXT_TAIL: &[u8] = b"h\x01\x86R";
const END: &[u8] = b"u.";

/// Encodes a dictionary of byte strings, protocol 2.
pub fn dump_byte_strings<K, V>(pairs: impl Iterator<Item = (K, V)>) -> Vec<u8>
where
    K: AsRef<[u8]>,
    V: AsRef<[u8]>,
{
    let mut out = Vec::with_capacity(512);
    out.extend_from_slice(SHORT_HEAD);
    for (key, value) in pairs {
        put_string(&mut out, key.as_ref());
        put_string(&mut out, value.as_ref());
    }
    out.extend_from_slice(END);
    out
}

fn put_string(out: &mut Vec<u8>, text: &[u8]) {
    match u8::try_from(text.len()) {
        Ok(length) => out.extend([b'U', length]),
        Err(_) => {
            // Headers are bounded, so no text exceeds 4 GiB.
            let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
            out.push(b'T');
            out.extend(length.to_le_bytes());
        }
    }
    out.extend_from_slice(text);
}

/// Parses a dictionary of ASCII byte strings without duplicate keys, in exactly the form that
/// [`dump_byte_strings`] or [`super::dumps`] writes. `None` for every other input, which
/// [`super::loads`] may be able to read.
pub fn byte_strings(input: &[u8]) -> Option<Vec<(&str, &str)>> {
    match input.strip_prefix(SHORT_HEAD) {
        Some(rest) => short_strings(rest),
        None => coded_strings(input.strip_prefix(HEAD)?),
    }
}

fn short_strings(mut rest: &[u8]) -> Option<Vec<(&str, &str)>> {
    let mut pairs: Vec<(&str, &str)> = Vec::with_capacity(8);
    while rest != END {
        let key = short_text(&mut rest)?;
        let value = short_text(&mut rest)?;
        if pairs.iter().any(|(known, _)| *known == key) {
            return None;
        }
        pairs.push((key, value));
    }
    Some(pairs)
}

fn coded_strings(mut rest: &[u8]) -> Option<Vec<(&str, &str)>> {
    let mut pairs: Vec<(&str, &str)> = Vec::with_capacity(8);
    let mut key = Some(text(&mut rest)?);
    rest = rest.strip_prefix(FIRST_TAIL)?;
    while let Some(after) = rest.strip_prefix(NEXT_HEAD) {
        rest = after;
        let next = text(&mut rest)?;
        rest = rest.strip_prefix(NEXT_TAIL)?;
        match key.take() {
            None => key = Some(next),
            Some(key) if pairs.iter().any(|(known, _)| *known == key) => return None,
            Some(key) => pairs.push((key, next)),
        }
    }
    (rest == END && key.is_none()).then_some(pairs)
}

fn short_text<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    match rest.split_first()? {
        (b'U', after) => {
            let (length, after) = after.split_first()?;
            *rest = after;
            ascii(rest, usize::from(*length))
        }
        (b'T', after) => {
            *rest = after;
            text(rest)
        }
        _ => None,
    }
}

/// Parses a length-prefixed ASCII text, whose latin-1 bytes are the same.
fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let (length, after) = rest.split_first_chunk::<4>()?;
    *rest = after;
    ascii(rest, u32::from_le_bytes(*length) as usize)
}

fn ascii<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a str> {
    let (text, after) = rest.split_at_checked(length)?;
    *rest = after;
    text.is_ascii().then(|| std::str::from_utf8(text).ok())?
}

#[cfg(test)]
mod tests {
    use super::super::{Value, dumps, loads};
    use super::*;
    use proptest::prelude::*;

    fn coded(pairs: &[(&str, &str)]) -> Vec<u8> {
        let bytes = |text: &str| Value::bytes(text.as_bytes());
        let pairs = pairs.iter().map(|(k, v)| (bytes(k), bytes(v))).collect();
        dumps(&Value::Dict(pairs))
    }

    fn short(pairs: &[(&str, &str)]) -> Vec<u8> {
        dump_byte_strings(pairs.iter().copied())
    }

    /// Python 3.11's `pickle.loads(…, encoding='bytes')` gives `{b'name': b'/a/c/o', b'b': b''}`.
    #[test]
    fn what_is_written() {
        let whole = short(&[("name", "/a/c/o"), ("b", "")]);
        let known = b"\x80\x02c_codecs\nencode\n0}(U\x04nameU\x06/a/c/oU\x01bU\x00u.";
        assert_eq!(whole, known);
        let long = "x".repeat(256);
        let whole = short(&[("a", &long)]);
        assert!(whole.ends_with(format!("T\0\u{1}\0\0{long}u.").as_bytes()));
        assert_eq!(byte_strings(&whole), Some(vec![("a", &*long)]));
    }

    #[test]
    fn reads_what_is_written_and_nothing_else() {
        let pairs = [
            ("Content-Length", "4096"),
            ("name", "/a/c/o"),
            ("ETag", "e"),
        ];
        for whole in [coded(&pairs), short(&pairs)] {
            assert_eq!(byte_strings(&whole).as_deref(), Some(&pairs[..]));
            for length in 0..whole.len() {
                assert_eq!(byte_strings(&whole[..length]), None, "{length}");
            }
        }
        for other in [
            coded(&[]),
            coded(&[("a", "1"), ("a", "2")]),
            coded(&[("a", "")]),
            coded(&[("a", "\u{e9}")]),
            short(&[("a", "1"), ("a", "2")]),
            short(&[("a", "\u{e9}")]),
            dumps(&Value::Dict(vec![(Value::str("a"), Value::str("b"))])),
        ] {
            assert_eq!(byte_strings(&other), None);
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_machine(
            pairs in proptest::collection::vec(("[ -~]{0,9}", "[ -~]{0,9}"), 0..6),
            at in 0_usize..400,
            byte in any::<u8>(),
            is_short in any::<bool>(),
        ) {
            let pairs: Vec<_> = pairs.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            let mut bytes = if is_short { short(&pairs) } else { coded(&pairs) };
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
            if let Some(found) = byte_strings(&bytes) {
                let bytes_of = |text: &str| Value::bytes(text.as_bytes());
                let found = found.iter().map(|(k, v)| (bytes_of(k), bytes_of(v))).collect();
                prop_assert_eq!(loads(&bytes), Ok(Value::Dict(found)));
            }
        }
    }
}
