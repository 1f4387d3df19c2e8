//! `cairn serve`: the servers of any number of conf files in one process.
//!
//! Order matters. Ports and locks come first, so that a second process fails before it changes
//! anything; then privileges are dropped; then all services are constructed and registered with
//! each other, so that backends of this process are called directly; then clients are accepted.
//! Shutdown is in reverse: listeners close, requests finish, daemons stop, databases and disks are
//! closed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cairn_console_api::StoreView;
use cairn_http::metrics::Metrics;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{error, info};

use crate::conf::ServerConf;
use crate::console::{self, ConsoleRun};
use crate::engines::EngineModules;
use crate::known_keys;
use crate::limits;
use crate::listen;
use crate::lock::FolderLock;
use crate::logging::{self, LogOptions};
use crate::notify;
use crate::options;
use crate::pid_file::PidFile;
use crate::ports::Ports;
use crate::privileges;
use crate::ring_ports::{self, RingPorts};
use crate::role::DaemonKind;
use crate::role::Role;
use crate::services::Services;
use crate::settings::{LogLevel, ServerSettings};
use crate::signals::{self, StopSignals};
use crate::stdio;
use crate::upkeep;

pub(crate) type Server = (ServerConf, ServerSettings);

/// Interval of checks of the ring files.
const RING_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout, after the last request, of tasks that are no longer awaited, such as a third replica's
/// write after the response.
const DETACHED_TASKS_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of requests in progress when a worker must end at once.
const HURRY_TIMEOUT: Duration = Duration::from_millis(300);

/// Options of the command line of a serving process.
#[derive(Debug, Default)]
pub struct RunOptions {
    pub log: LogOptions,
    pub pid_file: Option<PathBuf>,
    /// Acknowledges writes before they are durable.
    pub unsafe_no_fsync: bool,
    /// Printed after the ready lines.
    pub greeting: Option<String>,
    /// A console beside the servers.
    pub console: Option<ConsoleRun>,
    /// Set if this process is the worker of a supervisor, which holds the locks and passed the
    /// sockets.
    pub worker: Option<Worker>,
}

/// State that a worker inherits from its supervisor.
#[derive(Debug)]
pub struct Worker {
    pub listeners: Vec<TcpListener>,
    /// Keeps the log on standard error.
    pub verbose: bool,
    /// The supervisor's process, if known.
    pub parent: Option<rustix::process::Pid>,
}

/// Reads conf files and folders; `only` restricts the role of their servers.
///
/// # Errors
/// A conf is invalid (see [`ServerConf::load`]), or is of another role.
pub fn load(paths: &[PathBuf], only: Option<Role>) -> Result<Vec<ServerConf>> {
    let confs = paths
        .iter()
        .map(|path| ServerConf::load(path))
        .collect::<Result<Vec<_>>>()?;
    for conf in &confs {
        if let Some(only) = only
            && conf.role != only
        {
            bail!(
                "{} is the conf of {}, not of {only}",
                conf.path.display(),
                conf.role
            );
        }
    }
    Ok(confs)
}

/// Constructs and drops all services, to report errors that would prevent serving.
///
/// # Errors
/// An option is invalid, two servers have one address, or a service cannot be constructed, as
/// without its rings or swift.conf.
pub fn check(confs: Vec<ServerConf>, run: &RunOptions) -> Result<()> {
    let servers = with_settings(confs)?;
    logging::start(&run.log, log_level(&servers))?;
    listen::check_addresses(&servers)?;
    let with_daemons = run.worker.is_none();
    warn_of_confs(&servers);
    let runtime = runtime(&servers)?;
    let services = {
        let _inside = runtime.enter();
        Services::build(
            &servers,
            EngineModules::all(),
            run.unsafe_no_fsync,
            with_daemons,
        )?
    };
    runtime.shutdown_timeout(DETACHED_TASKS_TIMEOUT);
    services.into_storage().close();
    Ok(())
}

