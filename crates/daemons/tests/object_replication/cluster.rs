//! Four object servers on loopback, each with a device of its own, Cairn's or OpenStack Swift's;
//! three replicas, so that every partition has one device that is none of its own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_daemons::object_replicator::HandoffDelete;
use cairn_daemons::{
    AuditStats, AuditorConfig, AuditorParts, ObjectAuditor, ObjectReplicator, PassFilter,
    ReplicationStats, ReplicatorConfig, ReplicatorParts,
};
use cairn_disk::{
    Devices, DevicesConfig, DiskFileConfig, DiskFileEngine, Engines, FallocateReserve,
};
use cairn_formats::ini::Section;
use cairn_http::client::Client;
use cairn_http::metrics::Metrics;
use cairn_http::serve::{ServeOptions, serve};
use cairn_http::{Body, Clock, Request};
use cairn_peer::{Backends, Rings};
use cairn_ring::{FormatVersion, NewDevice, RingBuilder};
use cairn_servers::object::{ObjectServer, ObjectServerConfig};
use cairn_types::{HashPath, ObjectHash, PolicyIndex, PolicySet};
use http::HeaderMap;
use tokio::sync::watch;

use crate::ports::Reserved;

pub(crate) const NODES: usize = 4;
const PART_POWER: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Cairn,
    Swift,
}

/// A program that ends with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) struct Cluster {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) kinds: [Kind; NODES],
    ports: Vec<u16>,
    rsync_port: u16,
    method: &'static str,
    policies: PolicySet,
    client: Client,
    stop: watch::Sender<bool>,
    programs: Vec<Program>,
    servers: Vec<(SocketAddr, Arc<ObjectServer>)>,
    /// Replicators call Cairn's servers without a socket.
    pub(crate) in_process: bool,
    _reserved: Vec<Reserved>,
}

pub(crate) fn python() -> Option<PathBuf> {
    let python = std::env::var_os("CAIRN_SWIFT_PYTHON").map(PathBuf::from);
    if python.is_none() {
        println!("skipped: CAIRN_SWIFT_PYTHON names no Python with OpenStack Swift");
    }
    python
}

pub(crate) fn hash_path() -> HashPath {
    HashPath::new("", "endcap")
}

