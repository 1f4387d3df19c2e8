//! The pickle of an object's metadata as [`super::dumps`] writes it, read at sight: every GET
//! reads one, and the whole machine is not needed for it.

/// The beginning of a dictionary of byte strings, up to its first key.
const HEAD: &[u8] = b"\x80\x02}(c_codecs\nencode\nq\x00X";
/// After the first key: the codec's name, and the call.
const FIRST_TAIL: &[u8] = b"X\x06\x00\x00\x00latin1q\x01\x86R";
const NEXT_HEAD: &[u8] = b"h\x00X";
const NEXT_TAIL: &[u8] = b"h\x01\x86R";
const END: &[u8] = b"u.";

/// Keys and values of a dictionary of byte strings, all ASCII, no key twice, in exactly the form
/// that [`super::dumps`] gives it; `None` of every other input, which [`super::loads`] may be able
/// to read.
pub fn byte_strings(input: &[u8]) -> Option<Vec<(&str, &str)>> {
    let mut rest = input.strip_prefix(HEAD)?;
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

/// A text with its length before it, of ASCII: then its latin-1 bytes are the same.
fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let (length, after) = rest.split_first_chunk::<4>()?;
    let (text, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    *rest = after;
    text.is_ascii().then(|| std::str::from_utf8(text).ok())?
}

#[cfg(test)]
mod tests {
    use super::super::{Value, dumps, loads};
    use super::*;
    use proptest::prelude::*;

    fn pickled(pairs: &[(&str, &str)]) -> Vec<u8> {
        let bytes = |text: &str| Value::bytes(text.as_bytes());
        let pairs = pairs.iter().map(|(k, v)| (bytes(k), bytes(v))).collect();
        dumps(&Value::Dict(pairs))
    }

    #[test]
    fn reads_what_is_written_and_nothing_else() {
        let pairs = [
            ("Content-Length", "4096"),
            ("name", "/a/c/o"),
            ("ETag", "e"),
        ];
        let whole = pickled(&pairs);
        assert_eq!(byte_strings(&whole).as_deref(), Some(&pairs[..]));
        for length in 0..whole.len() {
            assert_eq!(byte_strings(&whole[..length]), None, "{length}");
        }
        for other in [
            pickled(&[]),
            pickled(&[("a", "1"), ("a", "2")]),
            pickled(&[("a", "")]),
            pickled(&[("a", "\u{e9}")]),
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
        ) {
            let pairs: Vec<_> = pairs.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            let mut bytes = pickled(&pairs);
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
