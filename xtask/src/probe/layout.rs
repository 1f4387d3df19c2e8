//! The cluster of the probe tests: four nodes, each with an account server on port 62N2, a
//! container server on 62N1 and an object server on 62N0, two devices on each, and a proxy on 8080.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::engine::EngineName;
use cairn_testkit::conf::{pipeline, rsync_module};
use cairn_testkit::venv::Venv;
use cairn_testkit::workspace::{build_cairn, run_quiet, write_script};

/// Names of Swift's programs under which Cairn is installed.
const PROGRAMS: &[&str] = &[
    "swift-proxy-server",
    "swift-account-server",
    "swift-container-server",
    "swift-object-server",
    "swift-account-auditor",
    "swift-account-reaper",
    "swift-account-replicator",
    "swift-container-auditor",
    "swift-container-reconciler",
    "swift-container-replicator",
    "swift-container-sharder",
    "swift-container-sync",
    "swift-container-updater",
    "swift-object-auditor",
    "swift-object-expirer",
    "swift-object-reconstructor",
    "swift-object-relinker",
    "swift-object-replicator",
    "swift-object-updater",
    "swift-init",
    "swift-manage-shard-ranges",
    "swift-ring-builder",
];
/// Programs that only OpenStack Swift has.
const UPSTREAM_ONLY: &[&str] = &[];

const PIPELINE: &str = "catch_errors gatekeeper healthcheck proxy-logging cache etag-quoter \
                        listing_formats bulk tempurl ratelimit crossdomain container_sync tempauth \
                        staticweb \
                        copy container-quotas account-quotas slo dlo versioned_writes symlink \
                        proxy-logging proxy-server";
/// The realm of container sync: this cluster is its only one, so containers are synced within it.
const REALMS: &str = "\
[saio]
key = changeme
key2 = changeme
cluster_saio_endpoint = http://127.0.0.1:8080/v1/
";
const USERS: &str = "\
user_admin_admin = admin .admin .reseller_admin
user_test_tester = testing .admin
user_test_tester2 = testing2 .admin
user_test_tester3 = testing3
user_test2_tester2 = testing2 .admin
";
const SWIFT_CONF: &str = "\
[swift-hash]
swift_hash_path_prefix = changeme
swift_hash_path_suffix = changeme

[storage-policy:0]
name = gold
policy_type = replication
default = yes

[storage-policy:1]
name = silver
policy_type = replication

[storage-policy:2]
name = ec42
policy_type = erasure_coding
ec_type = liberasurecode_rs_vand
ec_num_data_fragments = 4
ec_num_parity_fragments = 2
";

/// Writes everything below `dir`: confs, rings, programs, scripts, and mount points.
pub(super) fn write(
    dir: &Path,
    venv: &Venv,
    upstream: bool,
    engine: Option<EngineName>,
) -> Result<()> {
    let etc = dir.join("swift");
    for folder in ["bin", "swift", "srv"] {
        fs::create_dir_all(dir.join(folder))?;
    }
    programs(dir, venv, upstream)?;
    let log = format!("log_address = {}\n", dir.join("log.socket").display());
    let swift_conf = EngineName::in_conf(engine, SWIFT_CONF);
    fs::write(etc.join("swift.conf"), swift_conf)?;
    fs::write(etc.join("container-sync-realms.conf"), REALMS)?;
    fs::write(etc.join("proxy-server.conf"), proxy(&log))?;
    fs::write(etc.join("internal-client.conf"), internal_client(&log))?;
    let expirer = format!("{}\n[object-expirer]\n", internal_client(&log));
    fs::write(etc.join("object-expirer.conf"), expirer)?;
    fs::write(etc.join("container-reconciler.conf"), reconciler(&log))?;
    for (kind, port) in [("account", 2), ("container", 1), ("object", 0)] {
        let folder = etc.join(format!("{kind}-server"));
        fs::create_dir_all(&folder)?;
        for node in 1..=4 {
            let text = backend(kind, node, 6200 + node * 10 + port, &log, engine);
            fs::write(folder.join(format!("{node}.conf")), text)?;
        }
    }
    fs::write(dir.join("rsyncd.conf"), rsyncd(dir))?;
    let test = "[probe_test]\ncheck_server_timeout = 30\nvalidate_rsync = true\n";
    fs::write(dir.join("test.conf"), test)?;
    for (kind, port, replicas) in [
        ("account", 2, 3),
        ("container", 1, 3),
        ("object", 0, 3),
        ("object-1", 0, 2),
        ("object-2", 0, 6),
    ] {
        ring(dir, venv, kind, port, replicas)?;
    }
    Ok(())
}

/// Changes the proxy's conf to let clients open expired objects.
pub(super) fn allow_open_expired(dir: &Path) -> Result<()> {
    let path = dir.join("swift/proxy-server.conf");
    let section = "[app:proxy-server]\n";
    let changed = format!("{section}allow_open_expired = true\n");
    let text = fs::read_to_string(&path)?.replace(section, &changed);
    Ok(fs::write(path, text)?)
}

fn programs(dir: &Path, venv: &Venv, upstream: bool) -> Result<()> {
    let bin = dir.join("bin");
    let cairn = if upstream {
        None
    } else {
        Some(fs::canonicalize(build_cairn()?)?)
    };
    for name in PROGRAMS {
        let program = cairn.clone().unwrap_or_else(|| venv.bin.join(name));
        symlink(program, bin.join(name))?;
    }
    if upstream {
        for name in UPSTREAM_ONLY {
            symlink(venv.bin.join(name), bin.join(name))?;
        }
    }
    write_script(
        &dir.join("inside"),
        include_str!("../../conformance/probe-inside.sh"),
    )?;
    let reset = include_str!("../../conformance/probe-reset.sh");
    write_script(&bin.join("resetswift"), reset)?;
    write_script(&bin.join("swift-orphans"), reset)
}

