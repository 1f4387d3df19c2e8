//! Bugs on purpose: each takes one rule away that keeps what was acknowledged. The simulator turns
//! one on, to see that it finds it. They exist only with the feature `plant`, which its build
//! alone asks for; without it no bug is ever on, and the compiler leaves its code out.

/// Whether this build has them: the simulator's.
pub const ARE_COMPILED: bool = cfg!(feature = "plant");

/// A rule that is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Plant {
    /// An object's content is not synced before it gets its name.
    UnsyncedContent = 1,
    /// An object's name is not synced.
    UnsyncedName,
    /// A database's commit is answered before it is synced.
    UnsyncedCommit,
    /// One replica is a quorum.
    QuorumOfOne,
    /// An object server takes what is older than what it has, and removes the newer.
    OlderWins,
    /// A DELETE removes the object and leaves no tombstone.
    NoTombstone,
    /// Rows of a container are merged in the order they come, whatever their times.
    RowsAsTheyCome,
    /// A handed-over partition is removed whether or not anybody took it.
    HandoffGone,
    /// A container update that fails is not kept.
    NoAsyncPending,
    /// The object auditor leaves damaged objects where they are.
    NoQuarantine,
    /// Replicators do not send tombstones.
    TombstonesUnsent,
    /// A folder that another writer has made and not synced yet is taken for durable.
    OthersFolders,
    /// A container takes the times of another replica as they are, newer or not.
    TimesAsTheyCome,
    /// The expirer deletes as of now, and so what was written since the object expired; nobody is
    /// asked before.
    ExpiredNow,
    /// The servers of an object that expires are not asked whether it still does.
    ExpiredUnasked,
    /// A row that is told by the pending file is answered before that is synced.
    UnsyncedPending,
    /// The pending file is cleared before the rows that were in it are on disk.
    PendingTooSoon,
    /// After a failed sync a database goes on as if nothing had been lost.
    FailedSyncBelieved,
    /// A body goes on with another replica whose beginning was not held against what was sent.
    UnlikeReplica,
    /// An object server does not hold content against its ETag.
    ContentUnchecked,
    /// Content that was held against its ETag a while ago is not held against anything.
    RereadUnchecked,
    /// A fragment is not held against its checksum.
    FragmentsUnchecked,
    /// The object in place of a damaged one is quarantined in its stead.
    QuarantineUnasked,
    /// An object server promises the same object to several writers, and lets all of them write.
    PromiseShared,
    /// A proxy takes one server's promise for a majority's.
    PromiseMinority,
    /// A conditional write whose outcome is in doubt does not keep others waiting.
    DoubtIgnored,
    /// A proxy takes a conditional write for carried out by a server that refused it.
    PromiseRefusalBelieved,
    /// A write to a volume is answered before its batch is on disk.
    BatchAnsweredEarly,
    /// A checkpoint of the index says that it covers more of the log than it does.
    CheckpointAhead,
    /// Compaction puts an object back that was written anew meanwhile.
    CompactionOverwrites,
    /// Compaction drops a tombstone while an older volume still has the object.
    TombstoneTooSoon,
    /// A batch that a power cut tore is taken for one that was acknowledged and has rotted.
    TornTakenForRot,
    /// A batch that has rotted is taken for the torn end of a log.
    RotTakenForTorn,
    /// A volume's file is used anew under its old epoch.
    EpochReused,
}

impl Plant {
    /// Those that the cluster simulator finds.
    pub const ALL: [Plant; 27] = [
        Plant::UnsyncedContent,
        Plant::UnsyncedName,
        Plant::UnsyncedCommit,
        Plant::QuorumOfOne,
        Plant::OlderWins,
        Plant::NoTombstone,
        Plant::RowsAsTheyCome,
        Plant::HandoffGone,
        Plant::NoAsyncPending,
        Plant::NoQuarantine,
        Plant::TombstonesUnsent,
        Plant::OthersFolders,
        Plant::TimesAsTheyCome,
        Plant::ExpiredNow,
        Plant::ExpiredUnasked,
        Plant::UnsyncedPending,
        Plant::PendingTooSoon,
        Plant::FailedSyncBelieved,
        Plant::UnlikeReplica,
        Plant::ContentUnchecked,
        Plant::RereadUnchecked,
        Plant::FragmentsUnchecked,
        Plant::QuarantineUnasked,
        Plant::PromiseShared,
        Plant::PromiseMinority,
        Plant::DoubtIgnored,
        Plant::PromiseRefusalBelieved,
    ];

    /// Those of volumes, which have a simulator of their own (`crates/pebbles/tests`).
    pub const VOLUMES: [Plant; 7] = [
        Plant::BatchAnsweredEarly,
        Plant::CheckpointAhead,
        Plant::CompactionOverwrites,
        Plant::TombstoneTooSoon,
        Plant::TornTakenForRot,
        Plant::RotTakenForTorn,
        Plant::EpochReused,
    ];

    /// The bug's name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Plant::UnsyncedContent => "unsynced-content",
            Plant::UnsyncedName => "unsynced-name",
            Plant::UnsyncedCommit => "unsynced-commit",
            Plant::QuorumOfOne => "quorum-of-one",
            Plant::OlderWins => "older-wins",
            Plant::NoTombstone => "no-tombstone",
            Plant::RowsAsTheyCome => "rows-as-they-come",
            Plant::HandoffGone => "handoff-gone",
            Plant::NoAsyncPending => "no-async-pending",
            Plant::NoQuarantine => "no-quarantine",
            Plant::TombstonesUnsent => "tombstones-unsent",
            Plant::OthersFolders => "others-folders",
            Plant::TimesAsTheyCome => "times-as-they-come",
            Plant::ExpiredNow => "expired-now",
            Plant::ExpiredUnasked => "expired-unasked",
            Plant::UnsyncedPending => "unsynced-pending",
            Plant::PendingTooSoon => "pending-too-soon",
            Plant::FailedSyncBelieved => "failed-sync-believed",
            Plant::UnlikeReplica => "unlike-replica",
            Plant::ContentUnchecked => "content-unchecked",
            Plant::RereadUnchecked => "reread-unchecked",
            Plant::FragmentsUnchecked => "fragments-unchecked",
            Plant::QuarantineUnasked => "quarantine-unasked",
            Plant::PromiseShared => "promise-shared",
            Plant::PromiseMinority => "promise-minority",
            Plant::DoubtIgnored => "doubt-ignored",
            Plant::PromiseRefusalBelieved => "promise-refusal-believed",
            Plant::BatchAnsweredEarly => "batch-answered-early",
            Plant::CheckpointAhead => "checkpoint-ahead",
            Plant::CompactionOverwrites => "compaction-overwrites",
            Plant::TombstoneTooSoon => "tombstone-too-soon",
            Plant::TornTakenForRot => "torn-taken-for-rot",
            Plant::RotTakenForTorn => "rot-taken-for-torn",
            Plant::EpochReused => "epoch-reused",
        }
    }

    /// Is this one on?
    #[inline]
    pub fn is_on(self) -> bool {
        #[cfg(feature = "plant")]
        return planted::NOW.load(std::sync::atomic::Ordering::Relaxed) == self as u8;
        #[cfg(not(feature = "plant"))]
        false
    }

    /// Turns it on, alone, for this process.
    #[cfg(feature = "plant")]
    pub fn turn_on(self) {
        planted::NOW.store(self as u8, std::sync::atomic::Ordering::Relaxed);
    }
}

#[cfg(feature = "plant")]
mod planted {
    pub(super) static NOW: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);
}
