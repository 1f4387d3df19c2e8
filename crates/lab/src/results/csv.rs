//! Comma-separated values by RFC 4180: quoted fields may contain commas, quotes (doubled) and line
//! ends. Importers handle what other tools print before and after a table.

/// Parses the rows of a text. An unclosed quote ends with the text.
pub fn rows(text: &str) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut row = Vec::new();
    let mut field = String::new();
    let mut quoted = false;
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '"' if quoted && characters.peek() == Some(&'"') => {
                characters.next();
                field.push('"');
            }
            '"' if quoted => quoted = false,
            '"' if field.is_empty() => quoted = true,
            ',' if !quoted => row.push(std::mem::take(&mut field)),
            '\n' if !quoted => {
                row.push(std::mem::take(&mut field));
                rows.push(std::mem::take(&mut row));
            }
            '\r' if !quoted && characters.peek() == Some(&'\n') => {}
            other => field.push(other),
        }
    }
    if !field.is_empty() || !row.is_empty() {
        row.push(field);
        rows.push(row);
    }
    rows
}

/// A field in its written form, quoted if necessary.
pub fn field(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\"")).into()
    } else {
        text.into()
    }
}

/// One line, with fields quoted if necessary.
pub fn line<'a>(fields: impl IntoIterator<Item = &'a str>) -> String {
    let mut line = String::new();
    for (index, text) in fields.into_iter().enumerate() {
        if index > 0 {
            line.push(',');
        }
        line.push_str(&field(text));
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_commas_and_line_ends() {
        let text = "a,\"b, \"\"c\"\"\n d\",\r\ne";
        let parsed = rows(text);
        assert_eq!(parsed, vec![vec!["a", "b, \"c\"\n d", ""], vec!["e"]]);
        assert_eq!(line(["a", "b, \"c\"\n d", ""]), "a,\"b, \"\"c\"\"\n d\",\n");
    }

    #[test]
    fn an_open_quote_ends_with_the_text() {
        assert_eq!(rows("\"a,b"), vec![vec!["a,b"]]);
        assert!(rows("").is_empty());
    }
}

#[cfg(test)]
mod properties {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_are_read_as_they_were_written(
            written in vec(vec("[a,\"\r\n é]{0,5}", 1..4), 0..4),
        ) {
            let text: String = written
                .iter()
                .map(|fields| line(fields.iter().map(String::as_str)))
                .collect();
            prop_assert_eq!(rows(&text), written);
        }

        /// Nothing is invented: fields and what separates them fit into the text.
        #[test]
        fn any_text_has_rows(text in "[a,\"\r\n]{0,40}|.{0,40}") {
            let rows = rows(&text);
            let fields: usize = rows.iter().map(Vec::len).sum();
            let bytes: usize = rows.iter().flatten().map(String::len).sum();
            prop_assert!(rows.iter().all(|row| !row.is_empty()));
            prop_assert!(bytes + fields <= text.len() + 1);
        }
    }
}
