//! The end of the first of two chunked bodies.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| cairn_http::fuzzing::interim(bytes));
