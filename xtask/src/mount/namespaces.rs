//! Hosts simulated on one machine: each is a mount namespace in which the same folder is a
//! different mount of the same container. MPI starts its ranks in them. IOR and mdtest run as they
//! would on a cluster, and the bytes in the store are compared afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use super::{CONTAINER, Setup, UNDECIDED};
use cairn_testkit::process::{Process, wait_for};
use cairn_testkit::report::Report;
use cairn_testkit::wire::Account;
use cairn_testkit::workspace::{run_quiet, utf8};

/// A namespace and the mount in it. The mount ends first.
struct Host {
    mount: Process,
    space: Process,
    dir: PathBuf,
}

impl Host {
    fn start(setup: &Setup, number: usize) -> Result<Host> {
        let dir = setup.dir.join("hpc");
        fs::create_dir_all(&dir)?;
        let log = setup.dir.join("log");
        let (space_name, mount_name) = (format!("space-{number}"), format!("hpc-{number}"));
        let sleep = ["-m", "--propagation", "private", "sleep", "infinity"];
        let space = Process::start(&space_name, Path::new("unshare"), &sleep, &log)?;
        let pid = space.id().to_string();
        let own = fs::read_link("/proc/self/ns/mnt")?;
        wait_for("a name space", 10, || {
            let there = fs::read_link(format!("/proc/{pid}/ns/mnt"))?;
            Ok(there != own)
        })?;
        let auth = format!("ST_AUTH={}/auth/v1.0", setup.url);
        let container = format!("{}/v1/AUTH_test/{CONTAINER}", setup.url);
        let (binary, at) = (utf8(&setup.binary)?, utf8(&dir)?);
        let args = [
            "-t",
            &pid,
            "-m",
            "env",
            "ST_USER=test:tester",
            "ST_KEY=testing",
            &auth,
            binary,
            "mount",
            "--foreground",
            &container,
            at,
        ];
        let mut mount = Process::start(&mount_name, Path::new("nsenter"), &args, &log)?;
        mount.wait_until("the mount", 30, || {
            let mounts = fs::read_to_string(format!("/proc/{pid}/mounts"))?;
            Ok(mounts
                .lines()
                .any(|line| line.split(' ').nth(1) == Some(at)))
        })?;
        Ok(Host { mount, space, dir })
    }

    fn pid(&self) -> String {
        self.space.id().to_string()
    }

    fn stop(mut self) -> Result<()> {
        let is_clean = self.mount.stop();
        self.space.kill();
        ensure!(is_clean, "a mount did not end:\n{}", self.mount.log_tail());
        Ok(())
    }
}

/// Runs `program` by MPI, with the given number of ranks on each host.
fn mpi(
    hosts: &[Host],
    ranks: usize,
    program: &Path,
    args: &[String],
    more: &[&str],
) -> Result<String> {
    let mut command = Command::new("mpirun");
    command.args([
        "--allow-run-as-root",
        "--oversubscribe",
        "--mca",
        "btl",
        "self,tcp",
    ]);
    command.args(more);
    for (number, host) in hosts.iter().enumerate() {
        if number > 0 {
            command.arg(":");
        }
        command.args([
            "-np",
            &ranks.to_string(),
            "nsenter",
            "-t",
            &host.pid(),
            "-m",
        ]);
        command.arg(program).args(args);
    }
    run_quiet(&mut command)
}

/// Access pattern of an IOR test: how ranks share the file's bytes.
#[derive(Clone, Copy)]
struct Pattern {
    name: &'static str,
    /// Whether each rank has a file of its own (N-N).
    is_own: bool,
    /// Contiguous bytes per rank, bytes per call, and number of repetitions (IOR's block, transfer
    /// and segments).
    block: u64,
    transfer: u64,
    segments: u64,
}

const PATTERNS: [Pattern; 3] = [
    Pattern {
        name: "N-N",
        is_own: true,
        block: 12 << 20,
        transfer: 1 << 20,
        segments: 1,
    },
    Pattern {
        name: "N-1 contiguous",
        is_own: false,
        block: 12 << 20,
        transfer: 1 << 20,
        segments: 1,
    },
    Pattern {
        name: "N-1 strided by 47,008 bytes",
        is_own: false,
        block: 47_008,
        transfer: 47_008,
        segments: 150,
    },
];

impl Pattern {
    fn bytes(&self) -> u64 {
        self.block * self.segments
    }
}

