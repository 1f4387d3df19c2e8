//! Names of the resources that an emulator creates on this host: they contain its process id, so
//! that leftovers of one that was killed can be recognised.

use std::path::Path;

const PREFIX: &str = "cairn-emulate-";

/// Name prefix of this process's resources.
pub(crate) fn tag() -> String {
    format!("{PREFIX}{}", std::process::id())
}

/// Does the name belong to an emulator that has ended?
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
