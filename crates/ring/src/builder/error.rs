//! Errors of builder operations and of reading a builder file.

use crate::error::RingError;

#[derive(Debug, thiserror::Error)]
pub enum BuilderError {
    #[error("{field} is {found}: {expected} expected")]
    Invalid {
        field: &'static str,
        found: String,
        expected: &'static str,
    },
    #[error("device id {id} is already in use")]
    DuplicateDevice { id: u32 },
    #[error("there is no device with id {id}")]
    UnknownDevice { id: u32 },
    #[error("cannot set the {what} of device {id}: it is marked for removal")]
    MarkedForRemoval { what: &'static str, id: u32 },
    #[error("There are no devices in this ring, or all devices have been deleted")]
    EmptyRing,
    #[error(
        "Replica count of {replicas:?} requires more than {devices} devices; add devices with \
         weight or lower the replica count"
    )]
    TooFewDevices { replicas: f64, devices: usize },
    #[error("the ring was never balanced; run rebalance first")]
    NotBalanced,
    #[error("a table of 2^{part_power} partitions with {replicas:?} replicas is too large")]
    TableTooLarge { part_power: u32, replicas: f64 },
    #[error("no plan found at tier {tier}: {detail}")]
    Plan { tier: String, detail: String },
    #[error("no home for partition {part}, replica {replica}: every candidate tier is full")]
    NoHome { part: usize, replica: usize },
    #[error("All partitions are not double accounted for: {on_devices} != {in_table}")]
    Accounting { on_devices: u64, in_table: u64 },
    #[error(
        "replica {replica} has {found} partitions of {expected}: only the last replica may be short"
    )]
    ShortReplica {
        replica: usize,
        found: usize,
        expected: u64,
    },
    #[error("Partition {part}, replica {replica} was not allocated to a device.")]
    Unallocated { part: usize, replica: usize },
    #[error("The partition {part} has been assigned to duplicate devices {ids:?}")]
    DuplicateAssignment { part: usize, ids: Vec<u32> },
    #[error(
        "this builder file was written by Python (it is a pickle) and cannot be read: {0}. Recover \
         the builder from its ring: move this file away, then run \
         \"swift-ring-builder <name>.ring.gz write_builder <min_part_hours>\""
    )]
    PythonPickle(String),
    #[error("builder file is invalid: {0}")]
    Format(String),
    #[error(transparent)]
    Ring(#[from] RingError),
}

impl BuilderError {
    pub(crate) fn invalid(
        field: &'static str,
        found: impl ToString,
        expected: &'static str,
    ) -> Self {
        BuilderError::Invalid {
            field,
            found: found.to_string(),
            expected,
        }
    }
}
