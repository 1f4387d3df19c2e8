//! Links of the pages lead to an existing file of the repository, and to an existing heading in it.

use std::collections::HashMap;
use std::path::Path;

use super::{Finding, Page};

pub(crate) fn check(root: &Path, pages: &[Page]) -> Vec<Finding> {
    let headings: HashMap<&str, Vec<String>> = pages
        .iter()
        .map(|(path, text)| (path.as_str(), headings(text)))
        .collect();
    let mut findings = Vec::new();
    for (path, text) in pages {
        for (line, target) in links(text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((&target, ""));
            let to = match file {
                "" => path.clone(),
                _ => resolve(path, file),
            };
            if !root.join(&to).exists() {
                let message = format!("the link {target:?} leads to no file ({to})");
                findings.push(Finding::new(path, line, message));
                continue;
            }
            let known = headings.get(to.as_str());
            if !heading.is_empty() && !known.is_some_and(|k| k.iter().any(|h| h == heading)) {
                let message = format!("the link {target:?} leads to no heading of {to}");
                findings.push(Finding::new(path, line, message));
            }
        }
    }
    findings
}

/// Resolves a link's path relative to its page; the result is relative to the root.
fn resolve(page: &str, target: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => (),
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// Lines outside of code blocks, numbered from 1.
pub(crate) fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut fence: Option<&str> = None;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let begin = line.trim_start();
        let ticks = &begin[..begin.len() - begin.trim_start_matches('`').len()];
        match fence {
            Some(open) if begin.trim_end() == open => fence = None,
            None if ticks.len() >= 3 => fence = Some(ticks),
            None => lines.push((number + 1, line)),
            Some(_) => (),
        }
    }
    lines
}

/// Targets of `[…](target)` and `[…]: target`, with line numbers.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        for part in line.split("](").skip(1) {
            let target = part.split([')', ' ']).next().unwrap_or_default();
            found.push((number, target.to_owned()));
        }
        if line.starts_with('[')
            && let Some((_, target)) = line.split_once("]: ")
        {
            found.push((number, target.trim().to_owned()));
        }
    }
    found
}

/// Anchors of headings: lower case, hyphens for spaces, no punctuation.
fn headings(text: &str) -> Vec<String> {
    let titles = prose(text)
        .into_iter()
        .filter(|(_, line)| line.starts_with('#'));
    let slug = |title: &str| {
        let kept = title
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    titles
        .map(|(_, line)| slug(line.trim_start_matches('#').trim()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_links_are_found() {
        let root = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(root.path().join("docs")).expect("a folder");
        let page = "# A `title`, here\n[a](b.md) [c](../README.md#words-we-use) [d](#a-title-here)\n\
                    [e](gone.md) [f](b.md#gone)\n```\n[g](gone.md)\n```\n[h](https://example.org/x)\n\
                    [i]: ../gone\n";
        let pages: Vec<Page> = [
            ("docs/a.md", page),
            ("docs/b.md", "# B\n"),
            ("README.md", "## Words we use\n"),
        ]
        .map(|(path, text)| (path.to_owned(), text.to_owned()))
        .into();
        for (path, text) in &pages {
            std::fs::write(root.path().join(path), text).expect("a page");
        }
        let found = check(root.path(), &pages);
        let found: Vec<(usize, &str)> =
            found.iter().map(|f| (f.line, f.message.as_str())).collect();
        assert_eq!(
            found,
            [
                (3, "the link \"gone.md\" leads to no file (docs/gone.md)"),
                (3, "the link \"b.md#gone\" leads to no heading of docs/b.md"),
                (8, "the link \"../gone\" leads to no file (gone)"),
            ]
        );
    }
}
