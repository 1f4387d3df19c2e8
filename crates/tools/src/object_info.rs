//! `swift-object-info`: shows the metadata in an object's file, verifies its content, and shows its
//! location by the ring. An object in volumes is named as if it were a file in their folder: `sdb1/pebbles/HASH`, or
//! `sdb1/pebbles-1/account/container/object`.

mod volumes;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use cairn_disk::{Metadata, inspect};
use cairn_http::params::unquote;
use cairn_types::{PolicyIndex, Timestamp, header_name};
use clap::Parser;
use md5::{Digest, Md5};
use serde_json::Value;

use crate::locations::{Item, Places, SwiftDir};

/// Show what an object's file says
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Options {
    /// Do not compare the content with the ETag
    #[arg(short, long)]
    no_check_etag: bool,
    /// Folder of swift.conf and the rings
    #[arg(short = 'd', long, default_value = "/etc/swift")]
    swift_dir: PathBuf,
    /// Show metadata without the prefixes of their names
    #[arg(long)]
    drop_prefixes: bool,
    /// The object's storage policy
    #[arg(short = 'P', long)]
    policy_name: Option<String>,
    /// Its file; of one in volumes, the device's pebbles[-N]/HASH or pebbles[-N]/account/container/object
    #[arg(value_name = "OBJECT_FILE")]
    file: PathBuf,
}

pub(crate) fn run(options: Options, out: &mut dyn Write) -> Result<u8> {
    let swift = SwiftDir::open(&options.swift_dir)?;
    let path = std::path::absolute(&options.file)?;
    let in_volumes = volumes::find(&path, &swift.conf.hash_path)?;
    if in_volumes.is_none() && !path.exists() {
        writeln!(out, "Data file doesn't exist")?;
        return Ok(1);
    }
    let mut policy = in_volumes
        .as_ref()
        .map_or_else(|| policy_of(&path), |found| found.policy);
    let mut ring = swift.ring(&policy.ring_name()).ok();
    if let Some(name) = &options.policy_name
        && let Some(named) = swift.conf.policies.by_name(name)
    {
        if named.index != policy {
            writeln!(out, "WARNING: Ring does not match policy!")?;
            writeln!(out, "Double check your policy name!")?;
        }
        if ring.is_none() {
            ring = swift.ring(&named.index.ring_name()).ok();
            policy = named.index;
        }
    }
    let in_file = || {
        let (file, metadata) = inspect::open(&path).ok()?;
        let size = file.metadata().ok()?.len();
        let content: Box<dyn Read> = Box::new(file);
        Some((content, size, metadata))
    };
    let found = match in_volumes {
        Some(found) => Some((found.content, found.size, found.metadata)),
        None => in_file(),
    };
    let Some((mut content, size, metadata)) = found else {
        writeln!(out, "Invalid metadata")?;
        return Ok(1);
    };
    let text = |name: &str| {
        let value = metadata.get(name).unwrap_or_default();
        String::from_utf8_lossy(value).into_owned()
    };
    let name = text("name");
    print_metadata(&metadata, &swift, options.drop_prefixes, out)?;
    let (etag, length) = (text("ETag"), text("Content-Length"));
    let size = match options.no_check_etag {
        true => {
            writeln!(out, "ETag: {etag} (not checked)")?;
            size
        }
        false => check_etag(&mut *content, &etag, out)?,
    };
    match length.parse::<u64>() {
        Ok(length) if length == size => writeln!(out, "Content-Length: {length} (valid)")?,
        Ok(length) => writeln!(
            out,
            "Content-Length: {length} doesn't match file length of {size}"
        )?,
        Err(_) => writeln!(out, "Content-Length: Not found in metadata")?,
    }
    let Some((account, container, object)) = split(&name) else {
        bail!("Path is invalid for object '{name}'");
    };
    if let Some(ring) = ring {
        let places = Places {
            ring: &ring,
            datadir: &policy.dir("objects"),
            item: Item {
                account: Some(account),
                container: Some(container),
                object: Some(object),
            },
            partition: None,
            all: false,
            policy: Some(policy),
        };
        places.print(&swift, out)?;
    }
    Ok(0)
}

/// The policy, by the folder `objects` or `objects-N` of the file.
fn policy_of(path: &Path) -> PolicyIndex {
    let text = path.to_string_lossy();
    let folder = text
        .rfind("objects")
        .and_then(|at| text[at..].split('/').next());
    let index = folder.and_then(|folder| folder.strip_prefix("objects-"));
    PolicyIndex(index.and_then(|index| index.parse().ok()).unwrap_or(0))
}

fn split(path: &str) -> Option<(&str, &str, &str)> {
    let mut parts = path.strip_prefix('/')?.splitn(3, '/');
    Some((parts.next()?, parts.next()?, parts.next()?))
}

