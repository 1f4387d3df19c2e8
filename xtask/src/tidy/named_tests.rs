//! Tests that `docs/mended.md` names exist: `trust_is_not_copied`, or `a_torn_note…` for the
//! beginning of a name.

use std::collections::BTreeSet;

use super::links::prose;
use super::source::Source;
use super::{Finding, Page};

const PAGE: &str = "docs/mended.md";
/// Words of a name by which it is told from an option's.
const WORDS_MIN: usize = 3;

/// Names of all functions of the sources.
#[derive(Default)]
pub(crate) struct Functions(BTreeSet<String>);

impl Functions {
    pub(crate) fn add(&mut self, source: &Source) {
        let names = source
            .functions
            .iter()
            .map(|function| function.name.clone());
        self.0.extend(names);
    }

    pub(crate) fn check(&self, pages: &[Page]) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (path, text) in pages.iter().filter(|(path, _)| path == PAGE) {
            for (line, prose) in prose(text) {
                let names = prose.split('`').skip(1).step_by(2);
                for name in names.filter(|name| is_test(name) && !self.has(name)) {
                    let message = format!("there is no test `{name}`");
                    findings.push(Finding::new(path, line, message));
                }
            }
        }
        findings
    }

    fn has(&self, name: &str) -> bool {
        match name.strip_suffix('…') {
            Some(begin) => {
                let mut from = self.0.range(begin.to_owned()..);
                from.next().is_some_and(|found| found.starts_with(begin))
            }
            None => self.0.contains(name),
        }
    }
}

fn is_test(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_…".contains(c);
    name.chars().all(plain) && name.split('_').count() >= WORDS_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_no_test_are_found() {
        let source = "fn a_link_is_not_copied() {}";
        let source = Source::parse("crates/x/src/lib.rs", source, true).expect("a source");
        let mut functions = Functions::default();
        functions.add(&source);
        let page = "`a_link_is_not_copied`, `a_link_is…`, `max_clients`\n`a_link_is_not_followed`, `a_link_was…`\n";
        let pages = [(PAGE.to_owned(), page.to_owned())];
        let found = functions.check(&pages);
        let lines: Vec<usize> = found.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [2, 2]);
    }
}
