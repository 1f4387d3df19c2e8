//! One form of modules: `a.rs` with the rest of it in `a/`, never `a/mod.rs`.
//!
//! A file's name says then which module it is, in an editor's tabs, too. Helpers that test programs
//! share are the exception: cargo would take `tests/common.rs` for a program.

use super::Finding;

pub(crate) fn check(files: &[String]) -> Vec<Finding> {
    files
        .iter()
        .filter(|file| file.ends_with("/mod.rs") && !file.contains("/tests/"))
        .map(|file| {
            let folder = file.strip_suffix("/mod.rs").unwrap_or(file);
            Finding::new(file, 0, format!("a second form of modules: {folder}.rs"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_have_one_form() {
        let files = [
            "crates/lab/src/plot/mod.rs",
            "crates/lab/src/plot.rs",
            "crates/cairn/tests/common/mod.rs",
        ];
        let found = check(&files.map(str::to_owned));
        let messages: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            messages,
            ["crates/lab/src/plot/mod.rs: a second form of modules: crates/lab/src/plot.rs"]
        );
    }
}
