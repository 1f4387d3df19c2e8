//! A Ceph cluster from Debian's packages on loopback: a monitor, a manager, OSDs on files, and a
//! RADOS gateway with the Swift API. In a folder of its own, independent of the host's
//! configuration.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use cairn_testkit::process::{Process, free_ports, wait_for_port};
use cairn_testkit::workspace::{install, run_quiet, utf8};

/// Programs and the Debian packages that contain them.
const PROGRAMS: [(&str, &str); 5] = [
    ("ceph-mon", "ceph-mon"),
    ("ceph-mgr", "ceph-mgr"),
    ("ceph-osd", "ceph-osd"),
    ("radosgw", "radosgw"),
    ("rados", "ceph-common"),
];
const OSDS: u32 = 3;
/// Size of the sparse file of an OSD.
const OSD_BYTES: u64 = 6 << 30;
const HEALTHY_WITHIN: Duration = Duration::from_secs(120);

pub(crate) struct Ceph {
    dir: PathBuf,
    port: u16,
    gateway: u16,
    /// The monitor, the manager, the OSDs in order, the gateway.
    processes: Vec<Process>,
}

/// Are its programs installed, or can they be?
pub(crate) fn is_there() -> bool {
    PROGRAMS
        .iter()
        .all(|(program, package)| install(program, package))
}

impl Ceph {
    pub(crate) fn start(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let ports = free_ports(2)?;
        let mut ceph = Self {
            dir: dir.to_owned(),
            port: ports[0],
            gateway: ports[1],
            processes: Vec::new(),
        };
        let id = run_quiet(Command::new("cat").arg("/proc/sys/kernel/random/uuid"))?;
        let id = id.trim();
        std::fs::write(ceph.conf(), conf(dir, ceph.port, id))?;
        ceph.start_monitor(id)?;
        ceph.start_manager()?;
        for number in 0..OSDS {
            ceph.make_osd(number)?;
            ceph.start_osd(number)?;
        }
        ceph.make_pool("lab")?;
        Ok(ceph)
    }

    pub(crate) fn conf(&self) -> PathBuf {
        self.dir.join("ceph.conf")
    }

    pub(crate) fn keyring(&self) -> PathBuf {
        self.dir.join("client.admin.keyring")
    }

    /// The monitor's address, in the form of the lab's option.
    pub(crate) fn monitor(&self) -> String {
        format!("v2:127.0.0.1:{}", self.port)
    }

