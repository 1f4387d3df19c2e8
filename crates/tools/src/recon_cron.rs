//! `swift-recon-cron`: counts the async pendings on the devices, for `/recon/async`. To be run
//! periodically by cron on every object server.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use cairn_daemons::recon_cache::{DEFAULT_RECON_CACHE_PATH, OBJECT_RECON_FILE, ReconCache};
use cairn_formats::ini::Conf;
use clap::Parser;
use rustix::fs::{FlockOperation, flock};
use serde_json::{Map, json};

/// Maximum wait for another run to finish.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
const LOCK_RETRY: Duration = Duration::from_millis(50);

/// Count container updates that wait to be delivered
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Options {
    /// An object server's conf with a section [filter:recon]
    #[arg(value_name = "CONF_FILE")]
    conf: PathBuf,
}

pub(crate) fn run(options: Options, _out: &mut dyn Write) -> Result<u8> {
    let name = options.conf.display().to_string();
    let text = fs::read_to_string(&options.conf).with_context(|| format!("cannot read {name}"))?;
    let section = Conf::parse(&name, &text)?.section("filter:recon")?;
    let devices = PathBuf::from(section.str_or("devices", "/srv/node"));
    let cache = section.str_or("recon_cache_path", DEFAULT_RECON_CACHE_PATH);
    let locks = PathBuf::from(section.str_or("recon_lock_path", "/var/lock"));
    let _lock = lock(&locks.join("swift-recon-object-cron"))?;
    let count = waiting(&devices)
        .with_context(|| format!("cannot count what waits below {}", devices.display()))?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut entries = Map::new();
    entries.insert("async_pending".into(), json!(count));
    entries.insert("async_pending_last".into(), json!(now.as_secs_f64()));
    ReconCache::new(cache, OBJECT_RECON_FILE).merge(&entries)?;
    Ok(0)
}

/// Takes Swift's own lock: a file `.lock` in the folder.
fn lock(folder: &Path) -> Result<File> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join(".lock");
    let file = File::options().append(true).create(true).open(&path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    let deadline = Instant::now() + LOCK_TIMEOUT;
    while let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if error != rustix::io::Errno::WOULDBLOCK || Instant::now() > deadline {
            bail!("{}: another run holds it: {error}", path.display());
        }
        std::thread::sleep(LOCK_RETRY);
    }
    Ok(file)
}

/// Number of async pendings of all devices and policies: files two folders down.
fn waiting(devices: &Path) -> std::io::Result<u64> {
    let mut count = 0;
    for device in folders(devices)? {
        for pending in folders(&device)? {
            let name = pending.file_name().unwrap_or_default().to_string_lossy();
            if name != "async_pending" && !name.starts_with("async_pending-") {
                continue;
            }
            for suffix in folders(&pending)? {
                count += entries(&suffix)?.len() as u64;
            }
        }
    }
    Ok(count)
}

fn folders(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = entries(folder)?;
    found.retain(|path| path.is_dir());
    Ok(found)
}

/// Entries of a folder. Files and folders may disappear meanwhile, when updates are delivered.
fn entries(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in [
            "dev/sda/async_pending/abc/one",
            "dev/sda/async_pending/abc/two",
            "dev/sda/async_pending-1/fff/three",
            "dev/sdb/async_pending/000/four",
            "dev/sdb/async_pendings/000/none",
            "dev/sdb/objects/000/none",
        ] {
            fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            fs::write(at(name), "").unwrap();
        }
        fs::write(at("dev/file"), "").unwrap();
        fs::create_dir(at("cache")).unwrap();
        fs::write(at("cache/object.recon"), "{\"kept\": 1}").unwrap();
        let conf = format!(
            "[DEFAULT]\ndevices = {}\n[filter:recon]\nrecon_cache_path = {}\nrecon_lock_path = {}\n",
            at("dev").display(),
            at("cache").display(),
            at("locks").display()
        );
        fs::write(at("object-server.conf"), conf).unwrap();
        let options = || Options {
            conf: at("object-server.conf"),
        };
        assert_eq!(run(options(), &mut Vec::new()).unwrap(), 0);
        let told = ReconCache::new(at("cache"), OBJECT_RECON_FILE).read();
        assert_eq!(
            (&told["async_pending"], &told["kept"]),
            (&json!(4), &json!(1))
        );
        assert!(told["async_pending_last"].as_f64().unwrap() > 1e9);
        fs::write(at("object-server.conf"), "[app:x]\n").unwrap();
        let error = run(options(), &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("filter:recon"), "{error}");
    }
}