/// The proxy's conf. Tests clear Swift's cache of updating shard ranges in memcached; Cairn's proxy
/// has a cache of its own, which is off here.
fn proxy(log: &str) -> String {
    let filters = pipeline(PIPELINE, |name| {
        let options = match name {
            "container_sync" => "current = //saio/saio_endpoint\n",
            "tempauth" => USERS,
            "versioned_writes" => "allow_versioned_writes = true\nallow_object_versioning = true\n",
            "proxy-server" => {
                "account_autocreate = true\nallow_account_management = true\n\
                 recheck_updating_shard_ranges = 0\n"
            }
            _ => "",
        };
        options.to_owned()
    });
    format!("[DEFAULT]\nbind_ip = 127.0.0.1\nbind_port = 8080\nworkers = 1\n{log}\n{filters}")
}

/// Pipeline for the cluster's internal requests.
fn internal_client(log: &str) -> String {
    let names = "catch_errors proxy-logging cache symlink proxy-server";
    let filters = pipeline(names, |name| match name {
        "proxy-server" => "account_autocreate = true\nallow_account_management = true\n".to_owned(),
        _ => String::new(),
    });
    format!("[DEFAULT]\n{log}\n{filters}")
}

/// Conf of the reconciler's pipeline, which moves objects unchanged, symlinks included.
fn reconciler(log: &str) -> String {
    let names = "catch_errors proxy-logging cache proxy-server";
    let filters = pipeline(names, |_| String::new());
    format!("[DEFAULT]\n{log}\n[container-reconciler]\n\n{filters}")
}

fn backend(kind: &str, node: u32, port: u32, log: &str, engine: Option<EngineName>) -> String {
    // Databases are sent whole even if small, like OpenStack Swift does: tests look at the folders
    // that this leaves.
    let whole_databases = match kind {
        "container" => "whole_databases = rsync\n",
        _ => "",
    };
    let filters = pipeline(&format!("healthcheck recon {kind}-server"), |_| {
        String::new()
    });
    let has_volumes = kind == "object" && engine == Some(EngineName::Pebbles);
    let (of_all, of_replicator) = match has_volumes {
        // Each test makes all volumes anew.
        true => ("pebbles_volume_bytes = 16777216\n", "sync_method = ssync\n"),
        false => ("", whole_databases),
    };
    let mut text = format!(
        "[DEFAULT]\ndevices = /srv/{node}/node\nmount_check = false\ndisable_fallocate = true\n\
         bind_ip = 127.0.0.{node}\nbind_port = {port}\nworkers = 1\n\
         recon_cache_path = /srv/cache/{node}\n{log}{of_all}\n{filters}\n\
         [{kind}-replicator]\nrsync_module = {{replication_ip}}::{kind}{{replication_port}}\n\
         {of_replicator}\n[{kind}-auditor]\n\n"
    );
    text.push_str(match kind {
        "account" => "[account-reaper]\n",
        "container" => {
            "[container-updater]\n\n[container-sync]\n\
             internal_client_conf_path = /etc/swift/internal-client.conf\n\n\
             [container-sharder]\nauto_shard = true\n\
             rsync_module = {replication_ip}::container{replication_port}\n\
             shard_container_threshold = 100\nshard_scanner_batch_size = 10\n\
             cleave_batch_size = 2\n"
        }
        _ => "[object-updater]\n\n[object-reconstructor]\n\n[object-relinker]\n",
    });
    text
}

fn rsyncd(dir: &Path) -> String {
    let mut text = format!(
        "uid = root\ngid = root\nuse chroot = no\naddress = 0.0.0.0\n\
         log file = {}\npid file = /run/rsyncd.pid\n",
        dir.join("rsyncd.log").display()
    );
    for (kind, port) in [("account", 2), ("container", 1), ("object", 0)] {
        for node in 1..=4 {
            let port = 6200 + node * 10 + port;
            let name = format!("{kind}{port}");
            let lock = Path::new("/run/lock").join(format!("{name}.lock"));
            let path = format!("/srv/{node}/node/");
            text.push_str(&rsync_module(&name, Path::new(&path), &lock));
        }
    }
    text
}

/// Builds a ring with Swift's own program: tests read builders by Swift's classes, and a builder
/// file that Swift made stays in its format whichever implementation changes it.
fn ring(dir: &Path, venv: &Venv, kind: &str, port: u32, replicas: u32) -> Result<()> {
    let etc = dir.join("swift");
    let builder = format!("{kind}.builder");
    let run = |program: &Path, arguments: &[&str]| {
        run_quiet(
            Command::new(program)
                .current_dir(&etc)
                .arg(&builder)
                .args(arguments),
        )
        .with_context(|| format!("making the ring {kind}"))
    };
    let swifts = venv.bin.join("swift-ring-builder");
    run(&swifts, &["create", "10", &replicas.to_string(), "1"])?;
    let own = dir.join("bin/swift-ring-builder");
    for node in 1..=4 {
        let port = 6200 + node * 10 + port;
        let device = format!("r1z{node}-127.0.0.{node}:{port}/sdb{node}");
        run(&own, &["add", &device, "1"])?;
        // More replicas than nodes: each node has a second device.
        if replicas > 4 {
            let device = format!("r1z{node}-127.0.0.{node}:{port}/sdb{}", node + 4);
            run(&own, &["add", &device, "1"])?;
        }
    }
    run(&own, &["rebalance"])?;
    Ok(())
}
