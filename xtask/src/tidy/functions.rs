//! A function has at most 100 lines: more do not fit a screen, nor a head.

use super::ratchet::Measure;
use super::source::Source;

const LINES_MAX: u64 = 100;

pub(crate) fn measure(source: &Source) -> Vec<Measure> {
    let long = source
        .functions
        .iter()
        .filter(|f| f.lines as u64 > LINES_MAX);
    let long = long.map(|function| Measure {
        rule: "functions",
        key: format!("{}::{}", source.path, function.name),
        value: function.lines as u64,
        limit: LINES_MAX,
        line: function.line,
        file: source.path.clone(),
        message: format!(
            "`{}` has {} lines, of at most {LINES_MAX}: take the steps out of it",
            function.name, function.lines
        ),
    });
    long.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_function_is_found() {
        let of = |lines: usize| {
            let text = format!(
                "fn short() {{}}\nfn long() {{\n{}}}\n",
                "a();\n".repeat(lines)
            );
            measure(&Source::parse("crates/disk/src/a.rs", text, false).expect("Rust"))
        };
        assert!(of(98).is_empty());
        let long = of(99);
        assert_eq!(long.len(), 1);
        assert_eq!(long[0].key, "crates/disk/src/a.rs::long");
        assert_eq!((long[0].value, long[0].line), (101, 2));
    }
}
