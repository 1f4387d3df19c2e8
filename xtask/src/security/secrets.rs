//! A store as seen by other users of the host: files, the process list, the output of a start.

use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::all_held;
use cairn_testkit::process::{Process, free_range};
use cairn_testkit::wire::Account;
use cairn_testkit::workspace::utf8;

/// A case that starts stores of its own, below a folder.
pub(super) type Apart = fn(&Path, &Path) -> Result<String>;

const KEY: &str = "a-key-that-nobody-else-sees";

/// Starts a store by `cairn up` whose only user is in a file.
fn start(binary: &Path, dir: &Path, name: &str) -> Result<(Process, PathBuf, u16)> {
    let data = dir.join(name);
    let users = dir.join(format!("{name}.users"));
    std::fs::write(&users, format!("test:tester={KEY},.admin\n"))?;
    std::fs::set_permissions(&users, std::fs::Permissions::from_mode(0o600))?;
    let port = free_range(100)?;
    let bind = format!("127.0.0.1:{port}");
    let (data_text, users_text) = (utf8(&data)?, utf8(&users)?);
    let args = [
        "up",
        "--data",
        data_text,
        "--bind",
        &bind,
        "--user-file",
        users_text,
    ];
    let mut store = Process::start(name, binary, &args, &dir.join("log"))?;
    store.wait_for_answer((Ipv4Addr::LOCALHOST, port), "/healthcheck", 60)?;
    Ok((store, data, port))
}

pub(super) fn modes(binary: &Path, dir: &Path) -> Result<String> {
    let (mut store, data, port) = start(binary, dir, "modes")?;
    let mut account = Account::login_as(port, "test:tester", KEY)?;
    account.must("POST", "", "", &[("X-Account-Meta-Temp-URL-Key", "k")], b"")?;
    account.must("PUT", "/c", "", &[], b"")?;
    account.must("PUT", "/c/o", "", &[], b"content")?;
    store.stop();
    let mut open = Vec::new();
    let mut files = 0;
    walk(&data, &mut files, &mut open)?;
    ensure!(files > 10, "only {files} files below {}", data.display());
    // A database that others may read must be found though a folder above it is shut.
    let database = database(&data)?;
    std::fs::set_permissions(&database, std::fs::Permissions::from_mode(0o644))?;
    let (mut counted, mut found) = (0, Vec::new());
    walk(&data, &mut counted, &mut found)?;
    let expected = format!("{} is 644", database.display());
    ensure!(found.contains(&expected), "not noticed: {expected}");
    all_held(open, format!("{files} files"))
}

/// Collects files and folders that others have rights to by their own modes. Those of the folders
/// above count for nothing: disks are mounted elsewhere, and backups restored elsewhere.
fn walk(folder: &Path, files: &mut u32, open: &mut Vec<String>) -> Result<()> {
    let mut note = |path: &Path| -> Result<()> {
        let mode = path.symlink_metadata()?.mode() & 0o777;
        if mode & 0o077 != 0 {
            open.push(format!("{} is {mode:o}", path.display()));
        }
        Ok(())
    };
    note(folder)?;
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let (path, kind) = entry.map(|e| (e.path(), e.file_type()))?;
        let kind = kind?;
        if kind.is_dir() {
            folders.push(path);
            continue;
        }
        *files += 1;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Rings name devices and are meant to be distributed.
        let is_public = name.ends_with(".ring.gz") || name.ends_with(".builder");
        // The lock of `cairn up` holds the owner's process id at most.
        let is_lock = name == "lock";
        // A symbolic link has no mode of its own.
        if !is_public && !is_lock && !kind.is_symlink() {
            note(&path)?;
        }
    }
    folders.iter().try_for_each(|path| walk(path, files, open))
}

/// One of the databases below a folder.
fn database(folder: &Path) -> Result<PathBuf> {
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "db") {
                return Ok(path);
            }
        }
    }
    bail!("no database below {}", folder.display())
}

pub(super) fn shown(binary: &Path, dir: &Path) -> Result<String> {
    let (mut store, _, _) = start(binary, dir, "shown")?;
    let line = std::fs::read(format!("/proc/{}/cmdline", store.id()))?;
    ensure!(
        !String::from_utf8_lossy(&line).contains(KEY),
        "the key is in the list of processes"
    );
    let printed = store.log_lines(KEY);
    ensure!(printed.is_empty(), "the start prints the key");
    store.stop();
    let tail = store.log_tail();
    ensure!(!tail.contains(KEY), "the key is in the log");
    Ok(String::new())
}

pub(super) fn known(binary: &Path, dir: &Path) -> Result<String> {
    let mut broken = Vec::new();
    for (name, bind) in [("all", "0.0.0.0"), ("all-v6", "[::]")] {
        let data = dir.join(format!("known-{name}"));
        let mut child = Command::new(binary)
            .arg("up")
            .arg("--data")
            .arg(&data)
            .args(["--bind", &format!("{bind}:{}", free_range(100)?)])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()?;
        let mut waited = 0;
        let ended = loop {
            match child.try_wait()? {
                Some(status) => break Some(status),
                None if waited > 100 => break None,
                None => std::thread::sleep(Duration::from_millis(100)),
            }
            waited += 1;
        };
        match ended {
            Some(status) if !status.success() => (),
            Some(_) => broken.push(format!("{bind}: it ended as if all were well")),
            None => {
                child.kill()?;
                child.wait()?;
                broken.push(format!("{bind}: it serves"));
            }
        }
    }
    all_held(broken, "refused".to_owned())
}
