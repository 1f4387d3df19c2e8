//! A ring's devices that this process is responsible for, and the databases on them.

use std::fs;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;

use cairn_http::own_thread;
use cairn_index::{DbKey, DbKind};
use cairn_peer::LoadedRing;
use cairn_ring::Device;
use cairn_types::ObjectHash;

/// Own address of a daemon by its conf: `bind_ip` or `ring_ip`, and `bind_port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnAddress {
    /// None for all addresses of this host.
    ips: Option<Vec<IpAddr>>,
    /// None for any port.
    port: Option<u16>,
}

impl OwnAddress {
    /// Resolves `host`, an address or a name; `None` if it is unknown. Blocks for names.
    pub fn of(host: &str, port: Option<u16>) -> Option<Self> {
        let ips = match host.trim() {
            "" => Vec::new(),
            host => Some(cairn_peer::look_up(host)).filter(|ips| !ips.is_empty())?,
        };
        let is_any = ips.is_empty() || ips.iter().any(IpAddr::is_unspecified);
        Some(OwnAddress {
            ips: (!is_any).then_some(ips),
            port,
        })
    }

    fn is_ip(&self, ip: &IpAddr) -> bool {
        match &self.ips {
            Some(own) => own.contains(ip),
            // An address is this host's if a socket can be bound to it.
            None => ip.is_loopback() || UdpSocket::bind((*ip, 0)).is_ok(),
        }
    }

    fn is(&self, ring: &LoadedRing, host: &str, port: u16) -> bool {
        let is_port = self.port.is_none_or(|own| own == port);
        is_port && ring.ips(host).iter().any(|ip| self.is_ip(ip))
    }

    /// The ring's devices with this address on the replication network.
    pub(crate) fn replicated_devices(&self, ring: &LoadedRing) -> Vec<Arc<Device>> {
        ring.ring()
            .devices()
            .filter(|device| self.is(ring, &device.replication_ip, device.replication_port))
            .cloned()
            .collect()
    }

    /// Whether this device has the address for clients.
    pub(crate) fn serves(&self, ring: &LoadedRing, device: &Device) -> bool {
        self.is(ring, &device.ip, device.port)
    }
}

/// Names of folders in a folder; none if it is missing.
pub(crate) fn folders(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if is_missing(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        let is_folder = match entry.file_type() {
            Ok(kind) if kind.is_symlink() => entry.path().is_dir(),
            Ok(kind) => kind.is_dir(),
            // Gone meanwhile.
            Err(_) => false,
        };
        if let (true, Ok(name)) = (is_folder, entry.file_name().into_string()) {
            names.push(name);
        }
    }
    Ok(names)
}

fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Partitions of a device that hold databases.
pub(crate) fn partitions(root: &Path, device: &str, kind: DbKind) -> io::Result<Vec<u32>> {
    let names = folders(&root.join(device).join(kind.datadir()))?;
    Ok(names
        .into_iter()
        .filter_map(|name| name.parse().ok())
        .collect())
}

/// Databases of one partition. Removes empty folders.
pub(crate) fn databases(
    root: &Path,
    device: &str,
    kind: DbKind,
    partition: u32,
) -> io::Result<Vec<DbKey>> {
    let text = partition.to_string();
    let folder = root.join(device).join(kind.datadir()).join(&text);
    let mut found = Vec::new();
    let suffixes = folders(&folder)?;
    for suffix in &suffixes {
        let suffix_folder = folder.join(suffix);
        let hashes = folders(&suffix_folder)?;
        for name in &hashes {
            let Some(hash) = ObjectHash::from_hex(name).filter(|hash| hash.hex() == *name) else {
                continue;
            };
            let hash_folder = suffix_folder.join(name);
            if has_database(&hash_folder, name)? {
                found.push(DbKey::new(device, &text, kind, hash));
            } else {
                remove_if_empty(&hash_folder);
            }
        }
        if hashes.is_empty() {
            remove_if_empty(&suffix_folder);
        }
    }
    if suffixes.is_empty() {
        remove_if_empty(&folder);
    }
    Ok(found)
}

