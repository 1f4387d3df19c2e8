//! Heads of requests and answers, cut into pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| cairn_http::fuzzing::heads(bytes));
