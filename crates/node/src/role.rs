//! Roles: the servers of a cluster, with their names in programs, conf files and sections, and the
//! daemons beside each.

use std::fmt;

pub use cairn_daemons::DaemonKind;

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

    /// The server beside which a daemon runs in `cairn serve`.
    pub const fn beside(daemon: DaemonKind) -> Role {
        match daemon {
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

    pub(crate) fn from_entry_point(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.as_str() == name)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.server_name())
    }
}
