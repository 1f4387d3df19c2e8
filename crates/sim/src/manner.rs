//! The manner of a run, chosen on the command line.

/// How a seed is run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    /// Keeps the lines of the log.
    pub(crate) is_verbose: bool,
    /// Most objects expire, soon, and the expirer is about all the time.
    pub(crate) is_expiring: bool,
    /// Several clients at once put an object that nobody has heard of, disks take their time, and
    /// the power fails often.
    pub(crate) is_crowded: bool,
    /// Syncs of databases fail on all nodes at about the same time, updaters go round, and the power
    /// fails.
    pub(crate) has_failing_syncs: bool,
    /// Half of all objects are larger than what is read in one step; content rots often; several
    /// clients at once read an object and replace it.
    pub(crate) is_rotting: bool,
    /// Several clients replace the same objects on the condition that nobody else has.
    pub(crate) is_conditional: bool,
}
