//! The servers of each node, and their addresses.

use std::net::{Ipv4Addr, SocketAddr};

use cairn_types::ServerKind;

/// The storage servers of a node.
pub(crate) const SERVERS: [ServerKind; 3] = [
    ServerKind::Object,
    ServerKind::Container,
    ServerKind::Account,
];

/// Address of a node's server.
pub(crate) fn address(node: usize, kind: ServerKind) -> SocketAddr {
    let offset = match kind {
        ServerKind::Object => 0,
        ServerKind::Container => 1,
        ServerKind::Account => 2,
    };
    let port = 6000 + 10 * node as u16 + offset;
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}
