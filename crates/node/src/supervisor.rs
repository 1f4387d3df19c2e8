//! A server under Swift's own name: a parent process that keeps the port, and a worker that serves
//! it.
//!
//! The parent's id is in the pid files of Swift's tools, and it behaves as they expect. SIGTERM
//! ends both at once. SIGHUP ends the parent; the worker drains and finishes its requests; so it
//! does, too, when the parent is killed. SIGUSR1 restarts the program in place: the parent executes
//! itself in the same process, a new worker takes over the socket, which stays open throughout, and
//! the old worker finishes its requests. A worker that dies is replaced. Service managers are
//! notified of all that (`notify.rs`).
//!
//! Both run as the conf's `user` once the ports are bound, and a restart has no more privileges
//! than that user: errors that would prevent it are found before the old program is replaced.
//!
//! Protocol between the two: the worker's sockets are passed through its standard input, and its
//! standard output is a pipe (`stdio.rs`). A parent that restarts finds the sockets on its standard
//! input and the old workers' ids in the environment. With `servers_per_port` it restarts by itself
//! when the rings have other ports.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tracing::{error, info, warn};

use crate::conf::ServerConf;
use crate::lock::FolderLock;
use crate::logging::{self, LogOptions};
use crate::notify;
use crate::ring_ports::{self, RingPorts};
use crate::role::Role;
use crate::serve::{self, RunOptions, Server, Worker};
use crate::settings::ServerSettings;
use crate::signals::{self, StopSignals};
use crate::stdio;
use crate::syslog::SyslogOptions;

/// Environment variable of a worker: the parent's process id.
const WORKER: &str = "CAIRN_WORKER";
/// Environment variable of a restarted parent: the ids of its earlier workers, separated by commas.
const OLD_WORKERS: &str = "CAIRN_OLD_WORKERS";
/// Minimum time for which a port in use is retried, as in Swift.
const BIND_TIMEOUT_MIN: Duration = Duration::from_secs(30);
/// Timeout of a worker's shutdown, and of its message that it drains.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum interval between a worker's start and its replacement after it died.
const RESPAWN_INTERVAL: Duration = Duration::from_secs(1);

/// Arguments of the program.
#[derive(Debug)]
pub struct Called {
    pub role: Role,
    pub conf: PathBuf,
    /// Keeps the log on standard error.
    pub verbose: bool,
    /// All arguments, for the worker and for a restart.
    pub arguments: Vec<OsString>,
}

/// Serves until a signal ends it.
///
/// # Errors
/// The conf is invalid, another process serves its folder, a port cannot be bound, the user cannot
/// be switched to, or the first worker does not start. In a worker: see [`serve::run`].
pub fn run(called: Called) -> Result<()> {
    if let Ok(parent) = std::env::var(WORKER) {
        return work(&called, Pid::from_raw(parent.parse().unwrap_or_default()));
    }
    let old_workers = std::env::var(OLD_WORKERS).ok().map(|text| pids(&text));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot listen for signals")?;
    // First of all: a signal without a handler would end this process and abandon its workers.
    // Signals during a restart have been pending; swift-init waits, too.
    let signals = {
        let _inside = runtime.enter();
        StopSignals::new(true).context("cannot listen for signals")?
    };
    signals::release().context("cannot listen for signals")?;
    let server = load(&called)?;
    let (conf, settings) = &server;
    logging::start(&log_options(&called, conf)?, settings.log_level)?;
    // A session of its own, independent of the terminal and of signals to the group.
    let _ = rustix::process::setsid();
    let lock = serve::lock_of(conf, settings)
        .map(|(folder, role)| FolderLock::devices(&folder, &role))
        .transpose()?;
    let inherited = match old_workers {
        Some(_) => stdio::take_listeners()?,
        None => Vec::new(),
    };
    let listeners = listeners(&server, inherited)?;
    serve::become_user(std::slice::from_ref(&server))?;
    if let Some(user) = &settings.user {
        let remedy = "the server runs as this user, who must be able to read its confs and the files \
                      they name (chgrp them to a group of the user, chmod 640)";
        load(&called).with_context(|| format!("user = {user}: {remedy}"))?;
    }
    let ring_ports = RingPorts::of(settings)?;
    let program = std::env::current_exe().context("where is this program")?;
    let mut parent = Parent {
        called,
        program,
        listeners,
        ring_ports,
        old_workers: old_workers.unwrap_or_default(),
        current: None,
        respawn_at: Instant::now(),
        message_sender: None,
    };
    let ended = runtime.block_on(parent.supervise(signals));
    drop(lock);
    ended
}

