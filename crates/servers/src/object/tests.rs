//! The service in process, on temporary directories. Needs extended attributes there.
#![allow(clippy::unwrap_used)]

/// Makes tests of async functions that take a [`Kind`]: one over each engine.
macro_rules! over_engines {
    ($($name:ident),+ $(,)?) => {
        mod over_files {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::Kind::Files).await;
            })+
        }

        mod over_memory {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::Kind::Memory).await;
            })+
        }
    };
}

mod engines;
mod object_read;
mod promises;
mod reads;
mod ssync;
mod updates;
mod whole_write;
mod writes;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cairn_disk::machine::Machine;
use cairn_disk::{
    Devices, DevicesConfig, DiskFileConfig, DiskFileEngine, Engine, Engines, FallocateReserve,
    ObjectId, PartitionKey,
};
use cairn_http::{Body, Request, Response, Service, handler_fn};
use cairn_memory::MemoryEngine;
use cairn_peer::{Backends, Node};
use cairn_ring::Device;
use cairn_types::{HashPath, PolicyIndex, PolicySet};
use http::{HeaderMap, StatusCode};

use super::{ObjectServer, ObjectServerConfig};

const T: [&str; 6] = [
    "4000000000.00000",
    "4000000001.00000",
    "4000000002.00000",
    "4000000003.00000",
    "4000000004.00000",
    "4000000005.00000",
];

/// The engine of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Files,
    Memory,
}

pub(super) struct World {
    root: tempfile::TempDir,
    /// The engine, where it is in memory.
    memory: Option<MemoryEngine>,
    server: Arc<ObjectServer>,
    backends: Arc<Backends>,
    devices: Arc<Devices>,
}

/// An answer, read to its end.
pub(super) struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().unwrap())
    }
}

/// How a world differs from others.
pub(super) struct WorldOptions {
    kind: Kind,
    machine: Option<Arc<dyn Machine>>,
    reserve: FallocateReserve,
    diskfile: DiskFileConfig,
    config: ObjectServerConfig,
}

impl Default for WorldOptions {
    fn default() -> Self {
        WorldOptions {
            kind: Kind::Files,
            machine: None,
            reserve: FallocateReserve::Percent(1.0),
            diskfile: DiskFileConfig::default(),
            config: ObjectServerConfig::new(HashPath::new("", "endcap"), PolicySet::single()),
        }
    }
}

pub(super) fn world(kind: Kind) -> World {
    world_with(kind, |_| {})
}

pub(super) fn world_with(kind: Kind, change: impl FnOnce(&mut ObjectServerConfig)) -> World {
    let mut options = WorldOptions {
        kind,
        ..WorldOptions::default()
    };
    change(&mut options.config);
    world_of(options)
}

pub(super) fn world_of(options: WorldOptions) -> World {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("sda1")).unwrap();
    let mut devices = DevicesConfig::new(root.path());
    devices.mount_check = false;
    devices.machine = options.machine;
    devices.fallocate_reserve = options.reserve;
    let devices = Devices::new(devices);
    let backends = Backends::new(Duration::from_millis(500));
    let config = options.config;
    let (hash_path, policies) = (config.hash_path.clone(), config.policies.clone());
    let memory = match options.kind {
        Kind::Files => None,
        Kind::Memory => Some(MemoryEngine::new(hash_path.clone(), &policies)),
    };
    let engine: Arc<dyn Engine> = match &memory {
        Some(memory) => Arc::new(memory.clone()),
        None => Arc::new(DiskFileEngine::new(hash_path, &policies, options.diskfile)),
    };
    let engines = Engines::uniform(&policies, engine);
    World {
        server: ObjectServer::new(config, engines, devices.clone(), backends.clone()),
        root,
        memory,
        backends,
        devices,
    }
}

/// The address of the object server, for those that call it.
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 6200);

fn node(id: u32, device: &str, address: SocketAddr) -> Node {
    Node {
        device: Arc::new(Device {
            device: device.to_owned(),
            ..Device::at(id, address)
        }),
        address,
        replication_address: address,
        index: 0,
        handoff: false,
    }
}

