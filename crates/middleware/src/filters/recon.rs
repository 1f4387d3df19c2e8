//! Filter `recon` of the backend servers: `/recon/…` serves monitoring data of a node. Data of the
//! machine is read on request; data of the daemons is read from the files that they write to
//! `recon_cache_path`.

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_formats::ini::Section;
use cairn_http::params::{split_path, unquote};
use cairn_http::{Clock, Handler, Request, Response, Service, ServiceFuture, respond};
use cairn_types::hex;
use http::StatusCode;
use md5::{Digest, Md5};
use serde_json::{Map, Value, json};
use tracing::error;

use crate::{FilterEnv, FilterError};

/// Maximum bytes of a recon file.
const CACHE_FILE_MAX_BYTES: u64 = 16 << 20;

struct Recon {
    next: Handler,
    node: Arc<Node>,
}

/// Paths and settings of the data's sources.
struct Node {
    devices: PathBuf,
    swift_conf: PathBuf,
    rings: Vec<PathBuf>,
    cache: PathBuf,
    clock: Clock,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    let swift_dir = PathBuf::from(section.str_or("swift_dir", "/etc/swift"));
    let rings = ["account".to_owned(), "container".to_owned()]
        .into_iter()
        .chain(env.policies.iter().map(|p| p.index.ring_name()))
        .map(|name| swift_dir.join(format!("{name}.ring.gz")))
        .collect();
    let node = Node {
        devices: section.str_or("devices", "/srv/node").into(),
        swift_conf: swift_dir.join("swift.conf"),
        rings,
        cache: section
            .str_or("recon_cache_path", "/var/cache/swift")
            .into(),
        clock: env.clock.clone(),
    };
    Ok(Arc::new(Recon {
        next,
        node: Arc::new(node),
    }))
}

impl Service for Recon {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        if !request.uri().path().starts_with("/recon/") {
            return self.next.call(request);
        }
        let node = self.node.clone();
        Box::pin(async move {
            let path = unquote(request.uri().path()).unwrap_or_default();
            // All of these read files.
            let answer = tokio::task::spawn_blocking(move || node.answer(&path)).await;
            answer.unwrap_or_else(|_| failed())
        })
    }
}

