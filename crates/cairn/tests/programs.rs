//! Servers under Swift's names: what their callers see of streams, process ids and signals.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

#[path = "programs/access_lines.rs"]
mod access_lines;

fn cairn() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cairn"));
    command.env_remove("RUST_LOG");
    command
}

const PATIENCE: Duration = Duration::from_secs(30);

struct Program {
    child: Child,
    address: SocketAddr,
}

impl Program {
    /// Starts the proxy of a store.
    fn proxy(data: &Path) -> Program {
        Program::proxy_of(cairn(), data)
    }

    fn proxy_of(cairn: Command, data: &Path) -> Program {
        let conf = data.join("etc/proxy-server.conf");
        let address = address_of(&conf);
        Program::start_of(cairn, "swift-proxy-server", &conf, address)
    }

    /// Waits until it closes its output, as swift-init does.
    fn start(name: &str, conf: &Path, address: SocketAddr) -> Program {
        Program::start_of(cairn(), name, conf, address)
    }

    fn start_of(mut cairn: Command, name: &str, conf: &Path, address: SocketAddr) -> Program {
        let (mut said, writer) = std::io::pipe().unwrap();
        let child = cairn
            .arg0(name)
            .arg(conf)
            .stdin(Stdio::null())
            .stdout(writer.try_clone().unwrap())
            .stderr(writer)
            .spawn()
            .unwrap();
        // It has the pipe's other end.
        drop(cairn);
        let mut text = String::new();
        said.read_to_string(&mut text).unwrap();
        assert_eq!(text, "");
        Program { child, address }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The processes whose parent it is.
    fn workers(&self) -> Vec<u32> {
        let id = self.child.id();
        let path = format!("/proc/{id}/task/{id}/children");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.split_whitespace()
            .map(|pid| pid.parse().unwrap())
            .collect()
    }

    fn is_healthy(&self) -> bool {
        is_healthy(self.address)
    }
}

/// Address that the server of a conf file listens at.
fn address_of(conf: &Path) -> SocketAddr {
    let conf = std::fs::read_to_string(conf).unwrap();
    let option = |name: &str| {
        let mut lines = conf.lines().filter_map(|line| line.split_once(" = "));
        lines.find(|(n, _)| *n == name).unwrap().1.to_owned()
    };
    let address = format!("{}:{}", option("bind_ip"), option("bind_port"));
    address.parse().unwrap()
}

fn is_healthy(address: impl ToSocketAddrs) -> bool {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = b"GET /healthcheck HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.starts_with("HTTP/1.1 200 ")
}

impl Drop for Program {
    fn drop(&mut self) {
        for pid in self.workers() {
            if let Some(pid) = Pid::from_raw(pid as i32) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn store() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let made = cairn()
        .args([
            "up",
            "--write-only",
            "--bind",
            "127.0.0.1:0",
            "--part-power",
            "4",
        ])
        .arg("--data")
        .arg(folder.path())
        .stdout(Stdio::null())
        .status();
    assert!(made.unwrap().success());
    folder
}

#[test]
fn a_new_start_refuses_nobody_and_keeps_its_process() {
    let folder = store();
    let program = Program::proxy(folder.path());
    assert!(program.is_healthy());
    let before = program.workers();
    assert_eq!(before.len(), 1);
    program.signal(Signal::USR1);
    wait_for("another worker", || {
        assert!(program.is_healthy());
        let now = program.workers();
        now.len() == 1 && now != before
    });
    // A conf that would not come up changes nothing.
    let conf = folder.path().join("etc/proxy-server.conf");
    let good = std::fs::read_to_string(&conf).unwrap();
    std::fs::write(&conf, good.replace("bind_port", "bind_prot")).unwrap();
    let before = program.workers();
    program.signal(Signal::USR1);
    std::thread::sleep(Duration::from_millis(300));
    assert!(program.is_healthy());
    assert_eq!(program.workers(), before);
}

/// By `swift-init`, which finds the program by its file of process ids.
#[test]
fn signals_during_a_new_start_wait_for_it() {
    let folder = store();
    let mut program = Program::proxy(folder.path());
    let run = folder.path().join("run");
    std::fs::create_dir(&run).unwrap();
    std::fs::write(run.join("proxy-server.pid"), program.child.id().to_string()).unwrap();
    let init = |command: &str| {
        let mut init = cairn();
        init.args(["init", "proxy", command, "--swift-dir"]);
        init.arg(folder.path().join("etc"));
        init.arg("--run-dir").arg(&run).stdout(Stdio::null());
        init.spawn().unwrap()
    };
    for _ in 0..5 {
        assert!(init("reload-seamless").wait().unwrap().success());
        assert!(init("reload-seamless").wait().unwrap().success());
        assert_eq!(program.child.try_wait().unwrap(), None);
        assert!(program.is_healthy());
    }
    assert!(init("reload-seamless").wait().unwrap().success());
    let begun = Instant::now();
    let mut stopping = init("shutdown");
    assert_eq!(program.child.wait().unwrap().code(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(4));
    assert!(stopping.wait().unwrap().success());
}

#[test]
fn signals_before_a_new_start_listens_are_kept() {
    let folder = store();
    let mut program = Program::proxy(folder.path());
    for _ in 0..150 {
        program.signal(Signal::USR1);
        std::thread::sleep(Duration::from_millis(3));
        assert_eq!(program.child.try_wait().unwrap(), None);
    }
    assert!(program.is_healthy());
    wait_for("one worker", || program.workers().len() == 1);
    program.signal(Signal::TERM);
    assert_eq!(program.child.wait().unwrap().code(), Some(0));
}

fn reload(pid: u32) -> (Option<i32>, String, String) {
    let output = cairn()
        .arg0("swift-reload")
        .args(["-v", "-t", "30", &pid.to_string()])
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    (output.status.code(), said, errors)
}

#[test]
fn swift_reload_waits_until_it_serves_again() {
    let folder = store();
    let program = Program::proxy(folder.path());
    let before = program.workers();
    let (code, said, errors) = reload(program.child.id());
    assert_eq!(code, Some(0), "{said}{errors}");
    let lines: Vec<&str> = said.lines().collect();
    for line in ["Process is RELOADING", "Process is READY"] {
        assert!(lines.contains(&line), "{said}");
    }
    assert_eq!(lines.last(), Some(&"Reloaded swift-proxy-server"));
    assert!(program.is_healthy());
    wait_for("the old worker's end", || {
        let workers = program.workers();
        workers.len() == 1 && workers != before
    });

    let (code, _, errors) = reload(program.workers()[0]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("Did you mean"), "{errors}");

    let conf = folder.path().join("etc/proxy-server.conf");
    let text = std::fs::read_to_string(&conf).unwrap();
    std::fs::write(&conf, text.replace("bind_port = ", "bind_port = x")).unwrap();
    let (code, _, errors) = reload(program.child.id());
    assert_eq!(code, Some(1));
    assert!(errors.contains("Failed to validate config"), "{errors}");
    assert!(program.is_healthy());
}

#[test]
fn a_worker_that_dies_is_replaced_and_the_end_is_quick() {
    let folder = store();
    let mut program = Program::proxy(folder.path());
    let before = program.workers();
    let pid = Pid::from_raw(before[0] as i32).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    wait_for("another worker", || {
        let now = program.workers();
        now.len() == 1 && now != before
    });
    assert!(program.is_healthy());
    let worker = program.workers()[0];
    program.signal(Signal::TERM);
    assert_eq!(program.child.wait().unwrap().code(), Some(0));
    assert!(!Path::new(&format!("/proc/{worker}")).exists());
    assert!(TcpStream::connect(program.address).is_err());
}

/// A line of proc(5)'s `status`, without its name.
fn status_of(pid: u32, name: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let line = lines.find(|(n, _)| *n == name);
    line.map_or(String::new(), |(_, value)| value.trim().to_owned())
}

fn is_there(pid: u32) -> bool {
    let state = status_of(pid, "State");
    !state.is_empty() && !state.starts_with('Z')
}

#[test]
fn a_worker_ends_with_its_parent() {
    let folder = store();
    let mut program = Program::proxy(folder.path());
    // A new start's worker, too.
    let first = program.workers();
    program.signal(Signal::USR1);
    wait_for("another worker", || {
        let now = program.workers();
        now.len() == 1 && now != first && program.is_healthy()
    });
    let worker = program.workers()[0];
    // A request that is under way when it happens.
    let mut stream = TcpStream::connect(program.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /healthcheck HTTP/1.1\r\n").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    program.child.kill().unwrap();
    program.child.wait().unwrap();
    wait_for("the port is closed", || {
        TcpStream::connect(program.address).is_err()
    });
    let again = Program::proxy(folder.path());
    assert!(again.is_healthy());
    stream
        .write_all(b"Host: x\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    wait_for("the worker ends", || !is_there(worker));
}

#[test]
fn a_server_of_roots_is_its_users_once_its_ports_are_open() {
    let nobody = std::fs::read_to_string("/etc/passwd").unwrap();
    let nobody = nobody.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields[0] == "nobody").then(|| fields[2].to_owned())
    });
    let (true, Some(uid)) = (rustix::process::geteuid().is_root(), nobody) else {
        println!("skipped: only root can become the user nobody");
        return;
    };
    let folder = store();
    let conf = folder.path().join("etc/proxy-server.conf");
    let text = std::fs::read_to_string(&conf).unwrap();
    let text = text.replacen("[DEFAULT]", "[DEFAULT]\nuser = nobody", 1);
    std::fs::write(&conf, text).unwrap();
    // The one under test may lie where only root gets to.
    let program = folder.path().join("cairn");
    std::fs::copy(env!("CARGO_BIN_EXE_cairn"), &program).unwrap();
    let own = |path: &Path, user: &str| {
        let mut chown = Command::new("chown");
        assert!(
            chown
                .args(["-R", user])
                .arg(path)
                .status()
                .unwrap()
                .success()
        );
    };
    own(folder.path(), "nobody");
    let server = Program::proxy_of(Command::new(&program), folder.path());
    let is_nobodys = |pid: u32| {
        let none = "0000000000000000";
        let is = |name: &str, value: &str| status_of(pid, name) == value;
        status_of(pid, "Uid").split_whitespace().all(|id| id == uid)
            && !status_of(pid, "Gid").split_whitespace().any(|id| id == "0")
            && !status_of(pid, "Groups")
                .split_whitespace()
                .any(|id| id == "0")
            && ["CapInh", "CapPrm", "CapEff", "CapAmb"]
                .iter()
                .all(|name| is(name, none))
            && is("NoNewPrivs", "1")
    };
    let before = server.workers();
    assert!(server.is_healthy() && before.len() == 1);
    assert!(is_nobodys(server.child.id()), "the parent");
    assert!(is_nobodys(before[0]), "the worker");
    server.signal(Signal::USR1);
    wait_for("another worker", || {
        let now = server.workers();
        now.len() == 1 && now != before && server.is_healthy()
    });
    let before = server.workers();
    assert!(is_nobodys(server.child.id()) && is_nobodys(before[0]));
    // A conf that this user cannot read changes nothing now, and keeps the next start from serving.
    own(&conf, "root");
    server.signal(Signal::USR1);
    std::thread::sleep(Duration::from_millis(300));
    assert!(server.is_healthy());
    assert_eq!(server.workers(), before);
    server.signal(Signal::TERM);
    wait_for("its end", || !is_there(server.child.id()));
    let refused = Command::new(&program)
        .arg0("swift-proxy-server")
        .arg(&conf)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success());
    assert!(
        error.contains("user = nobody: the server runs as this user"),
        "{error}"
    );
}

#[test]
fn what_keeps_it_from_starting_is_told() {
    let folder = store();
    let conf = folder.path().join("etc/proxy-server.conf");
    let text = std::fs::read_to_string(&conf).unwrap();
    std::fs::write(
        &conf,
        text.replace("egg:swift#slo", "egg:swift#no_such_filter"),
    )
    .unwrap();
    let output = cairn()
        .arg0("swift-proxy-server")
        .arg(&conf)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("no_such_filter"), "{said}");
}

/// A ring whose devices are at these ports of this host.
fn write_ring(path: &Path, ports: &[u16]) {
    let mut builder = cairn_ring::RingBuilder::new(4, 1.0, 0).unwrap();
    for port in ports {
        let device = cairn_ring::NewDevice {
            id: None,
            region: 1,
            zone: 1,
            weight: 1.0,
            ip: "127.0.0.1".into(),
            port: *port,
            device: format!("d{port}"),
            replication_ip: None,
            replication_port: None,
            meta: String::new(),
        };
        builder.add_dev(device).unwrap();
    }
    let options = cairn_ring::RebalanceOptions {
        seed: None,
        now: 0,
        log: None,
    };
    builder.rebalance(options).unwrap();
    let version = cairn_ring::FormatVersion::V1;
    builder.ring_data().save(path, version).unwrap();
}

/// An object server's conf with `servers_per_port`, its ring with the first two of three ports that
/// are free.
fn per_port(folder: &Path) -> (std::path::PathBuf, [u16; 3]) {
    let taken = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = taken
        .each_ref()
        .map(|taken| taken.local_addr().unwrap().port());
    let conf = folder.join("object-server.conf");
    let text = format!(
        "[DEFAULT]\nbind_ip = 127.0.0.1\nservers_per_port = 2\nring_check_interval = 0.2\n\
         swift_dir = {0}/etc\ndevices = {0}/dev\nmount_check = no\n\
         [pipeline:main]\npipeline = healthcheck object-server\n\
         [filter:healthcheck]\nuse = egg:swift#healthcheck\n\
         [app:object-server]\nuse = egg:swift#object\n",
        folder.display()
    );
    std::fs::write(&conf, text).unwrap();
    write_ring(&folder.join("etc/object.ring.gz"), &ports[..2]);
    (conf, ports)
}

/// The second port stays, the first goes, the third comes.
fn follows_the_ring(folder: &Path, [gone, stays, comes]: [u16; 3]) {
    let is_open = |port: u16| TcpStream::connect(("127.0.0.1", port)).is_ok();
    for port in [gone, stays] {
        assert!(is_healthy(("127.0.0.1", port)));
    }
    assert!(!is_open(comes));
    write_ring(&folder.join("etc/object.ring.gz"), &[stays, comes]);
    wait_for("the ring's ports", || {
        assert!(is_healthy(("127.0.0.1", stays)));
        is_open(comes) && !is_open(gone)
    });
    assert!(is_healthy(("127.0.0.1", comes)));
    assert!(is_healthy(("127.0.0.1", stays)));
}

#[test]
fn an_object_server_listens_where_the_ring_says() {
    let folder = store();
    let (conf, ports) = per_port(folder.path());
    let address = SocketAddr::from(([127, 0, 0, 1], ports[0]));
    let program = Program::start("swift-object-server", &conf, address);
    follows_the_ring(folder.path(), ports);
    let worker = program.workers();
    program.signal(Signal::USR1);
    wait_for("another worker", || {
        assert!(is_healthy(("127.0.0.1", ports[1])) && is_healthy(("127.0.0.1", ports[2])));
        let now = program.workers();
        now.len() == 1 && now != worker
    });
}

#[test]
fn so_does_cairn_serve() {
    let folder = store();
    let (conf, ports) = per_port(folder.path());
    let mut serve = cairn();
    serve.arg("serve").arg(&conf).stdout(Stdio::piped());
    let mut serve = Program {
        child: serve.spawn().unwrap(),
        address: SocketAddr::from(([127, 0, 0, 1], ports[0])),
    };
    let mut said = serve.child.stdout.take().unwrap();
    let mut lines = [0; 4096];
    assert_ne!(said.read(&mut lines).unwrap(), 0);
    follows_the_ring(folder.path(), ports);
    serve.signal(Signal::TERM);
    assert_eq!(serve.child.wait().unwrap().code(), Some(0));
}
