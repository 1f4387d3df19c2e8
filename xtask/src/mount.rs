//! `cairn mount` over a store of its own: programs on a file system, concurrent writes of two
//! mounts, and another client of the store that reads the same bytes afterwards.

pub(crate) mod bench;
mod cached;
mod calls;
mod checkpoint;
mod closes;
mod development;
mod failures;
mod fsx;
mod git_tests;
mod namespaces;
mod programs;
mod rivals;
mod shared;
mod store;
mod suites;
mod tap;
mod xfstests;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::Args;
use rustix::process::Signal;

use crate::bench::disk::{Disk, FileSystem};
use crate::engine::EngineName;
use cairn_testkit::process::Process;
use cairn_testkit::report::Report;
use cairn_testkit::workspace::{self, have, install, utf8};
use store::{Store, Traits};

#[derive(Args)]
pub(crate) struct Options {
    /// Number of seeds of random reads and writes
    #[arg(long, default_value_t = 4)]
    pub(crate) seeds: u64,
    /// Operations of each seed
    #[arg(long, default_value_t = 1000)]
    pub(crate) operations: u64,
    /// The store whose container is mounted
    #[arg(long, value_enum, default_value_t)]
    pub(crate) store: store::Kind,
    /// The engine of all policies of Cairn's store
    #[arg(long, value_enum)]
    pub(crate) engine: Option<EngineName>,
    /// Keep the store and the log for a look
    #[arg(long)]
    pub(crate) keep: bool,
    /// File system of the store's devices; XFS has room for the longest paths
    #[arg(long, value_enum, default_value_t = FileSystem::Workspace)]
    pub(crate) file_system: FileSystem,
    #[command(flatten)]
    pub(crate) suites: suites::Suites,
    /// Without the suites of others
    #[arg(long, conflicts_with = "suites_only")]
    pub(crate) short: bool,
    /// Only the suites of others
    #[arg(long, conflicts_with = "short")]
    pub(crate) suites_only: bool,
}

impl Options {
    /// Options of a run of a minute or two.
    pub(crate) fn short() -> Self {
        Options {
            seeds: 2,
            operations: 400,
            store: store::Kind::Cairn,
            engine: None,
            keep: false,
            file_system: FileSystem::Workspace,
            suites: suites::Suites::default(),
            short: true,
            suites_only: false,
        }
    }
}

const CONTAINER: &str = "data";

/// Maximum bytes of the store's names. Longer ones do not fit into an inode of ext4 beside an
/// object's metadata.
const NAME_BYTES: usize = 3072;
/// On XFS: a path of 4,095 bytes below a directory of the mount.
const LONG_NAME_BYTES: usize = 4300;

/// A mounted container; unmounted when dropped.
struct Mount {
    dir: PathBuf,
    process: Process,
    /// Time for everything that has to be uploaded at the end.
    time_to_end: Duration,
}

impl Mount {
    fn start(setup: &Setup, name: &str, options: &[&str]) -> Result<Mount> {
        let dir = setup.dir.join(name);
        fs::create_dir_all(&dir)?;
        let auth = format!("ST_AUTH={}/auth/v1.0", setup.url);
        let container = format!("{}/v1/AUTH_test/{CONTAINER}", setup.url);
        let (binary, at) = (utf8(&setup.binary)?, utf8(&dir)?);
        let mut args = vec![
            "ST_USER=test:tester",
            "ST_KEY=testing",
            &auth,
            binary,
            "mount",
        ];
        let seconds = setup.traits.answer_seconds;
        args.extend(["--foreground", "--timeout", seconds, &container, at]);
        args.extend(options);
        Mount::start_program(setup, name, dir.clone(), &args)
    }

    /// Starts a program that mounts something at `dir` and keeps running. `args` are the arguments
    /// of `env`.
    fn start_program(setup: &Setup, name: &str, dir: PathBuf, args: &[&str]) -> Result<Mount> {
        let mut process = Process::start(name, Path::new("env"), args, &setup.dir.join("log"))?;
        let seconds = 30 * u64::from(setup.traits.patience);
        process.wait_until("the mount", seconds, || Ok(is_mounted(&dir)))?;
        let time_to_end = Duration::from_secs(60) * setup.traits.patience;
        Ok(Mount {
            dir,
            process,
            time_to_end,
        })
    }

