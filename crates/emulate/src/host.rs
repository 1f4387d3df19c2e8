//! Programs of the host that emulation needs, and checks whether they are available.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use thiserror::Error;

/// Failure of a program.
#[derive(Debug, Error)]
#[error("{command}: {words}")]
pub struct ProgramError {
    pub command: String,
    pub words: String,
}

/// Runs a program to its end and returns its output.
///
/// # Errors
/// It cannot be started, or fails; the error has its exit status and standard error.
pub fn run(program: &str, arguments: &[&str]) -> Result<String, ProgramError> {
    let failed = |words: String| ProgramError {
        command: format!("{program} {}", arguments.join(" ")),
        words: words.trim().replace('\n', " "),
    };
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(failed(format!("{} {words}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path);
    folders.any(|folder| folder.join(program).is_file())
}

/// Reason why disks cannot be emulated here, in one line.
pub fn no_disks() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("emulated disks need root (loop devices, mounts)".to_owned());
    }
    for device in ["/dev/fuse", "/dev/loop-control"] {
        if let Err(error) = File::options().read(true).write(true).open(device) {
            return Some(format!("emulated disks need {device}: {error}"));
        }
    }
    let programs = [
        ("mkfs.ext4", "e2fsprogs"),
        ("losetup", "mount"),
        ("mount", "mount"),
        ("umount", "mount"),
    ];
    let missing = programs.into_iter().find(|(program, _)| !has(program))?;
    Some(format!(
        "emulated disks need {}: install the package {}",
        missing.0, missing.1
    ))
}

/// Reason why networks cannot be emulated here, in one line.
pub fn no_network() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("an emulated network needs root (network namespaces)".to_owned());
    }
    let tun = Path::new("/dev/net/tun");
    if let Err(error) = File::options().read(true).write(true).open(tun) {
        return Some(format!(
            "an emulated network needs {}: {error}",
            tun.display()
        ));
    }
    let programs = [("ip", "iproute2"), ("nsenter", "util-linux")];
    let missing = programs.into_iter().find(|(program, _)| !has(program))?;
    Some(format!(
        "an emulated network needs {}: install the package {}",
        missing.0, missing.1
    ))
}

/// Requests real-time priority, so that other processes do not delay replies. Returns false if it
/// is not available; replies are then later, which is measured.
pub fn hurry() -> bool {
    let pid = std::process::id().to_string();
    // Only threads started later inherit it, so this is called before there are others.
    let real_time = run("chrt", &["--fifo", "--pid", "20", &pid]).is_ok();
    if !real_time {
        let _ = rustix::process::nice(-20);
    }
    real_time
}
