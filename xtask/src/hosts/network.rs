//! Hosts as network namespaces: those of a region behind one bridge, the regions behind one router
//! (a namespace, too) that can drop packets between them. The clients run in this program's
//! namespace, on a link of their own to the router.
//!
//! All addresses are in a /24 of 198.18.0.0/15, which is reserved for benchmarks (RFC 2544): `.1`
//! and `.2` the clients' link, `.64/26` region 1, `.128/26` region 2. The router drops by `ip
//! rule`, so no tool but `ip` is needed.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;

use cairn_testkit::workspace::run_quiet;

/// Prefix of all names of a run, before its process id.
const TAG: &str = "ch";
pub(super) const REGIONS: [u8; 2] = [1, 2];

/// Treatment of packets between the regions during a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// The router responds with an error, so connecting fails at once.
    Refused,
    /// Packets are dropped.
    Silent,
}

/// The namespaces of a run; removed with their processes when dropped.
pub(super) struct Network {
    tag: String,
    /// Third byte of all addresses.
    subnet: u8,
    hosts: u8,
}

/// One host.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) region: u8,
    pub(super) address: Ipv4Addr,
    namespace: String,
}

impl Host {
    /// Arguments for `nsenter` to run a program there. The mount namespace is shared.
    pub(super) fn enter(&self) -> String {
        format!("--net=/run/netns/{}", self.namespace)
    }
}

/// Resources for a signal handler to remove: the run's tag and its folder.
static LEFT: Mutex<Option<(String, PathBuf)>> = Mutex::new(None);

fn ip(arguments: &str) -> Result<()> {
    let mut command = Command::new("ip");
    run_quiet(command.args(arguments.split(' '))).map(|_| ())
}

fn names(of: &str) -> Vec<String> {
    let output = Command::new("ip").args(["netns", "list"]).output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
    let text = text.unwrap_or_default();
    let first = text.lines().filter_map(|line| line.split(' ').next());
    first
        .filter(|name| name.starts_with(of))
        .map(str::to_owned)
        .collect()
}

/// Reason why hosts are not possible here, in one line.
pub(super) fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root, for network namespaces".to_owned());
    }
    for (program, package) in [
        ("ip", "iproute2"),
        ("nsenter", "util-linux"),
        ("setpriv", "util-linux"),
    ] {
        if !cairn_testkit::workspace::install(program, package) {
            return Some(format!("needs {program}: install the package {package}"));
        }
    }
    let trial = format!("{TAG}{}-trial", std::process::id());
    let made = ip(&format!("netns add {trial}"))
        .and_then(|()| ip(&format!("-n {trial} link add trial type bridge")));
    let _ = ip(&format!("netns del {trial}"));
    let Err(error) = made else {
        return super::disks::missing();
    };
    let words = format!("{error:#}").replace('\n', " ");
    Some(format!("no network namespaces here: {words}"))
}

impl Network {
    /// Creates the router and its bridges. File systems mounted below `dir` are unmounted at the
    /// end.
    pub(super) fn create(dir: &Path) -> Result<Network> {
        let pid = std::process::id();
        let tag = format!("{TAG}{pid}");
        remember(&tag, dir);
        let subnet = free_subnet(pid)?;
        let network = Network {
            tag: tag.clone(),
            subnet,
            hosts: 0,
        };
        let router = network.router();
        ip(&format!("netns add {router}"))?;
        let within = |rest: &str| ip(&format!("-n {router} {rest}"));
        ip(&format!(
            "link add {tag}u type veth peer name out netns {router}"
        ))?;
        ip(&format!("addr add 198.18.{subnet}.1/26 dev {tag}u"))?;
        ip(&format!("link set {tag}u up"))?;
        within(&format!("addr add 198.18.{subnet}.2/26 dev out"))?;
        within("link set out up")?;
        within("link set lo up")?;
        for region in REGIONS {
            let first = base(region);
            within(&format!("link add br{region} type bridge"))?;
            within(&format!(
                "addr add 198.18.{subnet}.{}/26 dev br{region}",
                first + 1
            ))?;
            within(&format!("link set br{region} up"))?;
            ip(&format!(
                "route add 198.18.{subnet}.{first}/26 via 198.18.{subnet}.2"
            ))?;
        }
        // Every refused packet must be answered, without the limit of one per second.
        let script = "echo 1 > /proc/sys/net/ipv4/ip_forward && \
                      echo 0 > /proc/sys/net/ipv4/icmp_ratelimit";
        let enter = format!("--net=/run/netns/{router}");
        run_quiet(Command::new("nsenter").args([&enter, "sh", "-c", script]))?;
        Ok(network)
    }

    fn router(&self) -> String {
        format!("{}-r", self.tag)
    }

