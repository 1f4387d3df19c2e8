//! The running cluster: four storage hosts in two regions and three zones with two disks each, a
//! proxy in either region, and the faults that can be applied to them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::clients::FinishedRequest;
use super::disks::Disk;
use super::layout::{KINDS, Layout, PROXY_PORT, ProxyOptions, Storage};
use super::network::{Host, Network, ensure_reached};
use crate::engine::EngineName;
use cairn_testkit::process::Process;
use cairn_testkit::workspace::utf8;

/// Region and zone of each storage host.
const PLACES: [(u8, u8); 4] = [(1, 1), (1, 2), (2, 3), (2, 3)];
const DISKS: usize = 2;

pub(super) struct Cluster {
    // Dropped before the network, whose namespaces disappear when no process is left in them.
    processes: Vec<Option<Process>>,
    pub(super) storage: Vec<Storage>,
    pub(super) proxies: Vec<Host>,
    pub(super) layout: Layout,
    binary: PathBuf,
    dir: PathBuf,
    pub(super) network: Network,
}

impl Cluster {
    /// Creates all files and hosts; starts nothing.
    pub(super) fn create(
        dir: &Path,
        binary: &Path,
        coded: bool,
        engine: Option<EngineName>,
    ) -> Result<Cluster> {
        let mut network = Network::create(dir)?;
        let layout = Layout::create(dir, binary, coded, engine)?;
        let mut storage = Vec::new();
        for (number, (region, zone)) in (1..).zip(PLACES) {
            let name = format!("s{number}");
            let disks = (1..=DISKS).map(|disk| {
                let name = format!("d{}", (number - 1) * DISKS + disk);
                let path = dir.join(format!("srv/s{number}/{name}"));
                Disk { name, path }
            });
            storage.push(Storage {
                host: network.add(&name, region)?,
                zone,
                disks: disks.collect(),
            });
        }
        let proxies = vec![network.add("p1", 1)?, network.add("p2", 2)?];
        for disk in storage.iter().flat_map(|node| &node.disks) {
            disk.plug_in()?;
        }
        layout.build_rings(&storage)?;
        let cluster = Cluster {
            processes: (0..storage.len() + proxies.len()).map(|_| None).collect(),
            storage,
            proxies,
            layout,
            binary: binary.to_owned(),
            dir: dir.to_owned(),
            network,
        };
        let hosts: Vec<Host> = cluster.hosts().cloned().collect();
        ensure_reached(&hosts)?;
        Ok(cluster)
    }

    fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.storage.iter().map(|s| &s.host).chain(&self.proxies)
    }

    /// Starts everything, the proxies with different options.
    pub(super) fn start(&mut self, options: &[ProxyOptions<'_>; 2]) -> Result<()> {
        for number in 0..self.storage.len() {
            self.start_storage(number)?;
        }
        for (number, options) in options.iter().enumerate() {
            self.layout.proxy_conf(&self.proxies[number], options)?;
            self.start_proxy(number)?;
        }
        Ok(())
    }

    pub(super) fn start_storage(&mut self, number: usize) -> Result<()> {
        let node = &self.storage[number];
        let devices = self.dir.join("srv").join(&node.host.name);
        let confs = self.layout.storage_confs(node, &devices)?;
        let host = node.host.clone();
        self.serve(number, &host, &confs)?;
        for (_, port) in KINDS {
            self.wait_for(number, (host.address, port).into())?;
        }
        Ok(())
    }

    fn start_proxy(&mut self, number: usize) -> Result<()> {
        let host = self.proxies[number].clone();
        let conf = self
            .layout
            .etc
            .join(format!("proxy-server/{}.conf", host.name));
        let index = self.storage.len() + number;
        self.serve(index, &host, &[conf])?;
        self.wait_for(index, self.proxy_address(number))
    }

    pub(super) fn proxy_address(&self, number: usize) -> SocketAddr {
        (self.proxies[number].address, PROXY_PORT).into()
    }

    fn serve(&mut self, index: usize, host: &Host, confs: &[PathBuf]) -> Result<()> {
        let (enter, binary) = (host.enter(), self.binary.display().to_string());
        let mut arguments = vec![enter.as_str(), &binary, "serve"];
        for conf in confs {
            arguments.push(utf8(conf)?);
        }
        let log = self.dir.join("log");
        let process = Process::start(&host.name, Path::new("nsenter"), &arguments, &log)?;
        self.processes[index] = Some(process);
        Ok(())
    }

    fn wait_for(&mut self, index: usize, address: SocketAddr) -> Result<()> {
        let process = self.processes[index].as_mut().context("it was started")?;
        process.wait_for_answer(address, "/healthcheck", 120)
    }

    /// Powers a storage host off: all its processes end, and it does not respond.
    pub(super) fn kill_storage(&mut self, number: usize) -> Result<()> {
        self.network.link(&self.storage[number].host, false)?;
        if let Some(mut process) = self.processes[number].take() {
            process.kill();
        }
        Ok(())
    }

    /// Powers a storage host on.
    pub(super) fn revive_storage(&mut self, number: usize) -> Result<()> {
        self.network.link(&self.storage[number].host, true)?;
        self.start_storage(number)
    }

    /// Stops the processes of a storage host; its kernel still accepts connections.
    pub(super) fn freeze_storage(&self, number: usize) {
        if let Some(process) = &self.processes[number] {
            process.signal(Signal::STOP);
        }
    }

    pub(super) fn thaw_storage(&self, number: usize) {
        if let Some(process) = &self.processes[number] {
            process.signal(Signal::CONT);
        }
    }

    /// Stops a proxy in order, so that its clients are refused; it is restarted later.
    pub(super) fn stop_proxy(&mut self, number: usize) {
        let index = self.storage.len() + number;
        if let Some(mut process) = self.processes[index].take() {
            process.stop();
        }
    }

    pub(super) fn restart_proxy(
        &mut self,
        number: usize,
        options: &ProxyOptions<'_>,
    ) -> Result<()> {
        self.stop_proxy(number);
        self.layout.proxy_conf(&self.proxies[number], options)?;
        self.start_proxy(number)
    }

    /// The end of all logs, for an error.
    pub(super) fn log_tails(&self) -> String {
        let tail = |process: &Process| format!("{}:\n{}", process.name(), process.log_tail());
        let all: Vec<String> = self.processes.iter().flatten().map(tail).collect();
        all.join("\n")
    }

    /// A client's error with the related log lines of all hosts.
    pub(super) fn said_of(&self, seen: &FinishedRequest) -> String {
        let mut text = seen.error.clone().unwrap_or_default();
        for process in self.processes.iter().flatten() {
            let Some(trans_id) = &seen.trans_id else {
                break;
            };
            for line in process.log_lines(trans_id) {
                text.push_str(&format!("\n    {}: {line}", process.name()));
            }
        }
        text
    }

    /// Stops everything, within each program's time limit.
    pub(super) fn stop(&mut self) {
        for mut process in self.processes.drain(..).flatten() {
            process.kill();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
