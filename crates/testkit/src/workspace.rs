//! Paths and external programs: the workspace's root, the cache of downloaded software, scratch
//! folders, cargo.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Serialize;

/// The root of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap_or(Path::new("."))
}

/// Cache of downloaded software: `$CAIRN_CACHE`, or `cairn` in the user's cache folder.
///
/// # Errors
/// None of `$CAIRN_CACHE`, `$XDG_CACHE_HOME` and `$HOME` is set.
pub fn cache() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("CAIRN_CACHE") {
        return Ok(PathBuf::from(dir));
    }
    let base = match std::env::var_os("XDG_CACHE_HOME") {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    Ok(base.join("cairn"))
}

/// Cargo's target folder.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// A folder for one run, on the workspace's own file system (`/tmp` may be small and without
/// extended attributes); removed when dropped.
///
/// # Errors
/// The folder cannot be created in `target/xtask`.
pub fn scratch(name: &str) -> Result<tempfile::TempDir> {
    let base = target().join("xtask");
    std::fs::create_dir_all(&base)?;
    tempfile::Builder::new()
        .prefix(&format!("{name}-"))
        .tempdir_in(&base)
        .with_context(|| format!("making a folder in {}", base.display()))
}

/// Folder of results: `target/xtask/NAME`.
///
/// # Errors
/// The folder cannot be created.
pub fn results(name: &str) -> Result<PathBuf> {
    let dir = target().join("xtask").join(name);
    std::fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// Keeps results as JSON in the file of this name, in [`results`]`(folder)`, and prints where.
///
/// # Errors
/// `value` has no form in JSON, or the folder or the file cannot be written.
pub fn keep(folder: &str, file: &str, value: &(impl Serialize + ?Sized)) -> Result<()> {
    let dir = results(folder)?;
    std::fs::write(dir.join(file), serde_json::to_vec_pretty(value)?)?;
    println!("kept in {}", dir.display());
    Ok(())
}

/// A command of cargo in this workspace.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Builds one package in release mode and returns the path of its program.
///
/// # Errors
/// Cargo cannot be started, or the build fails.
pub fn build_release(package: &str) -> Result<PathBuf> {
    run(cargo().args(["build", "--release", "--package", package]))?;
    Ok(target().join("release").join(package))
}

/// Builds one package without optimisation and returns the path of its program.
///
/// # Errors
/// Cargo cannot be started, or the build fails.
pub fn build_debug(package: &str) -> Result<PathBuf> {
    run(cargo().args(["build", "--package", package]))?;
    Ok(target().join("debug").join(package))
}

/// Path of Cairn's program: built here, or named by `$CAIRN_BINARY`.
///
/// # Errors
/// The build fails: see [`build_release`]. Whether `$CAIRN_BINARY` exists is not checked.
pub fn build_cairn() -> Result<PathBuf> {
    if let Some(binary) = std::env::var_os("CAIRN_BINARY") {
        return Ok(PathBuf::from(binary));
    }
    build_release("cairn")
}

/// Runs a command to its end.
///
/// # Errors
/// The command cannot be started, or ends with another status than success. The error names it.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("running {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

/// Like [`run`], without output; returns the program's standard output.
///
/// # Errors
/// Those of [`run`]. If the program failed, its output is in the error.
pub fn run_quiet(command: &mut Command) -> Result<String> {
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

/// A program of the path.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

/// Is a program on the path?
pub fn have(program: &str) -> bool {
    find(program).is_some()
}

/// Writes a program in a script's language.
///
/// # Errors
/// The file cannot be written or made executable.
pub fn write_script(path: &Path, text: &str) -> Result<()> {
    let write = || {
        std::fs::write(path, text)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
    };
    write().with_context(|| path.display().to_string())
}

/// A path as an argument of a program.
///
/// # Errors
/// The path is not UTF-8.
pub fn utf8(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))
}

/// Installs the Debian package if the program is missing and we are root. Returns false if the
/// program is not available; callers report what they skip.
pub fn install(program: &str, package: &str) -> bool {
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
///
/// # Errors
/// The runtime cannot be built, or a handler of a signal cannot be installed.
pub fn wait_for_end() -> Result<()> {
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
