//! Heuristics that can be switched off, so that what each wins can be measured (`cargo xtask bench
//! heuristics`). Only a build with the feature `measure` can: without it none is ever off, and the
//! compiler removes the switch.

/// Environment variable that names the heuristics that are off, separated by commas.
pub const VARIABLE: &str = "CAIRN_WITHOUT";

/// A rule of thumb that is there for speed alone: without it everything is as correct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heuristic {
    /// After a slow sync of the whole file system everyone syncs for themselves for a while.
    AvoidSlowSync,
    /// Objects that were used lately are read on the calling thread.
    InlineRead,
    /// Short content whose checksum is not known is hashed on the calling thread.
    InlineHash,
    /// Directories and metadata of objects that were read lately are kept.
    KnownObject,
    /// Content that was verified lately is compared with its CRC-32 instead of its MD5.
    VerifiedContent,
    /// Large content stays in the page cache if it is read again within minutes.
    ReadAgain,
    /// Blocks of large uploads are written past the page cache.
    DirectWrite,
    /// A batch of a database's updates waits for as many as the last ones had.
    GatherUpdates,
    /// Rows in quick succession are appended to the pending file, and merged later.
    RowLog,
}

impl Heuristic {
    pub const ALL: [Heuristic; 9] = [
        Heuristic::AvoidSlowSync,
        Heuristic::InlineRead,
        Heuristic::InlineHash,
        Heuristic::KnownObject,
        Heuristic::VerifiedContent,
        Heuristic::ReadAgain,
        Heuristic::DirectWrite,
        Heuristic::GatherUpdates,
        Heuristic::RowLog,
    ];

    /// The name by which it is switched off.
    pub const fn name(self) -> &'static str {
        match self {
            Heuristic::AvoidSlowSync => "avoid-slow-sync",
            Heuristic::InlineRead => "inline-read",
            Heuristic::InlineHash => "inline-hash",
            Heuristic::KnownObject => "known-object",
            Heuristic::VerifiedContent => "verified-content",
            Heuristic::ReadAgain => "read-again",
            Heuristic::DirectWrite => "direct-write",
            Heuristic::GatherUpdates => "gather-updates",
            Heuristic::RowLog => "row-log",
        }
    }

    /// Whether it is switched off in this process.
    #[inline]
    pub fn is_off(self) -> bool {
        #[cfg(feature = "measure")]
        return OFF.load(std::sync::atomic::Ordering::Relaxed) & (1 << self as u32) != 0;
        #[cfg(not(feature = "measure"))]
        false
    }

    /// Switches off those that are named, with commas between them, for this process.
    #[cfg(feature = "measure")]
    pub fn switch_off(names: &str) {
        let is_named = |one: &Heuristic| names.split(',').any(|name| name == one.name());
        let off = Heuristic::ALL.into_iter().filter(is_named);
        let bits = off.fold(0, |bits, one| bits | (1 << one as u32));
        OFF.store(bits, std::sync::atomic::Ordering::Relaxed);
    }
}

/// A bit for each that is off.
#[cfg(feature = "measure")]
static OFF: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_and_none_is_off() {
        let mut names = Heuristic::ALL.map(Heuristic::name).to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Heuristic::ALL.len());
        assert!(Heuristic::ALL.iter().all(|one| !one.is_off()));
    }
}
