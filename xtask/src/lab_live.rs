//! The lab against live stores, and against unreachable ones: every way to sign in, S3 of the real
//! OpenStack Swift, a folder, ranks of `mpirun`, open loop, steady stop, knee, `compare
//! --workload`; each kind of unreachable store is reported in one line. With `--workloads DIR`,
//! also every workload file in that folder, unchanged, with its requests counted on the wire.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

mod ceph;
mod chance;
mod counted;
mod expected;
mod files;
mod harness;
mod relay;

use self::harness::{LOGIN, Lab, one_line};
use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::process::free_ports;
use cairn_testkit::report::Report;
use cairn_testkit::swift::{Layout, Swift};
use cairn_testkit::venv::Venv;
use cairn_testkit::wire::Account;
use cairn_testkit::workspace;

#[derive(Args, Default)]
pub(crate) struct Options {
    /// Also run every workload file below this folder, and once more against a store that is not
    /// there. What takes more than three minutes is cut down by --time-scale, --ops-scale and
    /// --size-scale. All requests are counted between the lab and the store, and must be what the
    /// file says: mix, sizes, names and numbers, within four standard deviations
    #[arg(long)]
    workloads: Option<PathBuf>,

    /// Only these files
    #[arg(long, requires = "workloads")]
    only_workloads: bool,

    /// Only the lab on a real Ceph of Debian's packages (monitor, manager, three OSDs, gateway, on
    /// loopback): beside `rados bench`, what is missing named, large objects, dead OSDs
    #[arg(long, conflicts_with = "workloads")]
    ceph: bool,
}

pub(crate) fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    let binary = workspace::build_cairn()?;
    let dir = workspace::scratch("lab")?;
    if options.ceph {
        let lab = Lab {
            binary,
            dir: dir.path().to_owned(),
            port: 0,
            s3: None,
        };
        ceph::run(&mut report, &lab)?;
        return Ok(report);
    }
    let mut cairn = Cairn::create(&binary, &dir.path().join("store"), None)?;
    cairn.start(Spread::OneProcess)?;
    let lab = Lab {
        binary,
        dir: dir.path().to_owned(),
        port: cairn.port(),
        s3: None,
    };
    if !options.only_workloads {
        every_store(&mut report, &lab);
    }
    let mut swift = Swift::create(
        &Venv::prepare()?,
        &dir.path().join("swift"),
        Layout::default(),
    )?;
    swift.start()?;
    let lab = Lab {
        s3: Some(swift.port),
        ..lab
    };
    if !options.only_workloads {
        report.check("S3 of OpenStack Swift", || s3(&lab));
    }
    if let Some(folder) = &options.workloads {
        files::run(&mut report, &lab, folder)?;
    }
    swift.stop();
    cairn.stop()?;
    Ok(report)
}

/// Tests on Cairn, on folders, and on unreachable stores.
fn every_store(report: &mut Report, lab: &Lab) {
    sign_in(report, lab);
    report.check("rates, steadiness and the knee", || rates(lab));
    report.check("compare measures in turn", || compare(lab));
    report.check("copies, metadata, bulk deletions, versions", || {
        operations(lab, OPERATIONS, &lab.url())
    });
    report.check("a folder, N-N and N-1", || folder(lab));
    if workspace::install("mpirun", "openmpi-bin") {
        report.check("ranks of mpirun write one file", || ranks(lab));
    } else {
        report.skip("ranks of mpirun", "no mpirun here");
    }
    absent(report, lab);
}

const WORKLOAD: &str = include_str!("../lab/whole.xml");

fn sign_in(report: &mut Report, lab: &Lab) {
    let url = lab.url();
    let ways = [
        ("TempAuth", url.clone()),
        ("Keystone v3", format!("{url}/v3")),
        ("Keystone v2.0", format!("{url}/v2.0")),
    ];
    for (name, target) in ways {
        report.check(&format!("signs in by {name}"), || {
            let file = lab.write("whole.xml", WORKLOAD)?;
            let run = lab.must(&file, &[&["--target", &target], &LOGIN[..]].concat())?;
            ensure!(run.count("main") == 300, "{} of 300", run.count("main"));
            let read = run.operations("main").find(|o| o["kind"] == "read");
            let checked = read.and_then(|read| read["checked"].as_u64());
            ensure!(checked > Some(0), "no content was checked");
            Ok(())
        });
    }
    report.check("a token, an address and two proxies", || {
        let account = Account::login(lab.port)?;
        let file = lab.write("whole.xml", WORKLOAD)?;
        let target = format!("{url}{}", account.path);
        let proxies = format!("proxies=127.0.0.1:{0},localhost:{0}", lab.port);
        let arguments = [
            "--target",
            &target,
            "--token",
            &account.token,
            "--storage",
            &proxies,
        ];
        let run = lab.must(&file, &arguments)?;
        ensure!(run.count("main") == 300, "{} of 300", run.count("main"));
        Ok(())
    });
}

