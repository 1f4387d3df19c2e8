//! Answers of a backend to an upload in two phases.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| cairn_peer::two_phase::fuzzing::two_phase(bytes));
