//! Two drivers in network namespaces of their own, a controller in a third, one store: a run over
//! both, then one in which a driver is killed midway. Needs root and `ip`.
//!
//! All namespaces are connected to a bridge: controller and store at 10.213.0.1, drivers at .11 and
//! .12.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::lab::Run;
use cairn_testkit::process::Process;
use cairn_testkit::report::Report;
use cairn_testkit::workspace;

const SECRET: &str = "two-drivers-and-a-secret";
const BRIDGE: &str = "cairnlab0";
const STORE: &str = "10.213.0.1";
const PORT: u16 = 18088;

/// Network namespaces behind one bridge; removed when dropped.
struct Network {
    names: Vec<String>,
}

fn ip(arguments: &str) -> Result<()> {
    let mut command = Command::new("ip");
    workspace::run_quiet(command.args(arguments.split(' '))).map(|_| ())
}

impl Network {
    fn create(count: u8) -> Result<Self> {
        let mut network = Network { names: Vec::new() };
        // A leftover of a killed run.
        let _ = ip(&format!("link del {BRIDGE}"));
        ip(&format!("link add {BRIDGE} type bridge"))?;
        ip(&format!("addr add {STORE}/24 dev {BRIDGE}"))?;
        ip(&format!("link set {BRIDGE} up"))?;
        for number in 1..=count {
            let name = format!("cairnlab{number}");
            let _ = ip(&format!("netns del {name}"));
            ip(&format!("netns add {name}"))?;
            network.names.push(name.clone());
            ip(&format!("link add {name}a type veth peer name {name}b"))?;
            ip(&format!("link set {name}a master {BRIDGE} up"))?;
            ip(&format!("link set {name}b netns {name}"))?;
            let within = |rest: &str| ip(&format!("-n {name} {rest}"));
            within(&format!("addr add {}/24 dev {name}b", address(number)))?;
            within(&format!("link set {name}b up"))?;
            within("link set lo up")?;
        }
        Ok(network)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
        let _ = ip(&format!("link del {BRIDGE}"));
    }
}

fn address(driver: u8) -> String {
    format!("10.213.0.{}", 10 + driver)
}

pub(crate) fn run() -> Result<Report> {
    let mut report = Report::default();
    let name = "two drivers in two network namespaces";
    if !rustix::process::geteuid().is_root() || !workspace::install("ip", "iproute2") {
        report.skip(name, "needs root and ip");
        return Ok(report);
    }
    let network = match Network::create(2) {
        Ok(network) => network,
        Err(error) => {
            report.skip(name, &format!("no network namespaces here: {error:#}"));
            return Ok(report);
        }
    };
    let binary = workspace::build_cairn()?;
    let dir = workspace::scratch("lab-drivers")?;
    let bind: SocketAddr = format!("{STORE}:18080").parse()?;
    let mut store = Cairn::create(&binary, &dir.path().join("store"), Some(bind))?;
    store.start(Spread::OneProcess)?;
    let mut drivers = Vec::new();
    for number in 1..=2 {
        drivers.push(start_driver(&binary, dir.path(), &network.names, number)?);
    }
    report.check("a wrong secret is refused", || {
        wrong_secret(&binary, dir.path())
    });
    report.check("both drivers drive, and are merged", || {
        let (meta, ops) = controlled(&binary, dir.path(), "both", SECRET, || Ok(()))?;
        ensure!(
            meta["state"] == "completed",
            "it {}: {}",
            meta["state"],
            meta["message"]
        );
        let names: Vec<_> = (0..2)
            .map(|n| meta["drivers"][n]["lost"].is_null())
            .collect();
        ensure!(
            names == [true, true],
            "a driver was lost: {}",
            meta["drivers"]
        );
        let error = meta["drivers"][0]["clock_error"]
            .as_f64()
            .context("no clock error")?;
        ensure!(error < 0.05, "clock error {error}");
        ensure!(ops > 0, "nothing was counted");
        Ok(())
    });
    report.check("one driver is killed mid-run, the other goes on", || {
        let kill = || {
            std::thread::sleep(Duration::from_secs(5));
            drivers[1].kill();
            Ok(())
        };
        let (meta, ops) = controlled(&binary, dir.path(), "killed", SECRET, kill)?;
        let message = meta["message"].to_string();
        let is_told = meta["state"] == "failed" && message.contains("driver driver2 was lost");
        ensure!(is_told, "it {}: {message}", meta["state"]);
        ensure!(
            meta["drivers"][0]["lost"].is_null(),
            "the wrong driver was lost"
        );
        ensure!(
            meta["drivers"][1]["lost"]["reason"].is_string(),
            "nobody noticed"
        );
        let notes = meta["notes"].to_string();
        ensure!(notes.contains("driver2 was lost"), "no note of it: {notes}");
        ensure!(ops > 0, "nothing was counted");
        Ok(())
    });
    drop(drivers);
    store.stop()?;
    drop(network);
    Ok(report)
}

