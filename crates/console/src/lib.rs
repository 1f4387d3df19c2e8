//! The web console: submits workloads to the lab, shows runs live and afterwards, compares them;
//! beside a store it also shows the store's state and its containers and objects.
//!
//! `cairn lab serve` serves it alone, `cairn up` on a port of its own beside the store's. A run is
//! a process (`cairn lab run`), so that load generation shares no process with the measured store
//! or the console; its progress is read from its growing run folder. The page is TypeScript
//! (`console/`), built into `console/dist` and embedded here; it loads nothing from anywhere else.
//!
//! Depends on `http` and, for workloads and run folders, on `lab`. A node knows it as a
//! [`ConsoleServer`]; the state of a store comes through a
//! [`StoreView`](cairn_console_api::StoreView).

mod archive;
mod assets;
mod audit;
mod command;
mod compare;
mod figures;
mod files;
mod guard;
mod history;
mod json_body;
mod live;
mod queue;
mod router;
mod session;
mod status;
mod store;
mod submission;
mod swift;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use cairn_console_api::{ConsoleOptions, ConsoleServer, Password, Serving};
use cairn_http::audit::AuditLog;
use cairn_http::metrics::Metrics;
use cairn_http::serve::{MetricsAccess, ServeOptions, serve};
use cairn_lab::footprint::LocalAccess;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Maximum connections; a browser keeps up to six, and each live view holds one.
const CONNECTIONS_MAX: usize = 256;

/// The web console, as a node serves it beside a store.
#[derive(Clone, Copy, Debug)]
pub struct WebConsole;

impl ConsoleServer for WebConsole {
    fn serve(
        &self,
        listener: TcpListener,
        options: ConsoleOptions,
        stop: watch::Receiver<bool>,
    ) -> Serving {
        Box::pin(run(listener, options, stop))
    }
}

/// State shared by all requests.
pub(crate) struct Console {
    pub(crate) guard: guard::Guard,
    pub(crate) sessions: session::Sessions,
    pub(crate) password: Password,
    pub(crate) history: Arc<history::History>,
    pub(crate) queue: Arc<queue::Queue>,
    /// Local resources that runs may use.
    pub(crate) local: LocalAccess,
    pub(crate) store: Option<store::Store>,
    /// True once the console shuts down, which also ends live views.
    pub(crate) stop: watch::Receiver<bool>,
    /// Limits the number of live views.
    pub(crate) views: Arc<tokio::sync::Semaphore>,
    pub(crate) audit: Option<Arc<AuditLog>>,
}

/// Serves the console on `listener` until `stop` turns true; active runs are then ended.
async fn run(
    listener: TcpListener,
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
        max_connections: CONNECTIONS_MAX,
        max_head: 32 * 1024,
        max_headers: 96,
        grace: Duration::from_secs(5),
        metrics: MetricsAccess::Nobody,
        tls: options.tls,
        ..ServeOptions::new("console")
    };
    let handler = Arc::new(router::Router(console));
    // With metrics of its own: a store's metrics cover its clients only.
    serve(listener, handler, serving, Metrics::new(), stop).await;
    while tasks.join_next().await.is_some() {}
    Ok(())
}
