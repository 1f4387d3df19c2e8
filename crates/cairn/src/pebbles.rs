//! `cairn pebbles`: inspection of a device's volumes. Nothing is written, and a server may be
//! running.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use cairn_pebbles::inspect::{self, Inspected};
use cairn_pebbles::object::{Entry, EntryKind};
use cairn_types::ObjectHash;
use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum PebblesCommand {
    /// List objects: partition, hash, what there is of each, bytes, name.
    Ls(Device),
    /// Read everything, and say what is damaged; ends with 1 where something is.
    Check(Device),
    /// Write an object's content to standard output.
    Cat {
        #[command(flatten)]
        device: Device,
        /// Its hash, or `/account/container/object`.
        object: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Device {
    /// Folder of the device, with `pebbles` or `pebbles-N` in it.
    device: PathBuf,
}

impl Device {
    fn open(&self) -> Result<Vec<Inspected>> {
        let device = self.device.display();
        let stores = inspect::open(&self.device);
        let stores = stores.with_context(|| format!("cannot read {device}"))?;
        if stores.is_empty() {
            bail!("no folder pebbles or pebbles-N in {device}");
        }
        Ok(stores)
    }
}

/// Runs the command; true if nothing is damaged.
pub(crate) fn run(command: PebblesCommand) -> Result<bool> {
    let mut out = BufWriter::new(io::stdout().lock());
    let is_well = match command {
        PebblesCommand::Ls(device) => list(&device, &mut out).map(|()| true),
        PebblesCommand::Check(device) => check(&device, &mut out),
        PebblesCommand::Cat { device, object } => cat(&device, &object, &mut out).map(|()| true),
    }?;
    out.flush()?;
    Ok(is_well)
}

fn list(device: &Device, out: &mut impl Write) -> Result<()> {
    for store in device.open()? {
        let status = store.store.status();
        writeln!(
            out,
            "# {}: {} objects, {} volumes, {} bytes of {} count",
            store.path.display(),
            status.objects,
            status.volumes,
            status.live_bytes,
            status.written_bytes
        )?;
        for (partition, hash, entries) in store.objects() {
            let name = store.name(partition, hash, &entries);
            let name = name.unwrap_or_else(|| "(unreadable)".to_owned());
            let parts: Vec<String> = entries.iter().map(shown).collect();
            let bytes: u64 = entries.iter().map(|e| u64::from(e.place.len)).sum();
            let (hash, parts) = (hash.hex(), parts.join(","));
            writeln!(out, "{partition}\t{hash}\t{parts}\t{bytes}\t{name}")?;
        }
    }
    Ok(())
}

/// An entry in the form of Swift's file name.
fn shown(entry: &Entry) -> String {
    let time = entry.timestamp;
    match entry.kind {
        EntryKind::Data => format!("{time}.data"),
        EntryKind::Fragment { index, is_durable } => {
            format!("{time}#{index}{}.data", if is_durable { "#d" } else { "" })
        }
        EntryKind::Meta => format!("{time}.meta"),
        EntryKind::Tombstone => format!("{time}.ts"),
        EntryKind::Durable => format!("{time}.durable"),
    }
}

fn check(device: &Device, out: &mut impl Write) -> Result<bool> {
    let mut is_well = true;
    for store in device.open()? {
        let check = store.check()?;
        for (hash, slot, at) in &check.damaged {
            writeln!(out, "damaged: {} in volume {slot} at {at}", hash.hex())?;
        }
        for (slot, at) in &check.lost {
            writeln!(out, "no record: in volume {slot} at {at}")?;
        }
        writeln!(
            out,
            "{}: {} volumes, {} records, {} damaged, {} lost",
            store.path.display(),
            check.volumes,
            check.records,
            check.damaged.len(),
            check.lost.len()
        )?;
        is_well &= check.damaged.is_empty() && check.lost.is_empty();
    }
    Ok(is_well)
}

fn cat(device: &Device, object: &str, out: &mut impl Write) -> Result<()> {
    let asked = ObjectHash::from_hex(object);
    for store in device.open()? {
        for (partition, hash, entries) in store.objects() {
            let is_it = match asked {
                Some(asked) => asked == hash,
                None => store.name(partition, hash, &entries).as_deref() == Some(object),
            };
            let newest = entries.iter().filter(|entry| entry.is_content());
            let Some(entry) = newest.max_by_key(|entry| entry.timestamp).filter(|_| is_it) else {
                continue;
            };
            if let Some(number) = entry.external {
                let path = store.path.join("large").join(format!("{number:016x}"));
                let file = std::fs::File::open(&path);
                let mut file = file.with_context(|| format!("cannot read {}", path.display()))?;
                io::copy(&mut file, out)?;
                return Ok(());
            }
            let stored = store.store.read(partition, hash, entry.place);
            out.write_all(&stored.context("cannot read its record")?.body)?;
            return Ok(());
        }
    }
    bail!("no content of {object} on this device");
}
