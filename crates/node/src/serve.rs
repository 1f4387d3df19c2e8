//! `cairn serve`: the servers of any number of conf files in one process.
//!
//! Order matters. Ports and locks come first, so that a second process fails before it touches
//! anything; then privileges go; then all services are made and known to each other, so that
//! backends of this process are called, not dialled; then clients are let in. The end runs
//! backwards: listeners close, requests finish, daemons stop, databases and disks are closed.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cairn_console::StoreView;
use cairn_http::metrics::Metrics;
use cairn_http::serve::serve as serve_listener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{error, info};

use crate::conf::{Role, ServerConf};
use crate::console::{self, ConsoleRun};
use crate::limits;
use crate::listen;
use crate::lock::FolderLock;
use crate::logging::{self, LogOptions};
use crate::options;
use crate::privileges;
use crate::services::Services;
use crate::settings::{LogLevel, ServerSettings};
use crate::signals::StopSignals;

/// How often ring files are looked at.
const RING_CHECK: Duration = Duration::from_secs(5);
/// Work that nobody waits for any more, such as a third replica's write after the answer, may
/// take so long to finish after the last request.
const LOOSE_ENDS: Duration = Duration::from_secs(2);

/// What the command line says about a process that serves.
#[derive(Debug, Default)]
pub struct RunOptions {
    pub log: LogOptions,
    pub pid_file: Option<PathBuf>,
    /// Answer writes before they are on disk.
    pub unsafe_no_fsync: bool,
    /// Printed after the ready lines.
    pub greeting: Option<String>,
    /// A console beside the servers.
    pub console: Option<ConsoleRun>,
}

/// Reads conf files and folders. `only`: which server they must be of.
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

/// Makes all services and lets them go: what would keep them from being served is an error.
pub fn check(confs: Vec<ServerConf>, run: &RunOptions) -> Result<()> {
    let servers = with_settings(confs)?;
    logging::start(&run.log, log_level(&servers))?;
    listen::check_addresses(&servers)?;
    servers
        .iter()
        .for_each(|(conf, _)| options::warn_of_mistyped(conf));
    let runtime = runtime(&servers)?;
    let services = {
        let _inside = runtime.enter();
        Services::build(&servers, run.unsafe_no_fsync)?
    };
    runtime.shutdown_timeout(LOOSE_ENDS);
    services.close();
    Ok(())
}

/// Serves until a signal ends it.
pub fn run(confs: Vec<ServerConf>, options: RunOptions) -> Result<()> {
    let servers = with_settings(confs)?;
    logging::start(&options.log, log_level(&servers))?;
    listen::check_addresses(&servers)?;
    for (conf, _) in &servers {
        options::warn_of_mistyped(conf);
        for daemon in conf.daemons_not_served() {
            info!(
                conf = conf.conf.file(),
                daemon, "this daemon is not run by serve"
            );
        }
    }
    limits::raise_open_files();
    let locks = lock_devices(&servers)?;
    let listeners = servers
        .iter()
        .map(|(conf, settings)| listen::listen(conf, settings))
        .collect::<Result<Vec<_>>>()?;
    let pid_file = options
        .pid_file
        .as_deref()
        .map(PidFile::write)
        .transpose()?;
    become_user(&servers)?;

    let runtime = runtime(&servers)?;
    let services = {
        let _inside = runtime.enter();
        Services::build(&servers, options.unsafe_no_fsync)?
    };
    let extras = (options.console, options.greeting);
    let served = runtime.block_on(serve_all(&servers, listeners, &services, extras));
    wait_for_loose_ends(&runtime);
    runtime.shutdown_timeout(LOOSE_ENDS);
    services.close();
    drop(pid_file);
    drop(locks);
    info!("ended");
    served
}

fn with_settings(confs: Vec<ServerConf>) -> Result<Vec<(ServerConf, ServerSettings)>> {
    confs
        .into_iter()
        .map(|conf| {
            let settings = ServerSettings::read(&conf)?;
            Ok((conf, settings))
        })
        .collect()
}

/// The most talkative of all confs.
fn log_level(servers: &[(ServerConf, ServerSettings)]) -> LogLevel {
    servers
        .iter()
        .map(|(_, s)| s.log_level)
        .max()
        .unwrap_or(LogLevel::Info)
}

