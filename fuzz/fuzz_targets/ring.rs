//! Ring files of both formats.
#![no_main]

use cairn_ring::{FormatVersion, Ring};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(ring) = Ring::from_bytes(bytes) else { return };
    let last = ring.partition_count().saturating_sub(1);
    for part in [0, last / 2, last] {
        let primaries = ring.primaries(part).len();
        assert!(primaries <= ring.replica_count().ceil() as usize);
        let _ = ring.handoffs(part).take(16).count();
    }
    if let Ok(again) = ring.to_bytes(FormatVersion::V2) {
        assert!(Ring::from_bytes(&again).is_ok(), "what is written can be read");
    }
});