fn load(called: &Called) -> Result<Server> {
    let confs = serve::load(std::slice::from_ref(&called.conf), Some(called.role))?;
    let server = serve::with_settings(confs)?.pop();
    server.context("no conf was given")
}

fn log_options(called: &Called, conf: &ServerConf) -> Result<LogOptions> {
    if called.verbose {
        return Ok(LogOptions::default());
    }
    let program = called.role.server_name();
    let logging = conf
        .filters
        .iter()
        .find(|f| f.entry_point == "proxy_logging");
    let access = logging.map(|filter| SyslogOptions::read_access(&filter.section, program));
    Ok(LogOptions {
        syslog: Some(SyslogOptions::read(&conf.app, program)?),
        access_syslog: access.transpose()?,
        ..LogOptions::default()
    })
}

fn work(called: &Called, parent: Option<Pid>) -> Result<()> {
    let listeners = stdio::take_listeners()?;
    let confs = serve::load(std::slice::from_ref(&called.conf), Some(called.role))?;
    let [conf] = &confs[..] else {
        bail!("a worker serves one conf");
    };
    let log = log_options(called, conf)?;
    let options = RunOptions {
        log,
        worker: Some(Worker {
            listeners,
            verbose: called.verbose,
            parent,
        }),
        ..RunOptions::default()
    };
    serve::run(confs, options)
}

/// The inherited sockets, if they are still the conf's, or new ones.
fn listeners((conf, settings): &Server, inherited: Vec<TcpListener>) -> Result<Vec<TcpListener>> {
    let patient = ServerSettings {
        bind_timeout: settings.bind_timeout.max(BIND_TIMEOUT_MIN),
        ..settings.clone()
    };
    ring_ports::listen_on_all(conf, &patient, inherited)
}

fn pids(text: &str) -> Vec<Pid> {
    text.split(',')
        .filter_map(|pid| Pid::from_raw(pid.trim().parse().ok()?))
        .collect()
}

/// A message from a worker, with its id.
type WorkerMessage = (Pid, String);

struct Parent {
    called: Called,
    program: PathBuf,
    listeners: Vec<TcpListener>,
    /// Set if the ports follow the rings.
    ring_ports: Option<RingPorts>,
    /// Draining workers; removed when ended.
    old_workers: Vec<Pid>,
    current: Option<Current>,
    /// Earliest time to replace a missing worker.
    respawn_at: Instant,
    message_sender: Option<mpsc::UnboundedSender<WorkerMessage>>,
}

/// Returns when the rings must be checked.
async fn until_look(ring_ports: Option<&RingPorts>) {
    match ring_ports {
        Some(ports) => tokio::time::sleep(ports.check_interval()).await,
        None => std::future::pending().await,
    }
}

struct Current {
    pid: Pid,
    started: Instant,
}

