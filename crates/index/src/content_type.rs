//! The `swift_bytes` parameter of a content type: the total size of a manifest's segments, kept in
//! the content-type column because the schema has none for it.

/// Splits a content type into Swift's rewritten form and the value of `swift_bytes`.
///
/// Parameters match upstream's pattern: `; token`, optionally `= token` or `= "quoted"`; anything
/// else is dropped. Without a `;` the text is unchanged.
pub fn extract_swift_bytes(content_type: &str) -> (String, Option<String>) {
    let Some((main, params)) = content_type.split_once(';') else {
        return (content_type.to_owned(), None);
    };
    let mut clean = main.to_owned();
    let mut swift_bytes = None;
    let params = format!(";{params}");
    let mut at = 0;
    while at < params.len() {
        let Some((key, value, length)) = parameter(&params[at..]) else {
            at += params[at..].chars().next().map_or(1, char::len_utf8);
            continue;
        };
        if key == "swift_bytes" {
            swift_bytes = Some(value.to_owned());
        } else {
            clean.push(';');
            clean.push_str(key);
            clean.push('=');
            clean.push_str(value);
        }
        at += length;
    }
    (clean, swift_bytes)
}

/// Parses one parameter at the start of `text`: name, value, bytes consumed.
fn parameter(text: &str) -> Option<(&str, &str, usize)> {
    let mut at = space(text, 0);
    if !text[at..].starts_with(';') {
        return None;
    }
    at = space(text, at + 1);
    let key_end = token(text, at);
    if key_end == at {
        return None;
    }
    let key = &text[at..key_end];
    at = space(text, key_end);
    if text[at..].starts_with('=') {
        at = space(text, at + 1);
        let end = match token(text, at) {
            end if end > at => Some(end),
            _ => quoted(text, at),
        };
        if let Some(end) = end {
            return Some((key, &text[at..end], end));
        }
    }
    Some((key, "", space(text, key_end)))
}

fn space(text: &str, from: usize) -> usize {
    let rest = text[from..].trim_start();
    text.len() - rest.len()
}

fn token(text: &str, from: usize) -> usize {
    let is_token =
        |c: char| !matches!(c, '\0'..=' ' | '\u{7f}') && !"()<>@,;:\"/[]?={}".contains(c);
    let length = text[from..].find(|c| !is_token(c));
    length.map_or(text.len(), |length| from + length)
}

/// End of the quoted string that starts at `from`, including the quotes.
fn quoted(text: &str, from: usize) -> Option<usize> {
    let mut chars = text[from..].char_indices();
    if chars.next()?.1 != '"' {
        return None;
    }
    while let Some((i, c)) = chars.next() {
        match c {
            '"' => return Some(from + i + 1),
            '\\' => {
                chars.next()?;
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_upstream() {
        for (text, clean, bytes) in [
            ("text/plain", "text/plain", None),
            ("text/plain;swift_bytes=12", "text/plain", Some("12")),
            (
                "text/plain; charset=UTF-8;swift_bytes=3",
                "text/plain;charset=UTF-8",
                Some("3"),
            ),
            ("a; b ; c = \"d;e\"", "a;b=;c=\"d;e\"", None),
            ("a; b=\"unclosed", "a;b=", None),
            ("a;;x=1/2", "a;x=1", None),
            ("", "", None),
        ] {
            assert_eq!(
                extract_swift_bytes(text),
                (clean.to_owned(), bytes.map(str::to_owned)),
                "{text:?}"
            );
        }
    }
}
