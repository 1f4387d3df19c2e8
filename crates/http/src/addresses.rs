//! Clients' addresses, as what they share is divided between them.

use std::net::{IpAddr, Ipv6Addr};

/// The address that stands for all of one customer's: for IPv6 the /64 network, whose addresses are
/// all theirs.
pub fn customer(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from(network))
        }
        address => address,
    }
}
