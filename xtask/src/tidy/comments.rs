//! Comments begin with the thing they describe, not with a clause around it ("What …", "Of …").

use super::ratchet::Measure;
use super::source::Source;

const OPENINGS: [&str; 5] = ["What", "Of", "Who", "Where", "So many"];

pub(crate) fn measure(source: &Source) -> Vec<Measure> {
    let opening = |(line, opening): (usize, &str)| Measure {
        rule: "comments",
        key: source.room().to_owned(),
        value: 1,
        limit: 0,
        line,
        file: source.path.clone(),
        message: format!(
            "a comment begins with {opening:?}: begin with the thing itself, by the field's term"
        ),
    };
    openings(&source.text).into_iter().map(opening).collect()
}

/// Comments whose first line begins with such a word: the line, counted from 1, and the word.
fn openings(text: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    let mut in_comment = false;
    for (number, line) in text.lines().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            in_comment = false;
            continue;
        };
        let words = comment.trim_start_matches(['/', '!', ' ']);
        if !in_comment {
            let begins = |opening: &&&str| {
                let rest = words.strip_prefix(**opening);
                rest.is_some_and(|r| !r.starts_with(|c: char| c.is_alphanumeric()))
            };
            found.extend(OPENINGS.iter().find(begins).map(|o| (number + 1, *o)));
        }
        in_comment = true;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_words_are_looked_at() {
        let text = "//! What is here.\nfn f() {\n    // So many are kept.\n    // Of these none.\n}\n\
                    /// Whoever asks.\n/// Whole files.\nfn g() {}\n/// Where it lies.\nfn h() {}\n";
        assert_eq!(openings(text), [(1, "What"), (3, "So many"), (9, "Where")]);
        let source = Source::parse("crates/disk/src/a.rs", text, false).expect("Rust");
        let measures = measure(&source);
        assert_eq!(measures.len(), 3);
        assert_eq!(measures[0].key, "disk");
    }
}
