//! Pure code computes values from values: no clock, no waiting, no files, no sockets.
//!
//! Code that depends on the time gets it as an argument, so that the simulator and tests control
//! it.

use super::{Finding, Source};

/// Pure crates, and pure files of other crates.
const PURE: [&str; 6] = [
    "crates/types/src/",
    "crates/formats/src/",
    "crates/erasure/src/",
    "crates/ring/src/",
    "crates/advise/src/",
    "crates/peer/src/quorum.rs",
];
/// Exceptions: parts of them that use files on purpose, with reasons.
const EXCEPT: [(&str, &str); 2] = [
    (
        "crates/ring/src/files.rs",
        "loads ring files again when they change",
    ),
    (
        "crates/ring/src/composite.rs",
        "reads the builder files that a composite ring names",
    ),
];
const USES: [&[&str]; 11] = [
    &["SystemTime", "::", "now"],
    &["Instant", "::", "now"],
    &[".", "elapsed", "("],
    &["thread", "::", "sleep"],
    &["thread", "::", "spawn"],
    &[".", "await"],
    &["tokio", "::"],
    &["fs", "::"],
    &["File", "::"],
    &["TcpStream", "::"],
    &["env", "::"],
];

pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let within = |place: &str| source.path.starts_with(place);
    if !PURE.iter().any(|p| within(p)) || EXCEPT.iter().any(|(p, _)| within(p)) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for sequence in USES {
        let message = format!(
            "`{}` in pure code: take the value as an argument",
            sequence.concat()
        );
        let lines = source.find(sequence).into_iter();
        findings.extend(lines.map(|line| Finding::new(&source.path, line, message.as_str())));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_and_files_are_found_in_pure_code() {
        let text = "fn f() {\n std::time::Instant::now();\n std::fs::read(x);\n a.await;\n}\n\
                    #[cfg(test)]\nmod tests { fn g() { SystemTime::now(); } }\n";
        let check = |path| {
            let source = Source::parse(path, text, false).expect("Rust");
            let mut lines: Vec<usize> = check(&source).iter().map(|f| f.line).collect();
            lines.sort_unstable();
            lines
        };
        assert_eq!(check("crates/formats/src/a.rs"), [2, 3, 4]);
        assert_eq!(check("crates/peer/src/quorum.rs"), [2, 3, 4]);
        assert_eq!(check("crates/peer/src/put.rs"), [0usize; 0]);
        assert_eq!(check("crates/ring/src/files.rs"), [0usize; 0]);
    }
}
