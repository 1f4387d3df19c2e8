//! JSON in pure ASCII, as Python's `json.dumps` writes it. Readers that decode a body as ASCII
//! before they parse it accept nothing else.

use cairn_types::json_text;
use serde_json::Value;

pub fn to_string(value: &Value) -> String {
    json_text::to_ascii(value.to_string())
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
