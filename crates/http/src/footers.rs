//! Footers: metadata of an upload that is known only when its body has been read. A filter that
//! changes the body (encryption) knows the ETags of both forms only at the end. Swift's
//! `swift.callback.update_footers`.

use std::sync::{Arc, OnceLock};

use http::HeaderMap;

use crate::service::Response;

/// Metadata that a filter supplies after it has passed on the whole body of an upload.
#[derive(Clone, Debug)]
pub struct Trailer {
    /// Headers that replace the request's headers of the same names.
    pub headers: HeaderMap,
    /// MD5 of the bytes that the filter passed on.
    pub md5: [u8; 16],
    pub length: u64,
}

type Conclude = dyn Fn() -> Result<Trailer, Response> + Send + Sync;

/// Callback in a request's extensions, called once after the body's end and before the write is
/// committed. An error is the response to the client, and nothing is stored.
#[derive(Clone)]
pub struct Footers(Arc<Conclude>);

impl Footers {
    pub fn new(conclude: impl Fn() -> Result<Trailer, Response> + Send + Sync + 'static) -> Self {
        Footers(Arc::new(conclude))
    }

    /// Calls the filter's callback.
    ///
    /// # Errors
    /// The filter's response to the client; nothing is stored then.
    pub fn conclude(&self) -> Result<Trailer, Response> {
        (self.0)()
    }
}

/// Footers in the extensions of a proxy's request to an object server of the same process, set
/// before the body ends successfully. A server over a socket reads them from the MIME document
/// instead.
#[derive(Clone, Default, Debug)]
pub struct SharedFooters(Arc<OnceLock<HeaderMap>>);

impl SharedFooters {
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the footers, before the end of the body is sent; later calls have no effect.
    pub fn set(&self, footers: HeaderMap) {
        let _ = self.0.set(footers);
    }

    pub fn get(&self) -> Option<&HeaderMap> {
        self.0.get()
    }
}
