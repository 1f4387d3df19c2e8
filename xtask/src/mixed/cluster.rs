//! Four nodes, each with an account, a container and an object server and a device, and two proxies
//! behind a balancer. Any of them is OpenStack Swift's or Cairn's, over the same confs, rings and
//! folders, and may be swapped for the other while the rest goes on.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, bail, ensure};

use super::balancer::Balancer;
use super::confs::{self, NODES};
use super::volumes;
use cairn_testkit::process::{Process, free_ports, wait_for_port};
use cairn_testkit::swift::{KINDS, Swift};
use cairn_testkit::venv::Venv;
use cairn_testkit::workspace::{self, utf8};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Swift,
    Cairn,
}

impl Kind {
    pub(super) const BOTH: [Kind; 2] = [Kind::Swift, Kind::Cairn];

    /// Folder of this implementation's programs.
    pub(super) fn folder(self) -> &'static str {
        match self {
            Kind::Swift => "bin-swift",
            Kind::Cairn => "bin-cairn",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Swift => "OpenStack Swift",
            Kind::Cairn => "Cairn",
        })
    }
}

/// A server or proxy of the cluster; nodes and proxies are numbered from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Account(usize),
    Container(usize),
    Object(usize),
    Proxy(usize),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Account(n) => write!(f, "account server {n}"),
            Part::Container(n) => write!(f, "container server {n}"),
            Part::Object(n) => write!(f, "object server {n}"),
            Part::Proxy(n) => write!(f, "proxy {n}"),
        }
    }
}

pub(super) struct Cluster {
    pub(super) swift: Swift,
    pub(super) dir: PathBuf,
    proxies: [(PathBuf, u16); 2],
    pub(super) balancer: Arc<Balancer>,
    running: BTreeMap<Part, Process>,
    /// The implementation whose background daemons run, for each node.
    pub(super) daemons: [Kind; NODES],
    /// Object servers of Cairn keep objects in volumes.
    pub(super) has_volumes: bool,
    rsync: Option<Process>,
}

impl Cluster {
    /// Writes everything below `dir`; starts no process.
    pub(super) fn create(
        venv: &Venv,
        dir: &Path,
        encryption: bool,
        has_volumes: bool,
    ) -> Result<Cluster> {
        ensure!(workspace::install("rsync", "rsync"), "rsync is missing");
        let swift = Swift::create(venv, &dir.join("swift"), confs::layout(encryption))?;
        let ports = free_ports(2)?;
        let [first, second] = confs::complete(&swift, dir, [ports[0], ports[1]])?;
        confs::programs(venv, &swift, dir)?;
        if has_volumes {
            volumes::complete(&swift, dir)?;
        }
        let proxies = [(first, swift.port), (second, ports[0])];
        let mut rsync = Process::start(
            "rsync",
            Path::new("rsync"),
            &[
                "--daemon",
                "--no-detach",
                &format!("--config={}", dir.join("rsyncd.conf").display()),
            ],
            &dir.join("log"),
        )?;
        wait_for_port(ports[1], std::slice::from_mut(&mut rsync))?;
        let ports = proxies.clone().map(|(_, port)| port);
        Ok(Cluster {
            swift,
            dir: dir.to_owned(),
            proxies,
            balancer: Arc::new(Balancer::new(&ports)),
            running: BTreeMap::new(),
            daemons: [Kind::Swift; NODES],
            has_volumes,
            rsync: Some(rsync),
        })
    }

    pub(super) fn ports(&self) -> [u16; 2] {
        [self.proxies[0].1, self.proxies[1].1]
    }

    pub(super) fn program(&self, kind: Kind, name: &str) -> PathBuf {
        self.dir.join(kind.folder()).join(name)
    }

    /// Starts all servers, of one implementation.
    pub(super) fn start(&mut self, kind: Kind) -> Result<()> {
        self.swift.start_memcached()?;
        for part in all_parts() {
            let process = self.spawn(part, kind)?;
            self.running.insert(part, process);
        }
        all_parts().try_for_each(|part| self.wait(part))
    }

