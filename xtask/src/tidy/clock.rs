//! Pure code computes values from values: no clock, no waiting, no files, no sockets.
//!
//! Code that depends on the time gets it as an argument, so that the simulator and tests control
//! it. What the simulator runs asks neither the host's calendar nor its random numbers: those come with a
//! configuration (`Clock`, `Machine`) or from `http/own_thread.rs`, or seeds would not repeat themselves.

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

/// Crates that the simulator runs.
const SIMULATED: [&str; 9] = [
    "crates/device/src/",
    "crates/disk/src/",
    "crates/index/src/",
    "crates/peer/src/",
    "crates/servers/src/",
    "crates/proxy/src/",
    "crates/daemons/src/",
    "crates/memory/src/",
    "crates/pebbles/src/",
];
/// Places of them that ask the host, with reasons.
const HOSTS: [(&str, &str); 8] = [
    (
        "crates/device/src/syncs/machine.rs",
        "the clock where no machine is simulated",
    ),
    (
        "crates/disk/src/file_ops.rs",
        "names of temporary files, which nothing depends on",
    ),
    (
        "crates/disk/src/diskfile/suffix_hashes.rs",
        "a note in hashes.pkl for Swift's, which nothing here reads",
    ),
    (
        "crates/index/src/config.rs",
        "the clock and the dice where none are given",
    ),
    (
        "crates/peer/src/backends.rs",
        "compares this host's clock with others', over sockets alone",
    ),
    (
        "crates/daemons/src/container_updater.rs",
        "compared with times of folders, which the host's kernel gives",
    ),
    (
        "crates/daemons/src/container_sync/peer.rs",
        "a nonce, which has to be a secret's",
    ),
    (
        "crates/pebbles/src/engine/stores.rs",
        "the clock where no machine is simulated",
    ),
];
const HOSTS_USES: [&[&str]; 3] = [
    &["SystemTime", "::", "now"],
    &["rand", "::", "random"],
    &["rand", "::", "rng"],
];

pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let within = |place: &str| source.path.starts_with(place);
    let is_in = |places: &[&str], except: &[(&str, &str)]| {
        places.iter().any(|p| within(p)) && !except.iter().any(|(p, _)| within(p))
    };
    let mut findings = Vec::new();
    let mut find = |uses: &[&[&str]], words: &str| {
        for sequence in uses {
            let message = format!("`{}` in {words}", sequence.concat());
            let lines = source.find(sequence).into_iter();
            findings.extend(lines.map(|line| Finding::new(&source.path, line, message.as_str())));
        }
    };
    if is_in(&PURE, &EXCEPT) {
        find(&USES, "pure code: take the value as an argument");
    }
    if is_in(&SIMULATED, &HOSTS) {
        let words = "what the simulator runs: take a clock, or http's own_thread";
        find(&HOSTS_USES, words);
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_calendar_and_dice_are_found_in_what_is_simulated() {
        let text = "fn f() {\n SystemTime::now();\n Instant::now();\n rand::random::<u8>();\n}\n";
        let check = |path| {
            let source = Source::parse(path, text, false).expect("Rust");
            let lines: Vec<usize> = check(&source).iter().map(|f| f.line).collect();
            lines
        };
        assert_eq!(check("crates/daemons/src/a.rs"), [2, 4]);
        assert_eq!(check("crates/index/src/config.rs"), [0usize; 0]);
        assert_eq!(check("crates/node/src/a.rs"), [0usize; 0]);
    }

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
