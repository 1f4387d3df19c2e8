//! The lab on a real Ceph: as fast as Ceph's own `rados bench`, missing resources are named,
//! objects of any size work, and runs end if OSDs are dead; the gateway is tested as another Swift.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::harness::{LOGIN, Lab, one_line};
use crate::ceph::{self, Ceph};
use cairn_testkit::figures::median;
use cairn_testkit::report::Report;

/// Required fraction of `rados bench`'s rate, measured alternately.
const PART_OF_BENCH: f64 = 0.8;
const TURNS: usize = 3;
const SECONDS: u32 = 3;
const WORKERS: &str = "16";

pub(super) fn run(report: &mut Report, lab: &Lab) -> Result<()> {
    if !ceph::is_there() {
        report.skip(
            "Ceph",
            "no ceph-mon, ceph-mgr, ceph-osd, radosgw, rados here",
        );
        return Ok(());
    }
    let mut ceph = Ceph::start(&lab.dir.join("ceph"))?;
    report.check("RADOS: what is missing is named", || missing(lab, &ceph));
    report.check("RADOS: objects over 128 MiB, and listings", || {
        large(lab, &ceph)
    });
    for (name, bytes) in [("4 KB", 4096), ("1 MB", 1 << 20)] {
        report.tell(&format!("RADOS: {name} beside rados bench"), || {
            beside_bench(lab, &ceph, bytes)
        });
    }
    report.check("Swift of the RADOS gateway", || gateway(lab, &mut ceph));
    report.check("RADOS: a run ends though OSDs are dead", || {
        dead_osds(lab, &mut ceph)
    });
    Ok(())
}

fn options(ceph: &Ceph) -> [String; 2] {
    let conf = format!("conf={}", ceph.conf().display());
    ["--storage".to_owned(), conf]
}

const ONE: &str = "name = \"one\"\n[[stage]]\nname = \"main\"\n[[stage.work]]\ntotal_ops = 1\n\
                   containers = 1\nobjects = 1\nsizes = \"1KB\"\n\
                   operation = [{ type = \"write\" }]\n";

fn missing(lab: &Lab, ceph: &Ceph) -> Result<()> {
    let file = lab.write("one.toml", ONE)?;
    let conf = format!("conf={}", ceph.conf().display());
    let (monitor, key) = (ceph.monitor(), ceph.key()?);
    let bare = lab.write("bare.conf", "[global]\nauth_client_required = cephx\n")?;
    let bare = format!("conf={}", bare.display());
    let there = format!("rados://{monitor}/lab");
    let keyring = ceph.keyring().display().to_string();
    let other_key = "AQBkYWFhYWFhEAAAYWFhYWFhYWFhYWFhYWFhYQ==";
    let conf_only = ["--target", "rados:lab", "--storage", &conf];
    lab.must(&file, &conf_only)?;
    let by_hand = [
        "--target",
        &there,
        "--storage",
        &bare,
        "--key",
        &key,
        "--user",
        "admin",
    ];
    lab.must(&file, &by_hand)?;
    let cases: [(&[&str], &[&str]); 7] = [
        (
            &["--target", "rados:nope", "--storage", &conf],
            &["no pool \"nope\"", "pool create"],
        ),
        (
            &["--target", "rados:lab", "--storage", "conf=/no/ceph.conf"],
            &["conf file /no/ceph.conf"],
        ),
        (
            &["--target", "rados:lab", "--storage", &bare, "--key", &key],
            &["no monitor is named", "--target rados://"],
        ),
        (
            &[
                "--target",
                "rados://v2:127.0.0.1:1/lab",
                "--storage",
                &bare,
                "--key",
                &key,
                "--timeout",
                "2",
            ],
            &["no monitor answered at v2:127.0.0.1:1"],
        ),
        (
            &["--target", &there, "--storage", &bare],
            &["no key for client.admin", "--key"],
        ),
        (
            &[
                "--target",
                "rados:lab",
                "--storage",
                &conf,
                "--key",
                other_key,
            ],
            &["refused client.admin"],
        ),
        (
            &[
                "--target",
                "rados:lab",
                "--storage",
                &conf,
                "--key",
                "hello",
            ],
            &["secretkey is no Ceph key"],
        ),
    ];
    for (arguments, words) in cases {
        one_line(&lab.run(&file, arguments)?, words).with_context(|| arguments.join(" "))?;
    }
    ensure!(std::path::Path::new(&keyring).is_file(), "no {keyring}");
    Ok(())
}

const LARGE: &str = "name = \"large\"\n[defaults]\ncontainers = \"r(1,1)\"\nobjects = \"r(1,2)\"\n\
                     sizes = \"150MiB\"\nhashcheck = true\n\
                     [[stage]]\nname = \"prepare\"\n[[stage.work]]\ntype = \"prepare\"\n\
                     [[stage]]\nname = \"main\"\n[[stage.work]]\ntotal_ops = 3\n\
                     operation = [{ type = \"read\" }]\n\
                     [[stage]]\nname = \"list\"\n[[stage.work]]\ntotal_ops = 2\n\
                     operation = [{ type = \"list\" }]\n\
                     [[stage]]\nname = \"cleanup\"\n[[stage.work]]\ntype = \"cleanup\"\n";

