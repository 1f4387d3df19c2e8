//! Maximum performance of the lab's generator: no-op operations per second; requests per second of
//! a static nginx compared with wrk's, alternating by rounds, at 64 connections; memory at 1,000
//! connections. Full statistics are always on, as the lab has no other mode.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use cairn_testkit::figures::median;
use cairn_testkit::lab::Run;
use cairn_testkit::process::{Process, free_ports, wait_for_port};
use cairn_testkit::workspace;

const ROUNDS: usize = 3;
const OBJECT: &[u8] = &[b'x'; 1024];

/// Results, as recorded in `lab.json`.
#[derive(Debug, serde::Serialize)]
struct Figures {
    noop_per_second: f64,
    wrk_per_second: Vec<f64>,
    lab_per_second: Vec<f64>,
    lab_part_of_wrk: f64,
    memory_at_1000_connections: u64,
}

pub(super) fn run(seconds: u64) -> Result<()> {
    for (program, package) in [("nginx", "nginx-light"), ("wrk", "wrk")] {
        if !workspace::install(program, package) && find(program).is_none() {
            bail!("{program} is not here; install the package {package}");
        }
    }
    let cairn = workspace::build_cairn()?;
    let dir = workspace::scratch("bench-lab")?;
    let noop = lab(&cairn, dir.path(), &workload("mock", "", 64, seconds))?;
    println!(
        "no-op: {:.0} operations/s with full statistics",
        noop.per_second
    );
    let port = free_ports(1)?[0];
    let mut nginx = vec![start_nginx(dir.path(), port)?];
    wait_for_port(port, &mut nginx)?;
    let (mut by_wrk, mut by_lab) = (Vec::new(), Vec::new());
    for round in 1..=ROUNDS {
        by_wrk.push(wrk(port, seconds)?);
        by_lab.push(against_nginx(&cairn, dir.path(), port, 64, seconds)?.per_second);
        println!(
            "nginx, 64 connections, round {round}: wrk {:.0}/s, the lab {:.0}/s",
            by_wrk[round - 1],
            by_lab[round - 1]
        );
    }
    let wide = against_nginx(&cairn, dir.path(), port, 1000, seconds)?;
    let middle = |rates: &[f64]| median(rates.iter().copied()).unwrap_or(0.0);
    let part = middle(&by_lab) / middle(&by_wrk);
    println!("the lab reaches {:.0} % of wrk's rate", part * 100.0);
    println!(
        "nginx, 1000 connections: {:.0}/s, at most {:.0} MB of memory",
        wide.per_second,
        wide.memory_peak as f64 / 1e6
    );
    let figures = Figures {
        noop_per_second: noop.per_second,
        lab_part_of_wrk: part,
        wrk_per_second: by_wrk,
        lab_per_second: by_lab,
        memory_at_1000_connections: wide.memory_peak,
    };
    workspace::keep("bench", "lab.json", &figures)?;
    ensure!(
        figures.noop_per_second >= 200_000.0,
        "fewer than 200,000 no-op operations/s"
    );
    ensure!(part >= 0.8, "less than 80 % of wrk's rate");
    ensure!(
        wide.memory_peak <= 200_000_000,
        "more than 200 MB at 1,000 connections"
    );
    Ok(())
}

/// Debian installs servers in folders that only root's PATH contains.
fn find(program: &str) -> Option<std::path::PathBuf> {
    let in_sbin = || Some(Path::new("/usr/sbin").join(program)).filter(|path| path.is_file());
    workspace::find(program).or_else(in_sbin)
}

fn workload(storage: &str, config: &str, workers: u32, seconds: u64) -> String {
    format!(
        r#"<workload name="bench"><storage type="{storage}" config="{config}"/><workflow>
<workstage name="main"><work name="main" workers="{workers}" rampup="1" runtime="{seconds}">
<operation type="read" ratio="100" config="cprefix=c;oprefix=o;containers=c(1);objects=u(1,32)"/>
</work></workstage></workflow></workload>"#
    )
}

struct Outcome {
    per_second: f64,
    memory_peak: u64,
}

fn lab(cairn: &Path, dir: &Path, workload: &str) -> Result<Outcome> {
    let file = dir.join("workload.xml");
    std::fs::write(&file, workload)?;
    let out = tempfile::tempdir_in(dir)?;
    let mut child = Command::new(cairn)
        .args(["lab", "run", "--no-ceiling", "--resources", "0", "--out"])
        .arg(out.path().join("run"))
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(dir.join("lab.out"))?)
        .spawn()?;
    let mut memory_peak = 0;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        memory_peak = memory_peak.max(peak(child.id()));
        std::thread::sleep(Duration::from_millis(100));
    };
    let text = std::fs::read_to_string(dir.join("lab.out"))?;
    ensure!(
        status.success(),
        "cairn lab run ended with {status}:\n{text}"
    );
    let run = Run::read(&out.path().join("run"), text)?;
    let per_second = rate(&run).context("the run reported no operations")?;
    Ok(Outcome {
        per_second,
        memory_peak,
    })
}

/// Successful operations per second of the run's only stage.
fn rate(run: &Run) -> Option<f64> {
    let seconds = run.works("main").next()?["seconds"].as_f64()?;
    (seconds > 0.0).then(|| run.count("main") as f64 / seconds)
}

fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

fn start_nginx(dir: &Path, port: u16) -> Result<Process> {
    let container = dir.join("www/v1/a/c1");
    std::fs::create_dir_all(&container)?;
    for number in 1..=32 {
        std::fs::write(container.join(format!("o{number}")), OBJECT)?;
    }
    let path = dir.display();
    let conf = format!(
        "daemon off; worker_processes auto; pid {path}/nginx.pid; error_log {path}/nginx.log;
events {{ worker_connections 4096; }}
http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000;
  open_file_cache max=100; default_type application/octet-stream;
  client_body_temp_path {path}/t1; proxy_temp_path {path}/t2; fastcgi_temp_path {path}/t3;
  uwsgi_temp_path {path}/t4; scgi_temp_path {path}/t5;
  server {{ listen 127.0.0.1:{port}; root {path}/www; }} }}\n"
    );
    let file = dir.join("nginx.conf");
    std::fs::write(&file, conf)?;
    // nginx's workers, which drop root's rights, must be able to read the scratch folder.
    let user = if rustix::process::geteuid().is_root() {
        "user root;"
    } else {
        ""
    };
    let file = file.display().to_string();
    let program = find("nginx").context("nginx has gone")?;
    Process::start("nginx", &program, &["-c", &file, "-g", user], dir)
}

fn wrk(port: u16, seconds: u64) -> Result<f64> {
    let url = format!("http://127.0.0.1:{port}/v1/a/c1/o1");
    let duration = format!("-d{seconds}s");
    let text = workspace::run_quiet(Command::new("wrk").args(["-t2", "-c64", &duration, &url]))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Requests/sec:"));
    line.context("wrk told no rate")?
        .trim()
        .parse()
        .context("wrk's rate")
}

fn against_nginx(
    cairn: &Path,
    dir: &Path,
    port: u16,
    workers: u32,
    seconds: u64,
) -> Result<Outcome> {
    let config = format!("token=t;storage_url=http://127.0.0.1:{port}/v1/a");
    lab(cairn, dir, &workload("swift", &config, workers, seconds))
}
