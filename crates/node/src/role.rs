//! Roles: the servers of a cluster and the daemons beside them, with their names in programs, conf
//! files and sections.

use std::fmt;

/// A server of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    Proxy,
    Account,
    Container,
    Object,
}

impl Role {
    pub const ALL: [Role; 4] = [Role::Proxy, Role::Account, Role::Container, Role::Object];

    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Proxy => "proxy",
            Role::Account => "account",
            Role::Container => "container",
            Role::Object => "object",
        }
    }

    /// `proxy-server`, the name of programs and conf files.
    pub const fn server_name(self) -> &'static str {
        match self {
            Role::Proxy => "proxy-server",
            Role::Account => "account-server",
            Role::Container => "container-server",
            Role::Object => "object-server",
        }
    }

    pub(crate) fn from_entry_point(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.as_str() == name)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.server_name())
    }
}

/// A daemon of this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DaemonKind {
    AccountAuditor,
    AccountReaper,
    AccountReplicator,
    ContainerAuditor,
    ContainerReconciler,
    ContainerReplicator,
    ContainerSharder,
    ContainerSync,
    ContainerUpdater,
    ObjectAuditor,
    ObjectExpirer,
    ObjectReconstructor,
    ObjectReplicator,
    ObjectUpdater,
}

impl DaemonKind {
    pub const ALL: [DaemonKind; 14] = [
        DaemonKind::AccountAuditor,
        DaemonKind::AccountReaper,
        DaemonKind::AccountReplicator,
        DaemonKind::ContainerAuditor,
        DaemonKind::ContainerReconciler,
        DaemonKind::ContainerReplicator,
        DaemonKind::ContainerSharder,
        DaemonKind::ContainerSync,
        DaemonKind::ContainerUpdater,
        DaemonKind::ObjectAuditor,
        DaemonKind::ObjectExpirer,
        DaemonKind::ObjectReconstructor,
        DaemonKind::ObjectReplicator,
        DaemonKind::ObjectUpdater,
    ];

    /// Name of its section and, after `swift-`, of its program.
    pub const fn name(self) -> &'static str {
        match self {
            DaemonKind::AccountAuditor => "account-auditor",
            DaemonKind::AccountReaper => "account-reaper",
            DaemonKind::AccountReplicator => "account-replicator",
            DaemonKind::ContainerAuditor => "container-auditor",
            DaemonKind::ContainerReconciler => "container-reconciler",
            DaemonKind::ContainerReplicator => "container-replicator",
            DaemonKind::ContainerSharder => "container-sharder",
            DaemonKind::ContainerSync => "container-sync",
            DaemonKind::ContainerUpdater => "container-updater",
            DaemonKind::ObjectAuditor => "object-auditor",
            DaemonKind::ObjectExpirer => "object-expirer",
            DaemonKind::ObjectReconstructor => "object-reconstructor",
            DaemonKind::ObjectReplicator => "object-replicator",
            DaemonKind::ObjectUpdater => "object-updater",
        }
    }

    pub fn from_name(name: &str) -> Option<DaemonKind> {
        DaemonKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The server beside which it runs in `cairn serve`.
    pub const fn role(self) -> Role {
        match self {
            DaemonKind::AccountAuditor
            | DaemonKind::AccountReaper
            | DaemonKind::AccountReplicator => Role::Account,
            DaemonKind::ContainerAuditor
            | DaemonKind::ContainerReconciler
            | DaemonKind::ContainerReplicator
            | DaemonKind::ContainerSharder
            | DaemonKind::ContainerSync
            | DaemonKind::ContainerUpdater => Role::Container,
            DaemonKind::ObjectAuditor
            | DaemonKind::ObjectExpirer
            | DaemonKind::ObjectReconstructor
            | DaemonKind::ObjectReplicator
            | DaemonKind::ObjectUpdater => Role::Object,
        }
    }
}
