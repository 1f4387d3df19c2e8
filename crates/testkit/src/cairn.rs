//! Cairn as a user runs it: `cairn up` writes a store's confs and rings, `cairn serve` runs the
//! servers, in one process or one per role. Uses confs and device folders on disk, and no other
//! internals.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::conf::{KEYMASTER_OPTIONS, option_of, users, with_option, with_option_added};
use crate::process::{Process, free_ports, free_range, wait_for};
use crate::wire::{Account, Connection};
use crate::workspace::{run_quiet, utf8};

/// Distribution of the roles over processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// All servers in one process, as `cairn up` has them.
    OneProcess,
    /// The proxy, and the account, container and object servers each in a process.
    ProcessPerRole,
}

const ROLES: [&str; 4] = ["account", "container", "object", "proxy"];

/// A store of Cairn; its processes are killed when dropped.
pub struct Cairn {
    binary: PathBuf,
    /// The store's data folder, or the folder of logs for given confs.
    dir: PathBuf,
    /// Address of the first proxy.
    pub address: SocketAddr,
    confs: Vec<PathBuf>,
    processes: Vec<Process>,
}

impl Cairn {
    /// Creates a new store's confs and rings below `dir`, by `cairn up --write-only`. Its objects are files.
    ///
    /// # Errors
    /// No range of ports is free, `cairn up` fails, a role has no conf below `dir`, or a conf
    /// cannot be read or written.
    pub fn create(binary: &Path, dir: &Path, bind: Option<SocketAddr>) -> Result<Cairn> {
        let address = match bind {
            Some(address) => address,
            None => ([127, 0, 0, 1], free_range(100)?).into(),
        };
        let mut command = Command::new(binary);
        command.args(["up", "--write-only", "--devices", "4", "--replicas", "3"]);
        command
            .arg("--data")
            .arg(dir)
            .args(["--bind", &format!("127.0.0.1:{}", address.port())]);
        for user in users() {
            let mut groups = vec![user.key.clone()];
            groups.extend(user.groups);
            command.arg("--user").arg(format!(
                "{}:{}={}",
                user.account,
                user.name,
                groups.join(",")
            ));
        }
        run_quiet(&mut command)?;
        let mut confs = Vec::new();
        find_confs(dir, &mut confs)?;
        confs.sort();
        for role in ROLES {
            ensure!(
                confs.iter().any(|c| role_of(c) == Some(role)),
                "no {role} conf below {}",
                dir.display()
            );
        }
        let cairn = Cairn {
            binary: binary.to_owned(),
            dir: dir.to_owned(),
            address,
            confs,
            processes: Vec::new(),
        };
        let module = std::env::var_os("CAIRN_ENGINE");
        cairn.set_engine(module.map(|module| module.to_string_lossy().into_owned()))?;
        // `up` refuses the users' well-known keys beyond loopback.
        cairn.set("proxy", "DEFAULT", "bind_ip", &address.ip().to_string())?;
        Ok(cairn)
    }

    /// Sets `diskfile_module` of the only policy; `None`: files, whatever `up` chose. With `$CAIRN_ENGINE`
    /// every new store has that, so that each suite can be run on each engine.
    fn set_engine(&self, module: Option<String>) -> Result<()> {
        let conf = self.conf("object").context("there is no object conf")?;
        let conf = conf.with_file_name("swift.conf");
        let text = std::fs::read_to_string(&conf)?;
        let lines = text.split_inclusive('\n');
        let others = lines.filter(|line| !line.starts_with("diskfile_module"));
        let mut text: String = others.collect();
        if let Some(module) = module {
            text = with_option(&text, "storage-policy:0", "diskfile_module", &module);
        }
        Ok(std::fs::write(conf, text)?)
    }

