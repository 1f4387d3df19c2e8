//! Conf and ring files of a cluster.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::ClusterSpec;
use crate::file::{Cluster, Node, Role};
use crate::process::run_quiet;

const RINGS: [Role; 3] = [Role::Account, Role::Container, Role::Object];
/// Exit code of a ring that is built, but not as well dispersed as it may be: zones of unequal size.
const RING_WARNING: i32 = 1;
const PIPELINE: &str = "catch_errors gatekeeper healthcheck proxy-logging cache tempauth copy \
                        proxy-logging proxy-server";

/// A node's address, and the ports of its servers.
pub(super) struct Address {
    pub(super) ip: Ipv4Addr,
    pub(super) ports: BTreeMap<Role, u16>,
}

impl Address {
    pub(super) fn port(&self, role: Role) -> u16 {
        self.ports.get(&role).copied().unwrap_or_default()
    }
}

/// Name of a node's device, in rings and below its devices' folder.
pub(super) fn device_name(node: &Node, number: usize) -> String {
    match node.devices[number].name.as_str() {
        "" => format!("{}d{}", node.name, number + 1),
        name => format!("{}-{name}", node.name),
    }
}

pub(super) struct Files {
    /// Conf files by node.
    pub(super) confs: BTreeMap<String, Vec<PathBuf>>,
    /// Bytes of objects that fit before the first device is full.
    pub(super) usable_bytes: f64,
}

impl Files {
    pub(super) fn write(
        order: &ClusterSpec<'_>,
        addresses: &BTreeMap<String, Address>,
        devices: impl Fn(&Node) -> PathBuf,
    ) -> Result<Files> {
        let cluster = order.cluster;
        let etc = order.folder.join("etc");
        fs::create_dir_all(&etc).with_context(|| etc.display().to_string())?;
        fs::write(etc.join("swift.conf"), swift_conf(cluster))?;
        for ring in RINGS {
            build(order, &etc, ring, addresses)?;
        }
        let mut confs = BTreeMap::new();
        for node in &cluster.nodes {
            let mut of_node = Vec::new();
            for role in &node.roles {
                let text = match role {
                    Role::Proxy => proxy_conf(order, node, &addresses[&node.name], &etc),
                    role => storage_conf(
                        order,
                        node,
                        *role,
                        &addresses[&node.name],
                        &etc,
                        &devices(node),
                    ),
                };
                let folder = etc.join(format!("{}-server", role.name()));
                fs::create_dir_all(&folder)?;
                let path = folder.join(format!("{}.conf", node.name));
                fs::write(&path, text)?;
                of_node.push(path);
            }
            confs.insert(node.name.clone(), of_node);
        }
        let usable_bytes = usable_bytes(cluster, &etc)?;
        Ok(Files {
            confs,
            usable_bytes,
        })
    }
}

fn swift_conf(cluster: &Cluster) -> String {
    let mut text =
        "[swift-hash]\nswift_hash_path_prefix = cairn\nswift_hash_path_suffix = study\n\n\
                    [storage-policy:0]\nname = default\ndefault = yes\n"
            .to_owned();
    if let Some(coding) = &cluster.coding {
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "policy_type = erasure_coding\nec_type = isa_l_rs_vand\n\
             ec_num_data_fragments = {}\nec_num_parity_fragments = {}\n",
            coding.data, coding.parity
        );
    }
    text
}

/// Number of fragments, or of copies.
fn rows(cluster: &Cluster, ring: Role) -> f64 {
    match &cluster.coding {
        Some(coding) if ring == Role::Object => f64::from(coding.data + coding.parity),
        _ => cluster.replicas,
    }
}

/// A node's devices in a ring.
fn in_ring(node: &Node, ring: Role) -> impl Iterator<Item = usize> + '_ {
    let is_in = move |number: &usize| {
        node.roles.contains(&ring) && node.devices[*number].rings.contains(&ring)
    };
    (0..node.devices.len()).filter(is_in)
}

fn build(
    order: &ClusterSpec<'_>,
    etc: &Path,
    ring: Role,
    addresses: &BTreeMap<String, Address>,
) -> Result<()> {
    let cluster = order.cluster;
    let builder = etc.join(format!("{}.builder", ring.name()));
    let call = |arguments: &[&str]| {
        let mut command = Command::new(order.program);
        command.arg("ring").arg(&builder).args(arguments);
        run_quiet(&mut command, &[RING_WARNING])
            .with_context(|| format!("the ring {}", ring.name()))
    };
    let (power, rows) = (
        cluster.part_power.to_string(),
        rows(cluster, ring).to_string(),
    );
    call(&["create", &power, &rows, "0"])?;
    let mut add = vec!["add".to_owned()];
    for node in &cluster.nodes {
        let address = &addresses[&node.name];
        for number in in_ring(node, ring) {
            add.push(format!(
                "r{}z{}-{}:{}/{}",
                node.region,
                node.zone,
                address.ip,
                address.port(ring),
                device_name(node, number)
            ));
            add.push(node.devices[number].weight.to_string());
        }
    }
    call(&add.iter().map(String::as_str).collect::<Vec<_>>())?;
    call(&["rebalance", "--seed", "1"])?;
    Ok(())
}

