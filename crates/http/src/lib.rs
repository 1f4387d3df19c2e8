//! The one shape of every server: a [`Service`] turns a [`Request`] into a [`Response`].
//!
//! Proxy, account, container and object servers are services; a middleware is a service that holds
//! the next one. A service is reached over a socket ([`serve`]) or called in this process: the
//! caller cannot tell. This crate also has the request context ([`Context`]), bodies, the accept
//! loop with graceful shutdown, and the pooled client.
//!
//! Layer 2: may depend on `types` only. Nothing here knows accounts, rings or disks.

pub mod addresses;
pub mod audit;
pub mod blocks;
pub mod body;
pub mod client;
pub mod clock;
mod connection;
pub mod context;
pub mod digest;
pub mod ending;
pub mod followed;
pub mod footers;
mod forwarded;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod heads;
pub mod info;
pub mod interim;
pub mod limits;
pub mod lines;
pub mod md5_lanes;
pub mod metrics;
mod options;
pub mod own_thread;
pub mod params;
mod pieces;
mod progress;
mod proxy_line;
pub mod rekey;
pub mod respond;
pub mod serve;
pub mod service;
mod slots;
pub mod tls;
pub mod to_the_end;
pub mod unsent;

pub use blocks::Blocks;
pub use body::{Body, BodyError, BodySender};
pub use clock::Clock;
pub use context::{Authorize, AuthorizeFuture, Context, Granted};
pub use digest::SharedDigest;
pub use followed::Followed;
pub use footers::{Footers, SharedFooters, Trailer};
pub use info::{
    AccountInfo, ContainerInfo, Cors, DevicePlace, InfoFuture, InfoSource, PolicyUsage, SwiftInfo,
};
pub use interim::Interim;
pub use md5_lanes::LaneMd5;
pub use service::{Handler, Request, Response, Service, ServiceFuture, handler_fn};
pub use to_the_end::to_the_end;
