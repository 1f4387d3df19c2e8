//! The real OpenStack Swift on loopback, the peer that Cairn is measured and checked against: one
//! proxy with TempAuth, memcached, and per device one object, one container and one account server.
//! The background daemons do not run by themselves; `once` runs one of them, and `start_updaters`
//! those that bring rows into listings.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};

use crate::conf::{KEYMASTER_OPTIONS, pipeline, users, with_option};
use crate::process::{Process, free_ports, wait_for_port};
use crate::venv::Venv;
use crate::workspace::{install, root, run_quiet, utf8};

/// Kinds of servers behind a proxy.
pub const KINDS: [&str; 3] = ["object", "container", "account"];

/// Upstream's default middleware, in upstream's order.
pub const FULL_PIPELINE: &str = "catch_errors gatekeeper healthcheck proxy-logging cache \
     etag-quoter domain_remap listing_formats bulk tempurl formpost crossdomain s3api tempauth \
     staticweb copy container-quotas account-quotas slo dlo versioned_writes symlink \
     proxy-logging proxy-server";

/// The minimal pipeline that every store needs.
pub const CORE_PIPELINE: &str = "catch_errors gatekeeper healthcheck proxy-logging cache \
     listing_formats tempauth copy proxy-logging proxy-server";

/// Like [`CORE_PIPELINE`], with objects encrypted.
pub const ENCRYPTED_CORE_PIPELINE: &str = "catch_errors gatekeeper healthcheck \
     proxy-logging cache listing_formats tempauth copy keymaster encryption proxy-logging \
     proxy-server";

/// Like [`FULL_PIPELINE`], with objects encrypted.
pub const ENCRYPTED_FULL_PIPELINE: &str = "catch_errors gatekeeper healthcheck \
     proxy-logging cache etag-quoter domain_remap listing_formats bulk tempurl formpost crossdomain \
     s3api tempauth staticweb copy container-quotas account-quotas slo dlo versioned_writes symlink \
     keymaster encryption proxy-logging proxy-server";

/// Shape of a store.
pub struct Layout {
    /// Number of devices, each of a node of its own.
    pub devices: usize,
    /// Replicas of the rings, but for erasure-coded policies.
    pub replicas: usize,
    /// Worker processes of each account, container and object server.
    pub workers: usize,
    /// Worker processes of the proxy.
    pub proxy_workers: usize,
    /// The proxy's pipeline.
    pub pipeline: &'static str,
    /// Partition power of all rings.
    pub part_power: u32,
    /// Number of the first device in the account and container rings.
    pub rows_from: usize,
    /// Data and parity fragments of a second, erasure-coded policy `coded`.
    pub coded: Option<(usize, usize)>,
    /// Limits in swift.conf (`max_object_name_length`, …) that are not the default.
    pub constraints: Vec<(&'static str, usize)>,
}

impl Default for Layout {
    fn default() -> Self {
        Layout {
            devices: 4,
            replicas: 3,
            workers: 1,
            proxy_workers: 2,
            pipeline: FULL_PIPELINE,
            part_power: 10,
            rows_from: 1,
            coded: None,
            constraints: Vec::new(),
        }
    }
}

/// A store of OpenStack Swift below a folder; its processes are killed when dropped.
pub struct Swift {
    dir: PathBuf,
    layout: Layout,
    bin: PathBuf,
    /// The proxy's port.
    pub port: u16,
    memcached_port: u16,
    /// Ports by device, then in the order of `KINDS`.
    ports: Vec<[u16; 3]>,
    processes: Vec<Process>,
}

impl Swift {
    /// Writes confs, rings and device folders below `dir`; starts no process.
    ///
    /// # Errors
    /// memcached is missing and cannot be installed, too few ports are free, a file cannot be
    /// written, `id -un` fails, or `swift-ring-builder` cannot be run or writes no ring.
    pub fn create(venv: &Venv, dir: &Path, layout: Layout) -> Result<Swift> {
        ensure!(
            install("memcached", "memcached"),
            "memcached is missing (apt-get install memcached)"
        );
        let free = free_ports(2 + layout.devices * KINDS.len())?;
        let ports = free[2..]
            .chunks(KINDS.len())
            .map(|c| [c[0], c[1], c[2]])
            .collect();
        let swift = Swift {
            dir: dir.to_owned(),
            layout,
            bin: venv.bin.clone(),
            port: free[0],
            memcached_port: free[1],
            ports,
            processes: Vec::new(),
        };
        std::fs::create_dir_all(swift.etc())?;
        std::fs::create_dir_all(dir.join("cache"))?;
        std::fs::write(swift.etc().join("swift.conf"), swift.policies())?;
        std::fs::write(swift.proxy_conf(), swift.proxy_conf_text()?)?;
        for (index, kind) in KINDS.iter().enumerate() {
            std::fs::create_dir_all(swift.etc().join(format!("{kind}-server")))?;
            for device in 1..=swift.layout.devices {
                std::fs::create_dir_all(swift.node(device).join(format!("d{device}")))?;
                std::fs::write(
                    swift.server_conf(kind, device),
                    swift.server_conf_text(index, device),
                )?;
            }
            swift.build_ring(kind, index, swift.layout.replicas)?;
        }
        if let Some((data, parity)) = swift.layout.coded {
            swift.build_ring("object-1", 0, data + parity)?;
        }
        Ok(swift)
    }

