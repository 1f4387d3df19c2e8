//! JSON strings in pure ASCII, byte for byte as Python's `json.dumps` writes them: Swift's metadata
//! column, its listings and its ring files look like this.

use std::fmt::Write as _;

/// Escapes every character of `json` beyond ASCII as `\u00e9`, those above U+FFFF as surrogate
/// pairs. In valid JSON such characters stand only in strings, where an escape may replace them.
pub fn to_ascii(json: String) -> String {
    if json.is_ascii() {
        return json;
    }
    let mut ascii = String::with_capacity(json.len() * 2);
    for c in json.chars() {
        if c.is_ascii() {
            ascii.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(ascii, "\\u{unit:04x}");
        }
    }
    ascii
}

/// `text` with quotes around it, escaped as [`push_string`] does.
pub fn quoted(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len() + 2);
    push_string(&mut out, text);
    String::from_utf8_lossy(&out).into_owned()
}

/// Appends `text` with quotes around it; what is not printable ASCII is escaped
/// (`\u00e9`).
pub fn push_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut plain_from = 0;
    let bytes = text.as_bytes();
    for (i, c) in text.char_indices() {
        if matches!(c, ' '..='~') && c != '"' && c != '\\' {
            continue;
        }
        out.extend_from_slice(&bytes[plain_from..i]);
        plain_from = i + c.len_utf8();
        match c {
            '"' => out.extend_from_slice(b"\\\""),
            '\\' => out.extend_from_slice(b"\\\\"),
            '\n' => out.extend_from_slice(b"\\n"),
            '\r' => out.extend_from_slice(b"\\r"),
            '\t' => out.extend_from_slice(b"\\t"),
            '\u{8}' => out.extend_from_slice(b"\\b"),
            '\u{c}' => out.extend_from_slice(b"\\f"),
            other => {
                let mut units = [0; 2];
                for unit in other.encode_utf16(&mut units) {
                    push_escape(out, *unit);
                }
            }
        }
    }
    out.extend_from_slice(&bytes[plain_from..]);
    out.push(b'"');
}

fn push_escape(out: &mut Vec<u8>, unit: u16) {
    out.extend_from_slice(b"\\u");
    for shift in [12, 8, 4, 0] {
        out.push(b"0123456789abcdef"[usize::from(unit >> shift & 15)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_python_writes() {
        for (text, json) in [
            ("plain ~", r#""plain ~""#),
            ("a\"b\\c", r#""a\"b\\c""#),
            ("\n\r\t\u{8}\u{c}\0\u{7f}", r#""\n\r\t\b\f\u0000\u007f""#),
            ("é☃😀", r#""\u00e9\u2603\ud83d\ude00""#),
        ] {
            let mut out = Vec::new();
            push_string(&mut out, text);
            assert_eq!(String::from_utf8_lossy(&out), json);
            assert_eq!(quoted(text), json);
        }
    }

    #[test]
    fn only_what_is_beyond_ascii_is_escaped() {
        assert_eq!(to_ascii("{\"a\\n\": 1}".into()), "{\"a\\n\": 1}");
        assert_eq!(
            to_ascii("[\"é😀\\n\"]".into()),
            r#"["\u00e9\ud83d\ude00\n"]"#
        );
    }
}