impl Cluster {
    /// `None` where what it needs is not on this machine.
    pub(crate) async fn start(kinds: [Kind; NODES], method: &'static str) -> Option<Cluster> {
        let python = match kinds.contains(&Kind::Swift) {
            true => Some(python()?),
            false => None,
        };
        let has_rsync = || Command::new("rsync").arg("--version").output().is_ok();
        if method == "rsync" && !has_rsync() {
            println!("skipped: there is no rsync");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let reserved: Vec<Reserved> = (0..=NODES).map(|_| Reserved::new()).collect();
        let mut ports: Vec<u16> = reserved.iter().map(Reserved::port).collect();
        let rsync_port = ports.pop().unwrap();
        let mut cluster = Cluster {
            folder,
            kinds,
            ports,
            rsync_port,
            method,
            policies: PolicySet::single(),
            client: Client::new(Duration::from_secs(2), 8, Duration::from_secs(5)),
            stop: watch::channel(false).0,
            programs: Vec::new(),
            servers: Vec::new(),
            in_process: false,
            _reserved: reserved,
        };
        cluster.write_rings();
        std::fs::write(
            cluster.etc().join("swift.conf"),
            "[swift-hash]\nswift_hash_path_suffix = endcap\n\
             [storage-policy:0]\nname = Policy-0\ndefault = yes\n",
        )
        .unwrap();
        for (node, kind) in kinds.iter().enumerate() {
            std::fs::create_dir_all(cluster.device(node)).unwrap();
            std::fs::create_dir_all(cluster.path(&format!("cache{node}"))).unwrap();
            std::fs::write(cluster.conf(node), cluster.conf_text(node)).unwrap();
            match (kind, &python) {
                (Kind::Swift, Some(python)) => cluster.start_swift(python, node),
                _ => cluster.start_cairn(node),
            }
        }
        if method == "rsync" {
            cluster.start_rsync();
        }
        cluster.wait_for_ports();
        Some(cluster)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn etc(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    fn root(&self, node: usize) -> PathBuf {
        self.path(&format!("node{node}"))
    }

    pub(crate) fn device(&self, node: usize) -> PathBuf {
        self.root(node).join(format!("d{node}"))
    }

    fn conf(&self, node: usize) -> PathBuf {
        self.path(&format!("object-{node}.conf"))
    }

    fn rsync_module(&self) -> String {
        format!("rsync://127.0.0.1:{}/object_{{device}}", self.rsync_port)
    }

    fn conf_text(&self, node: usize) -> String {
        format!(
            "[DEFAULT]\nbind_ip = 127.0.0.1\nbind_port = {}\nworkers = 0\nswift_dir = {}\n\
             devices = {}\nmount_check = false\nrecon_cache_path = {}\nuser = root\n\
             log_address = /dev/null\nfallocate_reserve = 0\n\
             [pipeline:main]\npipeline = object-server\n\
             [app:object-server]\nuse = egg:swift#object\n\
             [object-replicator]\nsync_method = {}\nrsync_module = {}\n\
             [object-auditor]\n",
            self.ports[node],
            self.etc().display(),
            self.root(node).display(),
            self.path(&format!("cache{node}")).display(),
            self.method,
            self.rsync_module(),
        )
    }

    fn write_rings(&self) {
        let devices = (0..NODES).map(|node| NewDevice {
            zone: node as u32 + 1,
            ..NewDevice::at(
                format!("d{node}"),
                ([127, 0, 0, 1], self.ports[node]).into(),
            )
        });
        let ring = RingBuilder::balanced(PART_POWER, 3.0, devices).unwrap();
        for name in ["account", "container", "object"] {
            let path = self.etc().join(format!("{name}.ring.gz"));
            ring.save(path, FormatVersion::V1).unwrap();
        }
    }

    fn devices(&self, node: usize) -> Arc<Devices> {
        let mut config = DevicesConfig::new(self.root(node));
        config.mount_check = false;
        config.fallocate_reserve = FallocateReserve::Bytes(0);
        Devices::new(config)
    }

    fn start_cairn(&mut self, node: usize) {
        let server = ObjectServer::new(
            ObjectServerConfig::new(hash_path(), self.policies.clone()),
            self.engines(),
            self.devices(node),
            Backends::new(Duration::from_secs(1)),
        );
        let address = SocketAddr::from(([127, 0, 0, 1], self.ports[node]));
        self.servers.push((address, server.clone()));
        let listener = cairn_http::serve::bind(address, 64).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let mut options = ServeOptions::new("object");
        options.grace = Duration::from_millis(100);
        tokio::spawn(serve(
            listener,
            server,
            options,
            Metrics::new(),
            self.stop.subscribe(),
        ));
    }

    fn script(&self, python: &Path, what: &str, node: usize) -> Command {
        let mut command = Command::new(python);
        command
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/swift_object.py"
            ))
            .arg(self.etc())
            .arg(what)
            .arg(self.conf(node))
            .stdin(Stdio::null());
        command
    }

    fn start_swift(&mut self, python: &Path, node: usize) {
        let mut command = self.script(python, "server", node);
        command.stdout(Stdio::null());
        self.programs.push(Program(command.spawn().unwrap()));
    }

    fn start_rsync(&mut self) {
        let mut text = String::from("uid = root\ngid = root\nuse chroot = no\nmax verbosity = 0\n");
        for node in 0..NODES {
            let path = self.root(node).display().to_string();
            text.push_str(&format!(
                "[object_d{node}]\npath = {path}\nread only = false\n"
            ));
        }
        let conf = self.path("rsyncd.conf");
        std::fs::write(&conf, text).unwrap();
        let mut command = Command::new("rsync");
        command
            .args(["--daemon", "--no-detach", "--address=127.0.0.1"])
            .arg(format!("--port={}", self.rsync_port))
            .arg(format!("--config={}", conf.display()))
            .arg(format!("--log-file={}", self.path("rsyncd.log").display()));
        self.programs.push(Program(command.spawn().unwrap()));
    }

    fn wait_for_ports(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let rsync = (self.method == "rsync").then_some(self.rsync_port);
        for port in self.ports.iter().copied().chain(rsync) {
            while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
                assert!(Instant::now() < deadline, "nobody listens on {port}");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }

    /// A request to one node for one object; status, headers and body.
    pub(crate) async fn ask(
        &self,
        node: usize,
        method: &str,
        object: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> (u16, HeaderMap, Vec<u8>) {
        let (partition, _) = self.place(object);
        let name = cairn_http::params::quote_path(object);
        let mut request = http::Request::builder()
            .method(method)
            .uri(format!("/d{node}/{partition}/a/c/{name}"))
            .header("x-backend-storage-policy-index", "0");
        for (name, value) in headers {
            request = request.header(
                *name,
                http::HeaderValue::from_bytes(value.as_bytes()).unwrap(),
            );
        }
        if method == "PUT" {
            request = request.header("content-length", body.len());
        }
        let request: Request = request.body(Body::full(body)).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], self.ports[node]));
        let response = self
            .client
            .call(address, request, Duration::from_secs(20))
            .await
            .unwrap();
        let (head, body) = response.into_parts();
        let body = body.collect(64 << 20).await.unwrap().to_vec();
        (head.status.as_u16(), head.headers, body)
    }

