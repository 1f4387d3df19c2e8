//! `nice_priority`, `ionice_class` and `ionice_priority`: CPU and I/O priority of a daemon with a
//! process of its own. In a server's process background work has low priority anyway.
//!
//! On Linux both are properties of a thread, inherited by new threads: this must run on the main
//! thread before any other is started. `ionice` is the program of util-linux.

use std::process::{Command, Stdio};

use anyhow::Result;
use cairn_formats::ini::{ConfError, Section};
use tracing::{info, warn};

/// Priorities in a conf.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Priority {
    /// From -20, the highest, to 19, the lowest.
    nice: Option<i32>,
    io: Option<IoPriority>,
}

/// Arguments of `ionice`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IoPriority {
    class: &'static str,
    /// From 0, the highest, to 7.
    level: i64,
}

impl Priority {
    pub(crate) fn read(section: &Section) -> Result<Priority, ConfError> {
        let nice = match section.get("nice_priority").map(str::trim) {
            None | Some("") => None,
            Some(text) => match text.parse() {
                Ok(nice) if (-20..=19).contains(&nice) => Some(nice),
                _ => {
                    let remedy = "expected a number from -20 (first) to 19 (last)";
                    return Err(section.bad("nice_priority", remedy));
                }
            },
        };
        let level = match section.get("ionice_priority").map(str::trim) {
            None | Some("") => None,
            Some(text) => match text.parse() {
                Ok(level) if (0..=7).contains(&level) => Some(level),
                _ => {
                    let remedy = "expected a number from 0 (first) to 7 (last)";
                    return Err(section.bad("ionice_priority", remedy));
                }
            },
        };
        let class = match section.get("ionice_class").map(str::trim) {
            None | Some("") => None,
            Some("IOPRIO_CLASS_RT") => Some("1"),
            Some("IOPRIO_CLASS_BE") => Some("2"),
            Some("IOPRIO_CLASS_IDLE") => Some("3"),
            Some(_) => {
                let remedy = "expected IOPRIO_CLASS_RT, IOPRIO_CLASS_BE or IOPRIO_CLASS_IDLE";
                return Err(section.bad("ionice_class", remedy));
            }
        };
        let io = class.map(|class| IoPriority {
            class,
            level: level.unwrap_or(0),
        });
        if io.is_none() && level.is_some() {
            let remedy = "it is a level of a class: set ionice_class too, or remove it";
            return Err(section.bad("ionice_priority", remedy));
        }
        Ok(Priority { nice, io })
    }

    /// Applies to this thread and those it starts. Failures are logged only.
    pub(crate) fn apply(&self) {
        if let Some(nice) = self.nice {
            match rustix::process::setpriority_process(None, nice) {
                Ok(()) => info!(nice, "priority set"),
                Err(error) => warn!(nice_priority = nice, %error, "priority not set"),
            }
        }
        let Some(io) = self.io else {
            return;
        };
        let pid = std::process::id().to_string();
        let level = io.level.to_string();
        let mut ionice = Command::new("ionice");
        ionice.args(["-c", io.class]);
        // The idle class has no levels.
        if io.class != "3" {
            ionice.args(["-n", &level]);
        }
        ionice.args(["-p", &pid]).stdin(Stdio::null());
        match ionice.output() {
            Ok(output) if output.status.success() => {
                info!(class = io.class, level, "disk priority set");
            }
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                warn!(said = said.trim(), "ionice_class: disk priority not set");
            }
            Err(error) => {
                warn!(%error, "ionice_class: disk priority not set: the program ionice (util-linux) does not run");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Priority, ConfError> {
        Priority::read(&Section::from_pairs("object-replicator", pairs))
    }

    #[test]
    fn options() {
        assert_eq!(read(&[]).unwrap(), Priority::default());
        let priority = read(&[
            ("nice_priority", "10"),
            ("ionice_class", "IOPRIO_CLASS_BE"),
            ("ionice_priority", "7"),
        ]);
        let io = IoPriority {
            class: "2",
            level: 7,
        };
        let expected = Priority {
            nice: Some(10),
            io: Some(io),
        };
        assert_eq!(priority.unwrap(), expected);
        let class = ("ionice_class", "IOPRIO_CLASS_BE");
        for (pairs, named) in [
            (&[("nice_priority", "20")][..], "nice_priority"),
            (&[("nice_priority", "low")], "from -20"),
            (&[("ionice_class", "IDLE")], "IOPRIO_CLASS_IDLE"),
            (&[class, ("ionice_priority", "8")], "from 0"),
            (&[("ionice_priority", "3")], "set ionice_class"),
        ] {
            let error = read(pairs).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn threads_started_later_inherit_it() {
        // On a thread of its own, so that the others are unaffected.
        let of_child = std::thread::spawn(|| {
            read(&[("nice_priority", "7")]).unwrap().apply();
            let child = || rustix::process::getpriority_process(None);
            std::thread::spawn(child).join().unwrap()
        });
        assert_eq!(of_child.join().unwrap().unwrap(), 7);
    }
}
