//! JSON in pure ASCII, as Python's `json.dumps` writes it: readers that decode a body as ASCII
//! before they parse it take nothing else.

use std::fmt::Write as _;

use serde_json::Value;

/// Characters outside ASCII become `\u` and four hexadecimal digits, twice where once is not enough.
pub fn to_string(value: &Value) -> String {
    let text = value.to_string();
    if text.is_ascii() {
        return text;
    }
    let mut ascii = String::with_capacity(text.len() * 2);
    for c in text.chars() {
        if c.is_ascii() {
            ascii.push(c);
            continue;
        }
        // They stand in strings only, where an escape may replace them.
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(ascii, "\\u{unit:04x}");
        }
    }
    ascii
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_python_writes() {
        let value = serde_json::json!({"é": "☃😀\n"});
        assert_eq!(to_string(&value), r#"{"\u00e9":"\u2603\ud83d\ude00\n"}"#);
    }
}
