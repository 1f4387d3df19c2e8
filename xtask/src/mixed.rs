//! OpenStack Swift and Cairn in one cluster: the same rings, confs and device folders, a load
//! running that knows what was acknowledged, and servers, proxies and daemons swapped from one to
//! the other and back, one at a time, as an operator would.

mod balancer;
mod clients;
mod cluster;
mod confs;
mod passes;
mod proof;
mod volumes;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use clap::Args;

use crate::engine::EngineName;
use balancer::Balanced;
use cairn_testkit::model::check;
use cairn_testkit::model::keys::Key;
use cairn_testkit::random::Random;
use cairn_testkit::venv::Venv;
use cairn_testkit::wire::Account;
use cairn_testkit::workspace;
use clients::{Client, Observations};
use cluster::{Cluster, Kind, Part};
use confs::NODES;

const CLIENTS: usize = 4;
const KEYS_PER_CLIENT: usize = 60;
/// Two containers in each policy; the sharders split the larger ones.
const CONTAINERS: [&str; 4] = [
    "/plain-small",
    "/coded-small",
    "/plain-large",
    "/coded-large",
];

#[derive(Args)]
pub(crate) struct Options {
    /// Whole nodes there and back, not each role of each
    #[arg(long)]
    pub(crate) short: bool,
    /// Objects are encrypted, by both kinds of proxies with the same root secrets
    #[arg(long)]
    pub(crate) encryption: bool,
    /// Nodes of Cairn keep objects by this engine; with volumes whole nodes are swapped, and devices
    /// are imported and exported
    #[arg(long, value_enum)]
    pub(crate) engine: Option<EngineName>,
    /// The load follows from it
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Keep the cluster's folder, with the logs of all programs
    #[arg(long)]
    pub(crate) keep: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let venv = Venv::prepare()?;
    let mut dir = workspace::scratch("mixed")?;
    dir.disable_cleanup(options.keep);
    if options.keep {
        println!("the cluster's folder is {}", dir.path().display());
    }
    let has_volumes = options.engine == Some(EngineName::Pebbles);
    let mut cluster = Cluster::create(&venv, dir.path(), options.encryption, has_volumes)?;
    let outcome = in_cluster(options, &mut cluster, &venv);
    cluster.stop();
    outcome
}

fn in_cluster(options: &Options, cluster: &mut Cluster, venv: &Venv) -> Result<()> {
    cluster.start(Kind::Swift)?;
    make_containers(cluster)?;
    proof::populate(cluster, Kind::Swift)?;
    let mut keys: Vec<Vec<Key>> = (0..CLIENTS)
        .map(|client| {
            let key = |k: usize| {
                // Four of five keys belong to a large container.
                let container = CONTAINERS[k % 2 + if k % 10 < 2 { 0 } else { 2 }];
                Key::new(container, format!("c{client}/k{k:02}"))
            };
            (0..KEYS_PER_CLIENT).map(key).collect()
        })
        .collect();
    let seen = Observations::default();
    seen.has_swift_proxy.store(true, Ordering::Relaxed);
    let start = Instant::now();
    for to in [Kind::Cairn, Kind::Swift] {
        // Each client logs in at whichever proxy is there; the token stays valid at the other
        // implementation's.
        let login = Account::login(cluster.swift.port)?;
        under_load(
            options,
            &login,
            &mut keys,
            cluster,
            &seen,
            |cluster, seen| {
                if options.short || cluster.has_volumes {
                    by_node(cluster, seen, to)
                } else {
                    by_role(cluster, seen, to)
                }
            },
        )?;
        let by = match options.short || cluster.has_volumes {
            true => vec![to],
            false => Kind::BOTH.to_vec(),
        };
        all_is_well(cluster, venv, &keys, &by)?;
    }
    println!(
        "{} requests, {} wrong answers, {:.0} minutes",
        seen.requests.load(Ordering::Relaxed),
        seen.errors(),
        start.elapsed().as_secs_f64() / 60.0
    );
    ensure!(seen.errors() == 0, "clients saw wrong answers");
    Ok(())
}

fn make_containers(cluster: &Cluster) -> Result<()> {
    let owner = Account::login(cluster.swift.port)?;
    // An admin, who alone may request that a container is sharded.
    let mut admin = Account::login_as(cluster.swift.port, "admin:admin", "admin")?;
    admin.path.clone_from(&owner.path);
    for container in CONTAINERS {
        let mut headers = Vec::new();
        if container.starts_with("/coded") {
            headers.push(("X-Storage-Policy", "coded"));
        }
        if container.ends_with("large") {
            headers.push(("X-Container-Sharding", "on"));
        }
        admin.must("PUT", container, "", &headers, b"")?;
    }
    Ok(())
}

