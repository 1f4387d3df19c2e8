//! Filter `backend_ratelimit`: responds 529 if a device gets more requests per second than allowed,
//! per method and in all. For the pipelines of object, container and account servers.
//!
//! Options (default): `requests_per_device_per_second` and `METHOD_requests_per_device_per_second`
//! (0: no limit), `requests_per_device_rate_buffer` (1: seconds of unused rate that a device
//! accumulates), `backend_ratelimit_conf_path` (`backend-ratelimit.conf` in `swift_dir`), and
//! `config_reload_interval` (60 seconds; 0: never): the file's section `[backend_ratelimit]`
//! overrides the filter's own, and is reloaded while the server runs. If the file cannot be read,
//! the limits stay. Requests are counted per process.

mod limiter;
mod limits;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_formats::ini::Section;
use cairn_http::params::{split_path, unquote};
use cairn_http::{Clock, Handler, Request, Service, ServiceFuture, respond};
use cairn_types::Timestamp;
use parking_lot::Mutex;

use crate::{FilterEnv, FilterError};
use limiter::Limiters;
use limits::{LimitedMethod, Limits};

struct BackendRateLimit {
    next: Handler,
    shared: Arc<Shared>,
    clock: Clock,
    reload_interval: Duration,
    /// Time of the last reload, in ticks.
    last_reload: AtomicU64,
}

/// State that a reload, on a thread of its own, updates.
struct Shared {
    section: Section,
    conf_path: PathBuf,
    state: Mutex<State>,
}

struct State {
    limits: Limits,
    limiters: Limiters,
    /// The file existed at the last load, or the conf names it.
    is_file_expected: bool,
}

pub(crate) fn make(
    section: &Section,
    next: Handler,
    env: &FilterEnv,
) -> Result<Handler, FilterError> {
    let named = section.get("backend_ratelimit_conf_path");
    let conf_path = match named {
        Some(path) => path.into(),
        None => {
            PathBuf::from(section.str_or("swift_dir", "/etc/swift")).join("backend-ratelimit.conf")
        }
    };
    let shared = Arc::new(Shared {
        section: section.clone(),
        conf_path,
        state: Mutex::new(State {
            limits: Limits::read(section)?,
            limiters: Limiters::default(),
            is_file_expected: named.is_some(),
        }),
    });
    shared.load_file();
    Ok(Arc::new(BackendRateLimit {
        next,
        shared,
        reload_interval: section.seconds_or("config_reload_interval", 60.0)?,
        last_reload: AtomicU64::new(env.clock.now().ticks()),
        clock: env.clock.clone(),
    }))
}

impl Service for BackendRateLimit {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        let now = self.clock.now();
        self.reload_when_due(now);
        if self.is_allowed(&request, now) {
            return self.next.call(request);
        }
        let refused = respond::standard(respond::status(529));
        Box::pin(std::future::ready(refused))
    }
}

impl BackendRateLimit {
    fn is_allowed(&self, request: &Request, now: Timestamp) -> bool {
        let Some(method) = LimitedMethod::of(request.method()) else {
            return true;
        };
        let mut state = self.shared.state();
        if state.limits.are_off() {
            return true;
        }
        // A path without device and partition is a health check or the like.
        let path = unquote(request.uri().path()).unwrap_or_default();
        let Some(parts) = split_path(&path, 1, 3, true) else {
            return true;
        };
        let (Some(device), Some(Ok(_))) = (parts[0], parts[1].map(str::parse::<u64>)) else {
            return true;
        };
        let State {
            limits, limiters, ..
        } = &mut *state;
        limiters.is_allowed(device, None, limits, now)
            && limiters.is_allowed(device, Some(method), limits, now)
    }

    /// Reloads the file in the background if it is due; one reload at a time.
    fn reload_when_due(&self, now: Timestamp) {
        let last = self.last_reload.load(Ordering::Relaxed);
        let interval = (self.reload_interval.as_micros() / 10) as u64;
        if interval == 0 || now.ticks().saturating_sub(last) < interval {
            return;
        }
        let claimed = self.last_reload.compare_exchange(
            last,
            now.ticks(),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        if claimed.is_ok() {
            let shared = self.shared.clone();
            tokio::task::spawn_blocking(move || shared.load_file());
        }
    }
}

#[cfg(test)]
mod tests;
