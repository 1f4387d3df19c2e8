//! `swift-get-nodes`: shows the servers responsible for a name or a partition.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use cairn_http::params::{quote, unquote};
use cairn_types::PolicyIndex;
use clap::Parser;

use crate::locations::{Item, Places, SwiftDir, read_ring};

/// Show the servers and devices that hold an account, a container, an object or a partition
///
/// swift-get-nodes [-a] RING.gz ACCOUNT [CONTAINER [OBJECT]]
/// swift-get-nodes [-a] RING.gz -p PARTITION
/// swift-get-nodes [-a] -P POLICY ACCOUNT [CONTAINER [OBJECT]]
/// swift-get-nodes [-a] -P POLICY -p PARTITION
/// The name may be one argument, its parts separated by slashes.
#[derive(Debug, Parser)]
#[command(version, verbatim_doc_comment)]
pub(crate) struct Options {
    /// Show all handoffs
    #[arg(short, long)]
    all: bool,
    /// Partition to look up
    #[arg(short, long)]
    partition: Option<u32>,
    /// The storage policy whose ring is used
    #[arg(short = 'P', long)]
    policy_name: Option<String>,
    /// Folder of swift.conf and the rings
    #[arg(short = 'd', long, default_value = "/etc/swift")]
    swift_dir: PathBuf,
    /// Names are percent-encoded
    #[arg(short = 'Q', long)]
    quoted: bool,
    #[arg(value_name = "RING.gz NAME")]
    arguments: Vec<String>,
}

pub(crate) fn run(options: Options, out: &mut dyn Write) -> Result<u8> {
    let swift = SwiftDir::open(&options.swift_dir)?;
    let mut arguments = options.arguments.clone();
    let mut ring_path = None;
    let policy = match &options.policy_name {
        Some(name) => match swift.conf.policies.by_name(name) {
            None => bail!("No policy named '{name}'"),
            policy => policy,
        },
        None => {
            if arguments.first().is_some_and(|a| a.ends_with(".ring.gz")) {
                let path = PathBuf::from(arguments.remove(0));
                if !path.exists() {
                    bail!("Ring file does not exist");
                }
                ring_path = Some(path);
            }
            None
        }
    };
    if options.quoted {
        for argument in &mut arguments {
            *argument = unquote(argument)?;
        }
    }
    if let [whole] = &arguments[..] {
        let parts = whole.trim_matches('/').splitn(3, '/');
        arguments = parts.map(str::to_owned).collect();
    }
    if ring_path.is_none() && policy.is_none() {
        bail!("Need to specify policy_name or <ring.gz>");
    }
    if arguments.is_empty() && options.partition.is_none() {
        bail!("No target specified");
    }
    if arguments.len() > 3 {
        bail!("Invalid arguments");
    }
    let item = Item {
        account: arguments.first().map(String::as_str),
        container: arguments.get(1).map(String::as_str),
        object: arguments.get(2).map(String::as_str),
    };
    let mut policy_index = None;
    let mut ring_name = None;
    if let Some(path) = &ring_path {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        ring_name = Some(name.trim_end_matches(".ring.gz").to_owned());
    } else if let Some(policy) = policy
        && (item.object.is_some() || options.partition.is_some())
    {
        policy_index = Some(policy.index);
        ring_name = Some(policy.index.ring_name());
    }
    let datadir = datadir(item, options.partition, ring_name.as_deref(), out)?;
    if item.object.is_some()
        && let Some(index) = ring_name.as_deref().and_then(policy_of_ring)
    {
        policy_index = Some(index);
    }
    let ring = match (&ring_path, &ring_name) {
        (Some(path), _) => read_ring(path)?,
        (None, Some(name)) => swift.ring(name)?,
        (None, None) => swift.ring(match item.container {
            Some(_) => "container",
            None => "account",
        })?,
    };
    for (label, value) in [("Account  ", item.account), ("Container", item.container)] {
        if let Some(value) = value {
            let line = format!("{label}\t{}", quote_name(value));
            let start = if label == "Account  " { "\n" } else { "" };
            writeln!(out, "{start}{line}")?;
        }
    }
    if let Some(object) = item.object {
        writeln!(out, "Object   \t{}\n\n", quote_name(object))?;
    }
    let places = Places {
        ring: &ring,
        datadir: &datadir,
        item,
        partition: options.partition,
        all: options.all,
        policy: policy_index,
    };
    places.print(&swift, out)?;
    Ok(0)
}

/// Percent-encodes a name, except slashes.
fn quote_name(name: &str) -> String {
    quote(name).replace("%2F", "/")
}

/// Policy of a ring's name: `object-1` is the ring of policy 1.
fn policy_of_ring(name: &str) -> Option<PolicyIndex> {
    let index = name.strip_prefix("object-")?;
    index.parse().ok().map(PolicyIndex)
}

/// The folder on devices; prints a message if the ring is of another kind.
fn datadir(
    item: Item<'_>,
    partition: Option<u32>,
    ring_name: Option<&str>,
    out: &mut dyn Write,
) -> Result<String> {
    let of_ring = |name: &str| match policy_of_ring(name) {
        Some(index) => format!("objects-{index}"),
        None => format!("{name}s"),
    };
    let mut warn = |wanted: &str, of: &str| {
        if ring_name.is_some_and(|name| name != wanted) {
            writeln!(
                out,
                "WARNING: {of} specified but ring not named \"{wanted}\""
            )?;
        }
        Ok::<_, std::io::Error>(format!("{wanted}s"))
    };
    Ok(match (item.account, item.container, item.object) {
        (Some(_), Some(_), Some(_)) => match ring_name.and_then(policy_of_ring) {
            Some(index) => format!("objects-{index}"),
            None => "objects".to_owned(),
        },
        (Some(_), Some(_), None) => warn("container", "account/container")?,
        (Some(_), None, _) => warn("account", "account")?,
        (None, ..) => match (partition, ring_name) {
            (Some(_), Some(name)) => of_ring(name),
            _ => "<type>".to_owned(),
        },
    })
}
