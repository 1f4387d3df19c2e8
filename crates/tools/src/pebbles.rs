//! `cairn pebbles`: inspection of a device's volumes, read-only, and migration from files to volumes
//! and back, while no server has them open.

mod migrate;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use cairn_pebbles::error::PebblesError;
use cairn_pebbles::inspect::{self, Inspected};
use cairn_pebbles::object::{Entry, EntryKind};
use cairn_types::ObjectHash;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use migrate::{Direction, Migrate};

#[derive(Debug, Subcommand)]
pub enum PebblesCommand {
    /// List the records that count: kind, timestamp, bytes, volume:offset, /account/container/object
    Ls {
        #[command(flatten)]
        devices: Devices,
        /// A JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Read everything, and say what is damaged; exit code 1 where something is
    ///
    /// Every record is held against its checksums, and every large body against its ETag.
    Check(Devices),
    /// Write an object's content to standard output
    Cat {
        /// Folder of the device, with `pebbles` or `pebbles-N` in it
        device: PathBuf,
        /// Its hash, or /account/container/object
        object: String,
    },
    /// Move a device's objects from files to volumes, with the servers and daemons stopped
    ///
    /// For policies whose diskfile_module in swift.conf is the engine of volumes. An object is durable
    /// in the volumes before its files are removed; a run that was killed goes on when it is run again.
    /// Exit code 1 where something is left.
    Import(Migrate),
    /// Move a device's objects from volumes back to files, with the servers and daemons stopped
    ///
    /// For policies whose diskfile_module in swift.conf is that of files. As safe as import.
    Export(Migrate),
}

#[derive(Debug, Args)]
pub struct Devices {
    /// Folders of devices, with `pebbles` or `pebbles-N` in them
    #[arg(value_name = "DEVICE", required = true)]
    devices: Vec<PathBuf>,
}

impl Devices {
    fn stores(&self) -> Result<Vec<Inspected>> {
        let stores = self.devices.iter().map(|device| open(device));
        Ok(stores
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .flatten()
            .collect())
    }
}

fn open(device: &Path) -> Result<Vec<Inspected>> {
    opened(device, inspect::open(device))
}

/// As [`open`]; a server that has them open lets this process in.
fn open_in_turn(device: &Path) -> Result<Vec<Inspected>> {
    opened(device, inspect::open_in_turn(device))
}

fn opened(device: &Path, stores: Result<Vec<Inspected>, PebblesError>) -> Result<Vec<Inspected>> {
    let device = device.display();
    let stores = stores.with_context(|| format!("cannot read {device}"))?;
    if stores.is_empty() {
        bail!(
            "{device} has no folder pebbles or pebbles-N: expected the folder of a device with volumes"
        );
    }
    Ok(stores)
}

/// Runs the command; true if nothing is damaged, or left where it was.
///
/// # Errors
/// A server has the volumes open, they cannot be read, or the object is not there.
pub fn run(command: PebblesCommand, out: impl Write) -> Result<bool> {
    let mut out = BufWriter::new(out);
    let is_sound = match command {
        PebblesCommand::Ls { devices, json } => list(&devices, json, &mut out).map(|()| true),
        PebblesCommand::Check(devices) => check(&devices, &mut out),
        PebblesCommand::Cat { device, object } => cat(&device, &object, &mut out).map(|()| true),
        PebblesCommand::Import(called) => migrate::run(&called, Direction::Import, &mut out),
        PebblesCommand::Export(called) => migrate::run(&called, Direction::Export, &mut out),
    }?;
    out.flush()?;
    Ok(is_sound)
}

fn list(devices: &Devices, is_json: bool, out: &mut impl Write) -> Result<()> {
    for store in devices.stores()? {
        for (partition, hash, entries) in store.objects() {
            let name = store.name(partition, hash, &entries);
            for entry in &entries {
                let bytes = content_len(&store, partition, hash, entry);
                match is_json {
                    true => {
                        let line =
                            as_json(&store, (partition, hash), entry, name.as_deref(), bytes);
                        writeln!(out, "{line}")?;
                    }
                    false => {
                        let bytes = bytes.map_or_else(|| "?".to_owned(), |bytes| bytes.to_string());
                        let unnamed = || format!("(name unreadable) {}", hash.hex());
                        let name = name.clone().unwrap_or_else(unnamed);
                        let (kind, place) = (kind_of(entry), entry.place);
                        let (time, slot, at) = (entry.timestamp, place.slot, place.offset);
                        writeln!(out, "{kind}\t{time}\t{bytes}\t{slot}:{at}\t{name}")?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Number of bytes of a record's content; `None`: it cannot be read.
fn content_len(store: &Inspected, partition: u32, hash: ObjectHash, entry: &Entry) -> Option<u64> {
    if !entry.is_content() {
        return Some(0);
    }
    match store.large(entry).ok()? {
        Some(file) => Some(file.metadata().ok()?.len()),
        None => {
            let stored = store.head(partition, hash, entry).ok()?;
            Some(stored.header.body_len.into())
        }
    }
}

fn kind_of(entry: &Entry) -> String {
    match entry.kind {
        EntryKind::Data => "data".to_owned(),
        EntryKind::Fragment { index, is_durable } => {
            format!("fragment#{index}{}", if is_durable { "#d" } else { "" })
        }
        EntryKind::Meta => "meta".to_owned(),
        EntryKind::Tombstone => "tombstone".to_owned(),
        EntryKind::Durable => "durable".to_owned(),
    }
}

fn as_json(
    store: &Inspected,
    (partition, hash): (u32, ObjectHash),
    entry: &Entry,
    name: Option<&str>,
    bytes: Option<u64>,
) -> Value {
    let mut parts = name
        .unwrap_or("")
        .strip_prefix('/')
        .unwrap_or("")
        .splitn(3, '/');
    let mut part = || parts.next().filter(|part| !part.is_empty());
    let kind = match entry.kind {
        EntryKind::Fragment { .. } => "fragment".to_owned(),
        _ => kind_of(entry),
    };
    let is_durable = match entry.kind {
        EntryKind::Fragment { is_durable, .. } => Some(is_durable),
        _ => None,
    };
    // The number that it was written with: a group of the index is no partition.
    let written = store.head(partition, hash, entry).ok();
    json!({
        "store": store.path.display().to_string(),
        "account": part(),
        "container": part(),
        "object": part(),
        "hash": hash.hex(),
        "partition": written.map(|stored| stored.header.partition),
        "kind": kind,
        "fragment": entry.fragment(),
        "durable": is_durable,
        "timestamp": entry.timestamp.internal(),
        "bytes": bytes,
        "volume": entry.place.slot,
        "offset": entry.place.offset,
        "record_bytes": entry.place.len,
        "file": entry.external.map(|number| format!("large/{number:016x}")),
    })
}

fn check(devices: &Devices, out: &mut impl Write) -> Result<bool> {
    let mut is_sound = true;
    for store in devices.stores()? {
        let path = store.path.display();
        let check = store
            .check()
            .with_context(|| format!("cannot check {path}"))?;
        for damage in &check.damaged {
            let (hash, slot, at) = (damage.hash.hex(), damage.volume, damage.offset);
            writeln!(
                out,
                "{path}: damaged: {hash} at {slot}:{at}: {}",
                damage.reason
            )?;
        }
        for (slot, at) in &check.lost {
            writeln!(out, "{path}: no record where one should be: at {slot}:{at}")?;
        }
        writeln!(
            out,
            "{path}: {} volumes, {} records, {} large bodies, {} damaged, {} lost, {} unreadable volumes",
            check.volumes,
            check.records,
            check.large,
            check.damaged.len(),
            check.lost.len(),
            check.unreadable,
        )?;
        is_sound &= check.is_sound();
    }
    Ok(is_sound)
}

fn cat(device: &Path, object: &str, out: &mut impl Write) -> Result<()> {
    let asked = ObjectHash::from_hex(object);
    if asked.is_none() && !object.starts_with('/') {
        bail!(
            "OBJECT is {object:?}: expected /account/container/object, or a hash of 32 hex digits"
        );
    }
    let found = find(&open_in_turn(device)?, object, asked)?;
    match found.with_context(|| format!("{} has no content of {object}", device.display()))? {
        Content::File(mut file) => drop(io::copy(&mut file, out)?),
        Content::Memory(body) => out.write_all(&body)?,
    }
    Ok(())
}

/// An object's content, apart from its volumes: whoever takes it may be slow.
enum Content {
    File(File),
    Memory(Bytes),
}

fn find(stores: &[Inspected], object: &str, asked: Option<ObjectHash>) -> Result<Option<Content>> {
    for store in stores {
        for (partition, hash, entries) in store.objects() {
            let is_it = match asked {
                Some(asked) => asked == hash,
                None => store.name(partition, hash, &entries).as_deref() == Some(object),
            };
            let newest = entries.iter().filter(|entry| entry.is_content());
            let Some(entry) = newest.max_by_key(|entry| entry.timestamp).filter(|_| is_it) else {
                continue;
            };
            let large = store.large(entry);
            return match large.with_context(|| format!("cannot read the file of {object}"))? {
                Some(file) => Ok(Some(Content::File(file))),
                None => {
                    let stored = store.store.read(partition, hash, entry.place);
                    let stored = stored.with_context(|| format!("the record of {object}"))?;
                    Ok(Some(Content::Memory(stored.body)))
                }
            };
        }
    }
    Ok(None)
}