    /// A Ceph program with the cluster's conf.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("--conf").arg(self.conf());
        command
    }

    pub(crate) fn ask(&self, program: &str, arguments: &[&str]) -> Result<String> {
        run_quiet(self.command(program).args(arguments))
    }

    /// The admin's key.
    pub(crate) fn key(&self) -> Result<String> {
        let key = self.ask("ceph", &["auth", "get-key", "client.admin"])?;
        Ok(key.trim().to_owned())
    }

    pub(crate) fn make_pool(&self, name: &str) -> Result<()> {
        self.ask("ceph", &["osd", "pool", "create", name, "16"])?;
        let enable = ["osd", "pool", "application", "enable", name, "rados"];
        self.ask("ceph", &enable)?;
        let deadline = Instant::now() + HEALTHY_WITHIN;
        loop {
            let state = self.ask("ceph", &["pg", "stat"])?;
            let is_clean = |part: &str| part.contains("active+clean");
            let groups = state.split(';').next().unwrap_or_default();
            if is_clean(groups) && groups.split(',').count() == 1 {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "placement groups: {state}");
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    fn path(&self, name: &str) -> Result<String> {
        Ok(utf8(&self.dir.join(name))?.to_owned())
    }

    fn daemon(&mut self, name: &str, program: &str, arguments: &[&str]) -> Result<()> {
        let conf = self.path("ceph.conf")?;
        let mut all = vec!["--conf", &conf, "--foreground"];
        all.extend(arguments);
        let process = Process::start(name, Path::new(program), &all, &self.dir.join("logs"))?;
        self.processes.push(process);
        Ok(())
    }

    fn start_monitor(&mut self, id: &str) -> Result<()> {
        let (admin, own) = (
            self.path("client.admin.keyring")?,
            self.path("mon.keyring")?,
        );
        let (map, data) = (self.path("monmap")?, self.path("mon.a")?);
        let tool = |arguments: &[&str]| run_quiet(Command::new("ceph-authtool").args(arguments));
        let all = [
            "--cap", "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mgr", "allow *",
        ];
        let make = [
            "--create-keyring",
            &admin,
            "--gen-key",
            "-n",
            "client.admin",
        ];
        tool(&[&make[..], &all[..]].concat())?;
        let make = ["--create-keyring", &own, "--gen-key", "-n", "mon."];
        tool(&[&make[..], &all[..3]].concat())?;
        tool(&[&own, "--import-keyring", &admin])?;
        let address = format!("[{}]", self.monitor());
        let make = ["--create", "--addv", "a", &address, "--fsid", id, &map];
        run_quiet(Command::new("monmaptool").args(make))?;
        std::fs::create_dir_all(&data)?;
        let make = ["--mkfs", "-i", "a", "--monmap", &map, "--keyring", &own];
        self.ask("ceph-mon", &make)?;
        self.daemon("mon.a", "ceph-mon", &["-i", "a"])?;
        wait_for_port(self.port, &mut self.processes)
    }

    fn start_manager(&mut self) -> Result<()> {
        let get = [
            "auth",
            "get-or-create",
            "mgr.x",
            "mon",
            "allow profile mgr",
            "osd",
            "allow *",
        ];
        let keyring = self.ask("ceph", &get)?;
        std::fs::write(self.dir.join("mgr.x.keyring"), keyring)?;
        self.daemon("mgr.x", "ceph-mgr", &["-i", "x"])
    }

    fn make_osd(&self, number: u32) -> Result<()> {
        let id = run_quiet(Command::new("cat").arg("/proc/sys/kernel/random/uuid"))?;
        let secret = run_quiet(Command::new("ceph-authtool").arg("--gen-print-key"))?;
        let (id, secret) = (id.trim(), secret.trim());
        let json = self.path(&format!("osd.{number}.json"))?;
        std::fs::write(&json, format!("{{\"cephx_secret\": \"{secret}\"}}"))?;
        self.ask("ceph", &["osd", "new", id, "-i", &json])?;
        let name = format!("osd.{number}");
        let data = self.path(&name)?;
        std::fs::create_dir_all(&data)?;
        let keyring = self.path(&format!("{name}.keyring"))?;
        let make = [
            "--create-keyring",
            &keyring,
            "--name",
            &name,
            "--add-key",
            secret,
        ];
        run_quiet(Command::new("ceph-authtool").args(make))?;
        let number = number.to_string();
        let make = [
            "-i",
            &number,
            "--osd-data",
            &data,
            "--mkfs",
            "--osd-uuid",
            id,
        ];
        self.ask("ceph-osd", &make)?;
        Ok(())
    }

    fn start_osd(&mut self, number: u32) -> Result<()> {
        let name = format!("osd.{number}");
        let (data, number) = (self.path(&name)?, number.to_string());
        self.daemon(&name, "ceph-osd", &["-i", &number, "--osd-data", &data])
    }

    /// Sends SIGKILL to OSDs.
    pub(crate) fn kill_osds(&mut self, numbers: &[u32]) {
        for number in numbers {
            let name = format!("osd.{number}");
            let of = |process: &&mut Process| process.name() == name;
            if let Some(process) = self.processes.iter_mut().find(of) {
                process.kill();
            }
        }
        self.processes
            .retain(|process| !numbers.iter().any(|n| process.name() == format!("osd.{n}")));
    }

    /// Starts the gateway, with the Swift user test:tester and the key testing; returns its URL for
    /// logins.
    pub(crate) fn start_gateway(&mut self) -> Result<String> {
        let get = [
            "auth",
            "get-or-create",
            "client.rgw",
            "mon",
            "allow rwx",
            "osd",
            "allow rwx",
        ];
        let keyring = self.ask("ceph", &get)?;
        std::fs::write(self.dir.join("client.rgw.keyring"), keyring)?;
        let frontend = format!("--rgw-frontends=beast endpoint=127.0.0.1:{}", self.gateway);
        self.daemon("rgw", "radosgw", &["-n", "client.rgw", &frontend])?;
        wait_for_port(self.gateway, &mut self.processes)?;
        let user = ["user", "create", "--uid=test", "--display-name=test"];
        self.ask("radosgw-admin", &user)?;
        let login = [
            "subuser",
            "create",
            "--uid=test",
            "--subuser=test:tester",
            "--access=full",
            "--key-type=swift",
            "--secret-key=testing",
        ];
        self.ask("radosgw-admin", &login)?;
        Ok(format!("http://127.0.0.1:{}/auth/v1.0", self.gateway))
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        // The gateway and the OSDs before the daemons they depend on.
        while let Some(mut process) = self.processes.pop() {
            process.kill();
        }
    }
}

fn conf(dir: &Path, port: u16, id: &str) -> String {
    let dir = dir.display();
    format!(
        "[global]\n\
         fsid = {id}\n\
         mon_host = v2:127.0.0.1:{port}\n\
         mon_initial_members = a\n\
         auth_cluster_required = cephx\n\
         auth_service_required = cephx\n\
         auth_client_required = cephx\n\
         keyring = {dir}/$name.keyring\n\
         admin_socket =\n\
         pid_file =\n\
         log_file = {dir}/logs/$name.ceph.log\n\
         run_dir = {dir}\n\
         crash_dir = {dir}\n\
         osd_pool_default_size = 3\n\
         osd_pool_default_min_size = 2\n\
         osd_crush_chooseleaf_type = 0\n\
         osd_pool_default_pg_num = 16\n\
         osd_pool_default_pg_autoscale_mode = off\n\
         mon_allow_pool_delete = true\n\
         bluestore_block_size = {OSD_BYTES}\n\
         bluestore_cache_autotune = false\n\
         bluestore_cache_size = 134217728\n\
         public_network = 127.0.0.0/8\n\
         [mon.a]\n\
         host = localhost\n\
         mon_data = {dir}/mon.a\n\
         public_addr = v2:127.0.0.1:{port}\n\
         auth_allow_insecure_global_id_reclaim = false\n"
    )
}
