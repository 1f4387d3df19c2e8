//! Filter `cache` (`egg:swift#memcache`): state that the proxies of a cluster share by memcached,
//! including Swift's proxies. Swift keeps all its caches there; this process caches accounts,
//! containers and tokens itself. It uses memcached for TempAuth's tokens, so that each kind of
//! proxy accepts those of the other, and to invalidate what Swift's proxies cache of an account or
//! container when it is changed here.
//!
//! Only if `memcache_servers` names servers: by default no server is trusted with tokens.

pub(crate) mod client;

use std::sync::Arc;
use std::time::Duration;

use cairn_formats::ini::Section;
use cairn_http::{Handler, Request, Service, ServiceFuture};
use http::Method;

use crate::api_path::ApiPath;
use crate::client_tls::client_tls;
use crate::{FilterEnv, FilterError};
use client::{Memcached, Timeouts};

/// The memcached servers in a request's extensions, for filters behind this one.
#[derive(Clone)]
pub(crate) struct Shared(pub(crate) Arc<Memcached>);

struct Memcache {
    next: Handler,
    shared: Shared,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    _: &FilterEnv,
) -> Result<Handler, FilterError> {
    let servers = section.list_or("memcache_servers", "");
    if servers.is_empty() {
        return Ok(next);
    }
    let seconds = |option, default| -> Result<Duration, FilterError> {
        Ok(section.seconds_or(option, default)?)
    };
    let timeouts = Timeouts {
        connect: seconds("connect_timeout", 0.3)?,
        io: seconds("io_timeout", 2.0)?,
    };
    let tries = section.usize_or("tries", 3)?;
    let connections = section.usize_or("memcache_max_connections", 2)?;
    let tls = match section.bool_or("tls_enabled", false) {
        true => Some(client_tls(
            section,
            ["tls_cafile", "tls_certfile", "tls_keyfile"],
        )?),
        false => None,
    };
    let memcached = Memcached::new(&servers, tries, connections, timeouts).over_tls(tls);
    Ok(Arc::new(Memcache {
        next,
        shared: Shared(Arc::new(memcached)),
    }))
}

impl Service for Memcache {
    fn call<'a>(&'a self, mut request: Request) -> ServiceFuture<'a> {
        request.extensions_mut().insert(self.shared.clone());
        let Some(key) = key_of_changed(request.method(), request.uri().path()) else {
            return self.next.call(request);
        };
        Box::pin(async move {
            let response = self.next.call(request).await;
            if response.status().is_success() {
                self.shared.0.delete(&key).await;
            }
            response
        })
    }
}

/// The key under which Swift's proxies cache the account or container that this request changes.
fn key_of_changed(method: &Method, path: &str) -> Option<String> {
    if ![Method::PUT, Method::POST, Method::DELETE].contains(method) {
        return None;
    }
    let path = ApiPath::of(path)?;
    match (path.container, path.object) {
        (None, _) => Some(format!("account/{}", path.account)),
        (Some(container), None) => Some(format!("container/{}/{container}", path.account)),
        (Some(_), Some(_)) => None,
    }
}
