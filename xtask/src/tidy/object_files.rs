//! Files of objects are known to engines alone (`disk/engine.rs`): servers, daemons and the node name
//! neither their suffixes and folders nor the one engine that keeps files.

use super::{Finding, Source};

/// Rooms above the seam.
const ROOMS: [&str; 4] = ["servers", "daemons", "assembly", "node"];
/// Files there that may, and why.
const ALLOWED: [(&str, &str); 2] = [
    (
        "crates/node/src/engines.rs",
        "registers the engines, reads diskfile's options",
    ),
    (
        "crates/tools/src/relinker.rs",
        "its own files on a device are named after the policy's folder",
    ),
];

/// Names in `cairn_disk` that are of one engine.
const NAMES: [&str; 5] = [
    "DiskFileConfig",
    "DiskFileEngine",
    "FileEntry",
    "OnDiskFiles",
    "read_hashes",
];
/// Ends of literals that are names of object files.
const ENDS: [&str; 5] = [".data", ".meta", ".ts", ".durable", "#d"];
/// Parts of literals that are paths of objects, or of what lies beside them.
const PARTS: [&str; 7] = [
    "objects/",
    "objects-",
    "/objects",
    "hashes.pkl",
    "hashes.invalid",
    "auditor_status",
    "quarantined/",
];
/// The literal that is the folder's name.
const FOLDER: &str = "objects";

pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let is_allowed = ALLOWED.iter().any(|(path, _)| *path == source.path);
    if is_allowed || !ROOMS.contains(&source.room()) {
        return Vec::new();
    }
    let code = source.tokens.iter().enumerate();
    let code = code.filter(|(_, token)| !token.test);
    let found = code.filter(|(at, token)| match token.literal {
        true => !is_comment(source, *at) && is_of_files(token.text.trim_matches('"')),
        false => NAMES.contains(&token.text.as_str()),
    });
    let message = "names files of objects: ask the policy's engine (crates/disk/src/engine.rs), or \
                   list the file with its reason in xtask/src/tidy/object_files.rs";
    let mut lines: Vec<usize> = found.map(|(_, token)| token.line).collect();
    lines.extend(source.find(&["cairn_disk", "::", "layout"]));
    lines.sort_unstable();
    lines.dedup();
    let finding = |line| Finding::new(&source.path, line, message);
    lines.into_iter().map(finding).collect()
}

/// The text of `#[doc = "…"]`, as which the tokens have a documentation comment.
fn is_comment(source: &Source, at: usize) -> bool {
    let before = source.tokens[..at].iter().rev().take(2);
    before.map(|token| token.text.as_str()).eq(["=", "doc"])
}

fn is_of_files(literal: &str) -> bool {
    literal == FOLDER
        || ENDS.iter().any(|end| literal.ends_with(end))
        || PARTS.iter().any(|part| literal.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_objects_are_found_above_the_seam() {
        let text = "use cairn_disk::layout::{self, FileKind};\nfn f() {\n a(\"1234.data\");\n \
                    policy.dir(\"objects\");\n b(\"all objects of it\");\n c(\"%s/objects-1\");\n \
                    e(OnDiskFiles::default());\n d(\"quarantined: x\");\n}\n/// In `hashes.pkl`.\nfn h() {}\n#[cfg(test)]\nmod tests { fn g() { \
                    a(\"x.ts\"); } }\n";
        let check = |path| {
            let source = Source::parse(path, text, false).expect("Rust");
            check(&source).iter().map(|f| f.line).collect::<Vec<_>>()
        };
        assert_eq!(check("crates/servers/src/a.rs"), [1, 3, 4, 6, 7]);
        assert_eq!(check("crates/node/src/engines.rs"), [0usize; 0]);
        assert_eq!(check("crates/disk/src/diskfile.rs"), [0usize; 0]);
    }
}
