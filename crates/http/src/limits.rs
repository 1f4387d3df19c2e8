//! Checks of Swift's limits on client input, used by the first component that sees it: the proxy,
//! or a filter that converts it.

use cairn_types::{Constraints, ServerKind, header_name};
use http::HeaderMap;

/// Checks metadata names and values: lengths, number, total size, and UTF-8 for accounts and
/// containers.
///
/// # Errors
/// The text of a 400 response.
pub fn check_metadata(
    headers: &HeaderMap,
    kind: ServerKind,
    limits: &Constraints,
) -> Result<(), String> {
    let prefix = kind.user_meta_prefix();
    let (mut count, mut size) = (0, 0);
    for (name, value) in headers {
        if value.len() > limits.max_header_size {
            let name: String = name
                .as_str()
                .chars()
                .take(limits.max_meta_name_length)
                .collect();
            return Err(format!("Header value too long: {name}"));
        }
        let Some(key) = name.as_str().strip_prefix(prefix) else {
            continue;
        };
        if key.is_empty() {
            return Err("Metadata name cannot be empty".to_owned());
        }
        let wire_key = header_name::unescape(key);
        let is_text = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok();
        if kind != ServerKind::Object && !(is_text(&wire_key) && is_text(value.as_bytes())) {
            return Err("Metadata must be valid UTF-8".to_owned());
        }
        count += 1;
        size += wire_key.len() + value.len();
        if wire_key.len() > limits.max_meta_name_length {
            return Err(format!("Metadata name too long: {prefix}{key}"));
        }
        if value.len() > limits.max_meta_value_length {
            return Err(format!(
                "Metadata value longer than {}: {prefix}{key}",
                limits.max_meta_value_length
            ));
        }
        if count > limits.max_meta_count {
            return Err(format!(
                "Too many metadata items; max {}",
                limits.max_meta_count
            ));
        }
        if size > limits.max_meta_overall_size {
            return Err(format!(
                "Total metadata too large; max {}",
                limits.max_meta_overall_size
            ));
        }
    }
    Ok(())
}
