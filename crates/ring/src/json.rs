//! The few pieces of JSON text that ring files need byte for byte as Python writes them: ASCII
//! only, everything else escaped, as `\u00e9` (surrogate pairs above U+FFFF).

/// Appends `text` as a quoted ASCII JSON string.
pub(crate) fn push_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(c),
            _ => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    #[test]
    fn escapes_as_python() {
        let mut out = String::new();
        super::push_string(&mut out, "a\"\\\n\u{1}é😀\u{7f}");
        assert_eq!(out, "\"a\\\"\\\\\\n\\u0001\\u00e9\\ud83d\\ude00\\u007f\"");
    }
}