const RATES: &str = include_str!("../lab/rates.toml");

fn rates(lab: &Lab) -> Result<()> {
    let file = lab.write("rates.toml", RATES)?;
    let url = lab.url();
    let run = lab.must(&file, &[&["--target", &url], &LOGIN[..]].concat())?;
    // All due requests are performed; late ones after their time.
    let open = run.count("open");
    ensure!((399..=401).contains(&open), "{open} of 400 at 100/s");
    let steady = run.works("steady").next().context("no steady stage")?;
    let after = steady["steady_after"].as_f64();
    ensure!(
        after.is_some_and(|after| after < 30.0),
        "steady after {after:?} s"
    );
    let steps = run.stages.iter().filter(|stage| {
        let name = stage["name"].as_str();
        name.is_some_and(|name| name.contains("knee@"))
    });
    ensure!(steps.count() >= 2, "the search took no second step");
    let notes = run.meta["notes"].to_string();
    ensure!(notes.contains("knee"), "no word of the knee: {notes}");
    Ok(())
}

/// Every operation that is none of COSBench's. All that it makes, versions included, is deleted
/// again, since a container that is not empty would not be.
const OPERATIONS: &str = include_str!("../lab/operations.toml");

fn operations(lab: &Lab, text: &str, target: &str) -> Result<()> {
    let file = lab.write("operations.toml", text)?;
    let run = lab.must(&file, &[&["--target", target], &LOGIN[..]].concat())?;
    for (stage, count) in [("main", 200), ("copy-all", 40), ("bulk", 4)] {
        let found = run.count(stage);
        ensure!(found == count, "{found} of {count} in {stage}");
    }
    Ok(())
}

fn compare(lab: &Lab) -> Result<()> {
    let file = lab.write("whole.xml", WORKLOAD)?;
    let out = lab.dir.join("compare");
    let other = format!("http://localhost:{}", lab.port);
    let mut command = lab.command();
    command.args(["compare", &lab.url(), &other, "--repetitions", "2"]);
    command.arg("--workload").arg(&file).arg("--out").arg(&out);
    command.arg("--").args(LOGIN).arg("--no-ceiling");
    let words = workspace::run_quiet(&mut command)?;
    ensure!(words.contains("(2 repetitions)"), "{words}");
    for name in ["a-01", "b-01", "b-02", "a-02"] {
        ensure!(out.join(name).join("run.json").is_file(), "no {name}");
    }
    for name in ["report.html", "compare.md", "plots"] {
        ensure!(out.join(name).exists(), "no {name}");
    }
    Ok(())
}

/// Main works only: a checkpoint is written and read back by the same ranks.
const CHECKPOINT: &str = include_str!("../lab/checkpoint.toml");

fn folder(lab: &Lab) -> Result<()> {
    let file = lab.write("checkpoint.toml", CHECKPOINT)?;
    for (layout, files) in [("n-n", 8), ("n-1", 1)] {
        let path = lab.dir.join(layout);
        let target = format!("file:{}", path.display());
        let storage = format!("layout={layout}");
        std::fs::create_dir_all(&path)?;
        let arguments = [
            "--target",
            &target,
            "--storage",
            &storage,
            "--storage",
            "fsync=close",
        ];
        let run = lab.must(&file, &arguments)?;
        ensure!(run.count("restart") == 64, "{layout}: {}", run.shown);
        let (count, bytes) = contents(&path)?;
        ensure!(
            (count, bytes) == (files, 8 << 20),
            "{layout}: {count} files of {bytes} bytes"
        );
    }
    Ok(())
}

/// Number of files below a folder, and their bytes.
fn contents(folder: &Path) -> Result<(u64, u64)> {
    let (mut count, mut bytes) = (0, 0);
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let (more, longer) = match entry.file_type()?.is_dir() {
            true => contents(&entry.path())?,
            false => (1, entry.metadata()?.len()),
        };
        (count, bytes) = (count + more, bytes + longer);
    }
    Ok((count, bytes))
}

