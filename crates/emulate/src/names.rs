//! Names of what an emulator makes on this host: they carry its process id, so that one that has
//! ended without cleaning up is known.

use std::path::Path;

const PREFIX: &str = "cairn-emulate-";

/// The name of what this process makes.
pub(crate) fn tag() -> String {
    format!("{PREFIX}{}", std::process::id())
}

/// Whether a name is of an emulator that has ended.
pub(crate) fn is_dead(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else {
        return false;
    };
    let pid = rest.split('-').next().unwrap_or_default();
    pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_ended_emulators_are_dead() {
        assert!(!is_dead(&tag()));
        assert!(!is_dead("something-else"));
        assert!(!is_dead("cairn-emulate-x"));
        // Larger than the kernel's largest process id.
        assert!(is_dead("cairn-emulate-4194305-s1"));
    }
}
