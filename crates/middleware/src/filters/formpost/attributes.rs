//! Parser of a header value with attributes: `form-data; name="file1"; filename="a.txt"`.

/// The value before the first `;`, and the attributes that can be parsed.
pub(super) fn parse(header: &str) -> (&str, Vec<(&str, &str)>) {
    let Some((value, rest)) = header.split_once(';') else {
        return (header, Vec::new());
    };
    let mut rest = rest.trim();
    let mut attributes = Vec::new();
    while let Some((name, text, after)) = next(rest) {
        attributes.push((name, text));
        rest = after;
    }
    (value.trim(), attributes)
}

/// Parses one `name=value` or `name="value"`; returns also the text after its `;`. Browsers do not
/// escape quotes in file names: the last quote before a `;` or the end closes the value.
fn next(text: &str) -> Option<(&str, &str, &str)> {
    let cut = text.find(|c: char| !(c.is_alphanumeric() || c == '_'))?;
    let (name, rest) = text.split_at(cut);
    let value = rest.strip_prefix('=').filter(|_| !name.is_empty())?;
    let ends = |from: usize| value[from..].is_empty() || value[from..].starts_with(';');
    let end = if value.starts_with('"') {
        value
            .match_indices('"')
            .skip(1)
            .map(|(at, _)| at + 1)
            .find(|end| ends(*end))?
    } else {
        value.find(['"', ';']).unwrap_or(value.len())
    };
    if end == 0 || !ends(end) || value[..end].contains('\n') {
        return None;
    }
    let after = value[end..].strip_prefix(';').unwrap_or("");
    let after = after.strip_prefix(' ').unwrap_or(after);
    Some((name, value[..end].trim_matches('"'), after))
}

pub(super) fn get<'a>(attributes: &[(&str, &'a str)], name: &str) -> Option<&'a str> {
    let mut found = attributes.iter().filter(|(n, _)| *n == name);
    found.next_back().map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// For any header, values are parts of it without quotes at their ends.
        #[test]
        fn any_header_reads(header in "[a-zé=;\" \n]{0,40}") {
            let (value, attributes) = parse(&header);
            prop_assert!(header.contains(value));
            for (name, text) in attributes {
                prop_assert!(!name.is_empty() && header.contains(text));
                prop_assert!(!text.starts_with('"') && !text.ends_with('"'));
            }
        }
    }

    #[test]
    fn reads_as_upstream() {
        for (header, value, attributes) in [
            ("form-data", "form-data", &[][..]),
            (
                "form-data; name=\"a\"; filename=\"b.txt\"",
                "form-data",
                &[("name", "a"), ("filename", "b.txt")],
            ),
            ("x;a=1;b=2", "x", &[("a", "1"), ("b", "2")]),
            (
                "x; a=\"q\"uote\"; b=\"\"",
                "x",
                &[("a", "q\"uote"), ("b", "")],
            ),
            ("x; a=\"semi;colon\"", "x", &[("a", "semi;colon")]),
            ("x; a=", "x", &[]),
            ("x; a=\"open", "x", &[]),
            ("x; a=1; -", "x", &[("a", "1")]),
            ("x; file=\"é\"", "x", &[("file", "é")]),
        ] {
            assert_eq!(parse(header), (value, attributes.to_vec()), "{header}");
        }
    }
}
