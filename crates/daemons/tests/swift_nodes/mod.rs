//! Four nodes of one device each, some of them ours and some OpenStack Swift's, on loopback; the
//! rings want three replicas. An rsync daemon serves the devices.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cairn_daemons::{DbReplicator, DbReplicatorConfig, PassFilter};
use cairn_formats::ini::Section;
use cairn_http::Handler;
use cairn_http::metrics::Metrics;
use cairn_http::serve::{ServeOptions, bind, serve};
use cairn_index::{DbKey, DbKind, IndexConfig, IndexPool};
use cairn_peer::{Backends, Rings};
use cairn_ring::{FormatVersion, NewDevice, RingBuilder};
use cairn_servers::account::{AccountServer, AccountServerConfig};
use cairn_servers::container::{ContainerServer, ContainerServerConfig};
use cairn_types::{HashPath, PolicyIndex, PolicyKind, PolicySet, StoragePolicy};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;

use crate::ports::Reserved;

pub const ACCOUNT: &str = "AUTH_é";
pub const CONTAINER: &str = "c";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Ours,
    Swift,
}

/// Ended when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

enum Server {
    Ours(watch::Sender<bool>),
    Swift(Process),
}

struct Node {
    side: Side,
    reserved: Reserved,
    /// Pool of our servers.
    pool: Arc<IndexPool>,
    server: Mutex<Option<Server>>,
}

impl Node {
    fn port(&self) -> u16 {
        self.reserved.port()
    }
}

pub struct Cluster {
    pub kind: DbKind,
    python: String,
    dir: TempDir,
    nodes: Vec<Node>,
    rings: Arc<Rings>,
    rsync_port: Reserved,
    _rsync: Process,
    /// Does with Swift's brokers what it is told.
    brokers: Mutex<(Process, BufReader<ChildStdout>)>,
}

fn policies() -> Arc<PolicySet> {
    let policy = |index, name: &str| StoragePolicy {
        index: PolicyIndex(index),
        name: name.into(),
        aliases: vec![],
        is_default: index == 0,
        deprecated: false,
        kind: PolicyKind::Replication,
    };
    Arc::new(PolicySet::new(vec![policy(0, "gold"), policy(1, "silver")]).unwrap())
}

fn hash_path() -> HashPath {
    HashPath::new("", "endcap")
}

fn write_rings(folder: &Path, ports: &[u16]) {
    let devices = ports.iter().enumerate().map(|(number, port)| NewDevice {
        zone: number as u32 + 1,
        ..NewDevice::at(format!("d{number}"), ([127, 0, 0, 1], *port).into())
    });
    let ring = RingBuilder::balanced(3, 3.0, devices).unwrap();
    for name in ["account", "container", "object", "object-1"] {
        let path = folder.join(format!("{name}.ring.gz"));
        ring.save(path, FormatVersion::V1).unwrap();
    }
}

