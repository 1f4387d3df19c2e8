//! xfstests over two containers of the store, and the C program fsx of its tree.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::suites::{reasons, statements};
use super::{Setup, is_mounted};
use cairn_testkit::process::Process;
use cairn_testkit::wire::Account;
use cairn_testkit::workspace::{self, have, utf8, write_script};

/// Tests that may fail (`NAME: REASON`) and tests that are left out (`NAME -- REASON`).
const EXCEPTIONS: &str = "xtask/mount/xfstests.exceptions";

/// The program by which mount(8) mounts the type `fuse.cairn`, where it looks for it.
const HELPER: &str = "/sbin/mount.fuse.cairn";

/// A line of it that tells it from one of an operator.
const MARK: &str = "# mount.fuse.cairn URL DIR [-o OPTIONS], for a run of tests";

/// Time after which a run that prints nothing is ended: the longest time of one test.
const QUIET: Duration = Duration::from_secs(1800);

/// Name of the log of a run.
const OUTPUT: &str = "check-output";

/// Programs without which most tests are not run, and their Debian packages.
const NEEDED: [(&str, &str); 4] = [
    ("xfs_io", "xfsprogs"),
    ("bc", "bc"),
    ("getfattr", "attr"),
    ("setfacl", "acl"),
];

/// Reason why xfstests cannot be run here.
pub(super) fn missing() -> Option<String> {
    let absent = NEEDED.iter().find(|(program, _)| !have(program));
    if let Some((program, package)) = absent {
        return Some(format!("no {program} (apt-get install {package})"));
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = "fsgqa";
    let is_there = |line: &str| line.split(':').next() == Some(user);
    match users.lines().any(is_there) {
        true => None,
        false => Some(format!(
            "no user {user} (useradd -m fsgqa; useradd -m fsgqa2)"
        )),
    }
}

/// The mount helper; removed when dropped.
struct Helper;

impl Helper {
    fn install(setup: &Setup) -> Result<Helper> {
        let there = fs::read_to_string(HELPER).unwrap_or_default();
        ensure!(
            !Path::new(HELPER).exists() || there.contains(MARK),
            "{HELPER} exists, and is not of a run of tests"
        );
        let (binary, log) = (setup.binary.display(), setup.dir.join("log/xfstests.log"));
        let text = format!(
            "#!/bin/sh\n\
             {MARK}\n\
             url=$1 dir=$2 options=\n\
             shift 2\n\
             while [ $# -gt 0 ]; do\n\
             case $1 in -o) options=$options,$2; shift;; esac\n\
             shift\n\
             done\n\
             case $options, in *,remount,*) exec mount -i -o \"${{options#,}}\" \"$dir\";; esac\n\
             flags=\n\
             case $options, in *,ro,*) flags=--read-only;; esac\n\
             export ST_AUTH={}/auth/v1.0 ST_USER=test:tester ST_KEY=testing\n\
             exec {binary} mount $flags --timeout 5 \"$url\" \"$dir\" >>{} 2>&1\n",
            setup.url,
            log.display()
        );
        write_script(Path::new(HELPER), &text)?;
        Ok(Helper)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = fs::remove_file(HELPER);
    }
}

/// A mounted directory of the run; unmounted when dropped.
struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        if is_mounted(&self.0) {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
}

/// Containers and directories of a run; the results.
struct Run {
    test: Dir,
    scratch: Dir,
    results: PathBuf,
    conf: PathBuf,
    /// A directory in front of the path.
    programs: PathBuf,
    excluded: PathBuf,
}

impl Run {
    fn prepare(setup: &Setup, account: &mut Account, exceptions: &str) -> Result<Run> {
        let dir = setup.dir.join("xfstests");
        let results = workspace::results("mount/xfstests")?;
        // Its output is appended to what is there.
        fs::remove_dir_all(&results)?;
        fs::create_dir_all(&results)?;
        let run = Run {
            test: Dir(dir.join("test")),
            scratch: Dir(dir.join("scratch")),
            results,
            conf: dir.join("local.config"),
            programs: dir.join("bin"),
            excluded: dir.join("excluded"),
        };
        for path in [&run.test.0, &run.scratch.0, &run.programs] {
            fs::create_dir_all(path)?;
        }
        let mut conf = "export FSTYP=fuse FUSE_SUBTYP=.cairn\n".to_owned();
        for (device, container, name, at) in [
            ("TEST_DEV", "xfstests-test", "TEST_DIR", &run.test.0),
            (
                "SCRATCH_DEV",
                "xfstests-scratch",
                "SCRATCH_MNT",
                &run.scratch.0,
            ),
        ] {
            account.must("PUT", &format!("/{container}"), "", &[], b"")?;
            let url = format!("{}/v1/AUTH_test/{container}", setup.url);
            conf.push_str(&format!("export {device}={url} {name}={}\n", at.display()));
        }
        let results = run.results.display();
        conf.push_str(&format!("export RESULT_BASE={results}\n"));
        fs::write(&run.conf, conf)?;
        // The suite's check of what is mounted expects the type `fuse`; a kernel that was told the
        // subtype shows `fuse.cairn`.
        let df = workspace::find("df").context("no df")?;
        let df = format!(
            "#!/bin/sh\n{} \"$@\" | sed 's/ fuse\\.cairn / fuse /'\n",
            df.display()
        );
        write_script(&run.programs.join("df"), &df)?;
        let left_out = left_out(exceptions).map(|(name, _)| format!("{name}\n"));
        fs::write(&run.excluded, left_out.collect::<String>())?;
        Ok(run)
    }

    fn start(&self, suite: &Path, tests: &[String]) -> Result<Process> {
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("PATH={}:{path}", self.programs.display());
        let conf = format!("HOST_OPTIONS={}", self.conf.display());
        let excluded = utf8(&self.excluded)?;
        let mut args = vec!["-C", utf8(suite)?, &path, &conf, "./check", "-E", excluded];
        args.extend(tests.iter().map(String::as_str));
        Process::start(OUTPUT, Path::new("env"), &args, &self.results)
    }

    /// Waits for the end of a run, which is killed if it prints nothing for a long time.
    fn wait(&self, mut check: Process) -> Result<String> {
        let (mut text, mut since) = (self.text()?, Instant::now());
        while check.code().is_none() {
            std::thread::sleep(Duration::from_secs(1));
            let now = self.text()?;
            if now.len() > text.len() {
                (text, since) = (now, Instant::now());
            }
            if since.elapsed() > QUIET {
                check.kill();
                bail!("nothing for {QUIET:?} behind: {}", tail(&text, 3));
            }
        }
        self.text()
    }

    fn text(&self) -> Result<String> {
        let text = fs::read(self.results.join(OUTPUT).with_extension("log"))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join(" | ")
}

/// Tests that are left out, with reasons.
fn left_out(exceptions: &str) -> impl Iterator<Item = (&str, &str)> {
    statements(exceptions).filter_map(|line| line.split_once(" -- "))
}

/// The names behind `what` in the summary of a run.
fn names<'a>(text: &'a str, what: &str) -> BTreeSet<&'a str> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(what));
    lines.flat_map(str::split_whitespace).collect()
}

