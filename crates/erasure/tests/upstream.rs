//! Comparison of Cairn's erasure codes with pyeclib, both executed.
//!
//! Set `CAIRN_SWIFT_PYTHON` to a Python that can `import pyeclib`; without it this test is skipped.
//! Fragments must be equal, and each side must read the other's.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cairn_erasure::Codec;
use cairn_types::{EcType, ErasureScheme};
use serde_json::{Value, json};

/// Runs the Python side; `None` without a Python.
fn pyeclib(request: &Value) -> Option<Value> {
    let Ok(python) = std::env::var("CAIRN_SWIFT_PYTHON") else {
        println!("skipped: CAIRN_SWIFT_PYTHON does not name a Python with pyeclib");
        return None;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pyeclib_codec.py");
    let mut child = Command::new(python)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(request.to_string().as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the Python side failed");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

fn text(bytes: &[u8]) -> Value {
    json!(STANDARD.encode(bytes))
}

fn bytes(value: &Value) -> Vec<u8> {
    STANDARD.decode(value.as_str().unwrap()).unwrap()
}

/// Codes one segment on both sides; the first `lost` fragments are reconstructed from the others.
fn compare(ec_type: EcType, data: usize, parity: usize, length: usize) {
    let codec = Codec::new(&ErasureScheme::new(ec_type, data, parity).unwrap());
    let segment: Vec<u8> = (0..length).map(|i| (i * i / 7 + i) as u8).collect();
    let ours = codec.encode(&segment);
    let given: Vec<usize> = (parity..data + parity).rev().collect();
    let sizes = [1, 5, 999, 1000, 1001, 1003, 1_048_576];
    let Some(theirs) = pyeclib(&json!({
        "ec_type": ec_type.name(), "k": data, "m": parity, "segment": text(&segment),
        "fragments": ours.iter().map(|f| text(f)).collect::<Vec<_>>(),
        "given": given, "lost": 0, "sizes": sizes,
    })) else {
        return;
    };
    let name = format!("{ec_type} {data}+{parity}, {length} bytes");
    let fragments: Vec<Vec<u8>> = theirs["fragments"]
        .as_array()
        .unwrap()
        .iter()
        .map(bytes)
        .collect();
    assert_eq!(ours, fragments, "{name}");
    assert_eq!(bytes(&theirs["decoded"]), segment, "{name}");
    assert_eq!(bytes(&theirs["rebuilt"]), ours[0], "{name}");
    let indexes: Vec<usize> = (0..data + parity).collect();
    assert_eq!(theirs["valid"], json!(indexes), "{name}");
    let given: Vec<&[u8]> = given.iter().map(|i| fragments[*i].as_slice()).collect();
    assert_eq!(codec.decode(&given).unwrap(), segment, "{name}");
    for (size, theirs) in sizes.iter().zip(theirs["sizes"].as_array().unwrap()) {
        assert_eq!(json!(codec.fragment_size(*size)), *theirs, "{name} {size}");
    }
}

/// pyeclib reads fragments with checksums.
fn checksums_are_read(ec_type: EcType, data: usize, parity: usize, length: usize) {
    let plain = Codec::new(&ErasureScheme::new(ec_type, data, parity).unwrap());
    let codec = plain.clone().with_checksums();
    let segment: Vec<u8> = (0..length).map(|i| (i * i / 7 + i) as u8).collect();
    let ours = codec.encode(&segment);
    let given: Vec<usize> = (parity..data + parity).rev().collect();
    let Some(theirs) = pyeclib(&json!({
        "ec_type": ec_type.name(), "k": data, "m": parity, "segment": text(&segment),
        "fragments": ours.iter().map(|f| text(f)).collect::<Vec<_>>(),
        "given": given, "lost": 0, "sizes": [1],
    })) else {
        return;
    };
    let name = format!("{ec_type} {data}+{parity}, {length} bytes");
    assert_eq!(bytes(&theirs["decoded"]), segment, "{name}");
    assert_eq!(
        bytes(&theirs["rebuilt"]),
        plain.encode(&segment)[0],
        "{name}"
    );
    let indexes: Vec<usize> = (0..data + parity).collect();
    assert_eq!(theirs["valid"], json!(indexes), "{name}");
}

#[test]
fn pyeclib_reads_fragments_with_checksums() {
    for ec_type in EcType::ALL {
        for length in [1, 1000, 100_003] {
            checksums_are_read(ec_type, 4, 2, length);
        }
    }
}

#[test]
fn fragments_are_pyeclibs() {
    for ec_type in EcType::ALL {
        for (data, parity) in [(1, 1), (2, 1), (4, 2), (8, 4), (10, 4), (15, 3)] {
            for length in [1, 2, 63, 1000, 65_536, 100_003] {
                compare(ec_type, data, parity, length);
            }
        }
    }
    compare(EcType::IsaLRsCauchy, 20, 12, 5000);
    compare(EcType::LiberasurecodeRsVand, 20, 12, 5000);
}
