//! Crypto metadata of objects and rows, as servers give it.
#![no_main]

use cairn_formats::crypto_meta::{CryptoMeta, extract};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(meta) = CryptoMeta::load(text) {
        assert_eq!(
            CryptoMeta::load(&meta.dump()).as_ref(),
            Ok(&meta),
            "it survives being written"
        );
        let _ = meta.ctr_iv();
    }
    let _ = extract(text);
});