/// Runs xfstests' generic tests of the group "quick", or the named ones.
pub(super) fn run(
    suite: &Path,
    only: &[String],
    setup: &Setup,
    account: &mut Account,
) -> Result<String> {
    let suite = fs::canonicalize(suite)?;
    ensure!(
        suite.join("ltp/fsx").exists() && suite.join("src/af_unix").exists(),
        "{} is not built: make -C {0}",
        suite.display()
    );
    let exceptions = fs::read_to_string(workspace::root().join(EXCEPTIONS))?;
    let run = Run::prepare(setup, account, &exceptions)?;
    let _helper = Helper::install(setup)?;
    for (name, reason) in left_out(&exceptions) {
        println!("left out: xfstests {name}: {reason}");
    }
    let tests = match only {
        [] => vec!["-g".to_owned(), "quick".to_owned()],
        names => names.to_vec(),
    };
    let text = run.wait(run.start(&suite, &tests)?)?;
    let ran = names(&text, "Ran: ");
    ensure!(!ran.is_empty(), "no test was run: {}", tail(&text, 5));
    let not_run = names(&text, "Not run: ");
    let failures = names(&text, "Failures: ");
    let reasons = reasons(&exceptions);
    let wrong: Vec<&&str> = failures
        .iter()
        .filter(|name| !reasons.contains_key(**name))
        .collect();
    ensure!(
        wrong.is_empty(),
        "failed: {wrong:?}; see {}",
        run.results.display()
    );
    let applied = ran.difference(&not_run).count();
    Ok(format!(
        "{applied} tests, of which {} failed, each with a reason; {} others do not apply here",
        failures.len(),
        not_run.len()
    ))
}
