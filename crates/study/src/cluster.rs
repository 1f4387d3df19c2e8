//! A cell's cluster: emulated hardware, ring files made by `cairn ring`, conf files like an
//! operator's, and a `cairn serve` for each node. Removed when dropped.

mod files;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cairn_emulate::cgroup::GroupSpec;
use cairn_emulate::disk::DiskSpec;
use cairn_emulate::host;
use cairn_emulate::network::{HostSpec, NetworkSpec};
use cairn_emulate::world::{Counts, Made, World, WorldSpec};
use cairn_types::dilation;
use socket2::{Domain, Socket, Type};

use crate::file::{Class, Cluster, Node, Role, Store};
use crate::process::{self, Process, ProcessEnvironment};
use files::{Address, Files};

const START_TIMEOUT: Duration = Duration::from_secs(60);
const PROXY_PORT: u16 = 8080;
/// The user that drives load.
pub const USER: &str = "test:tester";
pub const KEY: &str = "testing";

/// Specification of a cluster to provision.
pub struct ClusterSpec<'a> {
    pub cluster: &'a Cluster,
    pub dilation: f64,
    pub seed: u64,
    /// This program.
    pub program: &'a Path,
    /// Folder of confs, rings and logs.
    pub folder: &'a Path,
    /// Folder of devices, and of the disks' content.
    pub scratch: &'a Path,
}

/// A running cluster.
pub struct Provisioned {
    // Dropped first, since the processes use the hardware.
    processes: Vec<Process>,
    world: Option<World>,
    /// Addresses of the proxies.
    pub proxies: Vec<String>,
    /// Their zones.
    pub zones: Vec<u32>,
    pub usable_bytes: f64,
    pub url: Option<String>,
    // Sockets that reserve the ports for this process.
    _ports: Vec<Socket>,
}

/// Reason why a cluster cannot be emulated here, in one line.
pub fn impossible(cluster: &Cluster) -> Option<String> {
    let has_disks = cluster
        .nodes
        .iter()
        .flat_map(|n| &n.devices)
        .any(|d| d.disk.is_some());
    let words = has_disks.then(host::no_disks).flatten();
    words.or_else(|| cluster.network.is_some().then(host::no_network).flatten())
}

impl Provisioned {
    /// Provisions the cluster, and waits until its servers answer.
    ///
    /// # Errors
    /// This host cannot emulate it, a file or ring cannot be written, or a server ends or does not
    /// answer in time.
    pub fn create(order: &ClusterSpec<'_>) -> Result<Provisioned> {
        let cluster = order.cluster;
        if cluster.store == Store::Existing {
            return Ok(Provisioned {
                processes: Vec::new(),
                world: None,
                proxies: Vec::new(),
                zones: Vec::new(),
                usable_bytes: f64::NAN,
                url: cluster.url.clone(),
                _ports: Vec::new(),
            });
        }
        if let Some(words) = impossible(cluster) {
            bail!("{words}");
        }
        let spec = world_spec(order);
        let is_empty = spec.disks.is_empty() && spec.groups.is_empty() && spec.network.is_none();
        let world = match is_empty {
            true => None,
            false => Some(World::start(order.program, &["study", "emulate"], spec)?),
        };
        let nothing = Made::default();
        let made = world.as_ref().map_or(&nothing, |world| world.made());
        let (addresses, ports) = addresses(cluster, made)?;
        for node in &cluster.nodes {
            for (number, device) in node.devices.iter().enumerate() {
                let at = devices(order, node).join(files::device_name(node, number));
                if device.disk.is_none() {
                    std::fs::create_dir_all(&at).with_context(|| at.display().to_string())?;
                }
            }
        }
        let files = Files::write(order, &addresses, |node| devices(order, node))?;
        let places = places(cluster, made);
        let mut provisioned = Provisioned {
            processes: Vec::new(),
            world,
            proxies: Vec::new(),
            zones: Vec::new(),
            usable_bytes: files.usable_bytes,
            url: None,
            _ports: ports,
        };
        provisioned.start(order, &files, &places, &addresses)?;
        Ok(provisioned)
    }

