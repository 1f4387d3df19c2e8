//! The object server: Swift's backend protocol for objects, on the devices of one node.
//!
//! ```text
//! PUT GET HEAD POST DELETE  /<device>/<partition>/<account>/<container>/<object>
//! PROMISE                   /<device>/<partition>/<account>/<container>/<object>
//! REPLICATE                 /<device>/<partition>[/<suffix>-<suffix>…]
//! SSYNC                     /<device>/<partition>
//! ```
//!
//! Every disk operation is one closure on the device's threads. Writes are carried to their end,
//! including their container updates, even if the client disconnects.

mod body;
mod calls;
mod config;
mod delete;
mod documents;
mod fragments;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod get;
mod headers;
mod owed;
mod phases;
mod post;
mod promise;
mod promises;
mod put;
mod replicate;
mod small;
mod ssync;
mod status;
mod target;
mod updates;
mod whole_write;

use std::collections::HashMap;
use std::sync::Arc;

use cairn_disk::engine::{Collision, Move};
use cairn_disk::{Device, Devices, DiskError, Engine, Engines};
use cairn_http::{Body, Request, Response, Service, ServiceFuture, respond};
use cairn_peer::Backends;
use cairn_types::PolicyIndex;
use futures_util::FutureExt;
use http::Method;
use http::request::Parts;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

pub use config::ObjectServerConfig;
use promises::Promises;
use status::Refusal;

/// The object service of a node's devices.
pub struct ObjectServer(Arc<Inner>);

pub(crate) struct Inner {
    config: ObjectServerConfig,
    devices: Arc<Devices>,
    backends: Arc<Backends>,
    /// The engine of each policy.
    engines: Engines,
    /// Limit of concurrent SSYNC sessions; `None` is unlimited.
    replication_permits: Option<Semaphore>,
    /// The limit per device, in FIFO order.
    device_permits: Mutex<HashMap<String, Arc<Semaphore>>>,
    /// Promises of conditional writes.
    promises: Arc<Promises>,
}

impl ObjectServer {
    pub fn new(
        config: ObjectServerConfig,
        engines: Engines,
        devices: Arc<Devices>,
        backends: Arc<Backends>,
    ) -> Arc<Self> {
        Arc::new(ObjectServer(Arc::new(Inner {
            replication_permits: match config.replication_concurrency {
                0 => None,
                number => Some(Semaphore::new(number)),
            },
            device_permits: Mutex::default(),
            promises: Arc::new(Promises::new(config.clock.now(), config.promise_grace)),
            engines,
            config,
            devices,
            backends,
        })))
    }
}

impl Service for ObjectServer {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        Box::pin(self.0.handle(request))
    }
}

impl Inner {
    /// Dispatches a request. Only GET is part of this future, which has the size of its largest
    /// part.
    async fn handle(self: &Arc<Self>, request: Request) -> Response {
        let (parts, body) = request.into_parts();
        if let Some(power) = next_part_power(&parts) {
            return Box::pin(self.handle_between(power, parts, body)).await;
        }
        self.dispatch(parts, body).await
    }

    /// Handles a write while the ring's partitions double: afterwards the object is linked into its
    /// next partition. Failures are left to the relinker.
    async fn handle_between(self: &Arc<Self>, power: u32, parts: Parts, body: Body) -> Response {
        let target = self.target(&parts).ok();
        let response = self.dispatch(parts, body).await;
        let Some(target) = target.filter(|_| response.status().is_success()) else {
            return response;
        };
        let (device, key, engine) = (target.device, target.key, target.engine);
        let Some(object) = Move::to_power(key.policy, key.hash, key.partition, power) else {
            return response;
        };
        if engine.relinking().is_none() {
            return response;
        }
        let linked = device
            .write(move |disk| match engine.relinking() {
                Some(relinking) => relinking.link(disk, &[object], Collision::Refuse).map(drop),
                None => Ok(()),
            })
            .await;
        if let Err(error) = linked {
            let name = &*key.name;
            tracing::warn!(name, %error, "not linked into its next partition");
        }
        response
    }

    async fn dispatch(self: &Arc<Self>, parts: Parts, body: Body) -> Response {
        let result = match parts.method {
            Method::GET => self.get(&parts).await,
            Method::HEAD => Box::pin(self.head(&parts)).await,
            Method::PUT => Box::pin(self.put(parts, body)).await,
            Method::POST => Box::pin(self.post(parts)).await,
            Method::DELETE => Box::pin(self.delete(parts)).await,
            Method::OPTIONS => Ok(options()),
            ref method if method.as_str() == "REPLICATE" => Box::pin(self.replicate(&parts)).await,
            ref method if method.as_str() == "PROMISE" => Box::pin(self.promise(&parts)).await,
            ref method if method.as_str() == "SSYNC" => Box::pin(self.ssync(&parts, body)).await,
            _ => Err(Refusal::MethodNotAllowed),
        };
        result.unwrap_or_else(Refusal::into_response)
    }

    /// The engine of a policy, if it is configured.
    fn engine(&self, policy: PolicyIndex) -> Result<Arc<dyn Engine>, Refusal> {
        let engine = self.engines.of(policy).cloned();
        engine.ok_or_else(|| Refusal::Unavailable(format!("No policy with index {policy}")))
    }

    fn device(&self, name: &str) -> Result<Arc<Device>, Refusal> {
        Ok(self.devices.get(name).map_err(DiskError::from)?)
    }

    /// The device for daemons' requests, which yield to clients'.
    fn background_device(&self, name: &str) -> Result<Arc<Device>, Refusal> {
        Ok(self.device(name)?.background())
    }
}

/// Response to OPTIONS, by which swift-recon identifies a server.
fn options() -> Response {
    let mut response = status::ok();
    let allow = "DELETE, GET, HEAD, OPTIONS, POST, PUT, REPLICATE, SSYNC";
    respond::set(response.headers_mut(), "allow", allow);
    let server = concat!("object-server/", env!("CARGO_PKG_VERSION"));
    respond::set(response.headers_mut(), "server", server);
    response
}

/// The ring's next part power, if the request is a write while it changes.
fn next_part_power(parts: &Parts) -> Option<u32> {
    let writes = [Method::PUT, Method::POST, Method::DELETE].contains(&parts.method);
    let text = respond::header(&parts.headers, "x-backend-next-part-power")?;
    text.parse().ok().filter(|power| writes && *power <= 32)
}

/// Runs a write to its end, even if the caller stops waiting.
fn to_the_end<T, F>(work: F) -> impl Future<Output = Result<T, Refusal>> + Send
where
    T: Send + 'static,
    F: Future<Output = Result<T, Refusal>> + Send + 'static,
{
    let ended = cairn_http::to_the_end(work);
    ended.map(|ended| ended.unwrap_or(Err(Refusal::Failed)))
}

#[cfg(test)]
mod tests;
