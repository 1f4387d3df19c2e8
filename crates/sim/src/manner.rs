//! Options of a run, from the command line.

/// Options of how a seed is run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    /// Keeps the lines of the log.
    pub(crate) is_verbose: bool,
    /// Most objects expire, soon, and the expirer runs all the time.
    pub(crate) is_expiring: bool,
    /// Several concurrent clients put an object that does not exist yet, disks are slow, and the
    /// power fails often.
    pub(crate) is_crowded: bool,
    /// Syncs of databases fail on all nodes at about the same time, updaters run, and the power
    /// fails.
    pub(crate) has_failing_syncs: bool,
    /// Half of all objects exceed one read; content rots often; several concurrent clients read an
    /// object and replace it.
    pub(crate) is_rotting: bool,
    /// Several clients replace the same objects by conditional writes.
    pub(crate) is_conditional: bool,
}