fn failed() -> Response {
    respond::text(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error.")
}

/// The check applies to every kind of server.
const ANY: Option<&str> = Some("*");
/// Checks served from a daemon's file: name, kind of server, file, keys.
const CACHED: [(&str, Option<&str>, &str, &[&str]); 15] = [
    (
        "async",
        ANY,
        "object",
        &["async_pending", "async_pending_last"],
    ),
    ("replication", Some("account"), "account", REPLICATION),
    ("replication", Some("container"), "container", REPLICATION),
    ("replication", Some("object"), "object", OBJECT_REPLICATION),
    ("replication", None, "object", OBJECT_REPLICATION),
    (
        "updater",
        Some("container"),
        "container",
        &["container_updater_sweep"],
    ),
    (
        "updater",
        Some("object"),
        "object",
        &[
            "object_updater_sweep",
            "object_updater_stats",
            "object_updater_last",
        ],
    ),
    (
        "auditor",
        Some("account"),
        "account",
        &[
            "account_audits_passed",
            "account_auditor_pass_completed",
            "account_audits_since",
            "account_audits_failed",
        ],
    ),
    (
        "auditor",
        Some("container"),
        "container",
        &[
            "container_audits_passed",
            "container_auditor_pass_completed",
            "container_audits_since",
            "container_audits_failed",
        ],
    ),
    (
        "auditor",
        Some("object"),
        "object",
        &["object_auditor_stats_ALL", "object_auditor_stats_ZBF"],
    ),
    (
        "expirer",
        Some("object"),
        "object",
        &["object_expiration_pass", "expired_last_pass"],
    ),
    ("driveaudit", ANY, "drive", &["drive_audit_errors"]),
    (
        "sharding",
        ANY,
        "container",
        &["sharding_stats", "sharding_time", "sharding_last"],
    ),
    ("relinker", ANY, "relinker", &["devices", "workers"]),
    (
        "reconstruction",
        Some("object"),
        "object",
        &["object_reconstruction_last", "object_reconstruction_time"],
    ),
];
const REPLICATION: &[&str] = &["replication_time", "replication_stats", "replication_last"];
const OBJECT_REPLICATION: &[&str] = &[
    "replication_time",
    "replication_stats",
    "replication_last",
    "object_replication_time",
    "object_replication_last",
];

impl Node {
    fn answer(&self, path: &str) -> Response {
        let parts = split_path(path, 1, 3, true).unwrap_or_default();
        let check = parts.get(1).copied().flatten().unwrap_or("");
        let kind = parts.get(2).copied().flatten();
        let facts = match check {
            "version" => Ok(json!({ "version": env!("CARGO_PKG_VERSION") })),
            "time" => Ok(json!(self.clock.now().as_f64())),
            "mem" => memory(),
            "load" => load(),
            "mounted" => mounted(),
            "unmounted" => self.unmounted(),
            "diskusage" => self.disk_usage(),
            "devices" => Ok(self.device_names()),
            "ringmd5" => Ok(self.ring_digests()),
            "swiftconfmd5" => Ok(json!({ shown(&self.swift_conf): digest(&self.swift_conf) })),
            "quarantined" => self.quarantined(),
            "sockstat" => Ok(sockets()),
            _ => match CACHED
                .iter()
                .find(|(c, k, ..)| *c == check && (*k == ANY || *k == kind))
            {
                Some((_, _, file, keys)) => Ok(self.cached(file, keys)),
                None => {
                    let message = format!("Invalid path: {path}");
                    return respond::text(StatusCode::NOT_FOUND, message);
                }
            },
        };
        match facts {
            Ok(facts) => respond::typed(StatusCode::OK, "application/json", facts.to_string()),
            Err(error) => {
                error!(check, %error, "cannot answer a recon request");
                failed()
            }
        }
    }

    /// Values of keys in a daemon's file; null for missing ones.
    fn cached(&self, file: &str, keys: &[&str]) -> Value {
        let path = self.cache.join(format!("{file}.recon"));
        let read = || -> std::io::Result<Map<String, Value>> {
            let mut text = Vec::new();
            fs::File::open(&path)?
                .take(CACHE_FILE_MAX_BYTES)
                .read_to_end(&mut text)?;
            Ok(serde_json::from_slice(&text)?)
        };
        let facts = read().unwrap_or_else(|error| {
            if error.kind() != ErrorKind::NotFound {
                error!(path = %path.display(), %error, "cannot read a recon file");
            }
            Map::new()
        });
        let value = |key: &&str| {
            (
                (*key).to_owned(),
                facts.get(*key).cloned().unwrap_or_default(),
            )
        };
        Value::Object(keys.iter().map(value).collect())
    }

    fn device_folders(&self) -> std::io::Result<Vec<(String, PathBuf)>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.devices)? {
            let path = entry?.path();
            if path.is_dir()
                && let Some(name) = path.file_name().and_then(|n| n.to_str())
            {
                all.push((name.to_owned(), path));
            }
        }
        all.sort();
        Ok(all)
    }

    fn unmounted(&self) -> std::io::Result<Value> {
        let mut all = Vec::new();
        for (device, path) in self.device_folders()? {
            match is_mount(&path) {
                Ok(true) => {}
                Ok(false) => all.push(json!({ "device": device, "mounted": false })),
                Err(error) => {
                    all.push(json!({ "device": device, "mounted": error.to_string() }));
                }
            }
        }
        Ok(all.into())
    }

    fn disk_usage(&self) -> std::io::Result<Value> {
        let mut all = Vec::new();
        for (device, path) in self.device_folders()? {
            let mounted = match is_mount(&path) {
                Ok(true) => {
                    let disk = rustix::fs::statvfs(&path)?;
                    all.push(json!({
                        "device": device,
                        "mounted": true,
                        "size": disk.f_bsize * disk.f_blocks,
                        "used": disk.f_bsize * disk.f_blocks.saturating_sub(disk.f_bavail),
                        "avail": disk.f_bsize * disk.f_bavail,
                    }));
                    continue;
                }
                Ok(false) => Value::Bool(false),
                Err(error) => error.to_string().into(),
            };
            all.push(json!({
                "device": device, "mounted": mounted, "size": "", "used": "", "avail": "",
            }));
        }
        Ok(all.into())
    }

    fn device_names(&self) -> Value {
        let names = fs::read_dir(&self.devices).map(|all| {
            let mut names: Vec<String> = all
                .filter_map(|e| e.ok()?.file_name().into_string().ok())
                .collect();
            names.sort();
            names
        });
        json!({ shown(&self.devices): names.ok() })
    }

    fn ring_digests(&self) -> Value {
        let there = self.rings.iter().filter(|ring| ring.exists());
        Value::Object(
            there
                .map(|ring| (shown(ring), digest(ring).into()))
                .collect(),
        )
    }

    /// Number of quarantined entities: each is a folder, and thus one link of its parent.
    fn quarantined(&self) -> std::io::Result<Value> {
        let (mut objects, mut containers, mut accounts) = (0, 0, 0);
        let mut policies: Map<String, Value> = Map::new();
        for (_, path) in self.device_folders()? {
            let Ok(kinds) = fs::read_dir(path.join("quarantined")) else {
                continue;
            };
            for kind in kinds {
                let kind = kind?;
                let count = kind.metadata()?.nlink().saturating_sub(2);
                match kind.file_name().to_str() {
                    Some("containers") => containers += count,
                    Some("accounts") => accounts += count,
                    Some(name) if name.starts_with("objects") && count > 0 => {
                        objects += count;
                        let policy = name.split_once('-').map_or("0", |(_, p)| p);
                        let before = policies
                            .get(policy)
                            .and_then(|p| p["objects"].as_u64())
                            .unwrap_or(0);
                        policies.insert(policy.into(), json!({ "objects": before + count }));
                    }
                    _ => {}
                }
            }
        }
        Ok(json!({
            "objects": objects, "containers": containers, "accounts": accounts,
            "policies": policies,
        }))
    }
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// MD5 of a file in hex; `None` if it cannot be read.
fn digest(path: &Path) -> Option<String> {
    let mut file = fs::File::open(path).ok()?;
    let mut md5 = Md5::new();
    let mut buffer = [0; 64 * 1024];
    loop {
        match file.read(&mut buffer).ok()? {
            0 => return Some(hex::encode(md5.finalize())),
            n => md5.update(&buffer[..n]),
        }
    }
}

