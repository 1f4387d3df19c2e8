//! Python pickles, as object metadata and `hashes.pkl` hold them.
#![no_main]

use cairn_formats::pickle::{dumps, loads, loads_prefix};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(value) = loads(bytes) {
        let written = dumps(&value);
        let again = loads(&written).map(|value| dumps(&value));
        assert_eq!(again.as_ref(), Ok(&written), "a value survives being written");
    }
    if let Ok((_, length)) = loads_prefix(bytes) {
        assert!(length <= bytes.len());
    }
});
