//! A file has at most 600 lines: a longer one has a second idea in it.

use super::ratchet::Measure;
use super::source::Source;

const LINES_MAX: u64 = 600;

pub(crate) fn measure(source: &Source) -> Vec<Measure> {
    let lines = source.text.lines().count() as u64;
    if lines <= LINES_MAX {
        return Vec::new();
    }
    vec![Measure {
        rule: "files",
        key: source.path.clone(),
        value: lines,
        limit: LINES_MAX,
        line: 0,
        file: source.path.clone(),
        message: format!("{lines} lines, of at most {LINES_MAX}: find the second idea in it"),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_is_found() {
        let of = |lines| {
            let text = "a();\n".repeat(lines);
            measure(&Source::parse("crates/disk/src/a.rs", text, false).expect("Rust"))
        };
        assert!(of(600).is_empty());
        assert_eq!(of(601)[0].value, 601);
    }
}