/// Is it a mount point, or a folder with Swift's stub file for one?
fn is_mount(path: &Path) -> std::io::Result<bool> {
    let own = fs::symlink_metadata(path)?;
    if own.is_symlink() {
        return Ok(path.join(".ismount").is_file());
    }
    let parent = fs::symlink_metadata(path.join(".."))?;
    Ok(own.dev() != parent.dev() || own.ino() == parent.ino() || path.join(".ismount").is_file())
}

fn memory() -> std::io::Result<Value> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    Ok(Value::Object(
        lines
            .map(|(k, v)| (k.to_owned(), v.trim().into()))
            .collect(),
    ))
}

fn load() -> std::io::Result<Value> {
    let text = fs::read_to_string("/proc/loadavg")?;
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = |i: usize| words.get(i).and_then(|w| w.parse::<f64>().ok());
    Ok(json!({
        "1m": number(0), "5m": number(1), "15m": number(2),
        "tasks": words.get(3),
        "processes": words.get(4).and_then(|w| w.parse::<u64>().ok()),
    }))
}

fn mounted() -> std::io::Result<Value> {
    let text = fs::read_to_string("/proc/mounts")?;
    let mounts = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        Some(json!({ "device": words.next()?, "path": words.next()? }))
    });
    Ok(mounts.collect())
}

