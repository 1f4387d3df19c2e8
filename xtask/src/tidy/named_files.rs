//! Sources that the pages name exist: `disk/staged_file.rs`, `two_phase/`, `update.rs`.
//!
//! A name is the end of some path below `crates/`, `xtask/` or the root, with or without a crate's
//! `src/`. A word that only looks like a path is reported too: such words are too rare for an
//! exception.

use std::path::Path;

use super::links::prose;
use super::{Finding, Page};

/// Pages that name sources.
const PAGES: [&str; 3] = ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/mended.md"];

pub(crate) fn check(root: &Path, pages: &[Page], sources: &[String]) -> Vec<Finding> {
    let known = Known::new(sources);
    let mut findings = Vec::new();
    for (path, text) in pages
        .iter()
        .filter(|(path, _)| PAGES.contains(&path.as_str()))
    {
        for (line, prose) in prose(text) {
            let names = prose
                .split('`')
                .skip(1)
                .step_by(2)
                .filter(|n| names_source(n));
            for name in names.filter(|n| !known.has(n) && !root.join(n).exists()) {
                let message = format!("there is no source `{name}`");
                findings.push(Finding::new(path, line, message));
            }
        }
    }
    findings
}

fn names_source(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_/.".contains(c);
    name.chars().all(plain) && (name.ends_with(".rs") || name.ends_with('/'))
}

/// Paths of sources and of their folders, each beginning with `/`.
struct Known(Vec<String>);

impl Known {
    fn new(sources: &[String]) -> Known {
        let mut paths = Vec::new();
        for source in sources {
            // A crate's `src/` may be omitted.
            let path = format!("/{source}").replacen("/src/", "/", 1);
            for (end, _) in path.match_indices('/').skip(1) {
                paths.push(path[..=end].to_owned());
            }
            paths.push(path);
        }
        paths.sort();
        paths.dedup();
        Known(paths)
    }

    fn has(&self, name: &str) -> bool {
        let end = format!("/{}", name.replacen("src/", "", 1));
        self.0.iter().any(|path| path.ends_with(&end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_no_source_are_found() {
        let sources = [
            "crates/disk/src/staged_file.rs",
            "crates/peer/src/two_phase/wire.rs",
        ];
        let sources = sources.map(str::to_owned);
        let page = "`disk/staged_file.rs` and `two_phase/`, `wire.rs`\n`disk/gone.rs`, `gone/`\n\
                    `objects[-N]/part` is no source\n";
        let pages = [("ARCHITECTURE.md".to_owned(), page.to_owned())];
        let root = tempfile::tempdir().expect("a folder");
        let found = check(root.path(), &pages, &sources);
        let found: Vec<(usize, &str)> =
            found.iter().map(|f| (f.line, f.message.as_str())).collect();
        assert_eq!(
            found,
            [
                (2, "there is no source `disk/gone.rs`"),
                (2, "there is no source `gone/`")
            ]
        );
    }
}