/// Bytes of objects until the device is full that has the largest share of the object ring relative
/// to its size.
fn usable_bytes(cluster: &Cluster, etc: &Path) -> Result<f64> {
    let path = etc.join("object.builder");
    let builder =
        cairn_ring::RingBuilder::load(&path).with_context(|| path.display().to_string())?;
    let parts = builder.parts() as f64;
    let mut sizes = BTreeMap::new();
    for node in &cluster.nodes {
        for number in in_ring(node, Role::Object) {
            sizes.insert(device_name(node, number), node.devices[number].size as f64);
        }
    }
    let share_of = |device: &cairn_ring::BuilderDevice| {
        let size = sizes.get(&device.device.device)?;
        let share = device.parts as f64 / parts;
        (share > 0.0).then(|| size / share)
    };
    let least = builder
        .devices()
        .filter_map(share_of)
        .fold(f64::INFINITY, f64::min);
    let data = cluster
        .coding
        .as_ref()
        .map_or(1.0, |coding| f64::from(coding.data));
    Ok(least * data)
}

/// Converts a timeout in emulated time for the confs.
fn seconds(order: &ClusterSpec<'_>, seconds: f64) -> String {
    (seconds * order.dilation).to_string()
}

fn proxy_conf(order: &ClusterSpec<'_>, node: &Node, address: &Address, etc: &Path) -> String {
    let cluster = order.cluster;
    let mut options = BTreeMap::from([
        ("account_autocreate".to_owned(), "true".to_owned()),
        ("node_timeout".to_owned(), seconds(order, 10.0)),
        ("recoverable_node_timeout".to_owned(), seconds(order, 10.0)),
        ("conn_timeout".to_owned(), seconds(order, 0.5)),
        ("post_quorum_timeout".to_owned(), seconds(order, 0.5)),
    ]);
    options.extend(cluster.proxy.clone());
    options.extend(node.proxy.clone());
    let options: Vec<String> = options
        .iter()
        .map(|(k, v)| format!("{k} = {v}\n"))
        .collect();
    let filters = [
        "catch_errors",
        "gatekeeper",
        "healthcheck",
        "proxy-logging",
        "cache",
        "tempauth",
        "copy",
    ];
    let mut sections = String::new();
    for filter in filters {
        let egg = match filter {
            "proxy-logging" => "proxy_logging",
            "cache" => "memcache",
            other => other,
        };
        // Writing to a String cannot fail.
        let _ = write!(sections, "\n[filter:{filter}]\nuse = egg:swift#{egg}\n");
        if filter == "tempauth" {
            sections.push_str("user_test_tester = testing .admin\n");
        }
    }
    format!(
        "[DEFAULT]\nbind_ip = {ip}\nbind_port = {port}\nswift_dir = {etc}\nworkers = 1\n\
         log_level = WARNING\nclient_timeout = {client}\n\n\
         [pipeline:main]\npipeline = {PIPELINE}\n\n\
         [app:proxy-server]\nuse = egg:swift#proxy\n{options}{sections}",
        ip = address.ip,
        port = address.port(Role::Proxy),
        etc = etc.display(),
        client = seconds(order, 60.0),
        options = options.concat(),
    )
}

fn storage_conf(
    order: &ClusterSpec<'_>,
    node: &Node,
    role: Role,
    address: &Address,
    etc: &Path,
    devices: &Path,
) -> String {
    let kind = role.name();
    let has_disks = node.devices.iter().all(|device| device.disk.is_some());
    let daemons = match (order.cluster.daemons, role) {
        (false, _) | (_, Role::Proxy) => "",
        (true, Role::Account) => "\n[account-replicator]\n\n[account-auditor]\n",
        (true, Role::Container) => {
            "\n[container-replicator]\n\n[container-updater]\n\n[container-auditor]\n"
        }
        (true, Role::Object) => {
            "\n[object-replicator]\nsync_method = ssync\n\n[object-updater]\n\n[object-auditor]\n"
        }
    };
    format!(
        "[DEFAULT]\nbind_ip = {ip}\nbind_port = {port}\nswift_dir = {etc}\ndevices = {devices}\n\
         mount_check = {has_disks}\nworkers = 1\nlog_level = WARNING\n\
         recon_cache_path = {cache}\nnode_timeout = {node_timeout}\nconn_timeout = {conn}\n\
         container_update_timeout = {update}\nclient_timeout = {client}\n\n\
         [pipeline:main]\npipeline = healthcheck recon {kind}-server\n\n\
         [app:{kind}-server]\nuse = egg:swift#{kind}\n\n\
         [filter:healthcheck]\nuse = egg:swift#healthcheck\n\n\
         [filter:recon]\nuse = egg:swift#recon\n{daemons}",
        ip = address.ip,
        port = address.port(role),
        etc = etc.display(),
        devices = devices.display(),
        cache = devices.with_extension("cache").display(),
        node_timeout = seconds(order, 3.0),
        conn = seconds(order, 0.5),
        update = seconds(order, 1.0),
        client = seconds(order, 60.0),
    )
}
