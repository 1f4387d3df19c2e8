//! The PROXY protocol's line.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| cairn_http::fuzzing::proxy_line(bytes));