impl Parent {
    async fn supervise(&mut self, mut signals: StopSignals) -> Result<()> {
        let mut children = signal(SignalKind::child()).context("cannot listen for signals")?;
        let (message_sender, mut messages) = mpsc::unbounded_channel();
        self.message_sender = Some(message_sender);
        self.start_worker()?;
        let mut is_first = true;
        loop {
            tokio::select! {
                (name, in_a_hurry) = signals.next() => {
                    info!(signal = name, "signal received");
                    match name {
                        "SIGUSR1" => self.start_anew(),
                        _ => notify::send_state(notify::STOPPING),
                    }
                    match name {
                        "SIGUSR1" => {}
                        _ if in_a_hurry => return self.end_at_once(&mut children).await,
                        _ => return self.drain_workers(&mut messages, &mut children).await,
                    }
                }
                Some((pid, word)) = messages.recv() => {
                    if word == stdio::READY && self.is_current(pid) {
                        self.retire_old_workers();
                        if is_first {
                            is_first = false;
                            notify::send_state(notify::READY);
                            stdio::close(self.called.verbose);
                        }
                    }
                }
                _ = children.recv() => self.reap(is_first)?,
                () = self.until_respawn() => self.replace_worker(),
                () = until_look(self.ring_ports.as_ref()) => self.follow_rings(),
            }
        }
    }

    /// Restarts if the rings' ports changed: that opens and closes ports without refusing clients
    /// on others.
    fn follow_rings(&mut self) {
        let Some(ring_ports) = &mut self.ring_ports else {
            return;
        };
        let wanted = ring_ports.wanted();
        let open = self.listeners.iter().filter_map(|l| l.local_addr().ok());
        if !wanted.is_empty() && wanted != open.collect() {
            info!(ports = ?wanted, "the rings name other ports of this node");
            self.start_anew();
        }
    }

    fn is_current(&self, pid: Pid) -> bool {
        self.current.as_ref().is_some_and(|c| c.pid == pid)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        let mut arguments = self.called.arguments.iter();
        if let Some(name) = arguments.next() {
            command.arg0(name);
        }
        command.args(arguments);
        command
    }

    fn start_worker(&mut self) -> Result<()> {
        let sockets = stdio::hand_down(&self.listeners).context("cannot share the port")?;
        let child = self
            .command()
            .env(WORKER, std::process::id().to_string())
            .env_remove(OLD_WORKERS)
            .env_remove(notify::NOTIFY_SOCKET)
            .stdin(Stdio::from(sockets))
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        let pid = Pid::from_child(&child);
        self.listen_to(pid, child);
        self.current = Some(Current {
            pid,
            started: Instant::now(),
        });
        Ok(())
    }

    fn replace_worker(&mut self) {
        if let Err(error) = self.start_worker() {
            error!(error = format!("{error:#}"), "no worker could be started");
            self.respawn_at = Instant::now() + RESPAWN_INTERVAL;
        }
    }

    /// Forwards a worker's messages, on a thread that ends with it.
    fn listen_to(&self, pid: Pid, mut child: Child) {
        let (Some(said), Some(message_sender)) = (child.stdout.take(), self.message_sender.clone())
        else {
            return;
        };
        std::thread::spawn(move || {
            // Only the main thread may receive signals.
            if let Err(error) = signals::hold() {
                warn!(%error, "a signal during a new start may be lost");
            }
            for word in BufReader::new(said).lines().map_while(|line| line.ok()) {
                if message_sender.send((pid, word)).is_err() {
                    break;
                }
            }
        });
    }

    fn retire_old_workers(&self) {
        for pid in &self.old_workers {
            // It may have ended already.
            let _ = kill_process(*pid, Signal::USR1);
        }
    }

    /// Handles ended workers. An error if the first one ended before it was ready.
    fn reap(&mut self, is_first: bool) -> Result<()> {
        while let Ok(Some((pid, status))) = waitpid(None, WaitOptions::NOHANG) {
            self.old_workers.retain(|old| *old != pid);
            let Some(ended) = self.current.take_if(|current| current.pid == pid) else {
                continue;
            };
            if is_first && self.old_workers.is_empty() {
                // Its messages on standard error have the reason.
                bail!("the server did not start");
            }
            let status = status.exit_status();
            warn!(
                pid = pid.as_raw_nonzero(),
                ?status,
                "a worker ended; another takes its place"
            );
            self.respawn_at = ended.started + RESPAWN_INTERVAL;
        }
        Ok(())
    }