    /// Sends SIGTERM; an error if the program does not end by itself, with all that it has to upload.
    fn stop(mut self) -> Result<()> {
        self.ended_within(self.time_to_end)?;
        ensure!(
            !is_mounted(&self.dir),
            "{} is still mounted",
            self.dir.display()
        );
        Ok(())
    }

    /// Sends SIGTERM and returns the exit code; an error if it takes too long.
    fn exit_code(mut self) -> Result<Option<i32>> {
        self.ended_within(self.time_to_end)
    }

    fn ended_within(&mut self, time: Duration) -> Result<Option<i32>> {
        self.process.signal(Signal::TERM);
        let deadline = Instant::now() + time;
        while Instant::now() < deadline {
            if let Some(code) = self.process.code() {
                return Ok(code);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("the mount did not end:\n{}", self.process.log_tail())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.process.kill();
        if is_mounted(&self.dir) {
            let _ = Command::new("umount").arg("-l").arg(&self.dir).status();
        }
    }
}

fn is_mounted(dir: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let dir = dir.to_string_lossy();
    mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == Some(&*dir))
}

#[derive(Clone)]
struct Setup {
    binary: PathBuf,
    dir: PathBuf,
    url: String,
    name_bytes: usize,
    traits: Traits,
}

/// Runs a check of conditions of writes, or says that the store decides none.
fn where_decided(
    report: &mut Report,
    setup: &Setup,
    name: &str,
    check: impl FnOnce() -> Result<()>,
) {
    match setup.traits.decides {
        true => report.check(name, check),
        false => println!("left out: {name}: {UNDECIDED}"),
    }
}

const UNDECIDED: &str = "this store decides no conditions of writes, so that one mount at a time \
                         writes a file or makes a name";

pub(crate) fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        report.skip("mount", "needs root and /dev/fuse");
        return Ok(report);
    }
    let scratch = workspace::scratch("mount")?;
    let binary = fs::canonicalize(workspace::build_cairn()?)?;
    let dir = fs::canonicalize(scratch.path())?;
    let name_bytes = match options.file_system {
        FileSystem::Xfs => LONG_NAME_BYTES,
        FileSystem::Workspace | FileSystem::Ext4 => NAME_BYTES,
    };
    let disk = Disk::fresh(&dir, "disk", options.file_system)?;
    let at = disk.path().join("store");
    let mut store = Store::create(options.store, options.engine, &binary, &at, name_bytes)?;
    store.start()?;
    let setup = Setup {
        binary,
        dir,
        url: store.url(),
        name_bytes,
        traits: store.traits(),
    };
    store
        .account()?
        .must("PUT", &format!("/{CONTAINER}"), "", &[], b"")?;
    let mount = Mount::start(&setup, "mnt", &[])?;
    let at = mount.dir.clone();
    if !options.suites_only {
        check_all(&mut report, options, &setup, &mut store, &at)?;
    }
    if !options.short {
        let mut account = store.account()?;
        suites::run(&mut report, &options.suites, &setup, &mut account, &at)?;
    }
    report.check("SIGTERM uploads what is open", || {
        failures::terminated(&setup, mount)
    });
    report.check("SIGTERM ends the store", || store.stop());
    if options.keep {
        println!("kept: {}", scratch.keep().display());
    }
    Ok(report)
}

/// Runs our own checks on the mount at `at`.
fn check_all(
    report: &mut Report,
    options: &Options,
    setup: &Setup,
    store: &mut Store,
    at: &Path,
) -> Result<()> {
    let work = setup.dir.join("work");
    fs::create_dir_all(&work)?;
    check_calls(report, options, setup, at, store);
    check_programs(report, setup, at, &work);
    report.check("a second mount reads what the first closed", || {
        failures::second(setup, at)
    });
    let name = "two mounts write the same files at once";
    where_decided(report, setup, name, || shared::run(setup, store, at));
    report.tell("a checkpoint becomes one ordinary object", || {
        checkpoint::in_short(setup, &mut store.account()?)
    });
    report.check("a cache on disk outlives its mount", || {
        cached::run(setup, store)
    });
    report.check("a cache on disk, filled and killed", || {
        cached::killed(setup)
    });
    check_failures(report, setup, store, at);
    Ok(())
}

