//! A Rust file as a flat list of tokens with their lines, each marked as test code or not.
//!
//! Tokens, not a syntax tree: rules search for short sequences (`fs :: rename`), and find them
//! inside macros too.

use std::collections::HashSet;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow};
use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

pub(crate) struct Source {
    /// Path from the root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    pub(crate) tokens: Vec<Token>,
    pub(crate) functions: Vec<Function>,
}

pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) line: usize,
    /// Whether it is compiled for tests only.
    pub(crate) test: bool,
    pub(crate) literal: bool,
}

pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) line: usize,
    /// Number of lines from `fn` to the closing brace.
    pub(crate) lines: usize,
}

/// Pairs of punctuation that form one token here.
const PAIRS: [&str; 6] = ["::", "==", "!=", "=>", "->", "||"];
/// Folders without sources of ours.
const SKIPPED: [&str; 4] = ["node_modules", ".git", "corpus", "artifacts"];

impl Source {
    pub(crate) fn read(root: &Path, path: &str, test_modules: &HashSet<String>) -> Result<Source> {
        let text = std::fs::read_to_string(root.join(path)).with_context(|| path.to_owned())?;
        let test = test_modules.iter().any(|module| {
            let below = path.strip_prefix(module.as_str());
            below.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        });
        Source::parse(path, text, test)
    }

    pub(crate) fn parse(path: &str, text: impl Into<String>, test: bool) -> Result<Source> {
        let text = text.into();
        let stream =
            TokenStream::from_str(&text).map_err(|error| anyhow!("{path} is not Rust: {error}"))?;
        let mut source = Source {
            path: path.to_owned(),
            text,
            tokens: Vec::new(),
            functions: Vec::new(),
        };
        let test = test || path.contains("/tests/") || path.ends_with("/tests.rs");
        source.add(stream, test);
        Ok(source)
    }

    /// The crate of the file: `disk` for `crates/disk/src/room.rs`, `xtask` for
    /// `xtask/src/main.rs`.
    pub(crate) fn room(&self) -> &str {
        let path = self.path.strip_prefix("crates/").unwrap_or(&self.path);
        path.split('/').next().unwrap_or(path)
    }

    fn add(&mut self, stream: TokenStream, test: bool) {
        let trees: Vec<TokenTree> = stream.into_iter().collect();
        // A test attribute applies to everything up to the next block or semicolon.
        let mut marked = test || trees.windows(3).any(is_inner_test_attribute);
        let whole = marked;
        let mut at = 0;
        while at < trees.len() {
            let line = trees[at].span().start().line;
            match &trees[at] {
                TokenTree::Punct(punct) if punct.as_char() == '#' => {
                    marked |= trees.get(at + 1).is_some_and(is_test_attribute);
                    self.push("#", line, marked, false);
                }
                TokenTree::Punct(punct) => {
                    let mut text = punct.as_char().to_string();
                    if punct.spacing() == Spacing::Joint
                        && let Some(TokenTree::Punct(next)) = trees.get(at + 1)
                    {
                        let pair = format!("{text}{}", next.as_char());
                        if PAIRS.contains(&pair.as_str()) {
                            text = pair;
                            at += 1;
                        }
                    }
                    self.push(&text, line, marked, false);
                    if text == ";" {
                        marked = whole;
                    }
                }
                TokenTree::Ident(ident) => {
                    let text = ident.to_string();
                    if text == "fn" {
                        self.functions.extend(function(&trees[at..]));
                    }
                    self.push(&text, line, marked, false);
                }
                TokenTree::Literal(literal) => {
                    self.push(&literal.to_string(), line, marked, true);
                }
                TokenTree::Group(group) => {
                    let (open, close) = match group.delimiter() {
                        Delimiter::Parenthesis => ("(", ")"),
                        Delimiter::Brace => ("{", "}"),
                        Delimiter::Bracket => ("[", "]"),
                        Delimiter::None => ("", ""),
                    };
                    self.push(open, line, marked, false);
                    self.add(group.stream(), marked);
                    let end = group.span_close().start().line;
                    self.push(close, end, marked, false);
                    if group.delimiter() == Delimiter::Brace {
                        marked = whole;
                    }
                }
            }
            at += 1;
        }
    }

    fn push(&mut self, text: &str, line: usize, test: bool, literal: bool) {
        self.tokens.push(Token {
            text: text.to_owned(),
            line,
            test,
            literal,
        });
    }

    /// Lines outside of tests on which these tokens follow each other.
    pub(crate) fn find(&self, sequence: &[&str]) -> Vec<usize> {
        let follows = |window: &&[Token]| {
            !window[0].test && window.iter().zip(sequence).all(|(t, s)| t.text == *s)
        };
        let windows = self.tokens.windows(sequence.len());
        windows.filter(follows).map(|w| w[0].line).collect()
    }
}

/// Parses `fn NAME … { … }`, but not a type (`fn(…)`) or a declaration without a body.
fn function(trees: &[TokenTree]) -> Option<Function> {
    let Some(TokenTree::Ident(name)) = trees.get(1) else {
        return None;
    };
    let line = trees[0].span().start().line;
    for tree in &trees[2..] {
        match tree {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                return Some(Function {
                    name: name.to_string(),
                    line,
                    lines: group.span_close().start().line + 1 - line,
                });
            }
            TokenTree::Punct(punct) if punct.as_char() == ';' => return None,
            _ => (),
        }
    }
    None
}