    /// Returns when a worker is missing and may be started.
    async fn until_respawn(&self) {
        if self.current.is_some() {
            return std::future::pending().await;
        }
        tokio::time::sleep_until(self.respawn_at.into()).await;
    }

    /// All workers, including draining ones.
    fn workers(&self) -> Vec<Pid> {
        let mut all = self.old_workers.clone();
        all.extend(self.current.as_ref().map(|c| c.pid));
        all
    }

    async fn end_at_once(&mut self, children: &mut tokio::signal::unix::Signal) -> Result<()> {
        for pid in self.workers() {
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + END_TIMEOUT;
        loop {
            self.forget_ended();
            let left = deadline.saturating_duration_since(Instant::now());
            if self.workers().is_empty() {
                return Ok(());
            }
            if left.is_zero() {
                break;
            }
            // One signal may stand for several: check again soon in any case.
            let moment = left.min(Duration::from_millis(100));
            let _ = tokio::time::timeout(moment, children.recv()).await;
        }
        for pid in self.workers() {
            warn!(
                pid = pid.as_raw_nonzero(),
                "this worker did not end in time and is killed"
            );
            let _ = kill_process(pid, Signal::KILL);
        }
        Ok(())
    }

    /// Removes ended workers from the list.
    fn forget_ended(&mut self) {
        while let Ok(Some((pid, _))) = waitpid(None, WaitOptions::NOHANG) {
            self.old_workers.retain(|old| *old != pid);
            self.current.take_if(|current| current.pid == pid);
        }
    }

    /// Drains the workers, and returns once the port is free: the worker has said so, or has ended.
    async fn drain_workers(
        &mut self,
        messages: &mut mpsc::UnboundedReceiver<WorkerMessage>,
        children: &mut tokio::signal::unix::Signal,
    ) -> Result<()> {
        for pid in self.workers() {
            let _ = kill_process(pid, Signal::HUP);
        }
        let deadline = tokio::time::sleep(END_TIMEOUT);
        let mut deadline = std::pin::pin!(deadline);
        while let Some(current) = self.current.as_ref().map(|c| c.pid) {
            tokio::select! {
                Some((pid, word)) = messages.recv() => {
                    if pid == current && word == stdio::DRAINS {
                        break;
                    }
                }
                _ = children.recv() => self.forget_ended(),
                () = &mut deadline => break,
            }
        }
        Ok(())
    }

    /// Restarts the program, unless its conf is invalid.
    fn start_anew(&mut self) {
        if let Err(error) = self.try_start_anew() {
            error!(
                error = format!("{error:#}"),
                "not started anew; the server goes on as it is"
            );
        }
    }

    fn try_start_anew(&mut self) -> Result<()> {
        let (conf, settings) = load(&self.called)?;
        let clones = self.listeners.iter().map(TcpListener::try_clone);
        let open = clones
            .collect::<std::io::Result<_>>()
            .context("cannot share the port")?;
        let impatient = ServerSettings {
            bind_timeout: Duration::ZERO,
            ..settings
        };
        // Binds ports while the server still runs, so that a failure does not end it.
        let listeners = ring_ports::listen_on_all(&conf, &impatient, open)?;
        let sockets = stdio::hand_down(&listeners).context("cannot share the port")?;
        let old: Vec<String> = self
            .workers()
            .iter()
            .map(|pid| pid.as_raw_nonzero().to_string())
            .collect();
        notify::send_state(notify::RELOADING);
        // Signals stay pending until the restarted program listens.
        signals::hold().context("cannot have signals wait")?;
        let error = self
            .command()
            .env(OLD_WORKERS, old.join(","))
            .stdin(Stdio::from(sockets))
            .exec();
        if let Err(error) = signals::release() {
            error!(%error, "signals no longer reach this process");
        }
        notify::send_state(notify::READY);
        Err(error).with_context(|| format!("cannot start {}", self.program.display()))
    }
}
