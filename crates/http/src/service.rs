//! The trait every server and middleware implements.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::body::Body;

pub type Request = http::Request<Body>;
pub type Response = http::Response<Body>;

/// A pending response. Dropping it cancels the request.
pub type ServiceFuture<'a> = Pin<Box<dyn Future<Output = Response> + Send + 'a>>;

/// A server or middleware. Failures are responses: by the time an error leaves a service it has a
/// status code.
pub trait Service: Send + Sync {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a>;
}

/// A shared service: the next of a pipeline, a backend in this process, an application.
pub type Handler = Arc<dyn Service>;

impl Service for Arc<dyn Service> {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        (**self).call(request)
    }
}

struct FnService<F>(F);

impl<F, Fut> Service for FnService<F>
where
    F: Fn(Request) -> Fut + Send + Sync,
    Fut: Future<Output = Response> + Send + 'static,
{
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        Box::pin((self.0)(request))
    }
}

/// A handler made of an async function, for tests and small endpoints.
pub fn handler_fn<F, Fut>(f: F) -> Handler
where
    F: Fn(Request) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Response> + Send + 'static,
{
    Arc::new(FnService(f))
}
