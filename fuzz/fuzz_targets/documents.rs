//! Uploads in several MIME documents.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| cairn_servers::object::fuzzing::documents(bytes));