    /// Stops one server and starts the other implementation's in its place, on the same conf.
    pub(super) fn swap(&mut self, part: Part, kind: Kind) -> Result<()> {
        if let Part::Proxy(number) = part {
            self.balancer.drain(number - 1)?;
        }
        if let Some(mut old) = self.running.remove(&part) {
            if let Some(words) = old.ended() {
                bail!("{part} had ended by itself: {words}");
            }
            if !old.stop() {
                println!("{part} was killed: it did not end within ten seconds of SIGTERM");
            }
        }
        if let Part::Object(node) = part
            && self.has_volumes
        {
            volumes::migrate(self, node, kind)?;
        }
        let process = self.spawn(part, kind)?;
        self.running.insert(part, process);
        self.wait(part)?;
        if let Part::Proxy(number) = part {
            self.balancer.restore(number - 1);
        }
        Ok(())
    }

    /// Ends a server without a word.
    pub(super) fn kill(&mut self, part: Part) -> Result<()> {
        let Some(mut process) = self.running.remove(&part) else {
            bail!("{part} was not started");
        };
        process.kill();
        Ok(())
    }

    /// Starts a server of Cairn that was killed.
    pub(super) fn revive(&mut self, part: Part) -> Result<()> {
        let process = self.spawn(part, Kind::Cairn)?;
        self.running.insert(part, process);
        self.wait(part)
    }

    /// Whether a node's object daemons are in its object server's process.
    pub(super) fn has_own_daemons(&self, node: usize) -> bool {
        self.has_volumes && self.daemons[node - 1] == Kind::Cairn
    }

    fn spawn(&self, part: Part, kind: Kind) -> Result<Process> {
        if let Part::Object(node) = part
            && self.has_volumes
            && kind == Kind::Cairn
        {
            let (program, conf) = volumes::serve(&self.dir, node);
            let name = format!("{}-object-{node}", kind.folder());
            let arguments = ["serve", utf8(&conf)?];
            return Process::start(&name, &program, &arguments, &self.dir.join("log"));
        }
        let (role, conf, number) = match part {
            Part::Proxy(n) => ("proxy", self.proxies[n - 1].0.clone(), n),
            Part::Account(n) => ("account", self.swift.server_conf("account", n), n),
            Part::Container(n) => ("container", self.swift.server_conf("container", n), n),
            Part::Object(n) => ("object", self.swift.server_conf("object", n), n),
        };
        let conf = utf8(&conf)?;
        let name = format!("{}-{role}-{number}", kind.folder());
        let program = self.program(kind, &format!("swift-{role}-server"));
        Process::start(&name, &program, &[conf, "verbose"], &self.dir.join("log"))
    }

    /// Waits until the part answers.
    fn wait(&mut self, part: Part) -> Result<()> {
        let port = match part {
            Part::Proxy(n) => self.proxies[n - 1].1,
            Part::Account(n) => self.swift.port_of("account", n),
            Part::Container(n) => self.swift.port_of("container", n),
            Part::Object(n) => self.swift.port_of("object", n),
        };
        let Some(process) = self.running.get_mut(&part) else {
            bail!("{part} was not started");
        };
        process.wait_for_answer((Ipv4Addr::LOCALHOST, port), "/healthcheck", 60)
    }

    pub(super) fn stop(&mut self) {
        // Proxies stop first, so that no request is cut off at a backend server.
        while let Some((_, mut process)) = self.running.pop_last() {
            process.stop();
        }
        self.swift.stop();
        if let Some(mut rsync) = self.rsync.take() {
            rsync.stop();
        }
    }
}

fn all_parts() -> impl Iterator<Item = Part> {
    let nodes = KINDS.into_iter().flat_map(|kind| {
        (1..=NODES).map(move |node| match kind {
            "account" => Part::Account(node),
            "container" => Part::Container(node),
            _ => Part::Object(node),
        })
    });
    nodes.chain([Part::Proxy(1), Part::Proxy(2)])
}
