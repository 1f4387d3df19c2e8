//! Range of client addresses: one address, or a network with its prefix length or mask. A network
//! whose address has bits beyond its mask is invalid.

use std::net::IpAddr;

pub(super) fn contains(range: &str, address: IpAddr) -> bool {
    let (network, mask) = match range.split_once('/') {
        Some((network, mask)) => (network, Some(mask)),
        None => (range, None),
    };
    let Ok(network) = network.parse::<IpAddr>() else {
        return false;
    };
    // A dual-stack socket shows IPv4 peers as mapped addresses.
    let address = address.to_canonical();
    if network.is_ipv4() != address.is_ipv4() {
        return false;
    }
    let Some(mask) = mask_of(mask, &network) else {
        return false;
    };
    let (network, address) = (bits(network), bits(address));
    network & !mask == 0 && address & mask == network
}

/// Addresses as numbers, with IPv4 in the high bits, so that prefixes of both families begin at the
/// top.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn mask_of(text: Option<&str>, network: &IpAddr) -> Option<u128> {
    let most = if network.is_ipv4() { 32 } else { 128 };
    let Some(text) = text else {
        return Some(ones(most));
    };
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok().filter(|n| *n <= most).map(ones);
    }
    let mask = match text.parse().ok()? {
        IpAddr::V4(v4) if network.is_ipv4() => v4.to_bits(),
        _ => return None,
    };
    // A mask of leading ones, or its complement.
    let (left, right) = (mask.leading_ones(), (!mask).leading_ones());
    if mask.count_ones() == left {
        Some(ones(left))
    } else if (!mask).count_ones() == right {
        Some(ones(right))
    } else {
        None
    }
}

fn ones(count: u32) -> u128 {
    u128::MAX.checked_shl(128 - count).unwrap_or(0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let has = |range: &str, address: &str| contains(range, address.parse().unwrap());
        for (range, address) in [
            ("1.2.3.4", "1.2.3.4"),
            ("1.2.3.0/24", "1.2.3.255"),
            ("1.2.3.0/255.255.255.0", "1.2.3.7"),
            ("1.2.3.0/0.0.0.255", "1.2.3.7"),
            ("0.0.0.0/0", "9.9.9.9"),
            ("1.2.3.4/32", "::ffff:1.2.3.4"),
            ("2001:db8::", "2001:db8::"),
            ("2001:db8::/127", "2001:db8::1"),
            ("::/0", "2001:db8::1"),
        ] {
            assert!(has(range, address), "{range} {address}");
        }
        for (range, address) in [
            ("1.2.3.4", "1.2.3.5"),
            ("1.2.3.4/24", "1.2.3.4"), // bits beyond the mask
            ("1.2.3.0/24", "1.2.4.0"),
            ("1.2.3.0/33", "1.2.3.0"),
            ("1.2.3.0/", "1.2.3.0"),
            ("1.2.3.0/255.0.255.0", "1.2.3.0"),
            ("1.2.3", "1.2.3.0"),
            ("nonsense", "1.2.3.0"),
            ("2001:db8::/64", "2001:db9::1"),
            ("::/0", "1.2.3.4"),
            ("2001:db8::/129", "2001:db8::"),
        ] {
            assert!(!has(range, address), "{range} {address}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_reads(text in "[0-9a-f:./]{0,24}") {
            contains(&text, std::net::Ipv4Addr::LOCALHOST.into());
            contains(&text, std::net::Ipv6Addr::LOCALHOST.into());
        }
    }
}
