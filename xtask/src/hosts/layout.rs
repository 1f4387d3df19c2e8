//! The cluster's files: swift.conf, rings, a conf for each server of each host, as an operator
//! writes them. Only the daemons' intervals are specific to the test.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::disks::Disk;
use super::network::Host;
use crate::engine::EngineName;
use cairn_testkit::conf::pipeline;
use cairn_testkit::workspace::run_quiet;

pub(super) const PROXY_PORT: u16 = 8080;
pub(super) const OBJECT_PORT: u16 = 6200;
pub(super) const KINDS: [(&str, u16); 3] = [
    ("account", 6202),
    ("container", 6201),
    ("object", OBJECT_PORT),
];
/// The rings of the second policy, and of the erasure-coded one.
pub(super) const SECOND: &str = "object-1";
pub(super) const FRAGMENTS: &str = "object-2";
pub(super) const PARTITION_POWER: &str = "7";
/// Data and parity fragments of the erasure-coded policy: as many as there are devices, less two.
const CODED: (usize, usize) = (4, 2);

const SWIFT_CONF: &str = "\
[swift-hash]
swift_hash_path_prefix = cairn
swift_hash_path_suffix = hosts

[storage-policy:0]
name = replicated
default = yes

[storage-policy:1]
name = second
";

const PIPELINE: &str = "catch_errors gatekeeper healthcheck proxy-logging cache tempauth copy \
                        proxy-logging proxy-server";

/// A storage host with its zone and its disks.
pub(super) struct Storage {
    pub(super) host: Host,
    pub(super) zone: u8,
    pub(super) disks: Vec<Disk>,
}

/// Options of a proxy that differ from the defaults.
#[derive(Clone, Copy, Default)]
pub(super) struct ProxyOptions<'a> {
    /// Lines of `[app:proxy-server]`.
    pub(super) app: &'a str,
    /// Whole sections.
    pub(super) sections: &'a str,
}

/// The folder of confs and rings.
pub(super) struct Layout {
    pub(super) etc: PathBuf,
    binary: PathBuf,
    coded: bool,
    engine: Option<EngineName>,
}

impl Layout {
    pub(super) fn create(
        dir: &Path,
        binary: &Path,
        coded: bool,
        engine: Option<EngineName>,
    ) -> Result<Layout> {
        let etc = dir.join("etc");
        fs::create_dir_all(&etc)?;
        let mut text = SWIFT_CONF.to_owned();
        if coded {
            let (data, parity) = CODED;
            let _ = write!(
                text,
                "\n[storage-policy:2]\nname = coded\npolicy_type = erasure_coding\n\
                 ec_type = isa_l_rs_vand\nec_num_data_fragments = {data}\n\
                 ec_num_parity_fragments = {parity}\nec_object_segment_size = 65536\n"
            );
        }
        fs::write(etc.join("swift.conf"), EngineName::in_conf(engine, &text))?;
        Ok(Layout {
            etc,
            binary: binary.to_owned(),
            coded,
            engine,
        })
    }

    /// Whether objects are in volumes, where no files show them.
    pub(super) fn has_volumes(&self) -> bool {
        self.engine == Some(EngineName::Pebbles)
    }

    /// Each ring's name, its server, and its replicas.
    pub(super) fn rings(&self) -> Vec<(&'static str, u16, usize)> {
        let mut rings: Vec<_> = KINDS.iter().map(|(kind, port)| (*kind, *port, 3)).collect();
        rings.push((SECOND, OBJECT_PORT, 3));
        if self.coded {
            rings.push((FRAGMENTS, OBJECT_PORT, CODED.0 + CODED.1));
        }
        rings
    }

    /// Weights are equal: the regions have the same share of every ring.
    pub(super) fn build_rings(&self, storage: &[Storage]) -> Result<()> {
        for (name, port, replicas) in self.rings() {
            self.ring(
                name,
                &["create", PARTITION_POWER, &replicas.to_string(), "0"],
            )?;
            for node in storage {
                let (region, zone, ip) = (node.host.region, node.zone, node.host.address);
                for disk in &node.disks {
                    let device = format!("r{region}z{zone}-{ip}:{port}/{}", disk.name);
                    self.ring(name, &["add", &device, "100"])?;
                }
            }
            self.ring(name, &["rebalance", "--seed", "1"])?;
        }
        Ok(())
    }

    fn ring(&self, name: &str, arguments: &[&str]) -> Result<String> {
        let builder = self.etc.join(format!("{name}.builder"));
        let mut command = Command::new(&self.binary);
        command.arg("ring").arg(builder).args(arguments);
        run_quiet(&mut command).with_context(|| format!("the ring {name}"))
    }