    /// A store of given confs; `dir` is for logs.
    pub fn of_confs(binary: &Path, dir: &Path, port: u16, confs: Vec<PathBuf>) -> Cairn {
        let address = ([127, 0, 0, 1], port).into();
        Cairn {
            binary: binary.to_owned(),
            dir: dir.to_owned(),
            address,
            confs,
            processes: Vec::new(),
        }
    }

    /// Port of the first proxy.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Logs in as test:tester.
    ///
    /// # Errors
    /// See [`Account::login_to`].
    pub fn account(&self) -> Result<Account> {
        Account::login(self.port())
    }

    /// URL of the first proxy, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The first conf of `role`.
    pub fn conf(&self, role: &str) -> Option<PathBuf> {
        let mut confs = self.confs.iter();
        confs.find(|conf| role_of(conf) == Some(role)).cloned()
    }

    /// Sets an option in every conf of `role` that has the section; a missing section belongs to
    /// middleware that is not in the pipeline.
    ///
    /// # Errors
    /// A conf of `role` cannot be read or written. No such conf is no error.
    pub fn set(&self, role: &str, section: &str, option: &str, value: &str) -> Result<()> {
        for conf in self.confs.iter().filter(|c| role_of(c) == Some(role)) {
            let text = std::fs::read_to_string(conf)?;
            std::fs::write(conf, with_option(&text, section, option, value))?;
        }
        Ok(())
    }

    /// Sets an option like [`Cairn::set`], adding the section if it is missing.
    ///
    /// # Errors
    /// Those of [`Cairn::set`].
    pub fn set_or_add(&self, role: &str, section: &str, option: &str, value: &str) -> Result<()> {
        for conf in self.confs.iter().filter(|c| role_of(c) == Some(role)) {
            let text = std::fs::read_to_string(conf)?;
            std::fs::write(conf, with_option_added(&text, section, option, value))?;
        }
        Ok(())
    }

    /// Enables encryption: adds `keymaster` and `encryption` behind all filters except logging.
    /// `options` are those of `encryption`.
    ///
    /// # Errors
    /// There is no conf of a proxy, the first has no line `pipeline = `, or a conf cannot be
    /// read or written.
    pub fn encrypt(&self, options: &[(&str, &str)]) -> Result<()> {
        let conf = self.conf("proxy").context("there is no proxy's conf")?;
        let text = std::fs::read_to_string(&conf)?;
        let line = text.lines().find(|line| line.starts_with("pipeline = "));
        let line = line.with_context(|| format!("no pipeline in {}", conf.display()))?;
        let (filters, last) = match line.rsplit_once(" proxy-logging ") {
            Some((filters, app)) if !app.contains(' ') => (filters, format!("proxy-logging {app}")),
            _ => {
                let (filters, app) = line.rsplit_once(' ').context("an empty pipeline")?;
                (filters, app.to_owned())
            }
        };
        let with = format!("{filters} keymaster encryption {last}");
        std::fs::write(&conf, text.replacen(line, &with, 1))?;
        for (option, value) in KEYMASTER_OPTIONS {
            self.set_or_add("proxy", "filter:keymaster", option, value)?;
        }
        self.set_or_add("proxy", "filter:keymaster", "use", "egg:swift#keymaster")?;
        for (option, value) in options {
            self.set_or_add("proxy", "filter:encryption", option, value)?;
        }
        self.set_or_add("proxy", "filter:encryption", "use", "egg:swift#encryption")
    }

