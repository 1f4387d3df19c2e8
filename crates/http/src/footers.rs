//! Metadata of an upload that is only known when its body has been read: a filter that changes
//! the body (encryption) learns the ETags of both forms at the end. Swift's
//! `swift.callback.update_footers`.

use std::sync::{Arc, OnceLock};

use http::HeaderMap;

use crate::service::Response;

/// What a filter knows of an upload whose body it has handed on to its end.
#[derive(Clone, Debug)]
pub struct Trailer {
    /// Take the place of the request's headers of the same names.
    pub headers: HeaderMap,
    /// Of the bytes that the filter handed on.
    pub md5: [u8; 16],
    pub length: u64,
}

type Conclude = dyn Fn() -> Result<Trailer, Response> + Send + Sync;

/// In a request's extensions: asked once, after the body's end and before anything counts. The
/// error is the client's answer, and nothing is stored.
#[derive(Clone)]
pub struct Footers(Arc<Conclude>);

impl Footers {
    pub fn new(conclude: impl Fn() -> Result<Trailer, Response> + Send + Sync + 'static) -> Self {
        Footers(Arc::new(conclude))
    }

    pub fn conclude(&self) -> Result<Trailer, Response> {
        (self.0)()
    }
}

/// In the extensions of a proxy's request to an object server of the same process: the footers,
/// set before the body ends well. A server over a socket reads them behind the content.
#[derive(Clone, Default, Debug)]
pub struct SharedFooters(Arc<OnceLock<HeaderMap>>);

impl SharedFooters {
    pub fn new() -> Self {
        Self::default()
    }

    /// Set once, before the end of the body is sent; later calls change nothing.
    pub fn set(&self, footers: HeaderMap) {
        let _ = self.0.set(footers);
    }

    pub fn get(&self) -> Option<&HeaderMap> {
        self.0.get()
    }
}