fn ranks(lab: &Lab) -> Result<()> {
    let file = lab.write("checkpoint.toml", CHECKPOINT)?;
    let path = lab.dir.join("ranks");
    std::fs::create_dir_all(&path)?;
    let mut command = Command::new("mpirun");
    command
        .args(["--oversubscribe", "-n", "3"])
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .arg(&lab.binary)
        .args(["lab", "run"])
        .current_dir(&lab.dir);
    let target = format!("file:{}", path.display());
    let arguments = ["--target", &target, "--storage", "layout=n-1"];
    let run = lab.finish(command, &file, &arguments)?;
    run.is_clean()?;
    let drivers = run.meta["drivers"].as_array().map_or(0, Vec::len);
    ensure!(drivers == 3, "{drivers} drivers of 3 ranks");
    ensure!(run.count("restart") == 64, "{}", run.shown);
    let (count, bytes) = contents(&path)?;
    ensure!(
        (count, bytes) == (1, 8 << 20),
        "{count} files of {bytes} bytes"
    );
    Ok(())
}

fn s3(lab: &Lab) -> Result<()> {
    let port = lab.s3.context("no S3 store")?;
    let file = lab.write("s3.xml", &WORKLOAD.replace("lab-live", "lab-live-s3-"))?;
    let target = format!("s3+http://127.0.0.1:{port}");
    let run = lab.must(&file, &[&["--target", &target], &LOGIN[..]].concat())?;
    ensure!(run.count("main") == 300, "{} of 300", run.count("main"));
    let parts = lab.write("parts.toml", PARTS)?;
    let run = lab.must(&parts, &[&["--target", &target], &LOGIN[..]].concat())?;
    ensure!(run.count("read") == 10, "{}", run.shown);
    let own = OPERATIONS.replace("type = \"swift\"", "type = \"s3\"");
    let own = own.replace("X-Object-Meta-Colour", "x-amz-meta-colour");
    operations(
        lab,
        &own.replace("lab-operations", "lab-s3-operations"),
        &target,
    )?;
    let wrong = [
        "--target",
        &target,
        "--user",
        "test:tester",
        "--key",
        "wrong",
    ];
    one_line(&lab.run(&file, &wrong)?, &["127.0.0.1", "--key"])
}

/// Multipart uploads, and range reads.
const PARTS: &str = include_str!("../lab/parts.toml");

/// A key in Ceph's format, belonging to no user.
const CEPH_KEY: &str = "AQDZk2FoAAAAABAAcCz9rpPQxHGpWqCvKkfYuw==";

fn absent(report: &mut Report, lab: &Lab) {
    let port = free_ports(1).map_or(1, |ports| ports[0]);
    let nobody = format!("http://127.0.0.1:{port}");
    let url = lab.url();
    let cases: [(&str, String, &str, [&str; 2]); 8] = [
        (
            "nobody listens",
            nobody.clone(),
            "testing",
            ["refused", "--target"],
        ),
        (
            "no Keystone listens",
            format!("{nobody}/v3"),
            "testing",
            ["refused", "--target"],
        ),
        (
            "no S3 listens",
            format!("s3+{nobody}"),
            "testing",
            ["refused", "--target"],
        ),
        (
            "no such host",
            "http://store.invalid".into(),
            "testing",
            ["store.invalid", "--target"],
        ),
        (
            "a wrong key",
            url.clone(),
            "wrong",
            ["refused to sign", "--key"],
        ),
        (
            "a wrong path",
            format!("{url}/nowhere"),
            "testing",
            ["no place to", "--target"],
        ),
        (
            "no Ceph listens",
            "rados://127.0.0.1:1/pool".into(),
            CEPH_KEY,
            ["no monitor answered", "--target"],
        ),
        (
            "a key that is none of Ceph's",
            "rados://127.0.0.1:1/pool".into(),
            "testing",
            ["no Ceph key", "--key"],
        ),
    ];
    for (name, target, key, words) in cases {
        report.check(&format!("told in one line: {name}"), || {
            let file = lab.write("whole.xml", WORKLOAD)?;
            let login = ["--target", &target, "--user", "test:tester", "--key", key];
            let arguments = [&login[..], &["--timeout", "5"]].concat();
            let run = lab.run(&file, &arguments)?;
            // A host without Ceph's library gets that message before any connection is attempted.
            let has_library = !run.shown.contains("librados.so.2 is not on this machine");
            one_line(
                &run,
                if has_library {
                    &words
                } else {
                    &["install", "librados2"]
                },
            )
        });
    }
    report.check("nothing is compared with a store that is not there", || {
        let file = lab.write("whole.xml", WORKLOAD)?;
        let mut command = lab.command();
        command.args(["compare", &nobody, &url]).arg("--workload");
        command.arg(&file).arg("--out").arg(lab.dir.join("absent"));
        command.arg("--").args(LOGIN).arg("--no-ceiling");
        let output = command.output()?;
        let shown = [output.stdout, output.stderr].concat();
        let shown = String::from_utf8_lossy(&shown).into_owned();
        ensure!(!output.status.success(), "it ended well:\n{shown}");
        ensure!(shown.matches("cannot reach").count() == 1, "{shown}");
        Ok(())
    });
}
