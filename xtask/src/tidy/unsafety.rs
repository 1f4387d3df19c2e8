//! `unsafe` is allowed for foreign functions only, in the two files that call some; each manifest
//! takes the workspace's lints, which deny it elsewhere.

use std::path::Path;

use anyhow::{Context, Result};

use super::{Finding, Source};

const ALLOWED: [(&str, &str); 2] = [
    ("crates/rados/src/lib.rs", "librados, by its C functions"),
    ("crates/cairn/src/allocator.rs", "options of the allocator"),
];

pub(crate) fn check(source: &Source) -> Vec<Finding> {
    if ALLOWED.iter().any(|(path, _)| *path == source.path) {
        return Vec::new();
    }
    let words = ["unsafe", "unsafe_code"];
    let found = source
        .tokens
        .iter()
        .filter(|t| words.contains(&t.text.as_str()));
    let finding = |line| {
        let message = "`unsafe`: find a safe crate; foreign functions are called in `rados` alone";
        Finding::new(&source.path, line, message)
    };
    found.map(|token| finding(token.line)).collect()
}

pub(crate) fn check_manifests(root: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for path in super::source::walk(root, "toml")? {
        let of_a_member = path.starts_with("crates/") || path.starts_with("xtask/");
        if of_a_member && path.ends_with("/Cargo.toml") {
            let text = std::fs::read_to_string(root.join(&path)).with_context(|| path.clone())?;
            findings.extend(check_manifest(&path, &text));
        }
    }
    Ok(findings)
}

fn check_manifest(path: &str, text: &str) -> Option<Finding> {
    let lints = text.split("[lints]").nth(1).unwrap_or_default();
    let taken = lints.trim_start().starts_with("workspace = true");
    let message = "the workspace's lints are not taken: [lints] workspace = true";
    (!taken).then(|| Finding::new(path, 0, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_code_is_found() {
        let check = |path| {
            let text = "#[allow(unsafe_code)]\nfn f() {\n    unsafe { g() }\n}\n// unsafe\n";
            let source = Source::parse(path, text, false).expect("Rust");
            check(&source).iter().map(|f| f.line).collect::<Vec<_>>()
        };
        assert_eq!(check("crates/disk/src/a.rs"), [1, 3]);
        assert_eq!(check("crates/rados/src/lib.rs"), [0usize; 0]);
    }

    #[test]
    fn a_manifest_without_lints_is_found() {
        let check = |text| check_manifest("crates/disk/Cargo.toml", text).is_some();
        assert!(!check("[package]\n[lints]\nworkspace = true\n"));
        assert!(check("[package]\n[lints]\nrust = {}\n"));
        assert!(check("[package]\nname = \"x\"\n"));
    }
}