impl World {
    async fn call(&self, request: Request) -> Response {
        self.server.call(request).await
    }

    /// `headers`: `name: value` lines.
    async fn send(
        &self,
        method: &str,
        object: &str,
        headers: &[&str],
        body: impl Into<Body>,
    ) -> Answer {
        let path = format!("/sda1/7/a/c/{object}");
        self.send_to(method, &path, headers, body).await
    }

    async fn send_to(
        &self,
        method: &str,
        path: &str,
        headers: &[&str],
        body: impl Into<Body>,
    ) -> Answer {
        let request = request(method, path, headers, body);
        answer(self.call(request).await).await
    }

    async fn put(&self, object: &str, time: &str, body: &'static str) -> Answer {
        let time = format!("x-timestamp: {time}");
        let length = format!("content-length: {}", body.len());
        let headers = ["content-type: text/plain", &time, &length];
        self.send("PUT", object, &headers, body).await
    }

    /// An object of one byte, `x`.
    async fn put_with(&self, object: &str, time: &str, more: &[&str]) -> Answer {
        let time = format!("x-timestamp: {time}");
        let mut headers = vec!["content-type: a/b", "content-length: 1", &time];
        headers.extend(more);
        self.send("PUT", object, &headers, "x").await
    }

    async fn get(&self, object: &str, headers: &[&str]) -> Answer {
        self.send("GET", object, headers, Body::empty()).await
    }

    async fn head(&self, object: &str, headers: &[&str]) -> Answer {
        self.send("HEAD", object, headers, Body::empty()).await
    }

    /// A container server that answers so and keeps what it was asked.
    fn container_server(&self, status: u16) -> (SocketAddr, Arc<Mutex<Vec<Request>>>) {
        static PORT: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(1);
        let port = PORT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let keep = seen.clone();
        let handler = handler_fn(move |request| {
            keep.lock().unwrap().push(request);
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            std::future::ready(response)
        });
        self.backends.register_local(address, handler);
        (address, seen)
    }

    fn files(&self, dir: &str) -> Vec<std::path::PathBuf> {
        fn walk(dir: std::path::PathBuf, files: &mut Vec<std::path::PathBuf>) {
            let Ok(entries) = std::fs::read_dir(dir) else {
                return;
            };
            for entry in entries {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(path, files);
                } else {
                    files.push(path);
                }
            }
        }
        let mut files = Vec::new();
        walk(self.root.path().join("sda1").join(dir), &mut files);
        files.sort();
        files
    }

    fn data_files(&self) -> Vec<std::path::PathBuf> {
        let mut files = self.files("objects");
        files.retain(|f| f.extension().is_some_and(|e| e == "data"));
        files
    }

    fn id(&self, object: &str) -> ObjectId {
        let hash = HashPath::new("", "endcap").hash("a", Some("c"), Some(object));
        PartitionKey::new(PolicyIndex(0), 7).object(hash)
    }

    /// Gives an object, which is the only one there, other content, as rot does.
    fn damage(&self, object: &str, content: &[u8]) {
        match &self.memory {
            Some(memory) => assert!(memory.damage("sda1", self.id(object), content)),
            None => std::fs::write(&self.data_files()[0], content).unwrap(),
        }
    }

    /// How many objects were moved to quarantine.
    fn quarantined(&self) -> usize {
        match &self.memory {
            Some(memory) => memory.quarantined().len(),
            None => self.files("quarantined").len(),
        }
    }

    /// How many objects have content.
    fn data_count(&self) -> usize {
        match &self.memory {
            Some(memory) => memory.content_count("sda1"),
            None => self.data_files().len(),
        }
    }
}

pub(super) fn request(
    method: &str,
    path: &str,
    headers: &[&str],
    body: impl Into<Body>,
) -> Request {
    let mut builder = http::Request::builder().method(method).uri(path);
    for line in headers {
        let (name, value) = line.split_once(": ").unwrap();
        builder = builder.header(name, value.as_bytes());
    }
    builder.body(body.into()).unwrap()
}

pub(super) async fn answer(response: Response) -> Answer {
    let (parts, body) = response.into_parts();
    Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: body.collect(64 << 20).await.unwrap(),
    }
}
