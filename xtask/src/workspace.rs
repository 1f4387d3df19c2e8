//! Paths and external programs: the workspace's root, the cache of downloaded software, scratch
//! folders, cargo.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."))
}

/// Cache of downloaded software: `$CAIRN_CACHE`, or `cairn` in the user's cache folder.
pub(crate) fn cache() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("CAIRN_CACHE") {
        return Ok(PathBuf::from(dir));
    }
    let base = match std::env::var_os("XDG_CACHE_HOME") {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    Ok(base.join("cairn"))
}

pub(crate) fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// A folder for one run, on the workspace's own file system (`/tmp` may be small and without
/// extended attributes); removed when dropped.
pub(crate) fn scratch(name: &str) -> Result<tempfile::TempDir> {
    let base = target().join("xtask");
    std::fs::create_dir_all(&base)?;
    tempfile::Builder::new()
        .prefix(&format!("{name}-"))
        .tempdir_in(&base)
        .with_context(|| format!("making a folder in {}", base.display()))
}

/// Folder of results: `target/xtask/NAME`.
pub(crate) fn results(name: &str) -> Result<PathBuf> {
    let dir = target().join("xtask").join(name);
    std::fs::create_dir_all(&dir)?;
    Ok(dir)
}

pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Builds one package in release mode and returns the path of its program.
pub(crate) fn build_release(package: &str) -> Result<PathBuf> {
    run(cargo().args(["build", "--release", "--package", package]))?;
    Ok(target().join("release").join(package))
}

/// Builds one package without optimisation and returns the path of its program.
pub(crate) fn build_debug(package: &str) -> Result<PathBuf> {
    run(cargo().args(["build", "--package", package]))?;
    Ok(target().join("debug").join(package))
}

/// Path of Cairn's program: built here, or named by `$CAIRN_BINARY`.
pub(crate) fn build_cairn() -> Result<PathBuf> {
    if let Some(binary) = std::env::var_os("CAIRN_BINARY") {
        return Ok(PathBuf::from(binary));
    }
    build_release("cairn")
}

/// Runs a command to its end; any exit but success is an error that names the command.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("running {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

/// Like [`run`], without output; the program's own output is in the error.
pub(crate) fn run_quiet(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("running {command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?} ended with {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub(crate) fn have(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// Installs the Debian package if the program is missing and we are root. Returns false if the
/// program is not available; callers report what they skip.
pub(crate) fn install(program: &str, package: &str) -> bool {
    if have(program) {
        return true;
    }
    if !rustix::process::geteuid().is_root() || !have("apt-get") {
        return false;
    }
    eprintln!("installing {package}");
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").args(args);
        run_quiet(&mut command).is_ok()
    };
    let add = ["install", "-y", "--no-install-recommends", package];
    (apt(&add) || (apt(&["update"]) && apt(&add))) && have(program)
}

/// Waits for Ctrl-C or SIGTERM.
pub(crate) fn wait_for_end() -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            ended = tokio::signal::ctrl_c() => ended?,
            _ = terminate.recv() => (),
        }
        Ok(())
    })
}
