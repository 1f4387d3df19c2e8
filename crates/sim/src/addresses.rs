//! The servers of each node, and their addresses.

use std::net::{Ipv4Addr, SocketAddr};

use cairn_types::ServerKind;

/// The storage servers of a node.
pub(crate) const SERVERS: [ServerKind; 3] = [
    ServerKind::Object,
    ServerKind::Container,
    ServerKind::Account,
];

/// Index of a server in [`SERVERS`].
pub(crate) fn index(kind: ServerKind) -> usize {
    match kind {
        ServerKind::Object => 0,
        ServerKind::Container => 1,
        ServerKind::Account => 2,
    }
}

/// Address of a node's server.
pub(crate) fn address(node: usize, kind: ServerKind) -> SocketAddr {
    let port = 6000 + 10 * node as u16 + index(kind) as u16;
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_those_of_the_list() {
        assert_eq!(SERVERS.map(index), [0, 1, 2]);
    }
}
