//! The web console: submits workloads to the lab, shows runs live and afterwards, compares them;
//! beside a store it also shows the store's state and its containers and objects.
//!
//! `cairn lab serve` serves it alone, `cairn up` on a port of its own beside the store's. A run is
//! a process (`cairn lab run`), so that load never shares one with what it measures or with the
//! console; what it does is read from its run folder as it grows. The page is
//! TypeScript (`console/`), built into `console/dist` and embedded here; it loads nothing from
//! anywhere else.
//!
//! Depends on `http` and, for workloads and run folders, on `lab`. What a store tells about itself
//! comes through [`StoreView`].

mod answer;
mod archive;
mod assets;
mod audit;
mod command;
mod compare;
mod figures;
mod files;
mod guard;
mod history;
mod live;
mod password;
mod queue;
mod router;
mod session;
mod store;
mod submission;
mod swift;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use cairn_http::audit::AuditLog;
use cairn_http::metrics::Metrics;
use cairn_http::serve::{MetricsAccess, ServeOptions, serve};
use cairn_http::tls::ServerTls;
use cairn_lab::footprint::LocalAccess;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use password::Password;
pub use store::{
    DeviceShare, DeviceState, PolicyState, ReconSource, RingState, Space, StoreState, StoreView,
};

/// Connections at once; a browser keeps up to six, and each live view holds one.
const CONNECTIONS: usize = 256;

/// What a console is made of.
pub struct ConsoleOptions {
    /// Where it is served; the cookie is named after the port, for browsers send a host's cookies
    /// to all its ports.
    pub bind: SocketAddr,
    /// Host names under which it may be asked for, beside addresses and `localhost`.
    pub hosts: Vec<String>,
    pub password: Password,
    /// The folder of run folders.
    pub runs: PathBuf,
    /// The program whose `lab run` makes runs: this one.
    pub program: PathBuf,
    /// Folders that runs may use beside the stores they drive; RADOS where there is one. Whoever
    /// may sign in may read and delete what lies below.
    pub allow_local: Vec<PathBuf>,
    pub store: Option<StoreView>,
    /// The console itself is served over TLS.
    pub tls: Option<Arc<ServerTls>>,
    /// The certificate by which runs trust the store, where the system does not.
    pub store_ca: Option<PathBuf>,
    /// Told who signs in and what is changed.
    pub audit: Option<Arc<AuditLog>>,
}

/// Everything a request may need.
pub(crate) struct Console {
    pub(crate) guard: guard::Guard,
    pub(crate) sessions: session::Sessions,
    pub(crate) password: Password,
    pub(crate) history: Arc<history::History>,
    pub(crate) queue: Arc<queue::Queue>,
    /// What runs may use of this host.
    pub(crate) local: LocalAccess,
    pub(crate) store: Option<store::Store>,
    /// True once the console ends: live views end then too.
    pub(crate) stop: watch::Receiver<bool>,
    /// Live views at once.
    pub(crate) views: Arc<tokio::sync::Semaphore>,
    pub(crate) audit: Option<Arc<AuditLog>>,
}

/// Serves the console on `listener` until `stop` turns true; runs under way are then ended.
pub async fn run(
    listener: std::net::TcpListener,
    options: ConsoleOptions,
    stop: watch::Receiver<bool>,
) -> Result<()> {
    let history = Arc::new(history::History::open(&options.runs)?);
    let local = LocalAccess::Below(options.allow_local.clone());
    let program = command::Program {
        path: options.program,
        allow_local: options.allow_local,
        store_ca: options
            .store_ca
            .zip(options.store.as_ref().map(|store| store.endpoint.clone())),
    };
    let queue = Arc::new(queue::Queue::new(history.clone(), program));
    let listener = tokio::net::TcpListener::from_std(listener)
        .with_context(|| format!("cannot serve the console on {}", options.bind))?;
    let store = options.store.map(store::Store::new);
    let mut tasks = JoinSet::new();
    if let Some(store) = &store {
        tasks.spawn(store.sampler(stop.clone()));
    }
    tasks.spawn(queue.clone().work(stop.clone()));
    let console = Arc::new(Console {
        guard: guard::Guard::new(options.hosts),
        sessions: session::Sessions::new(options.bind.port(), options.tls.is_some()),
        password: options.password,
        history,
        queue,
        local,
        store,
        stop: stop.clone(),
        views: Arc::new(tokio::sync::Semaphore::new(64)),
        audit: options.audit,
    });
    let serving = ServeOptions {
        max_connections: CONNECTIONS,
        max_head: 32 * 1024,
        max_headers: 96,
        grace: Duration::from_secs(5),
        metrics: MetricsAccess::Nobody,
        tls: options.tls,
        ..ServeOptions::new("console")
    };
    let handler = Arc::new(router::Router(console));
    // Its own counters: a store's figures are those of its clients.
    serve(listener, handler, serving, Metrics::new(), stop).await;
    while tasks.join_next().await.is_some() {}
    Ok(())
}