/// Serves until a signal ends it.
///
/// # Errors
/// As [`check`]; also if another process serves a folder, a port cannot be bound, the pid file
/// cannot be written, or the user cannot be switched to.
pub fn run(confs: Vec<ServerConf>, options: RunOptions) -> Result<()> {
    let servers = with_settings(confs)?;
    logging::start(&options.log, log_level(&servers))?;
    listen::check_addresses(&servers)?;
    warn_of_confs(&servers);
    limits::raise_open_files();
    let (locks, listeners, kept) = match options.worker {
        Some(Worker {
            listeners,
            verbose,
            parent,
        }) => (Vec::new(), vec![listeners], Some((verbose, parent))),
        None => (lock_folders(&servers)?, listen_all(&servers)?, None),
    };
    let pid_file = options
        .pid_file
        .as_deref()
        .map(PidFile::write)
        .transpose()?;
    become_user(&servers)?;
    let kept = match kept {
        Some((verbose, parent)) => {
            signals::end_with_parent(parent)?;
            Some(verbose)
        }
        None => None,
    };

    let runtime = runtime(&servers)?;
    let services = {
        let _inside = runtime.enter();
        Services::build(
            &servers,
            EngineModules::all(),
            options.unsafe_no_fsync,
            kept.is_none(),
        )?
    };
    let extras = Extras {
        console: options.console,
        greeting: options.greeting,
        worker: kept,
    };
    let served = runtime.block_on(serve_all(&servers, listeners, &services, extras));
    // Idle connections to other servers are dropped first.
    let storage = services.into_storage();
    if matches!(served, Ok(Ended::InTime)) {
        wait_for_detached_tasks(&runtime);
    }
    runtime.shutdown_timeout(DETACHED_TASKS_TIMEOUT);
    storage.close();
    drop(pid_file);
    drop(locks);
    info!("ended");
    served.map(|_| ())
}

fn warn_of_confs(servers: &[Server]) {
    for (conf, settings) in servers {
        options::warn_of_mistyped(conf);
        known_keys::warn_of_known(conf, settings);
        for daemon in conf.daemons_not_served() {
            info!(
                conf = conf.conf.file(),
                daemon, "this build does not have this daemon"
            );
        }
    }
}

/// Listeners of each server, in order.
fn listen_all(servers: &[Server]) -> Result<Vec<Vec<TcpListener>>> {
    servers
        .iter()
        .map(|(conf, settings)| ring_ports::listen_on_all(conf, settings, Vec::new()))
        .collect()
}

pub(crate) fn with_settings(confs: Vec<ServerConf>) -> Result<Vec<Server>> {
    confs
        .into_iter()
        .map(|conf| {
            let settings = ServerSettings::read(&conf)?;
            Ok((conf, settings))
        })
        .collect()
}

/// The most verbose level of all confs.
pub(crate) fn log_level(servers: &[Server]) -> LogLevel {
    servers
        .iter()
        .map(|(_, s)| s.log_level)
        .max()
        .unwrap_or(LogLevel::Info)
}

/// The largest number of workers of any conf; `auto` is the number of CPUs.
fn threads(servers: &[Server]) -> usize {
    let auto = || std::thread::available_parallelism().map_or(2, usize::from);
    servers
        .iter()
        .map(|(_, s)| s.workers.unwrap_or_else(auto))
        .max()
        .unwrap_or_else(auto)
}

fn runtime(servers: &[Server]) -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads(servers))
        // Disks' threads wake tasks through this queue: completed reads and writes are answered
        // before new requests start, so that fewer are in progress.
        .global_queue_interval(1)
        .thread_name("cairn-worker")
        .on_thread_park(crate::memory::tidy)
        .enable_all()
        .build()
        .context("cannot start the threads that serve")
}

/// Locks of all servers, and of the daemons beside them.
fn lock_folders(servers: &[Server]) -> Result<Vec<FolderLock>> {
    let mut wanted = BTreeSet::new();
    for (conf, settings) in servers {
        wanted.extend(lock_of(conf, settings));
        for kind in DaemonKind::ALL {
            if conf.role == Role::beside(kind) && conf.daemon(kind.name()).is_some() {
                wanted.insert((settings.folders.devices.clone(), kind.name().to_owned()));
            }
        }
    }
    wanted
        .into_iter()
        .map(|(folder, role)| FolderLock::devices(&folder, &role))
        .collect()
}

/// The lock of a storage server: its folder and role.
pub(crate) fn lock_of(conf: &ServerConf, settings: &ServerSettings) -> Option<(PathBuf, String)> {
    let suffix = if settings.replication_only {
        "-replication"
    } else {
        ""
    };
    let name = format!("{}{suffix}", conf.role.as_str());
    (conf.role != Role::Proxy).then(|| (settings.folders.devices.clone(), name))
}

pub(crate) fn become_user(servers: &[Server]) -> Result<()> {
    let users: BTreeSet<&str> = servers
        .iter()
        .filter_map(|(_, settings)| settings.user.as_deref())
        .collect();
    match users.into_iter().collect::<Vec<_>>()[..] {
        [] => Ok(()),
        [user] => privileges::become_user(user),
        [one, other, ..] => bail!(
            "user = {one} and user = {other}: the servers of one process run as one user; give \
             all the same, or serve them in processes of their own"
        ),
    }
}