fn sockets() -> Value {
    let mut facts = Map::new();
    let page = rustix::param::page_size() as u64;
    let lines = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let number = |words: &[&str], i: usize| words.get(i).and_then(|w| w.parse::<u64>().ok());
    for line in lines("/proc/net/sockstat")
        .lines()
        .filter(|l| l.starts_with("TCP: inuse"))
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        for (name, at, unit) in [
            ("tcp_in_use", 2, 1),
            ("orphan", 4, 1),
            ("time_wait", 6, 1),
            ("tcp_mem_allocated_bytes", 10, page),
        ] {
            facts.insert(name.into(), number(&words, at).map(|n| n * unit).into());
        }
    }
    for line in lines("/proc/net/sockstat6")
        .lines()
        .filter(|l| l.starts_with("TCP6: inuse"))
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        facts.insert("tcp6_in_use".into(), number(&words, 2).into());
    }
    Value::Object(facts)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::{answers, filter, header, request, text};

    async fn get(app: &Handler, path: &str) -> Value {
        let response = app.call(request("GET", path, &[])).await;
        assert_eq!(response.status(), 200, "{path}");
        assert_eq!(
            header(&response, "content-type").unwrap(),
            "application/json"
        );
        serde_json::from_str(&text(response).await).unwrap()
    }

    #[tokio::test]
    async fn facts() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        for folder in ["srv/sda/quarantined/objects-1/hash", "srv/sdb", "cache"] {
            fs::create_dir_all(path(folder)).unwrap();
        }
        fs::write(path("srv/sdb/.ismount"), "").unwrap();
        fs::write(path("swift.conf"), "abc").unwrap();
        fs::write(path("object.ring.gz"), "").unwrap();
        fs::write(path("cache/object.recon"), r#"{"async_pending": 7}"#).unwrap();
        let (devices, swift_dir, cache) = (path("srv"), path(""), path("cache"));
        let swift_dir = swift_dir.trim_end_matches('/');
        let options = [
            ("devices", devices.as_str()),
            ("swift_dir", swift_dir),
            ("recon_cache_path", cache.as_str()),
        ];
        let app = filter("recon", &options, answers(404));

        assert_eq!(
            get(&app, "/recon/version").await["version"],
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(get(&app, "/recon/time").await, json!(1_700_000_000.0));
        assert_eq!(
            get(&app, "/recon/swiftconfmd5").await,
            json!({ path("swift.conf"): "900150983cd24fb0d6963f7d28e17f72" })
        );
        assert_eq!(
            get(&app, "/recon/ringmd5").await,
            json!({ path("object.ring.gz"): "d41d8cd98f00b204e9800998ecf8427e" })
        );
        assert_eq!(
            get(&app, "/recon/unmounted").await,
            json!([{ "device": "sda", "mounted": false }])
        );
        let usage = get(&app, "/recon/diskusage").await;
        assert_eq!(
            (&usage[0]["mounted"], &usage[0]["size"]),
            (&json!(false), &json!(""))
        );
        assert!(usage[1]["size"].as_u64().unwrap() >= usage[1]["avail"].as_u64().unwrap());
        assert_eq!(
            get(&app, "/recon/devices").await,
            json!({ devices: ["sda", "sdb"] })
        );
        assert_eq!(
            get(&app, "/recon/async").await,
            json!({ "async_pending": 7, "async_pending_last": null })
        );
        assert_eq!(
            get(&app, "/recon/auditor/object").await,
            json!({ "object_auditor_stats_ALL": null, "object_auditor_stats_ZBF": null })
        );
        assert_eq!(
            get(&app, "/recon/quarantined").await["policies"]["1"]["objects"],
            1
        );
        assert!(get(&app, "/recon/mem").await["MemTotal"].is_string());
        assert!(get(&app, "/recon/load").await["1m"].is_number());
        assert!(get(&app, "/recon/mounted").await.is_array());
        assert!(get(&app, "/recon/sockstat").await.is_object());
    }

    #[tokio::test]
    async fn what_it_does_not_know() {
        let app = filter("recon", &[], answers(202));
        for path in ["/recon/nonsense", "/recon/updater/account", "/recon/"] {
            let response = app.call(request("GET", path, &[])).await;
            assert_eq!(response.status(), 404);
            assert_eq!(text(response).await, format!("Invalid path: {path}"));
        }
        assert_eq!(app.call(request("GET", "/recon", &[])).await.status(), 202);
        assert_eq!(
            app.call(request("GET", "/sda/1/a", &[])).await.status(),
            202
        );
    }
}
