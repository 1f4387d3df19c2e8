//! Headers of tar archives, and the records of extended ones.
#![no_main]

use cairn_formats::tar::{BLOCK, padding, parse_extended, parse_header};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Some(block) = input.first_chunk::<BLOCK>()
        && let Ok(Some(header)) = parse_header(block)
    {
        assert_eq!((u128::from(header.size) + u128::from(padding(header.size))) % 512, 0);
    }
    let _ = parse_extended(input);
});
