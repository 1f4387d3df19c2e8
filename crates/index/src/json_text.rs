//! JSON strings in pure ASCII, as Python's `json.dumps` writes them: Swift's metadata column and
//! its listings look like this.

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
        }
    }
}