fn has_database(folder: &Path, hash: &str) -> io::Result<bool> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if is_missing(&error) => return Ok(false),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        let stem = name.strip_suffix(".db");
        if stem.is_some_and(|stem| stem.split('_').next() == Some(hash)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn remove_if_empty(folder: &Path) {
    // Fails if it is not empty, or was just filled or removed.
    let _ = fs::remove_dir(folder);
}

/// Removes a folder's files that have not changed for `age`.
pub(crate) fn remove_older(folder: &Path, age: std::time::Duration, wanted: impl Fn(&str) -> bool) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let old = entry.metadata().is_ok_and(|meta| {
            let modified = meta.modified().ok();
            let since = modified.and_then(|modified| modified.elapsed().ok());
            meta.is_file() && since.is_some_and(|since| since > age)
        });
        if old && wanted(&entry.file_name().to_string_lossy()) {
            // Another process may have removed it.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Runs file operations on a thread of their own, where a hanging disk blocks no request.
pub(crate) async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let ended = || Err(io::Error::other("the work panicked"));
    own_thread::blocking(f).await.unwrap_or_else(ended)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cairn_ring::{NewDevice, RebalanceOptions, RingBuilder};

    use super::*;

    #[test]
    fn what_a_device_holds() {
        let root = tempfile::tempdir().unwrap();
        let containers = root.path().join("sda/containers");
        let hash = "0123456789abcdef0123456789abcabc";
        let place = containers.join("7/abc").join(hash);
        fs::create_dir_all(&place).unwrap();
        fs::create_dir_all(containers.join("7/abd")).unwrap();
        fs::create_dir_all(containers.join("8")).unwrap();
        fs::create_dir_all(containers.join("tmp")).unwrap();
        let all = |kind| {
            let mut partitions = partitions(root.path(), "sda", kind).unwrap();
            partitions.sort_unstable();
            partitions
        };
        assert_eq!(all(DbKind::Container), [7, 8]);
        assert!(all(DbKind::Account).is_empty());
        let held = |part| databases(root.path(), "sda", DbKind::Container, part).unwrap();
        fs::write(place.join(format!("{hash}.db.pending")), "").unwrap();
        assert!(held(7).is_empty() && place.exists());
        fs::write(place.join(format!("{hash}_1.db")), "").unwrap();
        assert_eq!(held(7).len(), 1);
        assert!(!containers.join("7/abd").exists());
        assert!(held(8).is_empty());
        assert!(!containers.join("8").exists());
    }

    #[test]
    fn whose_address_it_is() {
        // A documentation address, which no host has.
        let hosts = ["127.0.0.1", "192.0.2.1", "127.0.0.2", "localhost"];
        let devices = hosts.map(|host| NewDevice {
            id: None,
            region: 1,
            zone: 1,
            weight: 1.0,
            ip: host.into(),
            port: 6201,
            device: "sda".into(),
            replication_ip: None,
            replication_port: None,
            meta: String::new(),
        });
        let mut builder = RingBuilder::new(2, 1.0, 0).unwrap();
        for device in devices {
            builder.add_dev(device).unwrap();
        }
        let options = RebalanceOptions {
            seed: None,
            now: 0,
            log: None,
        };
        builder.rebalance(options).unwrap();
        let ring = LoadedRing::new(Arc::new(builder.ring().unwrap()));
        let own = |host: &str, port| {
            let own = OwnAddress::of(host, port).unwrap();
            let devices = own.replicated_devices(&ring);
            let hosts: Vec<String> = devices.iter().map(|device| device.ip.clone()).collect();
            assert!(devices.iter().all(|device| own.serves(&ring, device)));
            hosts
        };
        let loopback = ["127.0.0.1", "127.0.0.2", "localhost"];
        assert_eq!(own("0.0.0.0", Some(6201)), loopback);
        assert_eq!(own("", None), loopback);
        assert!(own("0.0.0.0", Some(6202)).is_empty());
        assert_eq!(own("127.0.0.2", None), ["127.0.0.2"]);
        assert_eq!(own("localhost", None), ["127.0.0.1", "localhost"]);
        assert_eq!(OwnAddress::of("no-such-host.invalid", None), None);
    }
}