fn start_rsync(dir: &Path, port: u16) -> Option<Process> {
    let mut conf = String::from("use chroot = no\nread only = no\nuid = 0\ngid = 0\n");
    for number in 0..4 {
        let path = dir.join(format!("node{number}"));
        conf += &format!("[d{number}]\npath = {}\n", path.display());
    }
    let file = dir.join("rsyncd.conf");
    std::fs::write(&file, conf).unwrap();
    let started = Command::new("rsync")
        .args(["--daemon", "--no-detach", "--address=127.0.0.1"])
        .arg(format!("--port={port}"))
        .arg(format!("--config={}", file.display()))
        .stdin(Stdio::null())
        .spawn();
    match started {
        Ok(child) => {
            let process = Process(child);
            let address = SocketAddr::from(([127, 0, 0, 1], port));
            for _ in 0..200 {
                if std::net::TcpStream::connect(address).is_ok() {
                    return Some(process);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            panic!("rsync does not listen");
        }
        Err(_) => {
            println!("skipped: there is no rsync");
            None
        }
    }
}

fn script(python: &str) -> Command {
    let mut command = Command::new(python);
    command.args(["-W", "ignore"]);
    command.arg(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/db_replication_upstream.py"
    ));
    command
}

impl Cluster {
    pub async fn start(kind: DbKind, sides: [Side; 4]) -> Option<Cluster> {
        let Ok(python) = std::env::var("CAIRN_SWIFT_PYTHON") else {
            println!("skipped: CAIRN_SWIFT_PYTHON names no Python with OpenStack Swift");
            return None;
        };
        let mut do_as_told = script(&python);
        do_as_told
            .arg("do")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut brokers = Process(do_as_told.spawn().unwrap());
        let stdout = BufReader::new(brokers.0.stdout.take().unwrap());
        let dir = tempfile::tempdir().unwrap();
        let rsync_port = Reserved::new();
        let rsync = start_rsync(dir.path(), rsync_port.port())?;
        let nodes = sides.iter().enumerate().map(|(number, side)| {
            let root = dir.path().join(format!("node{number}"));
            std::fs::create_dir_all(root.join(format!("d{number}"))).unwrap();
            Node {
                side: *side,
                reserved: Reserved::new(),
                pool: IndexPool::new(IndexConfig::new(root)),
                server: Mutex::default(),
            }
        });
        let nodes: Vec<Node> = nodes.collect();
        let ports: Vec<u16> = nodes.iter().map(Node::port).collect();
        write_rings(dir.path(), &ports);
        let rings = Rings::open(dir.path(), &policies()).unwrap();
        let cluster = Cluster {
            kind,
            python,
            dir,
            nodes,
            rings,
            rsync_port,
            _rsync: rsync,
            brokers: Mutex::new((brokers, stdout)),
        };
        for number in 0..4 {
            cluster.start_again(number).await;
        }
        Some(cluster)
    }

    fn root(&self, node: usize) -> PathBuf {
        self.dir.path().join(format!("node{node}"))
    }

    fn script(&self) -> Command {
        script(&self.python)
    }

    pub async fn start_again(&self, node: usize) {
        let server = match self.nodes[node].side {
            Side::Ours => self.serve(node).await,
            Side::Swift => self.spawn(node),
        };
        *self.nodes[node].server.lock().unwrap() = Some(server);
    }

    async fn serve(&self, node: usize) -> Server {
        let pool = self.nodes[node].pool.clone();
        let handler: Handler = match self.kind {
            DbKind::Account => {
                let mut config = AccountServerConfig::new(hash_path(), policies());
                config.mount_check = false;
                config.fallocate_reserve = None;
                AccountServer::new(config, pool)
            }
            DbKind::Container => {
                let mut config = ContainerServerConfig::new(hash_path(), policies());
                config.mount_check = false;
                config.fallocate_reserve = None;
                ContainerServer::new(config, pool, Backends::new(Duration::from_secs(1)))
            }
        };
        let (stop, stopped) = watch::channel(false);
        let address = SocketAddr::from(([127, 0, 0, 1], self.nodes[node].port()));
        let mut listener = bind(address, 64);
        while listener.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
            listener = bind(address, 64);
        }
        let listener = tokio::net::TcpListener::from_std(listener.unwrap()).unwrap();
        let options = ServeOptions::new("test");
        tokio::spawn(serve(listener, handler, options, Metrics::new(), stopped));
        Server::Ours(stop)
    }

    fn spawn(&self, node: usize) -> Server {
        let mut child = self
            .script()
            .args(["serve", self.kind.as_str()])
            .arg(self.root(node))
            .arg(self.nodes[node].port().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "ready");
        Server::Swift(Process(child))
    }

    pub async fn stop(&self, node: usize) {
        let server = self.nodes[node].server.lock().unwrap().take();
        if let Some(Server::Ours(stop)) = &server {
            stop.send_replace(true);
            let address = SocketAddr::from(([127, 0, 0, 1], self.nodes[node].port()));
            while tokio::net::TcpStream::connect(address).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    pub fn account(&self) -> &'static str {
        ACCOUNT
    }

    fn partition(&self) -> u32 {
        match self.kind {
            DbKind::Account => self
                .rings
                .account()
                .partition(&hash_path(), ACCOUNT, None, None),
            DbKind::Container => {
                self.rings
                    .container()
                    .partition(&hash_path(), ACCOUNT, Some(CONTAINER), None)
            }
        }
    }

    /// The nodes that should have the database.
    pub fn primaries(&self) -> [usize; 3] {
        let nodes = self.rings.container().primaries(self.partition());
        let number = |node: &cairn_peer::Node| node.device.device[1..].parse().unwrap();
        let numbers: Vec<usize> = nodes.iter().map(number).collect();
        numbers.try_into().unwrap()
    }

    pub fn handoff(&self) -> usize {
        let primaries = self.primaries();
        (0..4).find(|node| !primaries.contains(node)).unwrap()
    }

    fn key(&self, node: usize) -> DbKey {
        let container = (self.kind == DbKind::Container).then_some(CONTAINER);
        let hash = hash_path().hash(ACCOUNT, container, None);
        let (device, partition) = (format!("d{node}"), self.partition().to_string());
        DbKey::new(&device, &partition, self.kind, hash)
    }

    fn file(&self, node: usize) -> PathBuf {
        self.key(node).file(&self.root(node))
    }

    pub fn make_folder(&self, node: usize) {
        std::fs::create_dir_all(self.file(node).parent().unwrap()).unwrap();
    }

    pub fn exists(&self, node: usize) -> bool {
        self.file(node).exists()
    }

    pub fn partition_folder(&self, node: usize) -> PathBuf {
        self.file(node).ancestors().nth(3).unwrap().to_owned()
    }

    /// Runs Swift's broker on a node's database.
    pub fn act(&self, node: usize, steps: &[Value]) -> Vec<Value> {
        self.act_on(&self.file(node), steps)
    }

    fn act_on(&self, file: &Path, steps: &[Value]) -> Vec<Value> {
        let container = (self.kind == DbKind::Container).then_some(CONTAINER);
        let command = json!({
            "kind": self.kind.as_str(), "file": file, "account": ACCOUNT,
            "container": container, "do": steps,
        });
        let mut brokers = self.brokers.lock().unwrap();
        writeln!(brokers.0.0.stdin.as_mut().unwrap(), "{command}").unwrap();
        let mut answer = String::new();
        brokers.1.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).expect("the Swift side failed")
    }

    /// The account has been told all about the container.
    pub fn note_reported(&self, node: usize) {
        self.act(node, &[json!(["reported"])]);
    }

    /// One pass of a node's replicator. Its numbers, by Swift's names.
    pub async fn replicate(&self, node: usize, options: &[(&str, &str)]) -> Value {
        let mut conf = json!({
            "devices": self.root(node), "swift_dir": self.dir.path(), "mount_check": "false",
            "bind_ip": "127.0.0.1", "bind_port": self.nodes[node].port().to_string(),
            "recon_cache_path": self.root(node), "databases_per_second": "10000",
            "rsync_module": format!("rsync://127.0.0.1:{}/{{device}}", self.rsync_port.port()),
        });
        for (name, value) in options {
            conf[*name] = (*value).into();
        }
        match self.nodes[node].side {
            Side::Swift => {
                let mut command = self.script();
                command.args(["replicate", self.kind.as_str(), &conf.to_string()]);
                // The servers of this process answer meanwhile.
                let output = tokio::task::spawn_blocking(move || command.output().unwrap());
                let output = output.await.unwrap();
                let told = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "Swift's replicator failed: {told}");
                serde_json::from_slice(&output.stdout).unwrap()
            }
            Side::Ours => {
                let pairs: Vec<(&str, &str)> = conf
                    .as_object()
                    .unwrap()
                    .iter()
                    .map(|(name, value)| (name.as_str(), value.as_str().unwrap()))
                    .collect();
                let section = Section::from_pairs("replicator", &pairs);
                let config = DbReplicatorConfig::read(&section, self.kind).unwrap();
                let replicator = DbReplicator::new(
                    config,
                    hash_path(),
                    &policies(),
                    self.rings.clone(),
                    self.nodes[node].pool.clone(),
                    Backends::new(Duration::from_secs(1)),
                );
                let stats = replicator.pass(&PassFilter::default()).await;
                json!({
                    "attempted": stats.attempted, "failure": stats.failure,
                    "rsync": stats.rsync, "diff": stats.diff, "remove": stats.remove,
                    "remote_merge": stats.remote_merge, "no_change": stats.no_change,
                })
            }
        }
    }

    /// The state of each database that is not the test's own: the reconciler's queues.
    pub fn queues(&self) -> Vec<Value> {
        let mut found = Vec::new();
        for node in 0..4 {
            let mut folders = vec![self.root(node).join(format!("d{node}/containers"))];
            while let Some(folder) = folders.pop() {
                for entry in std::fs::read_dir(folder).into_iter().flatten() {
                    let path = entry.unwrap().path();
                    let is_db = path.extension().is_some_and(|extension| extension == "db");
                    if path.is_dir() {
                        folders.push(path);
                    } else if is_db && path.file_name() != self.file(node).file_name() {
                        found.push(self.act_on(&path, &[json!(["state"])])[0].clone());
                    }
                }
            }
        }
        found
    }
}