async fn serve_all(
    servers: &[Server],
    listeners: Vec<Vec<TcpListener>>,
    services: &Services,
    extras: Extras,
) -> Result<Ended> {
    let signals = StopSignals::new(extras.worker.is_some()).context("cannot listen for signals")?;
    let (stop_sender, stop) = watch::channel(false);
    let (hurry_sender, mut hurry) = watch::channel(false);
    let metrics = Metrics::new();
    metrics.show_background(services.background());
    let threads = threads(servers);
    let mut serving = JoinSet::new();
    for (((conf, settings), listeners), handler) in
        servers.iter().zip(&listeners).zip(services.handlers())
    {
        let ports = Ports {
            handler: handler.clone(),
            options: settings.serve_options(threads),
            metrics: metrics.clone(),
            stop: stop.clone(),
            open: BTreeMap::new(),
            serving: JoinSet::new(),
        };
        // A worker's supervisor opens and closes its ports.
        let followed = match extras.worker {
            Some(_) => None,
            None => RingPorts::of(settings)?,
        };
        let listeners: Vec<TcpListener> = listeners
            .iter()
            .map(TcpListener::try_clone)
            .collect::<Result<_, _>>()
            .with_context(|| format!("cannot serve {}", conf.path.display()))?;
        serving.spawn(ports.serve(conf.clone(), settings.clone(), listeners, followed));
    }
    let watching = tokio::spawn(signals.watch(stop_sender, hurry_sender));
    let rings = tokio::spawn(follow_rings(services.registrar(servers)));
    let mut daemons = JoinSet::new();
    for daemon in services.daemons() {
        daemons.spawn(cairn_daemons::daemon::run(daemon.clone(), stop.clone()));
    }
    upkeep::start(services.maintained(), &mut daemons, &stop);
    if let Some(run) = extras.console {
        let view =
            console::store_view(servers, services.handlers(), &services.clusters(), &metrics);
        serving.spawn(serve_console(run, view, stop.clone()));
    }
    match extras.worker {
        Some(verbose) => stdio::worker_is_ready(verbose),
        None => {
            announce(servers, &listeners, extras.greeting);
            notify::send_state(notify::READY);
        }
    }
    drop(listeners);
    let ended = tokio::select! {
        () = join_all(&mut serving) => Ended::InTime,
        () = cut_short(&mut hurry) => Ended::CutShort,
    };
    join_all(&mut daemons).await;
    rings.abort();
    watching.abort();
    let _ = rings.await;
    let _ = watching.await;
    Ok(ended)
}

/// Whether requests in progress finished.
enum Ended {
    InTime,
    CutShort,
}

/// Returns when shutdown must no longer wait for requests.
async fn cut_short(hurry: &mut watch::Receiver<bool>) {
    if hurry.wait_for(|hurry| *hurry).await.is_err() {
        // The sender is gone.
        return std::future::pending().await;
    }
    tokio::time::sleep(HURRY_TIMEOUT).await;
}

struct Extras {
    console: Option<ConsoleRun>,
    greeting: Option<String>,
    /// Set for a worker: whether it is verbose.
    worker: Option<bool>,
}

/// Serves the console; a failure does not affect the servers.
async fn serve_console(run: ConsoleRun, view: Option<StoreView>, stop: watch::Receiver<bool>) {
    if let Err(error) = console::serve(run, view, stop).await {
        error!(error = format!("{error:#}"), "the console is not served");
    }
}

async fn join_all(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            error!(%error, "a task of the server ended badly");
        }
    }
}

/// Reloads changed rings, and registers servers under new local addresses.
async fn follow_rings(refresh: Arc<dyn Fn() + Send + Sync>) {
    let mut tick = tokio::time::interval(RING_CHECK_INTERVAL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let refresh = refresh.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || refresh()).await {
            error!(%error, "looking for new rings failed");
        }
    }
}

/// Prints one line per server to standard output, for which the starting process may wait. Errors
/// of a closed standard output are ignored.
fn announce(servers: &[Server], listeners: &[Vec<TcpListener>], greeting: Option<String>) {
    let mut out = std::io::stdout().lock();
    for ((conf, settings), listeners) in servers.iter().zip(listeners) {
        for listener in listeners {
            let address = match settings.per_port {
                Some(_) => listener.local_addr().unwrap_or(settings.bind),
                None => settings.bind,
            };
            let path = conf.path.display();
            let _ = writeln!(out, "{} ready on {address} ({path})", conf.role);
        }
    }
    if let Some(greeting) = greeting {
        let _ = out.write_all(greeting.as_bytes());
    }
    let _ = out.flush();
}

/// Waits, with a timeout, for tasks that outlive their requests.
fn wait_for_detached_tasks(runtime: &Runtime) {
    let deadline = std::time::Instant::now() + DETACHED_TASKS_TIMEOUT;
    while runtime.metrics().num_alive_tasks() > 0 && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
}
