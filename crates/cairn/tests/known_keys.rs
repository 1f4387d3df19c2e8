//! The start of a proxy that other machines reach, with users of OpenStack Swift's sample conf.

#![allow(clippy::unwrap_used, clippy::expect_used)]

// Other tests use the rest of it.
#[allow(dead_code)]
mod common;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{cairn, error_of};

/// An address of documentation (RFC 5737), which no machine has: nothing listens anywhere.
const FAR: &str = "192.0.2.1";

/// A proxy's conf at this address.
fn conf(data: &Path, ip: &str) -> PathBuf {
    let path = data.join("etc/proxy-server.conf");
    let text = std::fs::read_to_string(&path).unwrap();
    let at = |line: &str| match line.strip_prefix("bind_ip = ") {
        Some(_) => format!("bind_ip = {ip}\n"),
        None => format!("{line}\n"),
    };
    std::fs::write(&path, text.lines().map(at).collect::<String>()).unwrap();
    path
}

/// Lines of the log that warn of the keys.
fn warnings(command: &mut Command, succeeds: bool) -> Vec<String> {
    let output = command.output().unwrap();
    let said = error_of(&output);
    assert_eq!(output.status.success(), succeeds, "{said}");
    let lines = said.lines().filter(|line| line.contains("sample conf"));
    lines.map(str::to_owned).collect()
}

#[test]
fn keys_that_everybody_knows_are_told_where_others_could_use_them() {
    let data = tempfile::tempdir().unwrap();
    let mut up = cairn();
    up.args(["up", "--write-only", "--bind", "127.0.0.1:0"]);
    up.args(["--part-power", "4", "--data"]).arg(data.path());
    assert!(up.output().unwrap().status.success());

    let far = conf(data.path(), FAR);
    let told = warnings(cairn().arg("serve").arg(&far), false);
    let by_check = warnings(cairn().args(["serve", "--check"]).arg(&far), true);
    let mut swift = cairn();
    let swift = swift.arg0("swift-proxy-server").arg(&far);
    let by_swift = warnings(swift.arg("--test-config"), true);
    for lines in [&told, &by_check, &by_swift] {
        assert_eq!(lines.len(), 1, "{lines:?}");
        for part in [" WARN ", "filter:tempauth", "test:tester", FAR, "own"] {
            assert!(lines[0].contains(part), "{part}: {lines:?}");
        }
        assert!(!lines[0].contains("testing"), "{lines:?}");
    }

    let near = conf(data.path(), "127.0.0.1");
    let none: [String; 0] = [];
    assert_eq!(
        warnings(cairn().args(["serve", "--check"]).arg(&near), true),
        none
    );
    let far = conf(data.path(), FAR);
    let text = std::fs::read_to_string(&far).unwrap();
    std::fs::write(&far, text.replace("= testing ", "= of-its-own ")).unwrap();
    assert_eq!(warnings(cairn().arg("serve").arg(&far), false), none);
}