/// Runs `work` while the clients' load runs.
fn under_load(
    options: &Options,
    login: &Account,
    keys: &mut [Vec<Key>],
    cluster: &mut Cluster,
    seen: &Observations,
    work: impl FnOnce(&mut Cluster, &Observations) -> Result<()>,
) -> Result<()> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (number, keys) in keys.iter_mut().enumerate() {
            let client = Client {
                account: login.routed(Balanced::new(cluster.balancer.clone())),
                keys,
                random: Random::new(options.seed ^ (number as u64) << 32),
                seen,
                number,
            };
            let stop = &stop;
            scope.spawn(move || client.run(stop));
        }
        let done = work(cluster, seen);
        stop.store(true, Ordering::Relaxed);
        done
    })
}

/// Swaps one whole node after the other, then the proxies.
fn by_node(cluster: &mut Cluster, seen: &Observations, to: Kind) -> Result<()> {
    for node in 1..=NODES {
        step(&format!("node {node} to {to}"), seen, || {
            let parts = [
                Part::Object(node),
                Part::Container(node),
                Part::Account(node),
            ];
            parts.iter().try_for_each(|part| cluster.swap(*part, to))?;
            cluster.daemons[node - 1] = to;
            passes::settle(cluster, &parts)
        })?;
    }
    proxies(cluster, seen, to)
}

/// Swaps one role after the other, on one node after the other.
fn by_role(cluster: &mut Cluster, seen: &Observations, to: Kind) -> Result<()> {
    let roles: [fn(usize) -> Part; 3] = [Part::Object, Part::Container, Part::Account];
    for part in roles.iter().flat_map(|role| (1..=NODES).map(role)) {
        step(&format!("{part} to {to}"), seen, || {
            cluster.swap(part, to)?;
            passes::settle(cluster, &[part])
        })?;
    }
    for node in 1..=NODES {
        step(&format!("daemons of node {node} to {to}"), seen, || {
            cluster.daemons[node - 1] = to;
            passes::mend(cluster)
        })?;
    }
    proxies(cluster, seen, to)
}

fn proxies(cluster: &mut Cluster, seen: &Observations, to: Kind) -> Result<()> {
    seen.has_swift_proxy.store(true, Ordering::Relaxed);
    for number in [1, 2] {
        let part = Part::Proxy(number);
        step(&format!("{part} to {to}"), seen, || cluster.swap(part, to))?;
    }
    let has_swift_proxy = to == Kind::Swift;
    seen.has_swift_proxy
        .store(has_swift_proxy, Ordering::Relaxed);
    Ok(())
}

fn step(name: &str, seen: &Observations, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let (start, before) = (Instant::now(), seen.requests.load(Ordering::Relaxed));
    seen.slowest();
    work()?;
    println!(
        "{name}: {:.1} s, {} requests meanwhile, the slowest {:.1} s, {} wrong so far",
        start.elapsed().as_secs_f64(),
        seen.requests.load(Ordering::Relaxed) - before,
        seen.slowest().as_secs_f64(),
        seen.errors()
    );
    Ok(())
}

/// Checks without load that everything is where it belongs and matches what was acknowledged. A
/// device that is emptied is refilled by the daemons of each kind in `by`.
fn all_is_well(cluster: &mut Cluster, venv: &Venv, keys: &[Vec<Key>], by: &[Kind]) -> Result<()> {
    let before = cluster.daemons;
    if cluster.has_volumes && before[0] == Kind::Cairn {
        volumes::all_is_well(cluster)?;
        return as_acknowledged(cluster, keys);
    }
    println!("{}", proof::in_place(cluster, venv, before[0])?);
    for (kind, node) in by.iter().copied().zip(2..) {
        proof::lose_device(cluster, node)?;
        let words = proof::in_place(cluster, venv, kind)?;
        println!("the device of node {node} was emptied: {words}");
        passes::audit(cluster)?;
        proof::dispersed(cluster, kind)?;
        println!("swift-dispersion-report of {kind}: 100 % of both policies' samples");
    }
    cluster.daemons = before;
    as_acknowledged(cluster, keys)
}

fn as_acknowledged(cluster: &Cluster, keys: &[Vec<Key>]) -> Result<()> {
    for port in cluster.ports() {
        let lost = check::all(&mut Account::login(port)?, keys)?;
        if !lost.is_empty() {
            bail!("by the proxy on port {port}:\n{}", lost.join("\n"));
        }
    }
    println!("all objects and listings as acknowledged");
    Ok(())
}
