//! `swift-reconciler-enqueue`: queues an object that is in another policy than its container's for
//! the container reconciler, as container servers do themselves when they find one. The row goes to
//! container servers by their own protocol, which `cairn_client` does not speak.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use cairn_daemons::container_reconciler::{
    DELETE_TYPE, MISPLACED_OBJECTS_ACCOUNT, PUT_TYPE, queue_container,
};
use cairn_http::client::Client;
use cairn_http::params::{quote_path, split_path};
use cairn_http::{Body, Request};
use cairn_ring::Device;
use cairn_types::timestamp::decode_timestamps;
use cairn_types::{PolicyIndex, Quorum, Timestamp};
use clap::{Parser, ValueEnum};
use http::header::{CONTENT_LENGTH, HeaderName, HeaderValue, USER_AGENT};
use http::{HeaderMap, Method};

use crate::locations::{SwiftDir, ip_of};

const TIMEOUT: Duration = Duration::from_secs(15);

/// Queue an object for the container reconciler
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Options {
    /// Index of the policy that the object is in
    policy_index: String,
    /// /account/container/object
    path: String,
    /// Timestamp of the object's file
    timestamp: String,
    /// Operation in the wrong policy
    #[arg(short = 'X', long, value_enum, default_value = "PUT")]
    op: Operation,
    /// Queue it even if it was queued and taken from the queue before
    #[arg(short, long)]
    force: bool,
    /// Folder of swift.conf and the rings
    #[arg(short = 'd', long, default_value = "/etc/swift")]
    swift_dir: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "UPPER")]
enum Operation {
    Put,
    Delete,
}

pub(crate) fn run(options: Options, out: &mut dyn Write) -> Result<u8> {
    let swift = SwiftDir::open(&options.swift_dir)?;
    let policy = options.policy_index.parse().ok().map(PolicyIndex);
    let policy = policy.filter(|index| swift.conf.policies.iter().any(|p| p.index == *index));
    let policy = policy
        .with_context(|| format!("invalid storage policy index: {}", options.policy_index))?;
    let parts = split_path(&options.path, 3, 3, true);
    parts.with_context(|| format!("Invalid path: {}", options.path))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = Timestamp::from_unix(now.unwrap_or_default());
    let entry = Entry::of(&options, policy, now)?;
    let ring = swift.ring("container")?;
    let hash = swift
        .conf
        .hash_path
        .hash(MISPLACED_OBJECTS_ACCOUNT, Some(&entry.container), None);
    let partition = ring.partition(hash);
    let nodes = ring.primaries(partition);
    let taken = crate::block_on(async {
        let client = Client::new(Duration::from_secs(5), 1, Duration::from_secs(1));
        let mut taken = 0;
        for node in &nodes {
            match entry.send(&client, &node.device, partition).await {
                Ok(()) => taken += 1,
                Err(error) => {
                    let device = &node.device;
                    let _ = writeln!(
                        std::io::stderr(),
                        "{}:{}/{}: {error:#}",
                        device.replication_ip,
                        device.replication_port,
                        device.device
                    );
                }
            }
        }
        Ok(taken)
    })?;
    if !Quorum::majority_of(nodes.len()).is_reached_by(taken) {
        anyhow::bail!("unable to enqueue!");
    }
    writeln!(out, "{}", entry.container)?;
    Ok(0)
}

/// A row of the reconciler's queue.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    container: String,
    name: String,
    etag: String,
    queued: String,
    content_type: &'static str,
}

impl Entry {
    fn of(options: &Options, policy: PolicyIndex, now: Timestamp) -> Result<Entry> {
        let at = &options.timestamp;
        let (_, _, modified) = decode_timestamps(at)
            .ok()
            .with_context(|| format!("{at:?} is no timestamp, such as 1700000000.12345"))?;
        Ok(Entry {
            container: queue_container(modified).to_string(),
            name: format!("{}:{}", policy.0, options.path),
            etag: at.clone(),
            queued: match options.force {
                true => now.internal(),
                false => at.clone(),
            },
            content_type: match options.op {
                Operation::Put => PUT_TYPE,
                Operation::Delete => DELETE_TYPE,
            },
        })
    }

    fn headers(&self) -> Result<HeaderMap> {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-size", "0"),
            ("x-etag", self.etag.as_str()),
            ("x-timestamp", self.queued.as_str()),
            ("x-content-type", self.content_type),
            ("x-backend-use-replication-network", "true"),
        ] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value)?);
        }
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        headers.insert(USER_AGENT, HeaderValue::from_static("reconciler-enqueue"));
        Ok(headers)
    }

    async fn send(&self, client: &Client, device: &Device, partition: u32) -> Result<()> {
        let path = format!(
            "/{}/{partition}/{MISPLACED_OBJECTS_ACCOUNT}/{}/{}",
            device.device, self.container, self.name
        );
        let mut request = Request::new(Body::empty());
        *request.method_mut() = Method::PUT;
        *request.uri_mut() = quote_path(&path).parse()?;
        *request.headers_mut() = self.headers()?;
        let address = SocketAddr::new(ip_of(&device.replication_ip)?, device.replication_port);
        let status = client.call(address, request, TIMEOUT).await?.status();
        anyhow::ensure!(status.is_success(), "answered with {status}");
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn entry(words: &str) -> Result<Entry> {
        let words = std::iter::once("x").chain(words.split(' '));
        let options = Options::try_parse_from(words).unwrap();
        Entry::of(
            &options,
            PolicyIndex(1),
            Timestamp::from_secs(9_000_000_000),
        )
    }

    #[test]
    fn entries_are_the_reconcilers() {
        let queued = entry("1 /a/c/o/p 1700000123.00000").unwrap();
        assert_eq!(queued.container, "1699999200");
        assert_eq!(queued.name, "1:/a/c/o/p");
        assert_eq!(
            (&*queued.etag, &*queued.queued),
            ("1700000123.00000", "1700000123.00000")
        );
        assert_eq!(queued.content_type, "application/x-put");
        let forced = entry("-f -X DELETE 1 /a/c/o 1700000123.00000").unwrap();
        assert_eq!(forced.content_type, "application/x-delete");
        assert_eq!(forced.queued, "9000000000.00000");
        assert!(entry("1 /a/c/o yesterday").is_err());
    }
}