    /// An object's partition, and the nodes that should have it.
    pub(crate) fn place(&self, object: &str) -> (u32, Vec<usize>) {
        let rings = Rings::open(&self.etc(), &self.policies).unwrap();
        let ring = rings.object(PolicyIndex(0)).unwrap();
        let partition = ring.partition(&hash_path(), "a", Some("c"), Some(object));
        let nodes = ring
            .primaries(partition)
            .iter()
            .map(|n| n.device.id as usize)
            .collect();
        (partition, nodes)
    }

    pub(crate) fn handoff(&self, object: &str) -> usize {
        let (_, primaries) = self.place(object);
        (0..NODES).find(|node| !primaries.contains(node)).unwrap()
    }

    pub(crate) fn hash_dir(&self, node: usize, object: &str) -> PathBuf {
        let hash: ObjectHash = hash_path().hash("a", Some("c"), Some(object));
        let (partition, _) = self.place(object);
        let place = format!("objects/{partition}/{}/{}", hash.suffix(), hash.hex());
        self.device(node).join(place)
    }

    fn section(&self, node: usize, name: &str) -> Section {
        let text = self.conf_text(node);
        let conf = cairn_formats::ini::Conf::parse("object.conf", &text).unwrap();
        conf.section_or_defaults(name)
    }

    fn engines(&self) -> Engines {
        let config = DiskFileConfig::default();
        let engine = DiskFileEngine::new(hash_path(), &self.policies, config);
        Engines::uniform(&self.policies, Arc::new(engine))
    }

    /// One pass of a node's replicator, of Cairn.
    pub(crate) async fn replicate_by_cairn(
        &self,
        node: usize,
        change: &[(&str, &str)],
    ) -> ReplicationStats {
        let mut config = ReplicatorConfig::read(&self.section(node, "object-replicator")).unwrap();
        for (option, value) in change {
            match *option {
                "handoffs_first" => config.handoffs_first = *value == "yes",
                "handoff_delete" => {
                    config.handoff_delete = HandoffDelete::After(value.parse().unwrap());
                }
                other => panic!("{other}"),
            }
        }
        let backends = Backends::new(Duration::from_secs(1));
        for (address, server) in self.servers.iter().filter(|_| self.in_process) {
            backends.register_local(*address, server.clone());
        }
        let parts = ReplicatorParts {
            engines: self.engines(),
            policies: Arc::new(self.policies.clone()),
            rings: Rings::open(&self.etc(), &self.policies).unwrap(),
            devices: self.devices(node),
            backends,
            clock: Clock::system(),
        };
        ObjectReplicator::new(config, parts)
            .pass(&PassFilter::default())
            .await
    }

    pub(crate) async fn audit_by_cairn(&self, node: usize, only: &PassFilter) -> AuditStats {
        let mut config = AuditorConfig::read(&self.section(node, "object-auditor")).unwrap();
        config.files_per_second = 0.0;
        let parts = AuditorParts {
            engines: self.engines(),
            policies: Arc::new(self.policies.clone()),
            devices: self.devices(node),
            clock: Clock::system(),
        };
        ObjectAuditor::new(config, parts).pass(only).await
    }

    pub(crate) fn recon(&self, node: usize) -> serde_json::Value {
        let path = self.path(&format!("cache{node}/object.recon"));
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    /// One pass of a node's replicator, of its own kind.
    pub(crate) async fn replicate(&self, node: usize) {
        match self.kinds[node] {
            Kind::Cairn => drop(self.replicate_by_cairn(node, &[]).await),
            Kind::Swift => {
                let mut command = self.script(&python().unwrap(), "replicator", node);
                let ended = tokio::task::spawn_blocking(move || command.status().unwrap());
                assert!(ended.await.unwrap().success());
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}
