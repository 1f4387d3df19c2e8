//! Read and write affinity, with real hosts in two regions: each proxy prefers its own, and one of
//! them the other region for the objects of the second policy. Requests are counted by the object
//! servers, since replicators may move files on the disks meanwhile.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::cluster::Cluster;
use super::layout::{ProxyOptions, SECOND};
use super::settled::Settled;
use cairn_testkit::report::Report;
use cairn_testkit::wire::{Account, Connection};

const OBJECTS: usize = 24;
const FIRST: ProxyOptions<'_> = ProxyOptions {
    app: "sorting_method = affinity\nread_affinity = r1=100\nwrite_affinity = r1\n",
    sections: "[proxy-server:policy:1]\nsorting_method = affinity\nread_affinity = r2=100\n\
               write_affinity = r2\n",
};
const OTHER: ProxyOptions<'_> = ProxyOptions {
    app: "sorting_method = affinity\nread_affinity = r2=100\nwrite_affinity = r2\n",
    sections: "",
};

/// A proxy, a container's policy, and the preferred region.
const CASES: [(&str, usize, &str, u8); 3] = [
    ("of the proxy in region 1", 0, "object", 1),
    ("of the proxy in region 2", 1, "object", 2),
    ("of a policy, against the proxy's own", 0, SECOND, 2),
];

pub(super) fn run(cluster: &mut Cluster, settled: &Settled, report: &mut Report) -> Result<()> {
    cluster.restart_proxy(0, &FIRST)?;
    cluster.restart_proxy(1, &OTHER)?;
    for (number, (words, proxy, ring, region)) in CASES.into_iter().enumerate() {
        let address = cluster.proxy_address(proxy);
        let mut account = Account::login_to(address, "test:tester", "testing")?;
        let container = format!("/affinity-{number}");
        let policy = if ring == SECOND {
            "second"
        } else {
            "replicated"
        };
        let headers = [("X-Storage-Policy", policy)];
        account.must("PUT", &container, "", &headers, b"")?;
        report.tell(&format!("write affinity {words}"), || {
            writes(cluster, settled, &mut account, &container, region)
        });
        report.tell(&format!("read affinity {words}"), || {
            reads(cluster, &mut account, &container, region)
        });
    }
    for number in 0..cluster.proxies.len() {
        cluster.restart_proxy(number, &ProxyOptions::default())?;
    }
    Ok(())
}

/// Every replica is first written in the region; the replicators then move them into place.
fn writes(
    cluster: &Cluster,
    settled: &Settled,
    account: &mut Account,
    container: &str,
    region: u8,
) -> Result<String> {
    let before = answered(cluster, "PUT", 201)?;
    for number in 0..OBJECTS {
        let path = format!("{container}/{number}");
        account.must("PUT", &path, "", &[], b"near")?;
    }
    let (near, far) = sides(cluster, region, &before, "PUT", 201)?;
    // The last replica of each may still be in progress.
    ensure!(
        near >= 2 * OBJECTS as u64 && far == 0,
        "{near} replicas written in region {region}, {far} elsewhere"
    );
    let start = Instant::now();
    settled.wait(cluster, Duration::from_secs(120))?;
    Ok(format!(
        "{OBJECTS} objects in region {region} alone at first, all in place after {:.1} s",
        start.elapsed().as_secs_f64()
    ))
}

/// No read leaves the region: of three replicas over two regions, each has at least one.
fn reads(cluster: &Cluster, account: &mut Account, container: &str, region: u8) -> Result<String> {
    let before = answered(cluster, "GET", 200)?;
    for number in 0..OBJECTS {
        let path = format!("{container}/{number}");
        let answer = account.must("GET", &path, "", &[], b"")?;
        ensure!(answer.body == b"near", "{path} has other content");
    }
    let (near, far) = sides(cluster, region, &before, "GET", 200)?;
    ensure!(
        near == OBJECTS as u64 && far == 0,
        "{near} reads in region {region}, {far} elsewhere"
    );
    Ok(format!("{near} reads in region {region}, none elsewhere"))
}

/// Number of requests answered by object servers since `before`: in the region, and elsewhere.
fn sides(
    cluster: &Cluster,
    region: u8,
    before: &[u64],
    method: &str,
    status: u16,
) -> Result<(u64, u64)> {
    let after = answered(cluster, method, status)?;
    let (mut near, mut far) = (0, 0);
    for (node, (after, before)) in cluster.storage.iter().zip(after.iter().zip(before)) {
        match node.host.region == region {
            true => near += after - before,
            false => far += after - before,
        }
    }
    Ok((near, far))
}

/// Number of such requests that each host's object server answered with this status. Requests
/// inside SSYNC are not included.
fn answered(cluster: &Cluster, method: &str, status: u16) -> Result<Vec<u64>> {
    let label =
        format!(r#"cairn_requests_total{{server="object",method="{method}",status="{status}"}} "#);
    let count = |address| -> Result<u64> {
        let answer = Connection::to(address).call("GET", "/metrics", &[], b"")?;
        let text = answer.text();
        let line = text.lines().find_map(|line| line.strip_prefix(&label));
        Ok(line.unwrap_or("0").parse()?)
    };
    let hosts = cluster.storage.iter();
    hosts
        .map(|node| count((node.host.address, 6200).into()).context("counting requests"))
        .collect()
}
