//! Each parser of bytes from a network or a disk is fuzzed, or has a property test.
//!
//! The table is kept by hand; a new file of `formats`, the crate of parsers, has to be entered.

use std::path::Path;

use super::Finding;

#[derive(Clone, Copy)]
enum How {
    /// Covered by this target of `fuzz/`.
    Fuzzed(&'static str),
    /// Covered by a property test beside it.
    Property,
    /// Nothing is parsed in it, or only by another file of the table.
    No,
}
use How::{Fuzzed, No, Property};

const FORMATS: &str = "crates/formats/src/";
const PARSERS: [(&str, How); 70] = [
    ("crates/formats/src/acl.rs", Fuzzed("listing")),
    ("crates/formats/src/conditional.rs", Fuzzed("ranges")),
    ("crates/formats/src/content_type.rs", No),
    ("crates/formats/src/crypto_meta.rs", Fuzzed("crypto_meta")),
    ("crates/formats/src/hmac.rs", No),
    ("crates/formats/src/ini.rs", Fuzzed("conf")),
    ("crates/formats/src/json_ascii.rs", No),
    ("crates/formats/src/lib.rs", No),
    ("crates/formats/src/listing.rs", Fuzzed("listing")),
    ("crates/formats/src/pickle.rs", Fuzzed("pickle")),
    ("crates/formats/src/range.rs", Fuzzed("ranges")),
    ("crates/formats/src/shard.rs", No),
    ("crates/formats/src/ssync.rs", Property),
    ("crates/formats/src/swift_conf.rs", Fuzzed("conf")),
    ("crates/formats/src/sync_realms.rs", Property),
    ("crates/formats/src/tar.rs", Fuzzed("tar")),
    ("crates/http/src/heads/scanner.rs", Fuzzed("heads")),
    ("crates/http/src/interim.rs", Fuzzed("interim")),
    ("crates/http/src/params.rs", Fuzzed("params")),
    ("crates/http/src/proxy_line.rs", Fuzzed("proxy_line")),
    ("crates/peer/src/two_phase/wire.rs", Fuzzed("two_phase")),
    (
        "crates/servers/src/object/documents.rs",
        Fuzzed("documents"),
    ),
    ("crates/index/src/pending/entry.rs", Fuzzed("pending")),
    ("crates/client/src/manifest.rs", Property),
    ("crates/mount/src/attributes.rs", Property),
    ("crates/mount/src/intents.rs", Property),
    ("crates/mount/src/journal.rs", Property),
    ("crates/mount/src/links.rs", Property),
    ("crates/mount/src/sweep.rs", Property),
    ("crates/disk/src/metadata.rs", Property),
    ("crates/erasure/src/fragment.rs", Property),
    ("crates/pebbles/src/format.rs", Fuzzed("pebbles")),
    ("crates/pebbles/src/store/checkpoint/tests.rs", Property),
    ("crates/ring/src/lib.rs", Fuzzed("ring")),
    ("crates/lab/src/workload.rs", Fuzzed("workload")),
    ("crates/advise/src/cell.rs", Property),
    ("crates/emulate/src/network.rs", Property),
    ("crates/study/src/file/tests.rs", Property),
    ("crates/identity/src/revoked.rs", Property),
    ("crates/identity/src/tokens.rs", Property),
    (
        "crates/middleware/src/filters/formpost/attributes.rs",
        Property,
    ),
    (
        "crates/middleware/src/filters/formpost/multipart.rs",
        Property,
    ),
    (
        "crates/middleware/src/filters/crypto/multipart.rs",
        Property,
    ),
    (
        "crates/middleware/src/filters/tempurl/ip_range.rs",
        Property,
    ),
    ("crates/types/src/timestamp.rs", Property),
    ("crates/formats/src/shard/name.rs", Property),
    ("crates/middleware/src/accept.rs", Property),
    ("crates/middleware/src/filters/slo/manifest.rs", Property),
    ("crates/middleware/src/filters/slo/input.rs", Property),
    ("crates/middleware/src/filters/list_endpoints.rs", Property),
    ("crates/proxy/src/request.rs", Property),
    ("crates/daemons/src/db_replicator/peer.rs", Property),
    ("crates/index/src/metadata.rs", Property),
    ("crates/disk/src/async_pending.rs", Property),
    ("crates/disk/src/diskfile/suffix_hashes.rs", Property),
    ("crates/console/src/store.rs", Property),
    ("crates/middleware/src/filters/tempurl/expires.rs", Property),
    ("crates/lab/src/target/http/parse/properties.rs", Property),
    ("crates/lab/src/import/properties.rs", Property),
    ("crates/lab/src/import/clock.rs", Property),
    ("crates/lab/src/import/cosbench/properties.rs", Property),
    ("crates/lab/src/import/ssbench/properties.rs", Property),
    ("crates/lab/src/import/swift_bench/properties.rs", Property),
    ("crates/lab/src/results/csv.rs", Property),
    ("crates/formats/src/shard/range/properties.rs", Property),
    ("crates/index/src/replication/rows.rs", Property),
    (
        "crates/middleware/src/filters/memcache/client/properties.rs",
        Property,
    ),
    ("crates/middleware/src/header_list.rs", Property),
    ("crates/http/src/forwarded.rs", Property),
    ("crates/servers/src/index_server/replicate.rs", Property),
];

pub(crate) fn check(root: &Path, sources: &[String]) -> Vec<Finding> {
    let manifest = std::fs::read_to_string(root.join("fuzz/Cargo.toml")).unwrap_or_default();
    let mut findings = unlisted(sources);
    for (path, how) in PARSERS {
        let text = std::fs::read_to_string(root.join(path)).ok();
        let seeds = |target: &str| {
            let folder = root.join("fuzz/seeds").join(target);
            std::fs::read_dir(folder).is_ok_and(|mut seeds| seeds.next().is_some())
        };
        let wrong = missing(how, text.as_deref(), &manifest, seeds);
        findings.extend(wrong.map(|message| Finding::new(path, 0, message)));
    }
    findings
}

/// Files of `formats` that the table lacks.
fn unlisted(sources: &[String]) -> Vec<Finding> {
    let of_formats = |path: &&String| {
        path.strip_prefix(FORMATS)
            .is_some_and(|name| !name.contains('/'))
            && !PARSERS.iter().any(|(known, _)| known == path)
    };
    let message = "is it a parser? enter it in xtask/src/tidy/parsers.rs, with its fuzz target";
    let finding = |path: &String| Finding::new(path, 0, message);
    sources.iter().filter(of_formats).map(finding).collect()
}

fn missing(
    how: How,
    text: Option<&str>,
    manifest: &str,
    has_seeds: impl Fn(&str) -> bool,
) -> Option<String> {
    let Some(text) = text else {
        return Some("xtask/src/tidy/parsers.rs names it, and it is not there".to_owned());
    };
    match how {
        Fuzzed(target) if !manifest.contains(&format!("name = \"{target}\"")) => Some(format!(
            "its fuzz target {target:?} is not in fuzz/Cargo.toml"
        )),
        Fuzzed(target) if !has_seeds(target) => Some(format!("fuzz/seeds/{target} has no seeds")),
        Property if !text.contains("proptest!") => {
            Some("its property test is not there".to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parser_without_a_target_is_found() {
        let manifest = "[[bin]]\nname = \"heads\"\n";
        let check = |how, text, seeds| missing(how, text, manifest, |_| seeds).is_some();
        assert!(!check(Fuzzed("heads"), Some(""), true));
        assert!(check(Fuzzed("heads"), Some(""), false));
        assert!(check(Fuzzed("interim"), Some(""), true));
        assert!(!check(Property, Some("proptest! {}"), false));
        assert!(check(Property, Some("use x;"), false));
        assert!(check(No, None, true));
        assert!(!check(No, Some(""), false));
    }

    #[test]
    fn a_new_file_of_formats_is_found() {
        let sources = ["range.rs", "new.rs", "new/part.rs"].map(|f| format!("{FORMATS}{f}"));
        let found = unlisted(&sources);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].file, "crates/formats/src/new.rs");
    }
}