/// Verifies the content; returns its length.
fn check_etag(content: &mut dyn Read, etag: &str, out: &mut dyn Write) -> Result<u64> {
    let mut md5 = Md5::new();
    let mut size = 0;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = content.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        md5.update(&buffer[..read]);
        size += read as u64;
    }
    let digest: [u8; 16] = md5.finalize().into();
    let computed = cairn_types::ObjectHash(digest).hex();
    match etag {
        "" => writeln!(out, "ETag: Not found in metadata")?,
        etag if etag == computed => writeln!(out, "ETag: {etag} (valid)")?,
        etag => writeln!(out, "ETag: {etag} doesn't match file hash of {computed}!")?,
    }
    Ok(size)
}

const USER: &str = "x-object-meta-";
const SYSTEM: &str = "x-object-sysmeta-";
const TRANSIENT: &str = "x-object-transient-sysmeta-";

fn print_metadata(
    metadata: &Metadata,
    swift: &SwiftDir,
    drop_prefixes: bool,
    out: &mut dyn Write,
) -> Result<()> {
    let mut groups: [BTreeMap<String, String>; 4] = Default::default();
    let mut own: BTreeMap<&str, String> = BTreeMap::new();
    for (name, value) in metadata.iter() {
        let value = String::from_utf8_lossy(value).into_owned();
        if [
            "name",
            "Content-Type",
            "X-Timestamp",
            "ETag",
            "Content-Length",
        ]
        .contains(&name)
        {
            own.insert(name, value);
            continue;
        }
        let name = header_name::unescape(name);
        let name = &*String::from_utf8_lossy(&name);
        let lower = name.to_ascii_lowercase();
        let prefixes = [SYSTEM, TRANSIENT, USER];
        let group = prefixes.iter().position(|prefix| lower.starts_with(prefix));
        let shown = match group {
            Some(group) if drop_prefixes => name.get(prefixes[group].len()..).unwrap_or(name),
            _ => name,
        };
        groups[group.unwrap_or(3)].insert(shown.to_owned(), value);
    }
    let own = |name: &str| own.get(name).map_or("", String::as_str);
    match split(own("name")) {
        Some((account, container, object)) => {
            let hash = &swift.conf.hash_path;
            let hash = hash.hash(account, Some(container), Some(object)).hex();
            writeln!(out, "Path: {}\n  Account: {account}", own("name"))?;
            writeln!(out, "  Container: {container}\n  Object: {object}")?;
            writeln!(out, "  Object hash: {hash}")?;
        }
        None if own("name").is_empty() => writeln!(out, "Path: Not found in metadata")?,
        None => bail!("Path is invalid for object '{}'", own("name")),
    }
    match own("Content-Type") {
        "" => writeln!(out, "Content-Type: Not found in metadata")?,
        kind => writeln!(out, "Content-Type: {kind}")?,
    }
    match Timestamp::parse(own("X-Timestamp")) {
        Ok(time) if !time.is_zero() => {
            writeln!(out, "Timestamp: {} ({})", time.isoformat(), time.internal())?;
        }
        _ => writeln!(out, "Timestamp: Not found in metadata")?,
    }
    let titles = [
        "System Metadata:",
        "Transient System Metadata:",
        "User Metadata:",
        "Other Metadata:",
    ];
    for (title, items) in titles.iter().zip(&groups) {
        writeln!(out, "{title}")?;
        if items.is_empty() {
            writeln!(out, "  No metadata found")?;
        }
        for (name, value) in items {
            writeln!(out, "  {name}: {value}")?;
        }
    }
    print_crypto(&groups[0], &groups[1], out)
}

/// Prints the crypto metadata, if the object is encrypted.
fn print_crypto(
    system: &BTreeMap<String, String>,
    transient: &BTreeMap<String, String>,
    out: &mut dyn Write,
) -> Result<()> {
    let body = system.get("X-Object-Sysmeta-Crypto-Body-Meta");
    let metadata = transient.get("X-Object-Transient-Sysmeta-Crypto-Meta");
    for (label, value) in [
        ("Data crypto details", body),
        ("Metadata crypto details", metadata),
    ] {
        let Some(value) = value else { continue };
        let value: Value = serde_json::from_str(&unquote(value)?)?;
        writeln!(out, "{label}: {}", serde_json::to_string_pretty(&value)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_in_the_path() {
        let of = |path: &str| policy_of(Path::new(path)).0;
        assert_eq!(of("/srv/node/sda/objects/1/abc/hash/1.data"), 0);
        assert_eq!(of("/srv/objects/sda/objects-12/1/abc/hash/1.data"), 12);
        assert_eq!(of("/tmp/1.data"), 0);
    }
}
