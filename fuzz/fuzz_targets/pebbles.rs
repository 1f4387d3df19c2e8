//! Volumes and checkpoints of the engine of volumes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    cairn_pebbles::fuzzing::volume(bytes);
    cairn_pebbles::fuzzing::chunk(bytes);
});
