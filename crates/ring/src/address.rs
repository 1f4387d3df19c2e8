//! Addresses of devices: IPv4, IPv6 in its single short form, or a host name, all in lower case, so
//! that equal addresses are equal text.

use std::net::{Ipv4Addr, Ipv6Addr};

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("Invalid {expected} {found:?}")]
pub struct AddressError {
    pub found: String,
    pub expected: &'static str,
}

/// Normalises an IPv4 or IPv6 address.
///
/// # Errors
/// It is neither an IPv4 nor an IPv6 address.
pub fn normalize_ip(ip: &str) -> Result<String, AddressError> {
    let lower = ip.to_lowercase();
    if lower.parse::<Ipv4Addr>().is_ok() {
        return Ok(lower);
    }
    match lower.parse::<Ipv6Addr>() {
        Ok(address) => Ok(address.to_string()),
        Err(_) => Err(AddressError {
            found: ip.to_owned(),
            expected: "ip",
        }),
    }
}

/// Normalises an IP address, in brackets or not, or a host name.
///
/// # Errors
/// It is neither an IP address nor a host name, or is a host name in brackets.
pub fn normalize_address(address: &str) -> Result<String, AddressError> {
    let bare = address.trim_start_matches('[').trim_end_matches(']');
    if address.starts_with('[') && address.ends_with(']') {
        return normalize_ip(bare);
    }
    if let Ok(ip) = normalize_ip(bare) {
        return Ok(ip);
    }
    let lower = bare.to_lowercase();
    if is_hostname(&lower) {
        return Ok(lower);
    }
    Err(AddressError {
        found: address.to_owned(),
        expected: "address",
    })
}

fn is_hostname(name: &str) -> bool {
    let dotted = name.strip_suffix('.').unwrap_or(name);
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    name.len() <= 255 && dotted.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_addresses_become_equal_text() {
        let normal = |address: &str| normalize_address(address).ok();
        assert_eq!(normal("10.0.0.1").as_deref(), Some("10.0.0.1"));
        assert_eq!(normal("[FE80:0:0::1]").as_deref(), Some("fe80::1"));
        assert_eq!(normal("FE80::1").as_deref(), Some("fe80::1"));
        assert_eq!(
            normal("Node-1.Example.").as_deref(),
            Some("node-1.example.")
        );
        for bad in ["", "-a", "a b", "[node]", "a..b"] {
            assert_eq!(normal(bad), None, "{bad}");
        }
        assert!(normalize_ip("node").is_err());
    }
}
