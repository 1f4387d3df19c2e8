//! Names of object versions. All are *reserved*: a NUL before each part separates them from the
//! names available to clients.
//!
//! * the versions of container `c` are in `\0versions\0c`;
//! * a version of object `o` is `\0o\0` and the version's inverted time (subtracted from the
//!   maximum), so that listings have the newest first. The version's id is its time.

use cairn_types::Timestamp;
use cairn_types::timestamp::MAX_TICKS;

use crate::api_path::ObjectPath;

const RESERVED: char = '\0';
const VERSIONS: &str = "versions";

/// A reserved name of these parts; `None` if a part is reserved already.
pub(crate) fn reserved(parts: &[&str]) -> Option<String> {
    if parts.iter().any(|part| part.contains(RESERVED)) {
        return None;
    }
    let mut name = String::new();
    for part in parts {
        name.push(RESERVED);
        name.push_str(part);
    }
    Some(name)
}

/// The parts of a reserved name.
pub(crate) fn split_reserved(name: &str) -> Option<Vec<&str>> {
    Some(name.strip_prefix(RESERVED)?.split(RESERVED).collect())
}

/// The container for a container's versions.
pub(crate) fn versions_container(container: &str) -> Option<String> {
    reserved(&[VERSIONS, container])
}

/// Prefix of the names of all versions containers.
pub(crate) fn versions_container_prefix() -> String {
    format!("{RESERVED}{VERSIONS}{RESERVED}")
}

/// The container whose versions a container holds.
pub(crate) fn parent_container(versions: &str) -> &str {
    match split_reserved(versions).as_deref() {
        Some([VERSIONS, container]) => container,
        _ => versions,
    }
}

/// Prefix of the names of all versions of an object.
pub(crate) fn version_prefix(object: &str) -> Option<String> {
    reserved(&[object, ""])
}

pub(crate) fn version_name(object: &str, version: Timestamp) -> Option<String> {
    reserved(&[object, &inverted(version).internal()])
}

/// The object of a version's name, and the version's id; no id if it is not the name of a version.
pub(crate) fn parse_version_name(name: &str) -> (&str, Option<String>) {
    match split_reserved(name).as_deref() {
        Some([object, inverse]) => match Timestamp::parse(inverse) {
            Ok(inverse) => (object, Some(inverted(inverse).internal())),
            Err(_) => (name, None),
        },
        _ => (name, None),
    }
}

/// Is the second a version of the first, at the location used by object versioning?
pub(crate) fn is_version_of(object: &ObjectPath, version: &ObjectPath) -> bool {
    let container = versions_container(&object.container);
    version.account == object.account
        && container.is_some_and(|container| container == version.container)
        && matches!(parse_version_name(&version.object), (name, Some(_)) if name == object.object)
}

/// The inverted time: the distance from the maximum.
fn inverted(time: Timestamp) -> Timestamp {
    let left = MAX_TICKS.saturating_sub(time.ticks());
    if time.offset() == 0 {
        Timestamp::from_ticks(left)
    } else {
        Timestamp::from_ticks(left.saturating_sub(1)).with_offset(time.offset().wrapping_neg())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn as_upstream() {
        assert_eq!(versions_container("c").unwrap(), "\0versions\0c");
        assert_eq!(versions_container("\0c"), None);
        assert_eq!(parent_container("\0versions\0c"), "c");
        assert_eq!(parent_container("\0other\0c"), "\0other\0c");
        assert_eq!(parent_container("c"), "c");
        assert_eq!(version_prefix("o").unwrap(), "\0o\0");
        let version = Timestamp::parse("0000000060.00000").unwrap();
        let name = version_name("o", version).unwrap();
        assert_eq!(name, "\0o\u{0}9999999939.99999");
        assert_eq!(
            parse_version_name(&name),
            ("o", Some("0000000060.00000".into()))
        );
        let version = Timestamp::parse("1234567890.00000_000000000000000f").unwrap();
        let name = version_name("o", version).unwrap();
        assert_eq!(name, "\0o\u{0}8765432109.99998_fffffffffffffff1");
        assert_eq!(parse_version_name(&name), ("o", Some(version.internal())));
        for name in ["o", "\0o", "\0o\0x", "\0o\u{0}1\u{0}2"] {
            assert_eq!(parse_version_name(name), (name, None));
        }
    }

    #[test]
    fn newer_is_first() {
        let times = [
            "1.00000",
            "1.00000_1",
            "1.00000_ff",
            "1.00001",
            "1500000000.5",
        ];
        let names: Vec<_> = times
            .iter()
            .map(|t| version_name("o", Timestamp::parse(t).unwrap()).unwrap())
            .collect();
        assert!(names.windows(2).all(|w| w[0] > w[1]), "{names:?}");
    }
}
