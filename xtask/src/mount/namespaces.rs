//! Hosts simulated on one machine: each is a mount namespace in which the same folder is a
//! different mount of the same container. MPI starts its ranks in them. IOR and mdtest run as they
//! would on a cluster, and the bytes in the store are compared afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{CONTAINER, Setup, UNDECIDED};
use cairn_testkit::figures::median;
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

/// Hosts, and ranks on each, in all combinations.
const HOSTS: std::ops::RangeInclusive<usize> = 1..=5;
const RANKS: [usize; 4] = [1, 2, 4, 8];

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

/// Contiguous: a block for each rank. Strided: records of a length that no page, block or segment is
/// a multiple of, in turn.
const CONTIGUOUS: Pattern = Pattern {
    name: "contiguous",
    is_own: false,
    block: 12 << 20,
    transfer: 1 << 20,
    segments: 1,
};
const STRIDED: Pattern = Pattern {
    name: "strided by 47,008 bytes",
    is_own: false,
    block: 47_008,
    transfer: 47_008,
    segments: 150,
};

impl Pattern {
    /// The same calls, by each rank on a file of its own.
    fn own(self) -> Pattern {
        Pattern {
            is_own: true,
            ..self
        }
    }

    fn sharing(&self) -> &'static str {
        if self.is_own { "N-N" } else { "N-1" }
    }

    fn bytes(&self) -> u64 {
        self.block * self.segments
    }
}

pub(super) fn run(report: &mut Report, suite: &Path, setup: &Setup, account: &mut Account) {
    let mut shares = Vec::new();
    for hosts in HOSTS {
        for ranks in RANKS {
            for interface in ["POSIX", "MPIIO"] {
                for pattern in [CONTIGUOUS, STRIDED] {
                    let run = Run {
                        suite,
                        setup,
                        hosts,
                        ranks,
                        interface,
                    };
                    shares.extend(run.both(report, account, pattern));
                }
            }
            let name = format!("mdtest, {hosts} hosts × {ranks} ranks");
            report.check(&name, || mdtest(suite, setup, hosts, ranks));
        }
    }
    if let Some(median) = median(shares.iter().copied()) {
        let pairs = shares.len();
        println!("IOR wrote N-1 at × {median:.2} of N-N, at the median of {pairs} pairs");
    }
}

/// One combination of hosts, ranks and interface.
struct Run<'a> {
    suite: &'a Path,
    setup: &'a Setup,
    hosts: usize,
    /// On each host.
    ranks: usize,
    interface: &'static str,
}

impl Run<'_> {
    /// N-N and N-1 in turn; returns the rate of writes of the latter as a share of the former's.
    fn both(&self, report: &mut Report, account: &mut Account, pattern: Pattern) -> Option<f64> {
        let own = self.one(report, account, pattern.own())?;
        let shared = self.one(report, account, pattern)?;
        Some(shared / own)
    }

    /// Returns the rate of writes.
    fn one(&self, report: &mut Report, account: &mut Account, pattern: Pattern) -> Option<f64> {
        let name = format!(
            "IOR, {}, {} {}, {} hosts × {} ranks",
            self.interface,
            pattern.sharing(),
            pattern.name,
            self.hosts,
            self.ranks
        );
        if self.hosts > 1 && !pattern.is_own && !self.setup.traits.decides {
            println!("left out: {name}: {UNDECIDED}");
            return None;
        }
        let mut rate = None;
        report.tell(&name, || {
            let [write, read] = ior(self, account, pattern)?;
            rate = Some(write);
            Ok(format!("write {write:.0} MiB/s, read {read:.0} MiB/s"))
        });
        rate
    }
}

fn start(setup: &Setup, hosts: usize) -> Result<Vec<Host>> {
    (0..hosts)
        .map(|number| Host::start(setup, number))
        .collect()
}

/// Runs IOR: writes, reads by other ranks with each byte compared, and a comparison with the
/// store's content. Returns the rates of both, in MiB/s.
fn ior(run: &Run<'_>, account: &mut Account, pattern: Pattern) -> Result<[f64; 2]> {
    let setup = run.setup;
    let hosts = start(setup, run.hosts)?;
    let (program, all) = (run.suite.join("src/ior"), hosts.len() * run.ranks);
    let file = hosts[0].dir.join("ior");
    let mut args: Vec<String> = ["-a", run.interface, "-e", "-k", "-C", "-G", "27"]
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
    // All ranks have one host name, so that IOR would let each read what the next rank wrote.
    args.extend(["-Q".to_owned(), run.ranks.to_string()]);
    let hints = setup.dir.join("romio-hints");
    fs::write(&hints, "romio_ds_write disable\nromio_cb_write disable\n")?;
    let hints = format!("ROMIO_HINTS={}", hints.display());
    let more = ["--mca", "io", "^ompio", "-x", &hints];
    let mut rates = [0.0; 2];
    let phases = [(["-w", "-W"], "write"), (["-r", "-R"], "read")];
    for (rate, (steps, word)) in rates.iter_mut().zip(phases) {
        let mut args = args.clone();
        args.extend(steps.map(str::to_owned));
        let output = mpi(&hosts, run.ranks, &program, &args, &more)?;
        ensure!(!has_wrong_data(&output), "{output}");
        *rate = rate_of(&output, word).with_context(|| format!("no rate in: {output}"))?;
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
    Ok(rates)
}

/// Whether IOR has read other bytes than were written. Its exit code is the number of errors, of which
/// only the lowest byte arrives.
fn has_wrong_data(output: &str) -> bool {
    output.to_lowercase().contains("incorrect data on ")
}

/// The rate in the line of IOR's table that begins with `word`.
fn rate_of(output: &str, word: &str) -> Option<f64> {
    output.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(word)).then_some(())?;
        words.next()?.parse().ok()
    })
}

fn mdtest(suite: &Path, setup: &Setup, hosts: usize, ranks: usize) -> Result<()> {
    let hosts = start(setup, hosts)?;
    let dir = hosts[0].dir.join("mdtest");
    let args: Vec<String> = ["-n", "40", "-u", "-N", "1", "-w", "100", "-d"]
        .map(str::to_owned)
        .into_iter()
        .chain([dir.to_string_lossy().into_owned()])
        .collect();
    let program = suite.join("src/mdtest");
    mpi(&hosts, ranks, &program, &args, &[])?;
    hosts.into_iter().try_for_each(Host::stop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_ior() {
        let table = "access    bw(MiB/s)  IOPS\n------    ---------  ----\n\
                     write     381.39     1542.66\n\
                     Operation   Max(MiB)   Min(MiB)\nwrite         12.00     11.00\n";
        assert_eq!(rate_of(table, "write"), Some(381.39));
        assert_eq!(rate_of(table, "read"), None);
        assert!(!has_wrong_data(table));
        let wrong = "WARNING: Incorrect data on read (256 errors found).\n";
        assert!(has_wrong_data(wrong));
        assert!(has_wrong_data(&format!("{table}{}", wrong.to_lowercase())));
    }
}