fn start_driver(binary: &Path, dir: &Path, names: &[String], number: u8) -> Result<Process> {
    let (namespace, bind) = (&names[usize::from(number) - 1], address(number));
    let name = format!("driver{number}");
    let (cairn, secret) = (
        binary.display().to_string(),
        format!("CAIRN_LAB_SECRET={SECRET}"),
    );
    let bind = format!("{bind}:{PORT}");
    let arguments = [
        "netns", "exec", namespace, "env", &secret, &cairn, "lab", "driver", "--bind", &bind,
    ];
    let mut process = Process::start(&name, &program("ip")?, &arguments, dir)?;
    process.wait_until(&name, 20, || {
        let address: SocketAddr = bind.parse()?;
        let reached = std::net::TcpStream::connect_timeout(&address, Duration::from_secs(1));
        Ok(reached.is_ok())
    })?;
    Ok(process)
}

fn program(name: &str) -> Result<std::path::PathBuf> {
    workspace::find(name).with_context(|| format!("{name} is not in PATH"))
}

const WORKLOAD: &str = r#"<workload name="drivers"><workflow>
<workstage name="init"><work type="init" workers="2" config="containers=r(1,2)"/></workstage>
<workstage name="prepare">
<work type="prepare" workers="4" config="containers=r(1,2);objects=r(1,10);sizes=c(4)KB"/>
</workstage>
<workstage name="main"><work name="main" workers="4" runtime="8" interval="1">
<operation type="read" ratio="80" config="containers=u(1,2);objects=u(1,10)"/>
<operation type="write" ratio="20" config="containers=u(1,2);objects=u(11,20);sizes=c(4)KB"/>
</work></workstage>
</workflow></workload>"#;

fn command(binary: &Path, dir: &Path, name: &str, secret: &str) -> Result<Command> {
    let file = dir.join("drivers.xml");
    std::fs::write(&file, WORKLOAD)?;
    let mut command = Command::new(binary);
    command
        .args([
            "lab",
            "run",
            "--json",
            "--no-ceiling",
            "--resources",
            "1",
            "--user",
            "test:tester",
        ])
        .args([
            "--key",
            "testing",
            "--target",
            &format!("http://{STORE}:18080"),
        ])
        .args(["--driver", &format!("{}:{PORT}", address(1))])
        .args(["--driver", &format!("{}:{PORT}", address(2))])
        .env("CAIRN_LAB_SECRET", secret)
        .arg("--out")
        .arg(dir.join(name))
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(dir.join(format!("{name}.out")))?);
    Ok(command)
}

/// Runs the workload with `meanwhile` in parallel; returns the run's meta data, and the counted
/// operations of its main stage.
fn controlled(
    binary: &Path,
    dir: &Path,
    name: &str,
    secret: &str,
    meanwhile: impl FnOnce() -> Result<()>,
) -> Result<(Value, u64)> {
    let mut child = command(binary, dir, name, secret)?.spawn()?;
    let told = meanwhile();
    let status = child.wait()?;
    told?;
    let run = Run::read(&dir.join(name), format!("{status}"))?;
    let ops = run.count("main");
    Ok((run.meta, ops))
}

fn wrong_secret(binary: &Path, dir: &Path) -> Result<()> {
    let mut command = command(binary, dir, "refused", "another-secret")?;
    let output = command.stderr(Stdio::piped()).spawn()?.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success(), "it ran");
    ensure!(
        text.contains("secret"),
        "it was told something else: {text}"
    );
    Ok(())
}
