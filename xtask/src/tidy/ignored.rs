//! No test is ignored: one that cannot run everywhere says at run time that it was skipped, and
//! `cargo xtask test` fails where no `--may-skip` names it.

use super::ratchet::Measure;
use super::source::Source;

pub(crate) fn measure(source: &Source) -> Vec<Measure> {
    let tokens = source.tokens.windows(3);
    let ignored = tokens.filter(|w| w[0].text == "#" && w[1].text == "[" && w[2].text == "ignore");
    let ignored = ignored.map(|window| Measure {
        rule: "ignored",
        key: source.path.clone(),
        value: 1,
        limit: 0,
        line: window[0].line,
        file: source.path.clone(),
        message: "a test is ignored: run it, or remove it".to_owned(),
    });
    ignored.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_test_is_found() {
        let text = "#[test]\nfn runs() {}\n#[test]\n#[ignore = \"slow\"]\nfn rests() {}\n";
        let source = Source::parse("crates/disk/tests/a.rs", text, false).expect("Rust");
        let lines: Vec<usize> = measure(&source).iter().map(|m| m.line).collect();
        assert_eq!(lines, [4]);
    }
}
