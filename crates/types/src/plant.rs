//! Planted bugs: each disables one rule that protects acknowledged data. The simulator turns one on
//! to check that it finds the violation. They exist only with the feature `plant`, which only the
//! simulator's build enables; without it no bug is ever on, and the compiler removes its code.

/// Does this build contain planted bugs? Only the simulator's does.
pub const ARE_COMPILED: bool = cfg!(feature = "plant");

/// A rule that is disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Plant {
    /// An object's content is not synced before the file is linked into its hash folder.
    UnsyncedContent = 1,
    /// The hash folder is not synced after an object's file was linked into it.
    UnsyncedName,
    /// A database commit is acknowledged before it is synced.
    UnsyncedCommit,
    /// One replica is a quorum.
    QuorumOfOne,
    /// An object server accepts a write older than what it has, and removes the newer one.
    OlderWins,
    /// A DELETE removes the object without leaving a tombstone.
    NoTombstone,
    /// Rows of a container are merged in the order of arrival instead of by timestamp.
    RowsAsTheyCome,
    /// A handed-over partition is removed even if no primary took it.
    HandoffGone,
    /// A failed container update is not saved as an async pending.
    NoAsyncPending,
    /// The object auditor does not quarantine damaged objects.
    NoQuarantine,
    /// Replicators do not send tombstones.
    TombstonesUnsent,
    /// A folder that another writer created and has not synced yet is taken for durable.
    OthersFolders,
    /// A container takes over another replica's timestamps even if they are older.
    TimesAsTheyCome,
    /// The expirer deletes with the current time, and so also what was written since the object
    /// expired, without asking the object's servers first.
    ExpiredNow,
    /// The servers of an expired object are not asked whether it still expires.
    ExpiredUnasked,
    /// A row that was appended to the pending file is acknowledged before that file is synced.
    UnsyncedPending,
    /// The pending file is truncated before its rows are durable in the database.
    PendingTooSoon,
    /// After a failed sync a database continues as if nothing had been lost.
    FailedSyncBelieved,
    /// A read resumes from another replica without checking that its content equals what was
    /// already sent.
    UnlikeReplica,
    /// An object server does not verify content against its ETag.
    ContentUnchecked,
    /// Content that was verified once is never verified again.
    RereadUnchecked,
    /// A fragment is not verified against its checksum.
    FragmentsUnchecked,
    /// The object that replaced a damaged one is quarantined instead of it.
    QuarantineUnasked,
    /// An object server gives its promise for one object to several writers at once, and lets all
    /// of them write.
    PromiseShared,
    /// A proxy takes the promise of one server for that of a majority.
    PromiseMinority,
    /// A conditional write whose outcome is unknown does not block later ones.
    DoubtIgnored,
    /// A proxy counts a server that refused a conditional write as one that committed it.
    PromiseRefusalBelieved,
    /// Directories that only one of several operations wrote to are left out of the sync they share.
    SetLacksDirectory,
    /// The operations of a batch go on, and are answered, before the sync that they share.
    AnswersBeforeSync,
    /// A writer takes the result of a group's sync that ran already when it came.
    HearsAnother,
    /// A reader of a shared database is let in while a commit runs.
    ReaderLetInEarly,
    /// A write to a volume is answered before its batch is on disk.
    BatchAnsweredEarly,
    /// A checkpoint of the index says that it covers more of the log than it does.
    CheckpointAhead,
    /// Some of the objects that changed are left out of what is added to a checkpoint.
    ChangesForgotten,
    /// After a crash nobody looks for rows that were in memory alone.
    OwedForgotten,
    /// A batch says that no rows of the records before it are owed, whether they are or not.
    OwedTooFar,
    /// A checkpoint does not say which rows are owed of what it covers.
    CheckpointUnsettled,
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
    /// The first read error of a record counts as damage.
    ReadErrorTakenForRot,
    /// The head of a volume is not compared with its copy, which may be of a later use.
    HeadNotCompared,
}

impl Plant {
    /// Those that the cluster simulator finds.
    pub const ALL: [Plant; 31] = [
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
        Plant::SetLacksDirectory,
        Plant::AnswersBeforeSync,
        Plant::HearsAnother,
        Plant::ReaderLetInEarly,
    ];

    /// Those of volumes, which have a simulator of their own (`crates/pebbles/tests`).
    pub const VOLUMES: [Plant; 13] = [
        Plant::BatchAnsweredEarly,
        Plant::CheckpointAhead,
        Plant::ChangesForgotten,
        Plant::OwedForgotten,
        Plant::OwedTooFar,
        Plant::CheckpointUnsettled,
        Plant::CompactionOverwrites,
        Plant::TombstoneTooSoon,
        Plant::TornTakenForRot,
        Plant::RotTakenForTorn,
        Plant::EpochReused,
        Plant::ReadErrorTakenForRot,
        Plant::HeadNotCompared,
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
            Plant::SetLacksDirectory => "set-lacks-directory",
            Plant::AnswersBeforeSync => "answers-before-sync",
            Plant::HearsAnother => "hears-another",
            Plant::ReaderLetInEarly => "reader-let-in-early",
            Plant::BatchAnsweredEarly => "batch-answered-early",
            Plant::CheckpointAhead => "checkpoint-ahead",
            Plant::ChangesForgotten => "changes-forgotten",
            Plant::OwedForgotten => "owed-forgotten",
            Plant::OwedTooFar => "owed-too-far",
            Plant::CheckpointUnsettled => "checkpoint-unsettled",
            Plant::CompactionOverwrites => "compaction-overwrites",
            Plant::TombstoneTooSoon => "tombstone-too-soon",
            Plant::TornTakenForRot => "torn-taken-for-rot",
            Plant::RotTakenForTorn => "rot-taken-for-torn",
            Plant::EpochReused => "epoch-reused",
            Plant::ReadErrorTakenForRot => "read-error-taken-for-rot",
            Plant::HeadNotCompared => "head-not-compared",
        }
    }

    /// Is this bug turned on?
    #[inline]
    pub fn is_on(self) -> bool {
        #[cfg(feature = "plant")]
        return planted::NOW.load(std::sync::atomic::Ordering::Relaxed) == self as u8;
        #[cfg(not(feature = "plant"))]
        false
    }

    /// Turns on this bug, and no other, for this process.
    #[cfg(feature = "plant")]
    pub fn turn_on(self) {
        planted::NOW.store(self as u8, std::sync::atomic::Ordering::Relaxed);
    }
}

#[cfg(feature = "plant")]
mod planted {
    pub(super) static NOW: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);
}
