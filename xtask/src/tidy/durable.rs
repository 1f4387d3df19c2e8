//! Files that may sync, link and rename. The order of these calls determines what survives a power
//! cut, so for each kind of file only one source file makes them; for objects that is
//! `disk/staged_file.rs`, with the names below it in `staged_file/names.rs`.

use super::{Finding, Source};

/// Files with such calls, and their purposes.
const ALLOWED: [(&str, &str); 25] = [
    (
        "crates/disk/src/staged_file.rs",
        "object files, and all else of an object device",
    ),
    (
        "crates/disk/src/staged_file/names.rs",
        "names below an object device",
    ),
    (
        "crates/disk/src/file_ops.rs",
        "single files by descriptor, below all that knows a device",
    ),
    (
        "crates/device/src/syncs/group.rs",
        "the one sync that many writes share",
    ),
    ("crates/index/src/create.rs", "new databases"),
    (
        "crates/index/src/files.rs",
        "databases that move, or are quarantined",
    ),
    (
        "crates/index/src/page_cache.rs",
        "dirty pages, before the page cache lets go of a file",
    ),
    (
        "crates/index/src/replication/exchange.rs",
        "databases received whole",
    ),
    ("crates/index/src/sharding.rs", "databases of a new epoch"),
    (
        "crates/index/src/sync_store.rs",
        "links to containers that are synced",
    ),
    (
        "crates/pebbles/src/medium/files.rs",
        "volumes and their checkpoints",
    ),
    ("crates/ring/src/files.rs", "ring and builder files"),
    (
        "crates/daemons/src/recon_cache.rs",
        "caches for monitoring: whole, not durable",
    ),
    (
        "crates/identity/src/revoked/list_file.rs",
        "tokens that were ended",
    ),
    (
        "crates/mount/src/journal.rs",
        "closed files of a mount, until they are on the store",
    ),
    ("crates/tools/src/drive_audit.rs", "fstab"),
    ("crates/tools/src/rekey.rs", "how far re-keying came"),
    (
        "crates/tools/src/relinker/progress.rs",
        "how far a relinker came",
    ),
    (
        "crates/node/src/up/file_system.rs",
        "tries out what a file system can do",
    ),
    (
        "crates/node/src/up/layout.rs",
        "the conf files of a new store",
    ),
    (
        "crates/console/src/history.rs",
        "runs of the lab, as the console lists them",
    ),
    ("crates/lab/src/results/writer.rs", "results of a run"),
    (
        "crates/cairn/src/advise/device.rs",
        "times a disk's syncs for the advisor",
    ),
    ("crates/lab/src/cli/ranks.rs", "results of a run's ranks"),
    (
        "crates/study/src/run.rs",
        "cells of a study: whole, not durable",
    ),
];
/// The lab's own load generator for folders: sync is the operation that it measures.
const LOAD: &str = "crates/lab/src/target/dir.rs";

const METHODS: [&str; 2] = ["sync_all", "sync_data"];
const FUNCTIONS: [&str; 14] = [
    "fdatasync",
    "fsync",
    "hard_link",
    "link",
    "linkat",
    "rename",
    "renameat",
    "renameat_with",
    "soft_link",
    "symlink",
    "symlinkat",
    "sync",
    "sync_file_range",
    "syncfs",
];

pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let elsewhere = !source.path.starts_with("crates/") || source.path == LOAD;
    if elsewhere || ALLOWED.iter().any(|(path, _)| *path == source.path) {
        return Vec::new();
    }
    let mut lines = Vec::new();
    for method in METHODS {
        lines.extend(source.find(&[".", method, "("]));
    }
    for function in FUNCTIONS {
        lines.extend(source.find(&["fs", "::", function]));
    }
    lines.extend(imported(source));
    lines.sort_unstable();
    lines.dedup();
    let message = "syncs, links or renames: let the file that owns this kind of file do it, or list \
                   it with its reason in xtask/src/tidy/durable.rs";
    let finding = |line| Finding::new(&source.path, line, message);
    lines.into_iter().map(finding).collect()
}

/// Lines of functions imported by `use …fs::{…}`.
fn imported(source: &Source) -> Vec<usize> {
    let mut lines = Vec::new();
    let mut of_files = false;
    let mut in_use = false;
    for token in source.tokens.iter().filter(|t| !t.test && !t.literal) {
        match token.text.as_str() {
            "use" => (in_use, of_files) = (true, false),
            ";" => in_use = false,
            "fs" => of_files = in_use,
            name if in_use && of_files && FUNCTIONS.contains(&name) => lines.push(token.line),
            _ => (),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syncs_links_and_renames_are_found() {
        let text = "use rustix::fs::{Mode, linkat};\nuse crate::staged_file::fsync;\nfn f() {\n\
                    file.sync_all();\n std::fs::rename(a, b);\n fsync(x);\n rustix::fs::fsync(y);\n}\n\
                    #[cfg(test)]\nmod tests { fn g() { std::fs::rename(a, b); } }\n";
        let check = |path| {
            let source = Source::parse(path, text, false).expect("Rust");
            check(&source).iter().map(|f| f.line).collect::<Vec<_>>()
        };
        assert_eq!(check("crates/disk/src/diskfile/write.rs"), [1, 4, 5, 7]);
        assert_eq!(check("crates/disk/src/staged_file.rs"), [0usize; 0]);
    }
}