    /// The folder of confs and rings.
    pub fn etc(&self) -> PathBuf {
        self.dir.join("etc")
    }

    /// The `devices` folder of a node.
    pub fn node(&self, device: usize) -> PathBuf {
        self.dir.join(format!("dev/node{device}"))
    }

    /// The proxy's conf.
    pub fn proxy_conf(&self) -> PathBuf {
        self.etc().join("proxy-server.conf")
    }

    /// The conf of a kind of server on a device.
    pub fn server_conf(&self, kind: &str, device: usize) -> PathBuf {
        self.etc().join(format!("{kind}-server/{device}.conf"))
    }

    /// The port of a kind of server on a device.
    pub fn port_of(&self, kind: &str, device: usize) -> u16 {
        let index = KINDS.iter().position(|k| *k == kind).unwrap_or(0);
        self.ports[device - 1][index]
    }

    /// Paths of all confs: the proxy's, then the servers'.
    pub fn confs(&self) -> Vec<PathBuf> {
        let mut all = vec![self.proxy_conf()];
        for kind in KINDS {
            all.extend((1..=self.layout.devices).map(|device| self.server_conf(kind, device)));
        }
        all
    }

    /// The conf of a pipeline for requests of daemons.
    pub fn internal_client(&self) -> String {
        let filters = pipeline(
            "catch_errors proxy-logging proxy-server",
            |name| match name {
                "proxy-server" => "account_autocreate = true\n".to_owned(),
                _ => String::new(),
            },
        );
        format!("[DEFAULT]\nswift_dir = {}\n{filters}", self.etc().display())
    }

    fn proxy_conf_text(&self) -> Result<String> {
        let filters = pipeline(self.layout.pipeline, |name| {
            filter_options(name, self.memcached_port)
        });
        Ok(format!(
            "[DEFAULT]\nbind_ip = 127.0.0.1\nbind_port = {}\nworkers = {}\nuser = {}\nswift_dir = {}\n\
             log_address = /dev/null\n{filters}",
            self.port,
            self.layout.proxy_workers,
            user()?,
            self.etc().display(),
        ))
    }

    fn server_conf_text(&self, kind: usize, device: usize) -> String {
        let name = KINDS[kind];
        let cache = format!("recon_cache_path = {}\n", self.dir.join("cache").display());
        let filters = pipeline(
            &format!("healthcheck recon {name}-server"),
            |name| match name {
                "recon" => cache.clone(),
                _ => String::new(),
            },
        );
        let mut text = format!(
            "[DEFAULT]\nbind_ip = 127.0.0.1\nbind_port = {}\nworkers = {}\nuser = {}\nswift_dir = {}\n\
             devices = {}\nmount_check = false\n{cache}log_address = /dev/null\n{filters}\
             [{name}-replicator]\n[{name}-auditor]\n",
            self.ports[device - 1][kind],
            self.layout.workers,
            user().unwrap_or_else(|_| "root".to_owned()),
            self.etc().display(),
            self.node(device).display(),
        );
        if name != "account" {
            text.push_str(&format!("[{name}-updater]\n"));
        }
        text
    }