/// The largest number of workers any conf asks for; `auto` is what the machine runs at once.
fn threads(servers: &[(ServerConf, ServerSettings)]) -> usize {
    let auto = || std::thread::available_parallelism().map_or(2, usize::from);
    servers
        .iter()
        .map(|(_, s)| s.workers.unwrap_or_else(auto))
        .max()
        .unwrap_or_else(auto)
}

fn runtime(servers: &[(ServerConf, ServerSettings)]) -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads(servers))
        .thread_name("cairn-worker")
        .enable_all()
        .build()
        .context("cannot start the threads that serve")
}

fn lock_devices(servers: &[(ServerConf, ServerSettings)]) -> Result<Vec<FolderLock>> {
    let wanted: BTreeSet<(&Path, String)> = servers
        .iter()
        .filter(|(conf, _)| conf.role != Role::Proxy)
        .map(|(conf, settings)| {
            let suffix = if settings.replication_only {
                "-replication"
            } else {
                ""
            };
            (
                settings.devices.as_path(),
                format!("{}{suffix}", conf.role.as_str()),
            )
        })
        .collect();
    wanted
        .into_iter()
        .map(|(folder, role)| FolderLock::devices(folder, &role))
        .collect()
}

fn become_user(servers: &[(ServerConf, ServerSettings)]) -> Result<()> {
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
    servers: &[(ServerConf, ServerSettings)],
    listeners: Vec<TcpListener>,
    services: &Services,
    (console, greeting): (Option<ConsoleRun>, Option<String>),
) -> Result<()> {
    let signals = StopSignals::new().context("cannot listen for signals")?;
    let (stop_sender, stop) = watch::channel(false);
    let metrics = Metrics::new();
    let threads = threads(servers);
    let mut serving = JoinSet::new();
    for (((_, settings), listener), handler) in
        servers.iter().zip(listeners).zip(services.handlers())
    {
        let listener = tokio::net::TcpListener::from_std(listener)
            .with_context(|| format!("cannot serve on {}", settings.bind))?;
        let options = settings.serve_options(threads);
        serving.spawn(serve_listener(
            listener,
            handler.clone(),
            options,
            metrics.clone(),
            stop.clone(),
        ));
    }
    let watching = tokio::spawn(signals.watch(stop_sender));
    let rings = tokio::spawn(follow_rings(services.registrar(servers)));
    let mut daemons = JoinSet::new();
    for daemon in services.daemons() {
        daemon.start(&mut daemons, stop.clone());
    }
    if let Some(run) = console {
        let view =
            console::store_view(servers, services.handlers(), &services.clusters(), &metrics);
        serving.spawn(serve_console(run, view, stop.clone()));
    }
    announce(servers, greeting);
    join_all(&mut serving).await;
    join_all(&mut daemons).await;
    rings.abort();
    watching.abort();
    let _ = rings.await;
    let _ = watching.await;
    Ok(())
}

/// A console that cannot be served takes no server with it.
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

/// Loads rings that changed, and makes local what they newly name of this machine.
async fn follow_rings(refresh: Arc<dyn Fn() + Send + Sync>) {
    let mut tick = tokio::time::interval(RING_CHECK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let refresh = refresh.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || refresh()).await {
            error!(%error, "looking for new rings failed");
        }
    }
}

/// One line per server, on standard output: whoever started this may wait for them. A closed
/// standard output is nobody's fault.
fn announce(servers: &[(ServerConf, ServerSettings)], greeting: Option<String>) {
    let mut out = std::io::stdout().lock();
    for (conf, settings) in servers {
        let _ = writeln!(
            out,
            "{} ready on {} ({})",
            conf.role,
            settings.bind,
            conf.path.display()
        );
    }
    if let Some(greeting) = greeting {
        let _ = out.write_all(greeting.as_bytes());
    }
    let _ = out.flush();
}

/// Waits, within bounds, for tasks that outlive their requests.
fn wait_for_loose_ends(runtime: &Runtime) {
    let deadline = std::time::Instant::now() + LOOSE_ENDS;
    while runtime.metrics().num_alive_tasks() > 0 && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Removed with the process, unless that is killed.
struct PidFile(PathBuf);

impl PidFile {
    fn write(path: &Path) -> Result<PidFile> {
        std::fs::write(path, format!("{}\n", std::process::id()))
            .with_context(|| format!("--pid-file {}: cannot write it", path.display()))?;
        Ok(PidFile(path.to_owned()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Not there any more: then someone else has removed it.
        let _ = std::fs::remove_file(&self.0);
    }
}