fn large(lab: &Lab, ceph: &Ceph) -> Result<()> {
    let file = lab.write("large.toml", LARGE)?;
    let conf = options(ceph);
    let target = ["--target", "rados:lab", &conf[0], &conf[1]];
    let refused = lab.run(&file, &target)?;
    ensure!(
        refused.meta["state"] == "failed" && refused.shown.contains("stripe=64MiB"),
        "{}",
        refused.shown
    );
    let stripes = ["--storage", "stripe=64MiB"];
    let run = lab.must(&file, &[&target[..], &stripes[..]].concat())?;
    let read = run.operations("main").next().context("no read")?;
    ensure!(
        read["bytes"] == 3 * (150u64 << 20) && read["checked"] == 3,
        "{} bytes, {} checked",
        read["bytes"],
        read["checked"]
    );
    ensure!(run.count("list") == 2, "{}", run.shown);
    let left = ceph.ask("rados", &["-p", "lab", "ls"])?;
    ensure!(!left.contains("mycontainers1/"), "left behind: {left}");
    Ok(())
}

/// Rates of the lab and of `rados bench`, alternately; medians are compared.
fn beside_bench(lab: &Lab, ceph: &Ceph, bytes: u64) -> Result<String> {
    let mut words = Vec::new();
    let size = bytes.to_string();
    let mut rates: [Vec<f64>; 4] = Default::default();
    for turn in 0..TURNS {
        let written = bench(ceph, &["write", "-b", &size, "--no-cleanup"])?;
        let read = bench(ceph, &["rand"])?;
        rates[0].push(written);
        rates[1].push(read);
        ceph.ask("rados", &["-p", "lab", "cleanup"])?;
        for (place, option) in [(2, "--put"), (3, "--get")] {
            let rate = of_lab(lab, ceph, option, &size).with_context(|| format!("turn {turn}"))?;
            rates[place].push(rate);
        }
    }
    let [bench_put, bench_get, lab_put, lab_get] =
        rates.map(|of_one| median(of_one).unwrap_or_default());
    for (what, lab, bench) in [
        ("writes", lab_put, bench_put),
        ("reads", lab_get, bench_get),
    ] {
        let part = lab / bench;
        words.push(format!("{what} {lab:.0}/s of {bench:.0}/s ({part:.2})"));
    }
    let words = words.join(", ");
    ensure!(
        lab_put >= PART_OF_BENCH * bench_put && lab_get >= PART_OF_BENCH * bench_get,
        "less than {PART_OF_BENCH}: {words}"
    );
    Ok(words)
}

fn bench(ceph: &Ceph, arguments: &[&str]) -> Result<f64> {
    let seconds = SECONDS.to_string();
    let mut all = vec!["-p", "lab", "bench", &seconds];
    all.extend(arguments);
    all.extend(["-t", WORKERS]);
    let told = ceph.ask("rados", &all)?;
    let line = told
        .lines()
        .find_map(|line| line.strip_prefix("Average IOPS:"));
    let rate = line.context("no Average IOPS")?.trim().parse()?;
    Ok(rate)
}

fn of_lab(lab: &Lab, ceph: &Ceph, option: &str, size: &str) -> Result<f64> {
    let conf = options(ceph);
    let seconds = format!("{SECONDS}s");
    let arguments = [
        option,
        size,
        "--workers",
        WORKERS,
        "--for",
        &seconds,
        "--objects",
        "500",
        &conf[0],
        &conf[1],
    ];
    let run = lab.must("rados:lab".as_ref(), &arguments)?;
    Ok(run.count("main") as f64 / f64::from(SECONDS))
}

fn gateway(lab: &Lab, ceph: &mut Ceph) -> Result<()> {
    let url = ceph.start_gateway()?;
    let file = lab.write("whole.xml", super::WORKLOAD)?;
    let run = lab.must(&file, &[&["--target", &url], &LOGIN[..]].concat())?;
    ensure!(run.count("main") == 300, "{} of 300", run.count("main"));
    Ok(())
}

/// Two of three are dead, so that no write is acknowledged.
fn dead_osds(lab: &Lab, ceph: &mut Ceph) -> Result<()> {
    ceph.kill_osds(&[1, 2]);
    let conf = options(ceph);
    let put = ["--put", "4096", "--workers", "4", "--for", "3s", "--keep"];
    let begun = Instant::now();
    let short = ["--timeout", "2", &conf[0], &conf[1]];
    let run = lab.run("rados:lab".as_ref(), &[&put[..], &short[..]].concat())?;
    let took = begun.elapsed();
    let errors: Vec<String> = run
        .operations("main")
        .map(|operation| operation["errors"].to_string())
        .collect();
    ensure!(
        took < Duration::from_secs(20) && errors.iter().any(|e| e.contains("timeout")),
        "{took:?}, {errors:?}:\n{}",
        run.shown
    );
    // A SIGINT while every worker waits for a response that will take long.
    let mut command: Command = lab.command();
    let folder = lab.dir.join("interrupted");
    let mut child = command
        .args(["run", "rados:lab", "--no-ceiling", "--resources", "0"])
        .args(put)
        .args(&conf)
        .arg("--out")
        .arg(&folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    std::thread::sleep(Duration::from_secs(5));
    let pid = Pid::from_raw(child.id().cast_signed()).context("no such process")?;
    kill_process(pid, Signal::INT)?;
    let told = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if told.elapsed() > Duration::from_secs(8) {
            child.kill()?;
            anyhow::bail!("it goes on 8 s after SIGINT");
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let meta = std::fs::read_to_string(folder.join("run.json"))?;
    let meta: serde_json::Value = serde_json::from_str(&meta)?;
    ensure!(
        meta["state"] == "cancelled" && status.code() == Some(1),
        "{}, {status}",
        meta["state"]
    );
    Ok(())
}
