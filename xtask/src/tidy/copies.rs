//! Copies of helpers that `cairn_types` has: hex digits (`hex.rs`), dates (`calendar.rs`), and
//! pseudo-random numbers from a seed (`split_mix.rs`). Copies diverge in the end: one accepts
//! February 30th.
//!
//! A copy is recognised by a characteristic token: a format of two hex digits, the days of an era,
//! a factor. Tests count too; `xtask` and `testkit` do not, as they may not use the crates.

use super::ratchet::Measure;
use super::source::{Source, Token};

/// Path of the crate that has the originals.
const ORIGINALS: &str = "crates/types/src/";
/// Path of what the programs of xtask share, which has a generator of its own.
const TESTKIT: &str = "crates/testkit/src/";

/// Characteristic numbers, written without underscores, and what to use instead.
const NUMBERS: [(&str, &str); 3] = [
    ("719468", "cairn_types::calendar"),
    ("146097", "cairn_types::calendar"),
    ("0xbf58476d1ce4e5b9", "cairn_types::SplitMix"),
];

pub(crate) fn measure(source: &Source) -> Vec<Measure> {
    let is_outside = !source.path.starts_with("crates/") || source.path.starts_with(TESTKIT);
    if is_outside || source.path.starts_with(ORIGINALS) {
        return Vec::new();
    }
    let copy = |token: &Token| {
        let original = original(token)?;
        Some(Measure {
            rule: "copies",
            key: source.room().to_owned(),
            value: 1,
            limit: 0,
            line: token.line,
            file: source.path.clone(),
            message: format!("a copy of what {original} does: use that"),
        })
    };
    source.tokens.iter().filter_map(copy).collect()
}

/// The helper that this literal indicates a copy of.
fn original(token: &Token) -> Option<&'static str> {
    if !token.literal {
        return None;
    }
    if is_hex_of_a_byte(&token.text) {
        return Some("cairn_types::hex");
    }
    let number = token.text.replace('_', "").to_ascii_lowercase();
    let found = NUMBERS.iter().find(|(known, _)| {
        let kind = number.strip_prefix(known);
        // A type suffix may follow: `146_097i64`.
        kind.is_some_and(|kind| kind.is_empty() || kind.starts_with(['i', 'u']))
    });
    found.map(|(_, original)| *original)
}

/// A format string of one byte and nothing else: `"{:02x}"`, `"{byte:02x}"`. (With text around it,
/// as in a colour, it is a format of its own.)
fn is_hex_of_a_byte(literal: &str) -> bool {
    let name = literal
        .strip_prefix("\"{")
        .and_then(|rest| rest.strip_suffix(":02x}\""));
    name.is_some_and(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_found() {
        let text = "fn hex() {\n bytes.map(|b| format!(\"{b:02x}\"));\n write!(text, \"{:02x}\", b);\n\
                    write!(svg, \"#{red:02x}{green:02x}\");\n}\n\
                    fn date() {\n days + 719_468 / 146_097i64\n}\n\
                    fn dice() {\n z * 0xbf58_476d_1ce4_e5b9 + 1_719_468 + 7_194_680\n}\n\
                    #[cfg(test)]\nmod tests { fn g() { format!(\"{b:02x}\") } }\n";
        let lines = |path| {
            let source = Source::parse(path, text, false).expect("Rust");
            measure(&source).iter().map(|m| m.line).collect::<Vec<_>>()
        };
        assert_eq!(lines("crates/proxy/src/put.rs"), [2, 3, 7, 7, 10, 13]);
        assert_eq!(lines("crates/types/src/hex.rs"), [0usize; 0]);
        assert_eq!(lines("crates/testkit/src/random.rs"), [0usize; 0]);
        assert_eq!(lines("xtask/src/crash.rs"), [0usize; 0]);
    }
}