    /// Adds a second proxy with TLS; returns its port, and the certificate for clients to trust.
    ///
    /// # Errors
    /// There is no conf of a proxy, `cairn up` fails, the conf it writes has no `cert_file`, no
    /// port is free, or a conf cannot be read or written.
    pub fn add_tls_proxy(&mut self) -> Result<(u16, PathBuf)> {
        let write = |tls: &str| {
            let mut command = Command::new(&self.binary);
            command.args(["up", "--write-only", tls, "--data"]);
            run_quiet(command.arg(&self.dir))
        };
        let conf = self.conf("proxy").context("there is no proxy's conf")?;
        write("--tls")?;
        let text = std::fs::read_to_string(&conf)?;
        write("--tls=off")?;
        let cert = text
            .lines()
            .find_map(|line| line.strip_prefix("cert_file = "));
        let cert = cert.with_context(|| format!("no cert_file in {}", conf.display()))?;
        let port = free_ports(1)?[0];
        let second = conf.with_file_name("proxy-server-tls.conf");
        let with = with_option(&text, "DEFAULT", "bind_port", &port.to_string());
        std::fs::write(&second, with)?;
        self.confs.push(second);
        Ok((port, PathBuf::from(cert)))
    }

    /// Adds a server, besides those that `up` wrote.
    pub fn add_conf(&mut self, conf: PathBuf) {
        self.confs.push(conf);
    }

    /// Adds a second storage policy on the same ring. `coded`: the first is erasure-coded, with as
    /// many fragments as the ring has replicas.
    ///
    /// # Errors
    /// `swift.conf` beside the first conf cannot be read or written, or (if `coded`) has no policy
    /// 0; or the ring cannot be copied.
    pub fn add_policy(&self, coded: bool) -> Result<()> {
        let etc = self.confs[0].parent().context("a conf is in a folder")?;
        let conf = etc.join("swift.conf");
        let mut text = std::fs::read_to_string(&conf)
            .with_context(|| format!("reading {}", conf.display()))?;
        if coded {
            let first = "[storage-policy:0]\n";
            ensure!(text.contains(first), "no {first:?} in {}", conf.display());
            let options = "policy_type = erasure_coding\nec_type = isa_l_rs_vand\n\
                           ec_num_data_fragments = 2\nec_num_parity_fragments = 1\n\
                           ec_object_segment_size = 65536\n";
            text = text.replace(first, &format!("{first}{options}"));
        }
        text.push_str("\n[storage-policy:1]\nname = second\n");
        std::fs::write(&conf, text)?;
        std::fs::copy(etc.join("object.ring.gz"), etc.join("object-1.ring.gz"))?;
        Ok(())
    }

    /// Starts the servers of all confs and waits until they answer.
    ///
    /// # Errors
    /// A conf cannot be read, its path is not UTF-8, or its `bind_ip` and `bind_port` are no
    /// address; a process cannot be started or ends; or the servers do not answer within 60
    /// seconds.
    pub fn start(&mut self, spread: Spread) -> Result<()> {
        match spread {
            Spread::OneProcess => self.serve("cairn", &self.confs.clone())?,
            Spread::ProcessPerRole => {
                for role in ROLES {
                    let of_role: Vec<PathBuf> = self
                        .confs
                        .iter()
                        .filter(|c| role_of(c) == Some(role))
                        .cloned()
                        .collect();
                    self.serve(role, &of_role)?;
                }
            }
        }
        self.wait_until_ready()
    }

    fn serve(&mut self, name: &str, confs: &[PathBuf]) -> Result<()> {
        let mut args = vec!["serve"];
        for conf in confs {
            args.push(utf8(conf)?);
        }
        let process = Process::start(name, &self.binary, &args, &self.dir.join("log"))?;
        self.processes.push(process);
        Ok(())
    }

    /// Waits for the sockets of all servers, then for the proxy's answer: a proxy in a process of its own
    /// may answer before the servers behind it listen, and would count them as failed.
    fn wait_until_ready(&mut self) -> Result<()> {
        let listening = self.listening()?;
        let address = reachable(self.address);
        let processes = &mut self.processes;
        wait_for("the servers' sockets and GET /healthcheck", 60, || {
            if let Some(words) = processes.iter_mut().find_map(Process::ended) {
                bail!("{words}");
            }
            if !listening.iter().all(|at| TcpStream::connect(at).is_ok()) {
                return Ok(false);
            }
            let answer = Connection::to(address).call("GET", "/healthcheck", &[], b"");
            Ok(answer.is_ok_and(|a| a.status == 200))
        })
    }

