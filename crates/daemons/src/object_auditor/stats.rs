//! Statistics of a walk.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Counts of a walk; the names in `object.recon` are Swift's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditStats {
    /// Objects audited.
    pub passes: u64,
    pub quarantined: u64,
    /// Could not be audited.
    pub errors: u64,
    /// Bytes of content read.
    pub bytes_processed: u64,
    /// Objects up to each size of `object_size_stats`; larger ones under `u64::MAX`.
    pub sizes: BTreeMap<u64, u64>,
}

impl AuditStats {
    pub(crate) fn add(&mut self, other: &AuditStats) {
        self.passes += other.passes;
        self.quarantined += other.quarantined;
        self.errors += other.errors;
        self.bytes_processed += other.bytes_processed;
        for (size, count) in &other.sizes {
            *self.sizes.entry(*size).or_default() += count;
        }
    }

    /// The entry for monitoring: since `start_time`, with `audit_time` seconds spent on objects.
    pub(crate) fn to_recon(&self, start_time: f64, audit_time: f64) -> Value {
        json!({
            "errors": self.errors,
            "passes": self.passes,
            "quarantined": self.quarantined,
            "bytes_processed": self.bytes_processed,
            "start_time": start_time,
            "audit_time": audit_time,
        })
    }
}
