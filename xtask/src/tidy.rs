//! Static rules over the sources, the manifests and the pages of the repository; `cargo xtask
//! tidy`.
//!
//! One file a rule, each with a test that feeds it a broken example. A rule that does not hold
//! everywhere yet is a ratchet (`ratchet.rs`): a committed list of numbers that may only fall.

mod circles;
mod clock;
mod comments;
mod copies;
mod durable;
mod functions;
mod ignored;
mod layers;
mod links;
mod module_form;
mod named_files;
mod named_tests;
mod object_files;
mod parsers;
mod poison;
mod ratchet;
mod sizes;
mod source;
mod sql;
mod statuses;
mod unsafety;

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Args;

use cairn_testkit::workspace::root;
use ratchet::{Measure, Ratchet};
use source::Source;

#[derive(Args, Default)]
pub(crate) struct Options {
    /// Write the numbers of the ratchet that have fallen
    #[arg(long)]
    lower: bool,
}

/// A violation of a rule at one line, with its remedy.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    file: String,
    /// Line number from 1; 0 for the whole file.
    line: usize,
    message: String,
}

impl Finding {
    fn new(file: &str, line: usize, message: impl Into<String>) -> Finding {
        Finding {
            file: file.to_owned(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.message),
            line => write!(f, "{}:{line}: {}", self.file, self.message),
        }
    }
}

/// Rules that check one source file.
const RULES: [fn(&Source) -> Vec<Finding>; 5] = [
    clock::check,
    durable::check,
    object_files::check,
    sql::check,
    unsafety::check,
];

/// Rules whose counts are ratchets.
const MEASURES: [fn(&Source) -> Vec<Measure>; 7] = [
    comments::measure,
    copies::measure,
    functions::measure,
    ignored::measure,
    poison::measure,
    sizes::measure,
    statuses::measure,
];

pub(crate) fn run(options: &Options) -> Result<()> {
    let root = root();
    let mut findings = Vec::new();
    let mut measures = Vec::new();
    let files = source::all(root)?;
    let mut uses = circles::Uses::default();
    let mut functions = named_tests::Functions::default();
    let test_modules = source::test_modules(root, &files)?;
    for file in &files {
        let source = Source::read(root, file, &test_modules)?;
        findings.extend(RULES.iter().flat_map(|rule| rule(&source)));
        uses.add(&source);
        functions.add(&source);
        measures.extend(MEASURES.iter().flat_map(|rule| rule(&source)));
    }
    measures.extend(uses.measure());
    findings.extend(layers::check_workspace(root)?);
    findings.extend(unsafety::check_manifests(root)?);
    let pages = pages(root)?;
    findings.extend(links::check(root, &pages));
    findings.extend(named_files::check(root, &pages, &files));
    findings.extend(functions.check(&pages));
    findings.extend(parsers::check(root, &files));
    findings.extend(module_form::check(&files));

    let mut ratchet = Ratchet::read(root)?;
    let (broken, fallen) = ratchet.compare(&measures);
    findings.extend(broken);
    if options.lower {
        ratchet.lower(&measures);
        ratchet.write(root)?;
    } else if fallen > 0 {
        println!("{fallen} numbers of the ratchet have fallen: cargo xtask tidy --lower");
    }
    findings.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} places break a rule", findings.len());
    }
    Ok(())
}

/// A page of documentation: its path from the root, with `/`, and its text.
type Page = (String, String);

fn pages(root: &Path) -> Result<Vec<Page>> {
    let mut pages = Vec::new();
    for path in source::walk(root, "md")? {
        let text = std::fs::read_to_string(root.join(&path)).with_context(|| path.clone())?;
        pages.push((path, text));
    }
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_repository_holds_its_rules() {
        run(&Options::default()).expect("cargo xtask tidy");
    }
}