    fn start(
        &mut self,
        order: &ClusterSpec<'_>,
        files: &Files,
        places: &BTreeMap<String, ProcessEnvironment>,
        addresses: &BTreeMap<String, Address>,
    ) -> Result<()> {
        let logs = order.folder.join("log");
        std::fs::create_dir_all(&logs)?;
        for node in &order.cluster.nodes {
            let place = &places[&node.name];
            let mut command = process::command(place, order.program);
            command.arg("serve").args(&files.confs[&node.name]);
            command.env(dilation::VARIABLE, order.dilation.to_string());
            let log = logs.join(format!("{}.log", node.name));
            self.processes
                .push(Process::start(&node.name, &mut command, log)?);
        }
        let deadline = Instant::now() + START_TIMEOUT.mul_f64(order.dilation);
        for (number, node) in order.cluster.nodes.iter().enumerate() {
            let address = &addresses[&node.name];
            for role in &node.roles {
                let at = SocketAddr::from((address.ip, address.port(*role)));
                while !is_healthy(at) {
                    self.processes[number].check()?;
                    ensure!(
                        Instant::now() < deadline,
                        "the {} server of {} at {at} does not answer: {}",
                        role.name(),
                        node.name,
                        self.processes[number].last_words()
                    );
                    std::thread::sleep(Duration::from_millis(50));
                }
                if *role == Role::Proxy {
                    self.proxies.push(at.to_string());
                    self.zones.push(node.zone);
                }
            }
        }
        Ok(())
    }

    /// Counters of the emulated hardware; empty if nothing is emulated.
    ///
    /// # Errors
    /// The emulator has ended or gives no valid answer: see [`World::counts`].
    pub fn counts(&mut self) -> Result<Counts> {
        match &mut self.world {
            Some(world) => Ok(world.counts()?),
            None => Ok(Counts::default()),
        }
    }

    pub fn made(&self) -> Made {
        self.world
            .as_ref()
            .map(|w| w.made().clone())
            .unwrap_or_default()
    }

    /// Has disks answer at once, for preparation that is not measured, or in their own time.
    ///
    /// # Errors
    /// The emulator has ended or gives no valid answer: see [`World::set_free`].
    pub fn set_free(&mut self, is_free: bool) -> Result<()> {
        match &mut self.world {
            Some(world) => Ok(world.set_free(is_free)?),
            None => Ok(()),
        }
    }

    /// Kills the nodes of a zone.
    pub fn lose(&mut self, zone: u32, cluster: &Cluster) {
        let lost = cluster.nodes.iter().filter(|node| node.zone == zone);
        let names: Vec<&str> = lost.map(|node| node.name.as_str()).collect();
        self.processes.retain(|p| !names.contains(&p.name.as_str()));
    }

    /// CPU time that the store's processes have used.
    pub fn cpu_used_ns(&self) -> u64 {
        let used = |p: &Process| process::cpu_used_ns(p.id());
        self.processes.iter().map(used).sum()
    }

    /// Time that the store's threads have waited for a CPU.
    pub fn cpu_wait_ns(&self) -> u64 {
        self.processes
            .iter()
            .map(|p| process::cpu_wait_ns(p.id()))
            .sum()
    }

    /// Fails if a server has ended.
    ///
    /// # Errors
    /// A server has ended; the error has its last output.
    pub fn check(&mut self) -> Result<()> {
        self.processes.iter_mut().try_for_each(Process::check)
    }