    fn policies(&self) -> String {
        let mut text = SWIFT_CONF.to_owned();
        if let Some((data, parity)) = self.layout.coded {
            text.push_str(&format!(
                "[storage-policy:1]\nname = coded\npolicy_type = erasure_coding\n\
                 ec_type = isa_l_rs_vand\nec_num_data_fragments = {data}\n\
                 ec_num_parity_fragments = {parity}\nec_object_segment_size = 65536\n"
            ));
        }
        if !self.layout.constraints.is_empty() {
            text.push_str("[swift-constraints]\n");
        }
        for (limit, value) in &self.layout.constraints {
            text.push_str(&format!("{limit} = {value}\n"));
        }
        text
    }

    fn build_ring(&self, name: &str, kind: usize, replicas: usize) -> Result<()> {
        let builder = self.etc().join(format!("{name}.builder"));
        let run = |args: &[String]| {
            let mut command = std::process::Command::new(self.bin.join("swift-ring-builder"));
            // The program exits with 1 for a mere warning; whether the ring's file exists is
            // checked instead.
            command.arg(&builder).args(args).output().map(|_| ())
        };
        run(&[
            "create".into(),
            self.layout.part_power.to_string(),
            replicas.to_string(),
            "0".into(),
        ])?;
        let mut add = vec!["add".to_owned()];
        let first = match name {
            "account" | "container" => self.layout.rows_from,
            _ => 1,
        };
        for device in first..=self.layout.devices {
            add.push(format!(
                "r1z{device}-127.0.0.1:{}/d{device}",
                self.ports[device - 1][kind]
            ));
            add.push("1".into());
        }
        run(&add)?;
        run(&["rebalance".into()])?;
        let ring = self.etc().join(format!("{name}.ring.gz"));
        ensure!(
            ring.exists(),
            "swift-ring-builder wrote no {}",
            ring.display()
        );
        Ok(())
    }

    /// Starts memcached, the servers and the proxy, and waits until all of them listen.
    ///
    /// # Errors
    /// `id -un` fails, or a program cannot be started (see [`Process::start`]), ends, or does not
    /// listen within 240 seconds.
    pub fn start(&mut self) -> Result<()> {
        self.start_memcached()?;
        for kind in KINDS {
            for device in 1..=self.layout.devices {
                let conf = self.server_conf(kind, device);
                self.start_one(
                    &format!("{kind}-{device}"),
                    &format!("swift-{kind}-server"),
                    &conf,
                )?;
            }
        }
        self.start_one("proxy", "swift-proxy-server", &self.proxy_conf())?;
        let mut all: Vec<u16> = self.ports.iter().flatten().copied().collect();
        all.push(self.port);
        for port in all {
            wait_for_port(port, &mut self.processes)?;
        }
        Ok(())
    }

    /// Starts the peer's cache, which Cairn on the same conf uses too.
    ///
    /// # Errors
    /// `id -un` fails, memcached cannot be started or does not listen within 240 seconds, or it or a
    /// process started before has ended.
    pub fn start_memcached(&mut self) -> Result<()> {
        let port = self.memcached_port.to_string();
        let user = user()?;
        let args = [
            "-l",
            "127.0.0.1",
            "-p",
            &port,
            "-m",
            "64",
            "-c",
            "4096",
            "-u",
            &user,
        ];
        self.processes.push(Process::start(
            "memcached",
            Path::new("memcached"),
            &args,
            &self.dir.join("log"),
        )?);
        wait_for_port(self.memcached_port, &mut self.processes)
    }

    /// Starts a further proxy of the same store.
    ///
    /// # Errors
    /// The program cannot be started: see [`Process::start`]. Its later end is not noticed here.
    pub fn start_proxy(&mut self, name: &str, conf: &Path) -> Result<()> {
        self.start_one(name, "swift-proxy-server", conf)
    }

    /// Starts the object updaters, which go on for as long as the store runs: rows that a container
    /// server did not take within a second are in its listings after their next pass.
    ///
    /// # Errors
    /// A conf cannot be read or written, or a program cannot be started. Its later end is noticed by
    /// [`Swift::start`] alone.
    pub fn start_updaters(&mut self) -> Result<()> {
        for device in 1..=self.layout.devices {
            let conf = self.server_conf("object", device);
            let text = std::fs::read_to_string(&conf)?;
            let often = with_option(&text, "object-updater", "interval", "5");
            std::fs::write(&conf, often)?;
            let name = format!("object-updater-{device}");
            self.start_in_folder(&name, "swift-object-updater", &conf)?;
        }
        Ok(())
    }