    /// The partitions that belong on each device.
    pub(super) fn assigned(&self, name: &str, disk: &Disk) -> Result<BTreeSet<u32>> {
        let text = self.ring(name, &["list_parts", &format!("/{}", disk.name)])?;
        let first = text
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        let parts: BTreeSet<u32> = first.filter_map(|word| word.parse().ok()).collect();
        ensure!(
            !parts.is_empty(),
            "{} has no partitions of {name}",
            disk.name
        );
        Ok(parts)
    }

    /// Every ring's partitions by device.
    pub(super) fn all_assigned(
        &self,
        storage: &[Storage],
    ) -> Result<BTreeMap<(&'static str, String), BTreeSet<u32>>> {
        let mut all = BTreeMap::new();
        for (name, _, _) in self.rings() {
            for disk in storage.iter().flat_map(|node| &node.disks) {
                all.insert((name, disk.name.clone()), self.assigned(name, disk)?);
            }
        }
        Ok(all)
    }

    /// Number of primaries in each region, for an object of the first policy.
    pub(super) fn sides(&self, storage: &[Storage], path: &str) -> Result<[usize; 2]> {
        let program = self.etc.join("swift-get-nodes");
        if !program.exists() {
            std::os::unix::fs::symlink(&self.binary, &program)?;
        }
        let mut command = Command::new(program);
        command
            .arg("-d")
            .arg(&self.etc)
            .arg(self.etc.join("object.ring.gz"));
        let text = run_quiet(command.args(["AUTH_test"]).args(path[1..].splitn(2, '/')))?;
        let primaries = text
            .lines()
            .filter(|line| line.starts_with("Server:Port Device") && !line.contains("[Handoff]"));
        let mut sides = [0; 2];
        for line in primaries {
            let of_line = |node: &&Storage| line.contains(&format!("\t{}:", node.host.address));
            let node = storage.iter().find(of_line);
            let node = node.with_context(|| format!("whose address is this: {line}"))?;
            sides[usize::from(node.host.region) - 1] += 1;
        }
        ensure!(sides[0] + sides[1] == 3, "{path} is on {sides:?} servers");
        Ok(sides)
    }

    pub(super) fn proxy_conf(&self, host: &Host, options: &ProxyOptions<'_>) -> Result<PathBuf> {
        let filters = pipeline(PIPELINE, |name| match name {
            "proxy-server" => format!("account_autocreate = true\n{}", options.app),
            "tempauth" => "user_test_tester = testing .admin\n".to_owned(),
            _ => String::new(),
        });
        let text = format!(
            "[DEFAULT]\nbind_ip = {ip}\nbind_port = {PROXY_PORT}\nswift_dir = {etc}\n\
             workers = 2\n\n{filters}\n{sections}",
            ip = host.address,
            etc = self.etc.display(),
            sections = options.sections,
        );
        self.conf(host, "proxy", &text)
    }

    /// The confs of a storage host's servers, including daemons. `devices` is the folder of mount
    /// points.
    pub(super) fn storage_confs(&self, node: &Storage, devices: &Path) -> Result<Vec<PathBuf>> {
        let cache = devices.with_extension("cache");
        fs::create_dir_all(&cache)?;
        let mut confs = Vec::new();
        for (kind, port) in KINDS {
            let filters = pipeline(&format!("healthcheck recon {kind}-server"), |_| {
                String::new()
            });
            let mut text = format!(
                "[DEFAULT]\nbind_ip = {ip}\nbind_port = {port}\nswift_dir = {etc}\n\
                 devices = {devices}\nmount_check = true\nworkers = 2\nmetrics = on\n\
                 recon_cache_path = {cache}\n\n{filters}\n",
                ip = node.host.address,
                etc = self.etc.display(),
                devices = devices.display(),
                cache = cache.display(),
            );
            text.push_str(match kind {
                "account" => ACCOUNT_DAEMONS,
                "container" => CONTAINER_DAEMONS,
                _ => OBJECT_DAEMONS,
            });
            if self.coded && kind == "object" {
                text.push_str("\n[object-reconstructor]\ninterval = 2\n");
            }
            confs.push(self.conf(&node.host, kind, &text)?);
        }
        Ok(confs)
    }

    fn conf(&self, host: &Host, kind: &str, text: &str) -> Result<PathBuf> {
        let folder = self.etc.join(format!("{kind}-server"));
        fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{}.conf", host.name));
        fs::write(&path, text)?;
        Ok(path)
    }
}

// Databases are replicated by rows, since no host here has an rsync daemon.
const ACCOUNT_DAEMONS: &str = "\
[account-replicator]
interval = 2
whole_databases = rows

[account-auditor]

[account-reaper]
";
const CONTAINER_DAEMONS: &str = "\
[container-replicator]
interval = 2
whole_databases = rows

[container-updater]
interval = 2

[container-auditor]
";
const OBJECT_DAEMONS: &str = "\
[object-replicator]
interval = 2
sync_method = ssync

[object-updater]
interval = 2

[object-auditor]
files_per_second = 5
bytes_per_second = 2000000
";
