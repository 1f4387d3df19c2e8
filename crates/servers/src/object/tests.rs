//! The service in process, on temporary directories. Needs extended attributes there.
#![allow(clippy::unwrap_used)]

mod promises;
mod reads;
mod ssync;
mod updates;
mod writes;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use cairn_disk::machine::Machine;
use cairn_disk::{Devices, DevicesConfig, FallocateReserve};
use cairn_http::{Body, Request, Response, Service, handler_fn};
use cairn_peer::Backends;
use cairn_types::{HashPath, PolicySet};
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

pub(super) struct World {
    root: tempfile::TempDir,
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

pub(super) fn world() -> World {
    world_with(|_| {})
}

pub(super) fn world_with(change: impl FnOnce(&mut ObjectServerConfig)) -> World {
    world_on(None, change)
}

pub(super) fn world_on(
    machine: Option<Arc<dyn Machine>>,
    change: impl FnOnce(&mut ObjectServerConfig),
) -> World {
    let reserve = FallocateReserve::Percent(1.0);
    world_by(machine, reserve, change)
}

pub(super) fn world_by(
    machine: Option<Arc<dyn Machine>>,
    reserve: FallocateReserve,
    change: impl FnOnce(&mut ObjectServerConfig),
) -> World {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("sda1")).unwrap();
    let mut devices = DevicesConfig::new(root.path());
    devices.mount_check = false;
    devices.machine = machine;
    devices.fallocate_reserve = reserve;
    let devices = Devices::new(devices);
    let backends = Backends::new(Duration::from_millis(500));
    let mut config = ObjectServerConfig::new(HashPath::new("", "endcap"), PolicySet::single());
    change(&mut config);
    World {
        server: ObjectServer::new(config, devices.clone(), backends.clone()),
        root,
        backends,
        devices,
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
