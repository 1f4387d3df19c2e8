//! Programs on a mounted container, and another client of the store that reads their results.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{CONTAINER, Setup};
use cairn_testkit::trees::{same_trees, write_tree};
use cairn_testkit::venv::Venv;
use cairn_testkit::workspace::run_quiet;

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
    // Differences of times are ignored: a directory's is that of the last change in it.
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

/// Inserts rows one by one, and prints each after its commit.
const SQLITE_WRITER: &str = "
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute('pragma journal_mode=' + sys.argv[2])
db.execute('create table if not exists t (id integer primary key, text)')
number = db.execute('select coalesce(max(id), 0) from t').fetchone()[0]
while True:
    number += 1
    db.execute('insert into t values (?, ?)', (number, str(number) * 300))
    print(number, flush=True)
";

const SQLITE_CHECK: &str = "
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
assert db.execute('pragma integrity_check').fetchone()[0] == 'ok'
count, last = db.execute('select count(*), max(id) from t').fetchone()
assert count == last >= int(sys.argv[2]), (count, last, sys.argv[2])
assert all(text == str(number) * 300 for number, text in db.execute('select * from t'))
";

/// Kills an SQLite writer several times: committed rows are there, and the database is intact.
pub(super) fn sqlite_killed(dir: &Path) -> Result<()> {
    fs::create_dir(dir)?;
    for mode in ["delete", "wal"] {
        let path = dir.join(format!("{mode}.db"));
        for rows in [5, 30, 80] {
            let mut writer = Command::new("python3")
                .args(["-c", SQLITE_WRITER])
                .arg(&path)
                .arg(mode)
                .stdout(Stdio::piped())
                .spawn()?;
            let output = writer.stdout.take().context("no output")?;
            let mut last = String::new();
            for line in BufReader::new(output).lines().take(rows) {
                last = line?;
            }
            writer.kill()?;
            writer.wait()?;
            run_quiet(
                Command::new("python3")
                    .args(["-c", SQLITE_CHECK])
                    .arg(&path)
                    .arg(&last),
            )?;
        }
    }
    Ok(())
}

/// Clones a small program and builds it in the clone.
pub(super) fn build(dir: &Path, work: &Path) -> Result<()> {
    const FILES: usize = 20;
    let source = work.join("source");
    fs::create_dir_all(&source)?;
    fs::create_dir(dir)?;
    let mut sum = String::new();
    let mut declared = String::new();
    for i in 0..FILES {
        fs::write(
            source.join(format!("f{i}.c")),
            format!("int f{i}(void) {{ return {i}; }}\n"),
        )?;
        sum.push_str(&format!(" + f{i}()"));
        declared.push_str(&format!("int f{i}(void);\n"));
    }
    fs::write(
        source.join("main.c"),
        format!(
            "#include <stdio.h>\n{declared}int main(void) {{ printf(\"%d\\n\", 0{sum}); return 0; }}\n"
        ),
    )?;
    fs::write(
        source.join("Makefile"),
        "program: $(patsubst %.c,%.o,$(wildcard *.c))\n\tcc -o $@ $^\nlib.a: program\n\tar rcs $@ f*.o\n",
    )?;
    let git = |at: &Path, args: &[&str]| {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=a", "-c", "user.email=a@example.org"]);
        run_quiet(
            command
                .args(["-c", "safe.directory=*"])
                .args(args)
                .current_dir(at),
        )
    };
    git(&source, &["init", "--quiet"])?;
    git(&source, &["add", "."])?;
    git(&source, &["commit", "--quiet", "-m", "one"])?;
    let clone = dir.join("clone");
    let (from, to) = (source.to_string_lossy(), clone.to_string_lossy());
    git(work, &["clone", "--quiet", &from, &to])?;
    run_quiet(
        Command::new("make")
            .args(["-j4", "lib.a"])
            .current_dir(&clone),
    )?;
    let output = run_quiet(&mut Command::new(clone.join("program")))?;
    let expected = (0..FILES).sum::<usize>().to_string();
    ensure!(output.trim() == expected, "the program prints {output:?}");
    let again = run_quiet(Command::new("make").arg("lib.a").current_dir(&clone))?;
    ensure!(again.contains("up to date"), "a second make: {again}");
    Ok(())
}

const HDF5: &str = "
import sys, h5py, numpy
path = sys.argv[1]
random = numpy.random.default_rng(5)
rows = random.random((3000, 500))
with h5py.File(path, 'w') as file:
    file.attrs['title'] = 'a checkpoint'
    data = file.create_dataset('rows', (3000, 500), dtype='f8', chunks=(100, 500), compression='gzip', compression_opts=1)
    for start in range(0, 3000, 250):
        data[start:start + 250] = rows[start:start + 250]
    grown = file.create_dataset('grown', (0,), maxshape=(None,), dtype='i8', chunks=(1000,))
    for i in range(20):
        grown.resize((1000 * (i + 1),))
        grown[1000 * i:] = i
        file.flush()
with h5py.File(path, 'r+') as file:
    file['rows'][17] = 1.0
    rows[17] = 1.0
with h5py.File(path, 'r') as file:
    assert (file['rows'][:] == rows).all() and file['rows'][2999, 499] == rows[2999, 499]
    assert (file['grown'][:] == numpy.repeat(numpy.arange(20), 1000)).all()
    assert file.attrs['title'] == 'a checkpoint'
";

/// Tests of HDF5; `python` is an interpreter that has h5py.
pub(super) fn hdf5(dir: &Path, python: &Path) -> Result<()> {
    fs::create_dir(dir)?;
    run_quiet(
        Command::new(python)
            .args(["-c", HDF5])
            .arg(dir.join("f.h5")),
    )?;
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

pub(super) fn download(setup: &Setup, at: &Path, work: &Path) -> Result<()> {
    let venv = Venv::prepare()?;
    let back = work.join("swift-back");
    let mut swift = venv.program("swift");
    swift.args([
        "-A",
        &format!("{}/auth/v1.0", setup.url),
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
