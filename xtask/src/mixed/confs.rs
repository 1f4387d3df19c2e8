//! The cluster's confs, which both implementations read, and a folder of programs for each
//! implementation.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::cluster::Kind;
use cairn_testkit::conf::{rsync_module, with_option};
use cairn_testkit::swift::{CORE_PIPELINE, ENCRYPTED_CORE_PIPELINE, KINDS, Layout, Swift};
use cairn_testkit::venv::Venv;
use cairn_testkit::workspace;

pub(super) const NODES: usize = 4;
/// Data and parity fragments: as many as there are nodes, so one node may be down, and three are a
/// quorum.
const FRAGMENTS: (usize, usize) = (2, 2);
/// Seconds for which proxies of both implementations avoid a node after many errors
/// (`error_suppression_interval`).
pub(super) const SUPPRESSION_SECONDS: u64 = 2;

/// Programs of a node, and the operators' tools used here.
const PROGRAMS: [&str; 17] = [
    "swift-proxy-server",
    "swift-account-server",
    "swift-container-server",
    "swift-object-server",
    "swift-account-auditor",
    "swift-account-reaper",
    "swift-account-replicator",
    "swift-container-auditor",
    "swift-container-replicator",
    "swift-container-sharder",
    "swift-container-updater",
    "swift-object-auditor",
    "swift-object-reconstructor",
    "swift-object-replicator",
    "swift-object-updater",
    "swift-dispersion-populate",
    "swift-dispersion-report",
];

pub(super) fn layout(encryption: bool) -> Layout {
    Layout {
        devices: NODES,
        pipeline: match encryption {
            true => ENCRYPTED_CORE_PIPELINE,
            false => CORE_PIPELINE,
        },
        proxy_workers: 1,
        workers: 0,
        part_power: 6,
        coded: Some(FRAGMENTS),
        ..Layout::default()
    }
}

/// Adds the settings of the daemons and the proxies to the confs that `Swift::create` wrote;
/// returns the confs of both proxies.
pub(super) fn complete(swift: &Swift, dir: &Path, ports: [u16; 2]) -> Result<[PathBuf; 2]> {
    let [second_proxy, rsync] = ports;
    let client = swift.etc().join("internal-client.conf");
    fs::write(&client, swift.internal_client())?;
    for node in 1..=NODES {
        for kind in KINDS {
            let path = swift.server_conf(kind, node);
            let text = server(&fs::read_to_string(&path)?, kind, node, rsync, &client);
            fs::write(&path, text)?;
        }
    }
    fs::write(dir.join("rsyncd.conf"), rsyncd(swift, dir, rsync))?;
    fs::write(dir.join("dispersion.conf"), dispersion(swift))?;
    let first = swift.proxy_conf();
    let text = proxy(&fs::read_to_string(&first)?);
    fs::write(&first, &text)?;
    let second = first.with_file_name("proxy-server-2.conf");
    let other = with_option(&text, "DEFAULT", "bind_port", &second_proxy.to_string());
    fs::write(&second, other)?;
    Ok([first, second])
}

fn with_options(text: &str, options: &[(&str, &str, &str)]) -> String {
    let set = |text: String, (section, option, value): &(&str, &str, &str)| {
        with_option(&text, section, option, value)
    };
    options.iter().fold(text.to_owned(), set)
}

/// The conf of a server. Two nodes replicate by rsync and two by SSYNC.
fn server(text: &str, kind: &str, node: usize, rsync: u16, internal_client: &Path) -> String {
    let replicator = format!("{kind}-replicator");
    let module = format!("rsync://{{replication_ip}}:{rsync}/{kind}{{replication_port}}");
    let mut text = with_option(text, &replicator, "rsync_module", &module);
    if kind == "object" && node > 2 {
        text = with_option(&text, &replicator, "sync_method", "ssync");
    }
    if kind == "object" {
        for option in ["files_per_second", "zero_byte_files_per_second"] {
            text = with_option(&text, "object-auditor", option, "1000");
        }
    }
    text.push_str(match kind {
        "account" => "[account-reaper]\n",
        "container" => SHARDER,
        _ => "[object-reconstructor]\n",
    });
    if kind == "container" {
        let client = internal_client.display().to_string();
        let sharder = "container-sharder";
        text = with_options(
            &text,
            &[
                (sharder, "rsync_module", &module),
                (sharder, "internal_client_conf_path", &client),
            ],
        );
    }
    text
}

/// Sharder settings under which a container of a hundred names is already large.
const SHARDER: &str = "[container-sharder]\nauto_shard = true\nshard_container_threshold = 40\n\
     shard_scanner_batch_size = 10\ncleave_batch_size = 4\nminimum_shard_size = 10\n";

/// The proxy's conf with long timeouts, as the machine is busy with Python.
fn proxy(text: &str) -> String {
    let suppression = SUPPRESSION_SECONDS.to_string();
    with_options(
        text,
        &[
            ("app:proxy-server", "node_timeout", "40"),
            ("app:proxy-server", "recoverable_node_timeout", "40"),
            ("app:proxy-server", "conn_timeout", "10"),
            (
                "app:proxy-server",
                "error_suppression_interval",
                &suppression,
            ),
        ],
    )
}

fn rsyncd(swift: &Swift, dir: &Path, port: u16) -> String {
    let mut text = format!(
        "use chroot = no\nuid = root\ngid = root\naddress = 127.0.0.1\nport = {port}\n\
         log file = {}/rsyncd.log\n",
        dir.display()
    );
    for node in 1..=NODES {
        for kind in KINDS {
            let name = format!("{kind}{}", swift.port_of(kind, node));
            let lock = dir.join(format!("rsyncd-{kind}-{node}.lock"));
            text.push_str(&rsync_module(&name, &swift.node(node), &lock));
        }
    }
    text
}

fn dispersion(swift: &Swift) -> String {
    format!(
        "[dispersion]\nauth_url = http://127.0.0.1:{}/auth/v1.0\nauth_user = test:tester\n\
         auth_key = testing\nswift_dir = {}\ndispersion_coverage = 100\nconcurrency = 4\n\
         retries = 0\n",
        swift.port,
        swift.etc().display()
    )
}

/// Fills `DIR/swift` and `DIR/cairn` with programs of the same names.
pub(super) fn programs(venv: &Venv, swift: &Swift, dir: &Path) -> Result<()> {
    let cairn = fs::canonicalize(workspace::build_cairn()?)?;
    let runner = workspace::root().join("tests/swift_program.py");
    for kind in Kind::BOTH {
        fs::create_dir_all(dir.join(kind.folder()))?;
    }
    symlink(&cairn, dir.join(Kind::Cairn.folder()).join("cairn"))?;
    for name in PROGRAMS {
        symlink(&cairn, dir.join(Kind::Cairn.folder()).join(name))?;
        let upstreams = venv.bin.join(name);
        ensure!(upstreams.exists(), "no {}", upstreams.display());
        let text = format!(
            "#!/bin/sh\nexec {} -W ignore {} {} {} \"$@\"\n",
            venv.python().display(),
            runner.display(),
            swift.etc().display(),
            upstreams.display()
        );
        let path = dir.join(Kind::Swift.folder()).join(name);
        workspace::write_script(&path, &text)?;
    }
    Ok(())
}
