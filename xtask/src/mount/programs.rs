//! Programs on a mounted container, and another client of the store that reads what they wrote.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use super::{CONTAINER, Ground};
use crate::clients::{same_trees, write_tree};
use crate::venv::Venv;
use crate::workspace::run_quiet;

pub(super) fn archive(dir: &Path, work: &Path) -> Result<()> {
    let tree = work.join("tree");
    write_tree(&tree, 300)?;
    fs::create_dir(dir)?;
    let archive = work.join("tree.tar");
    run_quiet(
        Command::new("tar")
            .arg("cf")
            .arg(&archive)
            .arg("-C")
            .arg(&tree)
            .arg("."),
    )?;
    run_quiet(
        Command::new("tar")
            .arg("xpf")
            .arg(&archive)
            .arg("-C")
            .arg(dir),
    )?;
    same_trees(&tree, dir)?;
    let compared = Command::new("tar")
        .arg("df")
        .arg(&archive)
        .arg("-C")
        .arg(dir)
        .output()?;
    let words = String::from_utf8_lossy(&compared.stdout);
    // Times of directories are those of the last change in them.
    let odd: Vec<&str> = words
        .lines()
        .filter(|line| !line.contains("Mod time"))
        .collect();
    ensure!(odd.is_empty(), "{odd:?}");
    let again = work.join("again.tar");
    run_quiet(
        Command::new("tar")
            .arg("cf")
            .arg(&again)
            .arg("-C")
            .arg(dir)
            .arg("."),
    )?;
    Ok(())
}

const SQLITE: &str = "
import sqlite3, sys
for mode in ('delete', 'wal'):
    path = sys.argv[1] + '/' + mode + '.db'
    db = sqlite3.connect(path)
    assert db.execute('pragma journal_mode=' + mode).fetchone()[0] == mode
    db.execute('create table t (id integer primary key, text)')
    for i in range(20):
        with db:
            db.executemany('insert into t (text) values (?)', [(str(i) * 500,)] * 50)
    db.close()
    db = sqlite3.connect(path)
    assert db.execute('pragma integrity_check').fetchone()[0] == 'ok'
    assert db.execute('select count(*) from t').fetchone()[0] == 1000
    db.close()
";

pub(super) fn sqlite(dir: &Path) -> Result<()> {
    fs::create_dir(dir)?;
    run_quiet(Command::new("python3").arg("-c").arg(SQLITE).arg(dir))?;
    Ok(())
}

pub(super) fn git(dir: &Path, work: &Path) -> Result<()> {
    let git = |at: &Path, args: &[&str]| {
        let mut command = Command::new("git");
        command.args([
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@example.org",
            "-c",
            "safe.directory=*",
        ]);
        run_quiet(command.args(args).current_dir(at))
    };
    let tree = dir.join("tree");
    write_tree(&tree, 100)?;
    git(&tree, &["init", "--quiet"])?;
    git(&tree, &["add", "."])?;
    git(&tree, &["commit", "--quiet", "-m", "one"])?;
    fs::write(tree.join("more"), b"more")?;
    git(&tree, &["add", "."])?;
    git(&tree, &["commit", "--quiet", "-m", "two"])?;
    let status = git(&tree, &["status", "--porcelain"])?;
    ensure!(status.is_empty(), "git status: {status}");
    git(&tree, &["clone", "--quiet", ".", "../clone"])?;
    git(&dir.join("clone"), &["fsck", "--strict"])?;
    git(&tree, &["gc", "--quiet"])?;
    git(&tree, &["fsck", "--strict"])?;
    let clone = dir.join("clone");
    git(
        work,
        &[
            "clone",
            "--quiet",
            clone.to_str().unwrap_or_default(),
            "git-back",
        ],
    )?;
    ensure!(
        fs::read(work.join("git-back/more"))? == b"more",
        "the clone of the clone"
    );
    Ok(())
}

pub(super) fn rsync(dir: &Path, work: &Path) -> Result<()> {
    let (tree, back) = (work.join("tree"), work.join("rsync-back"));
    let sync = |from: &Path, to: &Path| {
        let mut from = from.as_os_str().to_owned();
        from.push("/");
        run_quiet(
            Command::new("rsync")
                .args(["-a", "--stats"])
                .arg(from)
                .arg(to),
        )
    };
    sync(&tree, dir)?;
    same_trees(&tree, dir)?;
    let again = sync(&tree, dir)?;
    let moved = "Number of regular files transferred: 0";
    ensure!(again.contains(moved), "a second run moved files: {again}");
    sync(dir, &back)?;
    same_trees(&tree, &back)
}

pub(super) fn download(ground: &Ground, at: &Path, work: &Path) -> Result<()> {
    let venv = Venv::prepare()?;
    let back = work.join("swift-back");
    let mut swift = venv.program("swift");
    swift.args([
        "-A",
        &format!("{}/auth/v1.0", ground.url),
        "-U",
        "test:tester",
        "-K",
        "testing",
    ]);
    swift
        .args(["download", CONTAINER, "--prefix", "tar/", "--output-dir"])
        .arg(&back);
    run_quiet(&mut swift)?;
    same_trees(&at.join("tar"), &back.join("tar"))
}
