//! OpenStack Swift's brokers, asked in a Python process.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// The answers of Swift's broker to some steps, or none where there is no Swift.
pub fn swift(kind: &str, file: &Path, steps: Value) -> Option<Value> {
    let Ok(python) = std::env::var("CAIRN_SWIFT_PYTHON") else {
        println!("skipped: CAIRN_SWIFT_PYTHON names no Python with OpenStack Swift");
        return None;
    };
    let mut child = Command::new(python)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/upstream.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let command = json!({"kind": kind, "file": file, "do": steps}).to_string();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(command.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the Swift side failed");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}