fn check_calls(report: &mut Report, options: &Options, setup: &Setup, at: &Path, store: &Store) {
    report.check("files, attributes, links, directories", || {
        calls::basics(&at.join("basics"))
    });
    for seed in 1..=options.seeds {
        for (name, bytes) in [("small", 2_000_000u64), ("large", 30_000_000)] {
            let file = at.join(format!("fsx-{name}"));
            let title = format!("random reads and writes of a {name} file, seed {seed}");
            report.check(&title, || {
                calls::fsx(&file, seed, options.operations, bytes)?;
                Ok(fs::remove_file(&file)?)
            });
        }
    }
    report.check("files that are open are replaced and removed", || {
        calls::replaced_while_open(setup, &mut store.account()?)
    });
    report.check("odd and deep names", || calls::odd_names(&at.join("odd")));
    report.check("paths as long as the store's names may be", || {
        calls::long_paths(at, setup.name_bytes, &mut store.account()?)
    });
    report.check("hard links", || {
        calls::hard_links(setup, &at.join("links"), &mut store.account()?)
    });
    report.check("64 writers", || calls::many_writers(&at.join("many")));
    report.check("a large file, streamed", || {
        calls::large(at, &mut store.account()?)
    });
    report.check("a large file, changed while it is read", || {
        calls::changed_in_place(at, &mut store.account()?)
    });
}

fn check_programs(report: &mut Report, setup: &Setup, at: &Path, work: &Path) {
    report.check("tar and untar", || programs::archive(&at.join("tar"), work));
    report.check("sqlite", || programs::sqlite(&at.join("sqlite")));
    report.check("sqlite, killed while it writes", || {
        programs::sqlite_killed(&at.join("sqlite-killed"))
    });
    match install("git", "git") {
        true => {
            report.check("git: init, commit, clone, fsck", || {
                programs::git(&at.join("git"), work)
            });
            match have("cc") && have("make") {
                true => report.check("git clone, and make in the clone", || {
                    programs::build(&at.join("build"), work)
                }),
                false => report.skip("make", "no cc or make (apt-get install gcc make)"),
            }
        }
        false => report.skip("git", "not installed (apt-get install git)"),
    }
    match install("rsync", "rsync") {
        true => report.check("rsync: there, again, and back", || {
            programs::rsync(&at.join("rsync"), work)
        }),
        false => report.skip("rsync", "not installed (apt-get install rsync)"),
    }
    match have("cargo") {
        true => report.check("cargo build, test, clean", || {
            development::cargo_build(&at.join("cargo"))
        }),
        false => report.skip("cargo", "not on the path"),
    }
    match have("vim") || install("vim.tiny", "vim-tiny") {
        true => report.check("vim: backups, and a recovery from a swap file", || {
            development::edited(&at.join("vim"), work)
        }),
        false => report.skip("vim", "not installed (apt-get install vim-tiny)"),
    }
    report.check("swift download brings the same bytes", || {
        programs::download(setup, at, work)
    });
}

fn check_failures(report: &mut Report, setup: &Setup, store: &mut Store, at: &Path) {
    report.check("the store away, and back", || failures::away(store, at));
    report.check("the store killed during writes", || {
        failures::killed_during_writes(store, at)
    });
    report.check("a file closed while the store is away", || {
        failures::closed_without_a_store(store, at)
    });
    report.check("a mount killed after fsync", || {
        failures::killed_mount(setup)
    });
    report.check("a disk away while files are written", || {
        failures::disk_away(setup, store)
    });
    report.check("files closed into a journal, and all killed", || {
        closes::run(setup, store)
    });
    report.check("a rename that broke off", || {
        failures::broken_rename(setup, store)
    });
    report.check("SIGTERM while the store is away", || {
        failures::terminated_without_a_store(setup, store)
    });
}
