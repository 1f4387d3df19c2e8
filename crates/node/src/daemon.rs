//! A daemon under Swift's own name: `swift-object-updater CONF [once]`. It reads its section of the
//! conf, closes its standard streams once it is ready, and runs until a signal, or for one pass.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
pub use cairn_assembly::DaemonOptions;
use cairn_daemons::Daemon;
pub use cairn_daemons::PassFilter;
use cairn_formats::ini::Section;
use cairn_http::Clock;
use cairn_peer::Backends;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::info;

use crate::backend_tls;
use crate::cluster::Clusters;
use crate::conf::read_conf;
use crate::daemons;
use crate::engines::EngineModules;
use crate::limits;
use crate::lock::FolderLock;
use crate::logging::{self, LogOptions};
use crate::notify;
use crate::parts::PartsContext;
use crate::priority::Priority;
use crate::privileges;
use crate::progress_bar;
use crate::role::DaemonKind;
use crate::role::Role;
use crate::settings::{self, Folders};
use crate::signals::StopSignals;
use crate::stdio;
use crate::storage::Storage;
use crate::syslog::SyslogOptions;

/// Interval of checks of the ring files.
const RING_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout for tasks that are no longer awaited.
const DETACHED_TASKS_TIMEOUT: Duration = Duration::from_millis(500);

/// Arguments of the program.
#[derive(Clone, Debug)]
pub struct Called {
    pub kind: DaemonKind,
    pub conf: PathBuf,
    /// One pass instead of repeated ones.
    pub once: bool,
    /// Keeps the log on standard error.
    pub verbose: bool,
    /// Restriction of the pass of `once`.
    pub only: PassFilter,
    pub options: DaemonOptions,
}

/// Runs until a signal, or for one pass.
///
/// # Errors
/// The conf lacks the daemon's section or has an invalid option, another process serves the folder,
/// or the daemon may not run beside its server (`exclusive_databases`).
pub fn run(called: &Called) -> Result<()> {
    let section = section(&called.conf, called.kind)?;
    let once = called.once || !section.bool_or("daemonize", true);
    let syslog = match called.verbose {
        true => None,
        false => Some(SyslogOptions::read(&section, called.kind.name())?),
    };
    let log = LogOptions {
        syslog,
        ..LogOptions::default()
    };
    logging::start(&log, settings::log_level(&section)?)?;
    limits::raise_open_files();
    let priority = Priority::read(&section)?;
    // Detaches from the terminal, like Swift's daemons.
    let _ = rustix::process::setsid();
    let folders = Folders::read(&section);
    if folders.exclusive_databases && Role::beside(called.kind) != Role::Object {
        let remedy = "its server keeps other processes out of its databases: remove the option and \
                      restart the server, or let the server run this daemon (cairn serve)";
        return Err(section.bad("exclusive_databases", remedy).into());
    }
    let lock = if once {
        None
    } else {
        Some(FolderLock::devices(&folders.devices, called.kind.name())?)
    };
    // While this may still be root, and before there are other threads.
    priority.apply();
    if let Some(user) = settings::user(&section) {
        privileges::become_user(&user)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("cairn-daemon")
        .enable_all()
        .build()
        .context("cannot start the threads that work")?;
    let mut storage = Storage::new(EngineModules::all(), false);
    let mut clusters = Clusters::default();
    let daemon = {
        let _inside = runtime.enter();
        let local_rows = Arc::default();
        let context = PartsContext {
            local_rows: &local_rows,
            clusters: &mut clusters,
            storage: &mut storage,
            backends: &Backends::with_tls(
                section.seconds_or("conn_timeout", 0.5)?,
                backend_tls::of(&section)?,
            ),
            clock: &Clock::system(),
            written: None,
            conf: &called.conf,
        };
        daemons::make(called.kind, &section, &called.options, context)
            .with_context(|| called.conf.display().to_string())?
    };
    let ended = runtime.block_on(work(daemon, called, once, &clusters));
    runtime.shutdown_timeout(DETACHED_TASKS_TIMEOUT);
    storage.close();
    drop(lock);
    info!("ended");
    ended
}

/// The daemon's section; an error if the conf lacks it.
fn section(path: &Path, kind: DaemonKind) -> Result<Section> {
    let path = std::path::absolute(path)
        .with_context(|| format!("{} is no usable path", path.display()))?;
    let conf = read_conf(&path)?;
    if !conf.has_section(kind.name()) {
        bail!(
            "{}: there is no section [{}]: add it, it may be empty",
            path.display(),
            kind.name()
        );
    }
    Ok(conf.section(kind.name())?)
}

async fn work(
    daemon: Arc<dyn Daemon>,
    called: &Called,
    once: bool,
    clusters: &Clusters,
) -> Result<()> {
    let (kind, verbose) = (called.kind, called.verbose);
    let mut signals = StopSignals::new(true).context("cannot listen for signals")?;
    // A verbose pass reports progress in the log.
    let shown = match once && !verbose {
        true => daemon.progress().zip(progress_bar::terminal()),
        false => None,
    };
    stdio::close(verbose);
    notify::send_state(notify::READY);
    info!(daemon = kind.name(), once, "started");
    let (stop_sender, stop) = watch::channel(false);
    let mut tasks = JoinSet::new();
    if once {
        tasks.spawn(daemon.once(called.only.clone()));
    } else {
        tasks.spawn(cairn_daemons::daemon::run(daemon, stop));
    }
    let rings = tokio::spawn(follow_rings(clusters.iter().cloned().collect()));
    let began = Instant::now();
    let what = kind.name();
    let bar = shown.as_ref().and_then(|(progress, terminal)| {
        let terminal = terminal.try_clone().ok()?;
        Some(tokio::spawn(progress_bar::show(
            terminal,
            what,
            progress.clone(),
        )))
    });
    tokio::select! {
        _ = tasks.join_next() => {}
        (signal, _) = signals.next() => {
            info!(signal, "ending");
            notify::send_state(notify::STOPPING);
            stop_sender.send_replace(true);
            if !once {
                tasks.join_next().await;
            }
        }
    }
    if let Some(bar) = bar {
        bar.abort();
        let _ = bar.await;
    }
    if let Some((progress, terminal)) = shown {
        progress_bar::end(terminal, what, &progress, began.elapsed());
    }
    tasks.abort_all();
    rings.abort();
    Ok(())
}

/// Reloads changed rings.
async fn follow_rings(clusters: Vec<Arc<crate::cluster::Cluster>>) {
    let mut tick = tokio::time::interval(RING_CHECK_INTERVAL);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let clusters = clusters.clone();
        let refresh = move || {
            for rings in clusters.iter().filter_map(|c| c.loaded_rings()) {
                rings.refresh();
            }
        };
        if tokio::task::spawn_blocking(refresh).await.is_err() {
            return;
        }
    }
}
