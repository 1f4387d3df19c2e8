//! Comparison with OpenStack Swift's own tools, on files made by Swift: output and exit codes must
//! be equal.
//!
//! Needs a Python that has Swift: `CAIRN_SWIFT_PYTHON=/path/to/python cargo test -p cairn-tools`.
//! Without it the test is skipped.
#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use cairn_ring::{FormatVersion, NewDevice, RingBuilder};

fn write_cluster(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let conf = "[swift-hash]\nswift_hash_path_prefix = changeme\n\
                swift_hash_path_suffix = changeme\n\n\
                [storage-policy:0]\nname = gold\ndefault = yes\n\n\
                [storage-policy:1]\nname = silver\n";
    std::fs::write(folder.join("swift.conf"), conf).unwrap();
    let devices = (1..=4u8).map(|zone| NewDevice {
        zone: zone.into(),
        ..NewDevice::at(
            format!("sd{zone}"),
            ([127, 0, 0, zone], 6200 + u16::from(zone)).into(),
        )
    });
    let ring = RingBuilder::balanced(6, 3.0, devices).unwrap();
    for name in ["account", "container", "object", "object-1"] {
        let path = folder.join(format!("{name}.ring.gz"));
        ring.save(path, FormatVersion::V1).unwrap();
    }
}

#[test]
fn tools_say_what_swifts_say() {
    let Ok(python) = std::env::var("CAIRN_SWIFT_PYTHON") else {
        println!("skipped: CAIRN_SWIFT_PYTHON names no Python with OpenStack Swift");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let swift_dir = folder.path().join("swift");
    write_cluster(&swift_dir);
    let output = Command::new(python)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/upstream.py"))
        .arg(folder.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the Swift side failed: {errors}");
    let runs: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    for run in &runs {
        let program = run["program"].as_str().unwrap();
        let given = run["arguments"].as_array().unwrap();
        let own = OsString::from(program);
        let given = given.iter().map(|a| OsString::from(a.as_str().unwrap()));
        let arguments: Vec<OsString> = std::iter::once(own).chain(given).collect();
        let mut text = Vec::new();
        let code = cairn_tools::run_to(program, &arguments, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(run["text"], text, "{program} {arguments:?}");
        assert_eq!(u64::from(code), run["code"].as_u64().unwrap());
    }
    assert_eq!(runs.len(), 15);
}