    fn start_one(&mut self, name: &str, program: &str, conf: &Path) -> Result<()> {
        if !self.layout.constraints.is_empty() {
            return self.start_in_folder(name, program, conf);
        }
        let args = [utf8(conf)?];
        let process = Process::start(name, &self.bin.join(program), &args, &self.dir.join("log"))?;
        self.processes.push(process);
        Ok(())
    }

    /// Starts a program that has this store's swift.conf from its first line on.
    fn start_in_folder(&mut self, name: &str, program: &str, conf: &Path) -> Result<()> {
        let (etc, program) = (self.etc(), self.bin.join(program));
        let script = root().join("tests/swift_in.py");
        let args = [utf8(&script)?, utf8(&etc)?, utf8(&program)?, utf8(conf)?];
        let (python, log) = (self.bin.join("python"), self.dir.join("log"));
        self.processes
            .push(Process::start(name, &python, &args, &log)?);
        Ok(())
    }

    /// Runs one pass of a background daemon (`object-updater`, …) on every device.
    ///
    /// # Errors
    /// There is no `-` in the name, or a pass cannot be started or ends with another status than
    /// success. The later devices get no pass then.
    pub fn once(&self, daemon: &str) -> Result<()> {
        let Some((kind, _)) = daemon.split_once('-') else {
            bail!("no daemon {daemon}")
        };
        let script = root().join("tests/swift_once.py");
        for device in 1..=self.layout.devices {
            let mut command = std::process::Command::new(self.bin.join("python"));
            command
                .arg(&script)
                .arg(self.etc())
                .arg(daemon)
                .arg(self.server_conf(kind, device));
            run_quiet(&mut command)?;
        }
        Ok(())
    }

    /// The processes that were started.
    pub fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// Sends SIGKILL to every process of the store: its cache, and all tokens in it, is gone too.
    pub fn kill(&mut self) {
        self.processes.iter_mut().rev().for_each(Process::kill);
        self.processes.clear();
    }

    /// Stops every process.
    pub fn stop(&mut self) {
        // The proxy stops first, so that no request is cut off at a backend.
        while let Some(mut process) = self.processes.pop() {
            process.stop();
        }
    }
}

// Swift's servers read the policies from /etc/swift/swift.conf before they know of any other
// folder, and keep the default name of policy 0 if it has none there: ours is the same.
const SWIFT_CONF: &str = "[swift-hash]\nswift_hash_path_prefix = cairn\nswift_hash_path_suffix = cairn\n\
     [storage-policy:0]\nname = Policy-0\ndefault = yes\n";

fn user() -> Result<String> {
    Ok(run_quiet(std::process::Command::new("id").arg("-un"))?
        .trim()
        .to_owned())
}

fn filter_options(name: &str, memcached_port: u16) -> String {
    match name {
        "proxy-server" => "account_autocreate = true\nallow_account_management = true\nallow_open_expired = true\n".into(),
        "cache" => format!(
            // With the default of 2 connections, logins fail under 256 clients.
            "memcache_servers = 127.0.0.1:{memcached_port}\nmemcache_max_connections = 100\n"
        ),
        "tempauth" => {
            let mut text =
                "reseller_prefix = AUTH, SERVICE\nSERVICE_require_group = service\n".to_owned();
            for user in users() {
                text.push_str(&format!(
                    "user_{}_{} = {} {}\n",
                    user.account,
                    user.name,
                    user.key,
                    user.groups.join(" ")
                ));
            }
            text
        }
        "s3api" => {
            "s3_acl = yes\ncheck_bucket_owner = yes\ncors_preflight_allow_origin = *\n".into()
        }
        "keymaster" => KEYMASTER_OPTIONS
            .iter()
            .map(|(option, value)| format!("{option} = {value}\n"))
            .collect(),
        "domain_remap" => "storage_domain = example.com\n".into(),
        "slo" => "allow_async_delete = true\n".into(),
        "versioned_writes" => {
            "allow_versioned_writes = true\nallow_object_versioning = true\n".into()
        }
        _ => String::new(),
    }
}
