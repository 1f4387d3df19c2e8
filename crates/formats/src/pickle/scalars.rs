//! Numbers and texts in their pickle encodings.

use super::PickleError;

pub(super) fn parse_int(text: &str) -> Result<i64, PickleError> {
    let number = text.trim().parse();
    number.map_err(|_| PickleError::Malformed("not an integer of 64 bits"))
}

/// Two's complement of any length; bytes beyond the eighth may only extend the sign.
pub(super) fn little_endian_int(bytes: &[u8]) -> Result<i64, PickleError> {
    let fill = match bytes.last() {
        Some(top) if top & 0x80 != 0 => 0xff,
        _ => 0,
    };
    let mut array = [fill; 8];
    for (i, byte) in bytes.iter().enumerate() {
        if i < 8 {
            array[i] = *byte;
        } else if *byte != fill {
            return Err(PickleError::Malformed("not an integer of 64 bits"));
        }
    }
    let number = i64::from_le_bytes(array);
    if bytes.len() > 8 && (number < 0) != (fill == 0xff) {
        return Err(PickleError::Malformed("not an integer of 64 bits"));
    }
    Ok(number)
}

/// Protocol 0 text in quotes (`'text'`) with Python's escapes.
pub(super) fn unquote(line: &[u8]) -> Result<Vec<u8>, PickleError> {
    let malformed = PickleError::Malformed("a string without its quotes");
    let line = line.trim_ascii();
    let inner = match line {
        [first @ (b'\'' | b'"'), inner @ .., last] if first == last => inner,
        _ => return Err(malformed),
    };
    let mut out = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let [byte, tail @ ..] = rest {
        rest = tail;
        if *byte != b'\\' {
            out.push(*byte);
            continue;
        }
        let [escape, tail @ ..] = rest else {
            return Err(malformed);
        };
        rest = tail;
        match escape {
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'\\' | b'\'' | b'"' => out.push(*escape),
            b'x' => {
                let digits = rest.get(..2).ok_or(PickleError::Truncated)?;
                out.push(u8::try_from(hex(digits)?).map_err(|_| PickleError::Truncated)?);
                rest = &rest[2..];
            }
            other => out.extend([b'\\', *other]),
        }
    }
    Ok(out)
}

/// Protocol 0 Unicode text: latin-1 with escapes of four (`\u`) and eight (`\U`) hexadecimal
/// digits.
pub(super) fn raw_unicode_escape(line: &[u8]) -> Result<String, PickleError> {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let [byte, tail @ ..] = rest {
        let digits = match (byte, tail.first()) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => 0,
        };
        if digits == 0 {
            out.push(char::from(*byte));
            rest = tail;
            continue;
        }
        let code = hex(tail.get(1..=digits).ok_or(PickleError::Truncated)?)?;
        out.push(char::from_u32(code).ok_or(PickleError::Malformed("not a character"))?);
        rest = &tail[1 + digits..];
    }
    Ok(out)
}

fn hex(digits: &[u8]) -> Result<u32, PickleError> {
    let text = std::str::from_utf8(digits).ok();
    let text = text.filter(|t| t.bytes().all(|b| b.is_ascii_hexdigit()));
    text.and_then(|t| u32::from_str_radix(t, 16).ok())
        .ok_or(PickleError::Malformed("not hexadecimal"))
}
