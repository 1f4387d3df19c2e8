//! Store of a cell: `cairn up` on loopback, or its servers in two processes, as children.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use cairn_advise::cluster::{Cluster, Erasure, Processes};
use cairn_ring::{FormatVersion, NewDevice, RebalanceOptions, RingBuilder};

/// Timeout of a store's start.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// The policy of cells with an erasure code.
pub(super) const CODED: &str = "coded";

/// A running store; stopped when dropped.
pub(super) struct Store {
    /// The proxy's process first.
    processes: Vec<Process>,
    pub(super) url: String,
    devices: PathBuf,
}

struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Store {
    /// Starts a store for this cluster of one node, in an empty folder.
    pub(super) fn start(program: &Path, data: &Path, cluster: &Cluster) -> Result<Store> {
        let [node] = &cluster.node[..] else {
            bail!(
                "{}: node: {} kinds of nodes; only one host can be measured here",
                cluster.name,
                cluster.node.len()
            );
        };
        let devices: u32 = node.disk.iter().map(|d| d.count * d.devices).sum();
        let up = |more: &[&str]| {
            let mut command = Command::new(program);
            command
                .args(["up", "--console", "off", "--log-level", "error", "--data"])
                .arg(data);
            command.args([
                "--user",
                "test:tester=testing,.admin",
                "--bind",
                &free_address()?,
            ]);
            command.args(["--devices", &devices.to_string()]);
            command.args(["--replicas", &cluster.replicas.to_string()]);
            command
                .args(["--part-power", &cluster.part_power.to_string()])
                .args(more);
            anyhow::Ok(command)
        };
        let is_plain = cluster.erasure.is_none() && cluster.processes == Processes::One;
        if !is_plain {
            let made = up(&["--write-only"])?.stdout(Stdio::null()).status();
            let made = made.with_context(|| program.display().to_string())?;
            if !made.success() {
                bail!("cairn up --write-only: {made}");
            }
        }
        let etc = data.join("etc");
        if let Some(erasure) = cluster.erasure {
            add_policy(&etc, erasure, cluster.part_power)?;
        }
        let mut store = Store {
            processes: Vec::new(),
            url: String::new(),
            devices: data.join("dev"),
        };
        let address = match cluster.processes {
            Processes::One => store.add(&mut up(&[])?, "proxy-server")?,
            Processes::Roles => {
                let mut backend = Command::new(program);
                backend.args(["serve", "--log-level", "error"]);
                backend.args(
                    [
                        "account-server.conf",
                        "container-server.conf",
                        "object-server.conf",
                    ]
                    .map(|f| etc.join(f)),
                );
                store.add(&mut backend, "object-server")?;
                let mut proxy = Command::new(program);
                proxy
                    .args(["serve", "--log-level", "error"])
                    .arg(etc.join("proxy-server.conf"));
                store.add(&mut proxy, "proxy-server")?
            }
        };
        store.processes.reverse();
        store.url = format!("http://{address}");
        Ok(store)
    }

    /// Starts a process and waits until its server is ready; returns the server's address.
    fn add(&mut self, command: &mut Command, server: &str) -> Result<String> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{:?}", command.get_program()))?;
        let (sender, lines) = channel();
        if let Some(output) = child.stdout.take() {
            // Ends with the process.
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        self.processes.push(Process { child, lines });
        let prefix = format!("{server} ready on ");
        let started = Instant::now();
        let Some(process) = self.processes.last_mut() else {
            bail!("no process of {server}");
        };
        while let Some(left) = START_TIMEOUT.checked_sub(started.elapsed()) {
            match process.lines.recv_timeout(left) {
                Ok(line) => {
                    let address = line
                        .strip_prefix(&prefix)
                        .and_then(|l| l.split_whitespace().next());
                    if let Some(address) = address {
                        return Ok(address.to_owned());
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!(
                        "{server} has ended before it was ready: {}",
                        process.child.wait()?
                    )
                }
                Err(RecvTimeoutError::Timeout) => break,
            }
        }
        bail!("{server} was not ready within {START_TIMEOUT:?}")
    }

    /// Removes the devices of a zone, which has the same number in `cairn up`.
    pub(super) fn lose(&self, zone: u32) -> Result<()> {
        let device = self.devices.join(format!("d{zone}"));
        fs::remove_dir_all(&device).with_context(|| device.display().to_string())
    }

    /// Process ids, the proxy's first.
    pub(super) fn processes(&self) -> Vec<u32> {
        self.processes
            .iter()
            .map(|process| process.child.id())
            .collect()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let id = i32::try_from(process.child.id())
                .ok()
                .and_then(rustix::process::Pid::from_raw);
            if let Some(id) = id {
                // Fails if it is gone already.
                let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
            }
            let asked = Instant::now();
            while asked.elapsed() < STOP_TIMEOUT {
                match process.child.try_wait() {
                    Ok(None) => std::thread::sleep(Duration::from_millis(20)),
                    _ => break,
                }
            }
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}

/// A free loopback address: another program may bind it before the store, which then reports an
/// error.
fn free_address() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").context("a free port")?;
    Ok(listener.local_addr().context("a free port")?.to_string())
}

/// Adds an erasure-coded policy to the confs and rings written by `cairn up`.
fn add_policy(etc: &Path, erasure: Erasure, part_power: u32) -> Result<()> {
    let conf = etc.join("swift.conf");
    let text = fs::read_to_string(&conf).with_context(|| conf.display().to_string())?;
    let policy = format!(
        "{text}\n[storage-policy:1]\nname = {CODED}\npolicy_type = erasure_coding\n\
         ec_type = isa_l_rs_vand\nec_num_data_fragments = {}\nec_num_parity_fragments = {}\n",
        erasure.data, erasure.parity
    );
    fs::write(&conf, policy).with_context(|| conf.display().to_string())?;
    let known: PathBuf = etc.join("object.builder");
    let bytes = fs::read(&known).with_context(|| known.display().to_string())?;
    let replicated = RingBuilder::from_bytes(&bytes)?;
    let fragments = f64::from(erasure.data + erasure.parity);
    let mut builder = RingBuilder::new(part_power, fragments, 1)?;
    for device in replicated.devices().map(|d| &d.device) {
        builder.add_dev(NewDevice {
            id: Some(device.id),
            region: device.region,
            zone: device.zone,
            weight: device.weight,
            ip: device.ip.clone(),
            port: device.port,
            device: device.device.clone(),
            replication_ip: None,
            replication_port: None,
            meta: String::new(),
        })?;
    }
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    builder.rebalance(RebalanceOptions {
        seed: None,
        now: since.as_secs(),
        log: None,
    })?;
    let path = etc.join("object-1.builder");
    fs::write(&path, builder.to_bytes()).with_context(|| path.display().to_string())?;
    Ok(builder
        .ring_data()
        .save(etc.join("object-1.ring.gz"), FormatVersion::V1)?)
}