/// Matches `[test]`, `[tokio::test]`, `[cfg(test)]`, `[cfg(any(test, …))]`, but not
/// `cfg(not(test))`.
fn is_test_attribute(tree: &TokenTree) -> bool {
    let TokenTree::Group(group) = tree else {
        return false;
    };
    let mut words = Vec::new();
    identifiers(group.stream(), &mut words);
    let attribute = words.first().map(String::as_str);
    group.delimiter() == Delimiter::Bracket
        && !matches!(attribute, Some("doc" | "cfg_attr"))
        && !words.iter().any(|word| word == "not")
        && words.iter().any(|word| word == "test")
}

/// All identifiers of a stream, those inside groups too. Words of literals, such as comments that became
/// `#[doc = "…"]`, are none.
fn identifiers(stream: TokenStream, found: &mut Vec<String>) {
    for tree in stream {
        match tree {
            TokenTree::Ident(ident) => found.push(ident.to_string()),
            TokenTree::Group(group) => identifiers(group.stream(), found),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

fn is_inner_test_attribute(window: &[TokenTree]) -> bool {
    let is = |tree: &TokenTree, c| matches!(tree, TokenTree::Punct(p) if p.as_char() == c);
    is(&window[0], '#') && is(&window[1], '!') && is_test_attribute(&window[2])
}

/// All Rust files of the crates, of xtask and of the fuzz targets.
pub(crate) fn all(root: &Path) -> Result<Vec<String>> {
    walk(root, "rs")
}

/// Files with an extension, in order, as paths from the root with `/`.
pub(crate) fn walk(root: &Path, extension: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let (entry, name) = entry.map(|e| (e.path(), e.file_name()))?;
            if entry.is_symlink() || SKIPPED.iter().any(|s| name == *s) || is_build(&entry) {
                continue;
            }
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.extension().is_some_and(|e| e == extension) {
                let path = entry.strip_prefix(root).unwrap_or(&entry);
                found.push(path.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Whether the folder is a target folder of cargo; a module may be called `target`, too.
fn is_build(folder: &Path) -> bool {
    folder.ends_with("target") && folder.join("CACHEDIR.TAG").exists()
}

/// Modules that another file declares with `#[cfg(test)] mod NAME;`, as paths without `.rs`.
pub(crate) fn test_modules(root: &Path, files: &[String]) -> Result<HashSet<String>> {
    let mut modules = HashSet::new();
    for file in files {
        let text = std::fs::read_to_string(root.join(file)).with_context(|| file.clone())?;
        modules.extend(declared_for_tests(file, &text));
    }
    Ok(modules)
}

fn declared_for_tests(file: &str, text: &str) -> Vec<String> {
    let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
    let folder = match name {
        "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
        _ => file.trim_end_matches(".rs").to_owned(),
    };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let declared = lines.windows(2).filter(|w| w[0] == "#[cfg(test)]");
    let names = declared.filter_map(|w| w[1].strip_suffix(';')?.split("mod ").nth(1));
    names.map(|name| format!("{folder}/{name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Source {
        Source::parse("crates/disk/src/a.rs", text, false).expect("Rust")
    }

    #[test]
    fn test_code_is_known() {
        let source = parse(
            "use a::b;\n#[cfg(test)]\nuse a::c;\nfn f() { a::b() }\n\
             #[cfg(test)]\nmod tests {\n fn g() { a::b() }\n}\n#[cfg(not(test))]\nfn h() { a::b() }",
        );
        assert_eq!(source.find(&["a", "::", "b"]), [1, 4, 10]);
        assert_eq!(source.find(&["a", "::", "c"]), [0usize; 0]);
        assert_eq!(
            parse("#![cfg(test)]\nfn f() { a() }").find(&["a"]),
            [0usize; 0]
        );
        let elsewhere = "crates/disk/src/a/tests.rs";
        let source = Source::parse(elsewhere, "fn f() { a() }", false).expect("Rust");
        assert_eq!(source.find(&["a"]), [0usize; 0]);
    }

    #[test]
    fn a_comment_with_the_word_is_no_test_attribute() {
        let source =
            parse("/// Rows for a test.\nfn f() { a() }\n#[doc = \"test\"]\nfn g() { a() }");
        assert_eq!(source.find(&["a"]), [2, 4]);
    }

    #[test]
    fn modules_for_tests_are_known() {
        let text = "mod a;\n#[cfg(test)]\nmod fake;\n#[cfg(test)]\npub(crate) mod other;\n";
        let of = |file| declared_for_tests(file, text);
        let two = |folder: &str| [format!("{folder}/fake"), format!("{folder}/other")];
        assert_eq!(of("crates/disk/src/lib.rs"), two("crates/disk/src"));
        assert_eq!(of("crates/disk/src/x.rs"), two("crates/disk/src/x"));
    }

    #[test]
    fn functions_have_lengths() {
        let text = "fn a();\nfn b() -> fn(u8) {\n}\nimpl X {\n fn c() where X: Y {\n  1;\n }\n}\n";
        let source = parse(text);
        let all = source.functions.iter();
        let all: Vec<_> = all.map(|f| (f.name.as_str(), f.line, f.lines)).collect();
        assert_eq!(all, [("b", 2, 2), ("c", 5, 3)]);
    }
}