    /// The addresses on which the servers of the confs will listen.
    fn listening(&self) -> Result<Vec<SocketAddr>> {
        let mut addresses = Vec::new();
        for conf in self.confs.iter().filter(|conf| role_of(conf).is_some()) {
            let text = std::fs::read_to_string(conf)?;
            let Some(port) = option_of(&text, "DEFAULT", "bind_port") else {
                continue;
            };
            let ip = option_of(&text, "DEFAULT", "bind_ip").unwrap_or("0.0.0.0");
            let address = format!("{ip}:{port}").parse();
            addresses.push(reachable(address.with_context(|| {
                format!("bind_ip {ip} and bind_port {port} in {}", conf.display())
            })?));
        }
        Ok(addresses)
    }

    /// Sends SIGKILL to every process of the store.
    pub fn kill(&mut self) {
        self.processes.iter_mut().for_each(Process::kill);
        self.processes.clear();
    }

    /// Sends SIGTERM to one process after the other, the last started first, and waits for its end.
    ///
    /// # Errors
    /// A process did not end by itself within ten seconds. It and those started before it are
    /// killed.
    pub fn stop(&mut self) -> Result<()> {
        for mut process in std::mem::take(&mut self.processes).into_iter().rev() {
            let name = process.name().to_owned();
            ensure!(
                process.stop(),
                "{name} did not end on SIGTERM:\n{}",
                process.log_tail()
            );
        }
        Ok(())
    }

    /// The processes that were started.
    pub fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// The last lines of all logs.
    pub fn log_tail(&self) -> String {
        self.processes
            .iter()
            .map(Process::log_tail)
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// The folder of each object device: the folders in the conf's `devices`.
    ///
    /// # Errors
    /// A conf of an object server cannot be read or has no `devices`, or that folder cannot be
    /// listed.
    pub fn devices(&self) -> Result<Vec<PathBuf>> {
        let mut devices = Vec::new();
        for conf in self.confs.iter().filter(|c| role_of(c) == Some("object")) {
            let text = std::fs::read_to_string(conf)?;
            let root = text
                .lines()
                .filter_map(|line| line.split_once('='))
                .find(|(name, _)| name.trim() == "devices")
                .map(|(_, value)| PathBuf::from(value.trim()))
                .with_context(|| format!("{} has no devices", conf.display()))?;
            for entry in std::fs::read_dir(root)? {
                let path = entry?.path();
                let hidden = path
                    .file_name()
                    .is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
                if path.is_dir() && !hidden {
                    devices.push(path);
                }
            }
        }
        devices.sort();
        devices.dedup();
        Ok(devices)
    }
}

/// The address by which this host reaches a socket bound to `address`.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip([127, 0, 0, 1].into());
    }
    address
}

/// The role of a conf: `…/object-server/1.conf`, `object-server.conf`.
fn role_of(conf: &Path) -> Option<&'static str> {
    let folder = conf
        .parent()
        .and_then(Path::file_name)
        .unwrap_or_default()
        .to_string_lossy();
    let file = conf.file_name().unwrap_or_default().to_string_lossy();
    let is = |name: &str, role: &str| name.starts_with(&format!("{role}-server"));
    ROLES
        .into_iter()
        .find(|role| is(&file, role) || is(&folder, role))
}

fn find_confs(dir: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            find_confs(&path, found)?;
        } else if path.extension().is_some_and(|e| e == "conf") && role_of(&path).is_some() {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_roles() {
        assert_eq!(
            role_of(Path::new("/e/object-server/1.conf")),
            Some("object")
        );
        assert_eq!(role_of(Path::new("/e/proxy-server.conf")), Some("proxy"));
        assert_eq!(role_of(Path::new("/e/swift.conf")), None);
    }
}