    /// The servers' last output, for an error.
    pub fn last_words(&self) -> String {
        let words = |p: &Process| format!("{}:\n{}", p.name, p.last_words());
        self.processes
            .iter()
            .map(words)
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// Ends everything in order.
    pub fn tear_down(mut self) {
        self.take_down();
    }

    fn take_down(&mut self) {
        if let Some(world) = &mut self.world {
            // Shutdown is not measured: disks need not delay it.
            let _ = world.set_free(true);
        }
        self.processes.iter().for_each(Process::tell_to_end);
        self.processes.iter_mut().for_each(Process::end);
        self.processes.clear();
        self.world.take();
    }
}

impl Drop for Provisioned {
    fn drop(&mut self) {
        self.take_down();
    }
}

/// The folder of a node's devices.
fn devices(order: &ClusterSpec<'_>, node: &Node) -> PathBuf {
    order.scratch.join("srv").join(&node.name)
}

/// The hardware in this host's time.
fn world_spec(order: &ClusterSpec<'_>) -> WorldSpec {
    let (cluster, factor) = (order.cluster, order.dilation);
    let mut spec = WorldSpec::default();
    for node in &cluster.nodes {
        for (number, device) in node.devices.iter().enumerate() {
            let Some(medium) = &device.disk else {
                continue;
            };
            let name = files::device_name(node, number);
            spec.disks.push(DiskSpec {
                mount_point: Some(devices(order, node).join(&name)),
                folder: order.scratch.join("disks"),
                file_system: cluster.file_system,
                size: device.size,
                medium: medium.dilated(factor),
                seed: order.seed.wrapping_add(spec.disks.len() as u64),
                name,
            });
        }
        let Class {
            cpu_cores, memory, ..
        } = node.limits;
        if cpu_cores.is_some() || memory.is_some() {
            spec.groups.push(GroupSpec {
                name: node.name.clone(),
                cpu_cores: cpu_cores.map(|cores| cores / factor),
                memory_bytes: memory,
            });
        }
    }
    spec.network = cluster
        .network
        .as_ref()
        .map(|_| network_spec(cluster, factor));
    spec
}

fn network_spec(cluster: &Cluster, factor: f64) -> NetworkSpec {
    let network = cluster.network.clone().unwrap_or_default();
    let mut sites: Vec<(u32, u32)> = cluster.nodes.iter().map(|n| (n.region, n.zone)).collect();
    // Clients are in a region, but in none of its zones.
    sites.push((network.client_region, 0));
    sites.sort_unstable();
    sites.dedup();
    let rtt = |a: &(u32, u32), b: &(u32, u32)| match (a == b, a.0 == b.0) {
        (true, _) => network.zone_rtt_ms * 1e3 * factor,
        (false, true) => network.region_rtt_ms * 1e3 * factor,
        (false, false) => network.far_rtt_ms * 1e3 * factor,
    };
    let site = |of: (u32, u32)| sites.binary_search(&of).unwrap_or(0);
    let host = |node: &Node| HostSpec {
        name: node.name.clone(),
        site: site((node.region, node.zone)),
        mb_per_s: node
            .limits
            .mb_per_s
            .or(network.mb_per_s)
            .map(|rate| rate / factor),
    };
    NetworkSpec {
        hosts: cluster.nodes.iter().map(host).collect(),
        outside_site: site((network.client_region, 0)),
        rtt_us: sites
            .iter()
            .map(|a| sites.iter().map(|b| rtt(a, b)).collect())
            .collect(),
    }
}

/// Each node's address and ports, with sockets that reserve the ports.
fn addresses(cluster: &Cluster, made: &Made) -> Result<(BTreeMap<String, Address>, Vec<Socket>)> {
    let mut addresses = BTreeMap::new();
    let mut sockets = Vec::new();
    for node in &cluster.nodes {
        let address = match made.hosts.get(&node.name) {
            Some((_, ip)) => Address {
                ip: ip.parse().context("an address of the emulator")?,
                ports: BTreeMap::from([
                    (Role::Proxy, PROXY_PORT),
                    (Role::Object, 6200),
                    (Role::Container, 6201),
                    (Role::Account, 6202),
                ]),
            },
            None => {
                let mut ports = BTreeMap::new();
                for role in &node.roles {
                    let (port, socket) = free_port()?;
                    ports.insert(*role, port);
                    sockets.push(socket);
                }
                Address {
                    ip: Ipv4Addr::LOCALHOST,
                    ports,
                }
            }
        };
        addresses.insert(node.name.clone(), address);
    }
    Ok((addresses, sockets))
}

/// A port reserved as long as the socket lives: it is bound without listening, and servers set
/// `SO_REUSEADDR`.
fn free_port() -> Result<(u16, Socket)> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    socket.set_reuse_address(true)?;
    let address = socket.local_addr()?.as_socket();
    let port = address.context("a socket without an address")?.port();
    Ok((port, socket))
}

fn places(cluster: &Cluster, made: &Made) -> BTreeMap<String, ProcessEnvironment> {
    let place = |node: &Node| ProcessEnvironment {
        namespace: made
            .hosts
            .get(&node.name)
            .map(|(namespace, _)| namespace.clone()),
        entrances: made.entrances.get(&node.name).cloned().unwrap_or_default(),
    };
    cluster
        .nodes
        .iter()
        .map(|node| (node.name.clone(), place(node)))
        .collect()
}

/// Does `GET /healthcheck` respond 200? Any kind of server is asked, by hand, as only a proxy speaks
/// the API of `cairn_client`.
fn is_healthy(at: SocketAddr) -> bool {
    let ask = || -> std::io::Result<bool> {
        let timeout = Duration::from_secs(5);
        let mut stream = TcpStream::connect_timeout(&at, timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.write_all(b"GET /healthcheck HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut head = [0; 12];
        stream.read_exact(&mut head)?;
        Ok(&head == b"HTTP/1.1 200")
    };
    ask().unwrap_or(false)
}