pub(super) fn run(report: &mut Report, suite: &Path, setup: &Setup, account: &mut Account) {
    for hosts in 1..=3 {
        for ranks in [1, 2, 4] {
            for interface in ["POSIX", "MPIIO"] {
                for pattern in PATTERNS {
                    let name = format!(
                        "IOR, {interface}, {}, {hosts} hosts × {ranks} ranks",
                        pattern.name
                    );
                    if hosts > 1 && !pattern.is_own && !setup.traits.decides {
                        println!("left out: {name}: {UNDECIDED}");
                        continue;
                    }
                    report.tell(&name, || {
                        ior(suite, setup, account, (hosts, ranks), interface, pattern)
                    });
                }
            }
        }
        report.check(&format!("mdtest, {hosts} hosts × 4 ranks"), || {
            mdtest(suite, setup, hosts)
        });
    }
}

fn start(setup: &Setup, hosts: usize) -> Result<Vec<Host>> {
    (0..hosts)
        .map(|number| Host::start(setup, number))
        .collect()
}

/// Runs IOR: writes, reads by other ranks with each byte compared, and a comparison with the
/// store's content.
fn ior(
    suite: &Path,
    setup: &Setup,
    account: &mut Account,
    (hosts, ranks): (usize, usize),
    interface: &str,
    pattern: Pattern,
) -> Result<String> {
    let hosts = start(setup, hosts)?;
    let (program, all) = (suite.join("src/ior"), hosts.len() * ranks);
    let file = hosts[0].dir.join("ior");
    let mut args: Vec<String> = ["-a", interface, "-e", "-k", "-C", "-G", "27"]
        .map(str::to_owned)
        .to_vec();
    for (option, value) in [
        ("-b", pattern.block),
        ("-t", pattern.transfer),
        ("-s", pattern.segments),
    ] {
        args.extend([option.to_owned(), value.to_string()]);
    }
    args.extend(["-o".to_owned(), file.to_string_lossy().into_owned()]);
    if pattern.is_own {
        args.push("-F".to_owned());
    }
    let hints = setup.dir.join("romio-hints");
    fs::write(&hints, "romio_ds_write disable\nromio_cb_write disable\n")?;
    let hints = format!("ROMIO_HINTS={}", hints.display());
    let more = ["--mca", "io", "^ompio", "-x", &hints];
    let mut rates = Vec::new();
    for (steps, word) in [(["-w", "-W"], "write"), (["-r", "-R"], "read")] {
        let mut args = args.clone();
        args.extend(steps.map(str::to_owned));
        let output = mpi(&hosts, ranks, &program, &args, &more)?;
        let errors = output.lines().find(|line| line.contains("incorrect data"));
        ensure!(errors.is_none(), "{output}");
        let line = output.lines().find(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some(word) && words.next().is_some_and(|w| w.parse::<f64>().is_ok())
        });
        let rate = line.and_then(|line| line.split_whitespace().nth(1));
        rates.push(format!("{word} {} MiB/s", rate.unwrap_or("?")));
    }
    let files: Vec<String> = match pattern.is_own {
        true => (0..all).map(|rank| format!("ior.{rank:08}")).collect(),
        false => vec!["ior".to_owned()],
    };
    let bytes = pattern.bytes() * all as u64 / files.len() as u64;
    for name in files {
        let mut stored = Vec::new();
        account.stream(&format!("/{CONTAINER}/{name}"), |piece| {
            stored.extend_from_slice(piece);
            Ok(())
        })?;
        ensure!(
            stored.len() as u64 == bytes,
            "{name}: {} bytes",
            stored.len()
        );
        let here = PathBuf::from(format!("/proc/{}/root", hosts[0].pid()));
        let file = here.join(hosts[0].dir.join(&name).strip_prefix("/")?);
        ensure!(
            fs::read(&file)? == stored,
            "{name}: other bytes than on the mount"
        );
        fs::remove_file(file)?;
    }
    for host in hosts {
        host.stop()?;
    }
    Ok(rates.join(", "))
}

fn mdtest(suite: &Path, setup: &Setup, hosts: usize) -> Result<()> {
    let hosts = start(setup, hosts)?;
    let dir = hosts[0].dir.join("mdtest");
    let args: Vec<String> = ["-n", "40", "-u", "-N", "1", "-w", "100", "-d"]
        .map(str::to_owned)
        .into_iter()
        .chain([dir.to_string_lossy().into_owned()])
        .collect();
    let program = suite.join("src/mdtest");
    mpi(&hosts, 4, &program, &args, &[])?;
    hosts.into_iter().try_for_each(Host::stop)
}
