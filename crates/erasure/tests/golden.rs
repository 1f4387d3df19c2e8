//! Fragments written by pyeclib (`golden/erasure/make.py`): equal ones are written here, and they
//! are readable.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cairn_erasure::Codec;
use cairn_types::{EcType, ErasureScheme};
use serde_json::Value;

fn bytes(value: &Value) -> Vec<u8> {
    STANDARD.decode(value.as_str().unwrap()).unwrap()
}

#[test]
fn fragments_are_those_of_pyeclib() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/erasure/fragments.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let segment = bytes(&golden["segment"]);
    for case in golden["cases"].as_array().unwrap() {
        let count = |name: &str| case[name].as_u64().unwrap() as usize;
        let ec_type = EcType::by_name(case["ec_type"].as_str().unwrap()).unwrap();
        let codec = Codec::new(&ErasureScheme::new(ec_type, count("k"), count("m")).unwrap());
        let fragments: Vec<Vec<u8>> = case["fragments"]
            .as_array()
            .unwrap()
            .iter()
            .map(bytes)
            .collect();
        assert_eq!(codec.encode(&segment), fragments);
        let given: Vec<&[u8]> = fragments[count("m")..].iter().map(|f| &f[..]).collect();
        assert_eq!(codec.decode(&given).unwrap(), segment);
        assert_eq!(codec.reconstruct(&given, 0).unwrap(), fragments[0]);
    }
}
