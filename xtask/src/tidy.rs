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
    let (mut findings, measures) = check(root)?;
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

/// All rules over a tree.
fn check(root: &Path) -> Result<(Vec<Finding>, Vec<Measure>)> {
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
    Ok((findings, measures))
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

    /// Breaches of the rules, in a copy of the repository: a file to add, its text, and words of the finding.
    const BROKEN: [(&str, &str, &str); 16] = [
        (
            "crates/types/src/b1.rs",
            "fn f() { std::time::Instant::now(); }",
            "in pure code",
        ),
        (
            "crates/daemons/src/b2.rs",
            "fn f() { rand::random::<u8>(); }",
            "what the simulator runs",
        ),
        (
            "crates/proxy/src/b3.rs",
            "fn f(x: F) { rustix::fs::fsync(x); }",
            "syncs, links or renames",
        ),
        (
            "crates/daemons/src/b4.rs",
            "fn f() { \"objects-1/7\".ends_with(\".data\"); }",
            "names files of objects",
        ),
        (
            "crates/servers/src/b5.rs",
            "fn f() { rusqlite::Connection::open(x); }",
            "SQL outside",
        ),
        (
            "crates/proxy/src/b6.rs",
            "fn f() { unsafe { g() } }",
            "unsafe",
        ),
        (
            "crates/proxy/src/b7.rs",
            "// What a thing is.\nfn f() {}",
            "a comment begins with",
        ),
        (
            "crates/proxy/src/b8.rs",
            "fn f(x: &[u8]) -> String { x.iter().map(|b| format!(\"{b:02x}\")).collect() }",
            "hex",
        ),
        (
            "crates/proxy/src/b9.rs",
            "#[test]\n#[ignore]\nfn f() {}",
            "ignore",
        ),
        (
            "crates/proxy/src/c1.rs",
            "fn f(m: M) { m.lock().unwrap_or_else(PoisonError::into_inner); }",
            "poison",
        ),
        (
            "crates/proxy/src/c2.rs",
            "fn f() -> StatusCode { StatusCode::IM_A_TEAPOT }",
            "status",
        ),
        (
            "crates/proxy/src/c3.rs",
            "use crate::c4::A;",
            "a circle of modules",
        ),
        (
            "crates/proxy/src/c4.rs",
            "use crate::c3::B;",
            "a circle of modules",
        ),
        ("crates/formats/src/c5.rs", "fn f() {}", "is it a parser?"),
        ("docs/c6.md", "[there](is/not.md)", "is/not.md"),
        (
            "docs/mended.md",
            "`disk/is_not_there.rs`, `a_test_that_is_not_there`",
            "is_not_there.rs",
        ),
    ];

    #[test]
    fn each_rule_is_run() {
        let copy = tempfile::tempdir().expect("a folder");
        let here = root();
        let mut paths = pages(here).expect("pages").into_iter().map(|page| page.0);
        let mut all: Vec<String> = paths.by_ref().collect();
        all.extend(source::all(here).expect("sources"));
        for extension in ["toml", "lock"] {
            all.extend(source::walk(here, extension).expect("manifests"));
        }
        let write = |path: &str, text: &[u8]| {
            let to = copy.path().join(path);
            std::fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
            std::fs::write(to, text).expect("a file");
        };
        for path in &all {
            write(path, &std::fs::read(here.join(path)).expect("a file"));
        }
        for (path, text, _) in BROKEN {
            write(path, text.as_bytes());
        }
        let long = "fn f() {\n".to_owned() + &"    g();\n".repeat(700) + "}\n";
        write("crates/proxy/src/d1.rs", long.as_bytes());
        write("crates/proxy/src/d2/mod.rs", b"");
        let edit = |path: &str, old: &str, new: &str| {
            let text = std::fs::read_to_string(copy.path().join(path)).expect("a file");
            assert!(text.contains(old), "{path}: {old:?}");
            write(path, text.replacen(old, new, 1).as_bytes());
        };
        edit("crates/erasure/Cargo.toml", "[lints]", "[no-lints]");
        edit(
            "ARCHITECTURE.md",
            "| | `memory` |",
            "| | `d3` | |\n| | `memory` |",
        );
        let (findings, measures) = check(copy.path()).expect("the rules");
        let (broken, _) = Ratchet::read(here).expect("the ratchet").compare(&measures);
        let found: Vec<String> = findings
            .iter()
            .chain(&broken)
            .map(Finding::to_string)
            .collect();
        let finds = |path: &str, words: &str| {
            let is_it = |line: &&String| line.contains(path) && line.contains(words);
            assert!(
                found.iter().any(|line| is_it(&line)),
                "{path}: {words:?} in {found:#?}"
            );
        };
        for (path, _, words) in BROKEN {
            finds(path.trim_end_matches(".rs"), words);
        }
        finds("docs/mended.md", "a_test_that_is_not_there");
        finds("d1.rs", "of at most 100");
        finds("d1.rs", "find the second idea");
        finds("d2/mod.rs", "a second form of modules");
        finds("crates/erasure/Cargo.toml", "lints are not taken");
        finds("ARCHITECTURE.md", "a crate `d3` that is not there");
    }
}
