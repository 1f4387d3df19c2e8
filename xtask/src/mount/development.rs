//! Tools of a programmer on a mounted container: a build by cargo, an editor with its backups and
//! its swap file.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use cairn_testkit::workspace::{have, run_quiet};

/// Modules of the crate that is built.
const MODULES: u32 = 12;

const MANIFEST: &str = "
[package]
name = \"sum\"
version = \"0.1.0\"
edition = \"2021\"
build = \"build.rs\"

# A workspace of its own: the mount may be below another one.
[workspace]
";

/// Writes a file that the crate includes, from one that is not in Rust.
const BUILD_SCRIPT: &str = "
use std::{env, fs, path::Path};

fn main() {
    println!(\"cargo:rerun-if-changed=start.txt\");
    let start = fs::read_to_string(\"start.txt\").unwrap();
    let out = env::var(\"OUT_DIR\").unwrap();
    let text = format!(\"const START: u32 = {};\", start.trim());
    fs::write(Path::new(&out).join(\"start.rs\"), text).unwrap();
}
";

fn write_module(source: &Path, number: u32, value: u32) -> Result<()> {
    let text = format!("pub fn value() -> u32 {{ {value} }}\n");
    Ok(fs::write(source.join(format!("m{number}.rs")), text)?)
}

/// Writes the sources of a library and of a program that prints the sum of a number of the build
/// script's and one of each module.
fn write_crate(dir: &Path) -> Result<()> {
    let source = dir.join("src");
    fs::create_dir_all(&source)?;
    fs::write(dir.join("Cargo.toml"), MANIFEST)?;
    fs::write(dir.join("build.rs"), BUILD_SCRIPT)?;
    fs::write(dir.join("start.txt"), "1000\n")?;
    let mut library = "include!(concat!(env!(\"OUT_DIR\"), \"/start.rs\"));\n".to_owned();
    let mut sum = "START".to_owned();
    for number in 0..MODULES {
        write_module(&source, number, number)?;
        library.push_str(&format!("mod m{number};\n"));
        sum.push_str(&format!(" + m{number}::value()"));
    }
    library.push_str(&format!("pub fn sum() -> u32 {{ {sum} }}\n"));
    library.push_str("#[test]\nfn is_large() { assert!(sum() > 999); }\n");
    fs::write(source.join("lib.rs"), library)?;
    let program = "fn main() { println!(\"{}\", sum::sum()); }\n";
    Ok(fs::write(source.join("main.rs"), program)?)
}

/// Builds a crate whose sources and target folder are on the mount, again without a change, and
/// again after changes of a module and of what the build script reads.
pub(super) fn cargo_build(dir: &Path) -> Result<()> {
    fs::create_dir(dir)?;
    write_crate(dir)?;
    let cargo = |what: &str| -> Result<String> {
        let mut command = Command::new("cargo");
        command.args([what, "--offline"]).current_dir(dir);
        // Incremental builds keep their state by hard links and renames of folders.
        command.env("CARGO_INCREMENTAL", "1");
        command.env("CARGO_TARGET_DIR", dir.join("target"));
        command.env("CARGO_TERM_COLOR", "never");
        let output = command.output()?;
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "cargo {what}: {words}");
        Ok(words)
    };
    let prints = |expected: u32| -> Result<()> {
        let output = run_quiet(&mut Command::new(dir.join("target/debug/sum")))?;
        let expected = expected.to_string();
        ensure!(
            output.trim() == expected,
            "the program prints {output:?}, not {expected}"
        );
        Ok(())
    };
    let sum: u32 = 1000 + (0..MODULES).sum::<u32>();
    cargo("build")?;
    prints(sum)?;
    let again = cargo("build")?;
    ensure!(!again.contains("Compiling"), "nothing changed: {again}");
    write_module(&dir.join("src"), 3, 503)?;
    let changed = cargo("build")?;
    ensure!(
        changed.contains("Compiling"),
        "a module changed: {changed:?}"
    );
    prints(sum + 500)?;
    fs::write(dir.join("start.txt"), "3000\n")?;
    cargo("build")?;
    prints(sum + 2500)?;
    cargo("test")?;
    cargo("clean")?;
    ensure!(!dir.join("target").exists(), "cargo clean left something");
    Ok(())
}

/// An editor in a directory, which runs the commands of a script.
struct Vim<'a> {
    dir: &'a Path,
    script: PathBuf,
}

impl Vim<'_> {
    fn edit(&self, commands: &[&str]) -> Result<Command> {
        let mut lines = vec!["set directory=."];
        lines.extend(commands);
        fs::write(&self.script, lines.join("\n") + "\n")?;
        // Debian's smallest package of it has no `vim`.
        let program = ["vim.tiny", "vim"][usize::from(have("vim"))];
        let mut command = Command::new(program);
        command.args(["-u", "NONE", "-i", "NONE", "-es", "-S"]);
        command.arg(&self.script).current_dir(self.dir);
        command.env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
        Ok(command)
    }
}

/// Writes a file with a backup, by both of Vim's ways: as a copy, which is then overwritten in
/// place, and by a rename, with a new file in its place.
fn with_backup(vim: &Vim, way: &str, is_same: bool) -> Result<()> {
    let dir = vim.dir;
    let (file, backup) = (dir.join("notes"), dir.join("notes~"));
    fs::write(&file, "one\nline\n")?;
    let before = fs::metadata(&file)?.ino();
    // `backupskip` has /tmp, below which the mount may be.
    let set = format!("set backup backupskip= backupdir=. backupcopy={way}");
    let edit = ["edit notes", "%s/one/two/", "wq"];
    run_quiet(&mut vim.edit(&[&[&*set], &edit[..]].concat())?)?;
    ensure!(
        fs::read(&file)? == b"two\nline\n",
        "the file after backupcopy={way}"
    );
    ensure!(
        fs::read(&backup)? == b"one\nline\n",
        "the backup after backupcopy={way}"
    );
    let kept = fs::metadata(&file)?.ino() == before;
    ensure!(
        kept == is_same,
        "backupcopy={way}: is it the same file? {kept}"
    );
    Ok(fs::remove_file(backup)?)
}

fn names(dir: &Path) -> Result<BTreeSet<String>> {
    let entries = fs::read_dir(dir)?;
    let name = |entry: std::io::Result<fs::DirEntry>| {
        entry.map(|entry| entry.file_name().to_string_lossy().into_owned())
    };
    Ok(entries.map(name).collect::<std::io::Result<_>>()?)
}

/// Edits by Vim: backups, many writes of one session, and the recovery of what an editor that was
/// killed had not written.
pub(super) fn edited(dir: &Path, work: &Path) -> Result<()> {
    fs::create_dir(dir)?;
    let vim = Vim {
        dir,
        script: work.join("script.vim"),
    };
    with_backup(&vim, "yes", true)?;
    with_backup(&vim, "no", false)?;
    let mut session = vec!["edit notes"];
    session.extend(["normal Gomore", "write"].repeat(20));
    session.extend(["write! copy", "quit"]);
    run_quiet(&mut vim.edit(&session)?)?;
    let expected = format!("two\nline\n{}", "more\n".repeat(20));
    for name in ["notes", "copy"] {
        ensure!(
            fs::read_to_string(dir.join(name))? == expected,
            "{name} after 20 writes"
        );
    }
    let left = names(dir)?;
    ensure!(
        left.iter().eq(["copy", "notes"]),
        "an editor that ended left {left:?}"
    );
    // The shell's parent is the editor.
    let killed = ["edit notes", "normal Golost", "preserve", "!kill -9 $PPID"];
    let output = vim.edit(&killed)?.output()?;
    ensure!(
        output.status.signal() == Some(9),
        "Vim was to be killed, and ended with {}",
        output.status
    );
    ensure!(
        fs::read_to_string(dir.join("notes"))? == expected,
        "a killed editor has changed the file"
    );
    let left = names(dir)?;
    ensure!(left.contains(".notes.swp"), "no swap file in {left:?}");
    run_quiet(&mut vim.edit(&["recover notes", "wq"])?)?;
    let text = fs::read_to_string(dir.join("notes"))?;
    ensure!(text == expected + "lost\n", "after the recovery: {text:?}");
    fs::remove_file(dir.join(".notes.swp")).context("the swap file")?;
    Ok(())
}
