//! Pending files of databases.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| cairn_index::fuzzing::pending(bytes));