    /// Adds a host to a region.
    pub(super) fn add(&mut self, name: &str, region: u8) -> Result<Host> {
        self.hosts += 1;
        let (subnet, router) = (self.subnet, self.router());
        let address = Ipv4Addr::new(198, 18, subnet, base(region) + 10 + self.hosts);
        let namespace = format!("{}-{name}", self.tag);
        ip(&format!("netns add {namespace}"))?;
        let within = |rest: &str| ip(&format!("-n {namespace} {rest}"));
        ip(&format!(
            "-n {router} link add {name} type veth peer name eth0 netns {namespace}"
        ))?;
        ip(&format!("-n {router} link set {name} master br{region} up"))?;
        within(&format!("addr add {address}/26 dev eth0"))?;
        within("link set eth0 up")?;
        within("link set lo up")?;
        let gateway = base(region) + 1;
        within(&format!("route add default via 198.18.{subnet}.{gateway}"))?;
        Ok(Host {
            name: name.to_owned(),
            region,
            address,
            namespace,
        })
    }

    /// Disconnects or connects the host's cable.
    pub(super) fn link(&self, host: &Host, up: bool) -> Result<()> {
        let state = if up { "up" } else { "down" };
        ip(&format!(
            "-n {} link set {} {state}",
            self.router(),
            host.name
        ))
    }

    /// Cuts the regions off from each other.
    pub(super) fn cut(&self, cut: Cut) -> Result<()> {
        self.rules("add", cut)
    }

    /// Ends a cut.
    pub(super) fn mend(&self, cut: Cut) -> Result<()> {
        self.rules("del", cut)
    }

    fn rules(&self, verb: &str, cut: Cut) -> Result<()> {
        let (subnet, router) = (self.subnet, self.router());
        let kind = match cut {
            Cut::Refused => "prohibit",
            Cut::Silent => "blackhole",
        };
        for (from, to) in [(1, 2), (2, 1)] {
            let (from, to) = (base(from), base(to));
            ip(&format!(
                "-n {router} rule {verb} from 198.18.{subnet}.{from}/26 to \
                 198.18.{subnet}.{to}/26 {kind}"
            ))?;
        }
        Ok(())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        clear();
    }
}

fn base(region: u8) -> u8 {
    region * 64
}

/// A subnet for which there is no route.
fn free_subnet(seed: u32) -> Result<u8> {
    let output = run_quiet(Command::new("ip").args(["route", "show"]))?;
    (0..=255u32)
        .map(|number| ((seed + number) % 256) as u8)
        .find(|subnet| !output.contains(&format!("198.18.{subnet}.")))
        .context("all of 198.18.0.0/16 is in use")
}

/// Makes a signal remove everything and then end the program.
fn remember(tag: &str, dir: &Path) {
    *LEFT.lock() = Some((tag.to_owned(), dir.to_owned()));
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        std::thread::spawn(|| {
            if cairn_testkit::workspace::wait_for_end().is_ok() {
                eprintln!("ending: hosts are taken down");
                if let Some(dir) = clear() {
                    let _ = std::fs::remove_dir_all(dir);
                }
                std::process::exit(130);
            }
        });
    });
    clear_dead();
}

/// Kills the processes in the run's namespaces, removes those, and unmounts file systems.
fn clear() -> Option<PathBuf> {
    let (tag, dir) = LEFT.lock().take()?;
    remove(&tag);
    super::disks::unmount_below(&dir);
    Some(dir)
}

fn remove(tag: &str) {
    for name in names(&format!("{tag}-")) {
        let pids = Command::new("ip").args(["netns", "pids", &name]).output();
        let pids = pids.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
        for pid in pids.unwrap_or_default().lines() {
            if let Some(pid) = pid.parse().ok().and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        let _ = ip(&format!("netns del {name}"));
    }
    // Its other end was removed with the router.
    let _ = ip(&format!("link del {tag}u"));
}

/// Removes leftovers of killed runs.
fn clear_dead() {
    let mut dead: Vec<String> = names(TAG)
        .iter()
        .filter_map(|name| name.split_once('-').map(|(tag, _)| tag.to_owned()))
        .filter(|tag| {
            let pid = &tag[TAG.len()..];
            pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists()
        })
        .collect();
    dead.dedup();
    dead.iter().for_each(|tag| remove(tag));
}

/// Checks that all hosts are reachable from here.
pub(super) fn ensure_reached(hosts: &[Host]) -> Result<()> {
    for host in hosts {
        // A port without a listener: refused by the host itself, if it is there.
        let address = (host.address, 9).into();
        let tried =
            std::net::TcpStream::connect_timeout(&address, std::time::Duration::from_secs(3));
        let refused = matches!(&tried, Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused);
        ensure!(
            refused,
            "{} at {} is not reached: {tried:?}",
            host.name,
            host.address
        );
    }
    Ok(())
}
