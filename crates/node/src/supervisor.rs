//! A server under Swift's own name: a parent that keeps the port, and a worker that serves it.
//!
//! The parent is the process whose id Swift's tools write down, and it behaves as they expect.
//! SIGTERM ends both at once. SIGHUP ends the parent; the worker takes no more clients and
//! finishes what it has; so it does, too, when the parent is killed. SIGUSR1 changes the program in place: the parent starts itself anew in
//! the same process, a new worker takes over the socket, which stays open all the while, and the
//! old worker finishes what it has. A worker that dies is replaced. Service managers are told of all
//! that (`notify.rs`).
//!
//! Both run as the conf's `user` once the ports are bound, and a new start can do no more than that
//! user: what would keep it from coming up is found out before the old one is given up.
//!
//! Between the two: the worker's sockets come through its standard input, and its standard output is
//! a pipe (`stdio.rs`). A parent that starts itself anew finds the sockets on its standard input and
//! the old workers' ids in the environment. With `servers_per_port` it does so by itself when the
//! rings name other ports.

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

/// Set for a worker: the parent's process id.
const WORKER: &str = "CAIRN_WORKER";
/// Set for a parent that started itself anew: the ids of its earlier workers, comma between them.
const OLD_WORKERS: &str = "CAIRN_OLD_WORKERS";
/// A port in use is tried again for so long at least, as Swift does.
const BIND_PATIENCE: Duration = Duration::from_secs(30);
/// For a worker to end when it was told to end at once, and to say that it takes no more clients.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// A worker that died is not replaced sooner than this after its start.
const RESPAWN_GAP: Duration = Duration::from_secs(1);

/// How the program was called.
#[derive(Debug)]
pub struct Called {
    pub role: Role,
    pub conf: PathBuf,
    /// The log stays on standard error.
    pub verbose: bool,
    /// All of it, for the worker and for a new start.
    pub arguments: Vec<OsString>,
}

/// Serves until a signal ends it.
pub fn run(called: Called) -> Result<()> {
    if let Ok(parent) = std::env::var(WORKER) {
        return work(&called, Pid::from_raw(parent.parse().unwrap_or_default()));
    }
    let old_workers = std::env::var(OLD_WORKERS).ok().map(|text| pids(&text));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot listen for signals")?;
    // First of all: a signal that nobody listens for would end this process and leave its workers to
    // themselves. What came during a new start has waited for this. swift-init waits, too.
    let signals = {
        let _inside = runtime.enter();
        StopSignals::new(true).context("cannot listen for signals")?
    };
    signals::release().context("cannot listen for signals")?;
    let server = load(&called)?;
    let (conf, settings) = &server;
    logging::start(&log_options(&called, conf)?, settings.log_level)?;
    // A session of its own: a terminal that goes, and signals to a group, concern nobody else.
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
        told: None,
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

/// The sockets that were handed down, where they are still the conf's, or new ones.
fn listeners((conf, settings): &Server, inherited: Vec<TcpListener>) -> Result<Vec<TcpListener>> {
    let patient = ServerSettings {
        bind_timeout: settings.bind_timeout.max(BIND_PATIENCE),
        ..settings.clone()
    };
    ring_ports::listen_on_all(conf, &patient, inherited)
}

fn pids(text: &str) -> Vec<Pid> {
    text.split(',')
        .filter_map(|pid| Pid::from_raw(pid.trim().parse().ok()?))
        .collect()
}

/// What a worker says, and whose worker it is.
type Word = (Pid, String);

struct Parent {
    called: Called,
    program: PathBuf,
    listeners: Vec<TcpListener>,
    /// Where they follow the rings.
    ring_ports: Option<RingPorts>,
    /// They finish what they have; ended ones are taken off.
    old_workers: Vec<Pid>,
    current: Option<Current>,
    /// When a missing worker may be replaced.
    respawn_at: Instant,
    told: Option<mpsc::UnboundedSender<Word>>,
}

/// Comes back when the rings are to be looked at again.
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
        let (told, mut words) = mpsc::unbounded_channel();
        self.told = Some(told);
        self.start_worker()?;
        let mut is_first = true;
        loop {
            tokio::select! {
                (name, in_a_hurry) = signals.next() => {
                    info!(signal = name, "signal received");
                    match name {
                        "SIGUSR1" => self.start_anew(),
                        _ => notify::tell(notify::STOPPING),
                    }
                    match name {
                        "SIGUSR1" => {}
                        _ if in_a_hurry => return self.end_at_once(&mut children).await,
                        _ => return self.let_go(&mut words, &mut children).await,
                    }
                }
                Some((pid, word)) = words.recv() => {
                    if word == stdio::READY && self.is_current(pid) {
                        self.retire_old_workers();
                        if is_first {
                            is_first = false;
                            notify::tell(notify::READY);
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

    /// Other ports in the rings: a new start opens and closes them, and refuses nobody on others.
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
            self.respawn_at = Instant::now() + RESPAWN_GAP;
        }
    }

    /// Passes on what a worker says, from a thread that ends with it.
    fn listen_to(&self, pid: Pid, mut child: Child) {
        let (Some(said), Some(told)) = (child.stdout.take(), self.told.clone()) else {
            return;
        };
        std::thread::spawn(move || {
            // They are for the thread that can have them wait.
            if let Err(error) = signals::hold() {
                warn!(%error, "a signal during a new start may be lost");
            }
            for word in BufReader::new(said).lines().map_while(|line| line.ok()) {
                if told.send((pid, word)).is_err() {
                    break;
                }
            }
        });
    }

    fn retire_old_workers(&self) {
        for pid in &self.old_workers {
            // Ended already: then there is nobody to tell.
            let _ = kill_process(*pid, Signal::USR1);
        }
    }

    /// Takes note of workers that ended. The first one's end before it was ready is ours.
    fn reap(&mut self, is_first: bool) -> Result<()> {
        while let Ok(Some((pid, status))) = waitpid(None, WaitOptions::NOHANG) {
            self.old_workers.retain(|old| *old != pid);
            let Some(ended) = self.current.take_if(|current| current.pid == pid) else {
                continue;
            };
            if is_first && self.old_workers.is_empty() {
                // Its own words on standard error tell why.
                bail!("the server did not start");
            }
            let status = status.exit_status();
            warn!(
                pid = pid.as_raw_nonzero(),
                ?status,
                "a worker ended; another takes its place"
            );
            self.respawn_at = ended.started + RESPAWN_GAP;
        }
        Ok(())
    }

    /// Comes back when a worker is missing and may be started.
    async fn until_respawn(&self) {
        if self.current.is_some() {
            return std::future::pending().await;
        }
        tokio::time::sleep_until(self.respawn_at.into()).await;
    }

    /// Every worker there may be.
    fn workers(&self) -> Vec<Pid> {
        let mut all = self.old_workers.clone();
        all.extend(self.current.as_ref().map(|c| c.pid));
        all
    }

    async fn end_at_once(&mut self, children: &mut tokio::signal::unix::Signal) -> Result<()> {
        for pid in self.workers() {
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + END_PATIENCE;
        loop {
            self.forget_ended();
            let left = deadline.saturating_duration_since(Instant::now());
            if self.workers().is_empty() {
                return Ok(());
            }
            if left.is_zero() {
                break;
            }
            // Signals may have been one: look again after a moment in any case.
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

    /// Takes workers that ended off the list.
    fn forget_ended(&mut self) {
        while let Ok(Some((pid, _))) = waitpid(None, WaitOptions::NOHANG) {
            self.old_workers.retain(|old| *old != pid);
            self.current.take_if(|current| current.pid == pid);
        }
    }

    /// Lets workers finish on their own, once the port is free: the worker says so, or has ended
    /// before it could.
    async fn let_go(
        &mut self,
        words: &mut mpsc::UnboundedReceiver<Word>,
        children: &mut tokio::signal::unix::Signal,
    ) -> Result<()> {
        for pid in self.workers() {
            let _ = kill_process(pid, Signal::HUP);
        }
        let deadline = tokio::time::sleep(END_PATIENCE);
        let mut deadline = std::pin::pin!(deadline);
        while let Some(current) = self.current.as_ref().map(|c| c.pid) {
            tokio::select! {
                Some((pid, word)) = words.recv() => {
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

    /// Becomes a new start of the program, unless the conf would not let it come up.
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
        // A port that cannot be bound is known now, while there is a server to go on with.
        let listeners = ring_ports::listen_on_all(&conf, &impatient, open)?;
        let sockets = stdio::hand_down(&listeners).context("cannot share the port")?;
        let old: Vec<String> = self
            .workers()
            .iter()
            .map(|pid| pid.as_raw_nonzero().to_string())
            .collect();
        notify::tell(notify::RELOADING);
        // Whatever comes before the new start listens waits until it does.
        signals::hold().context("cannot have signals wait")?;
        let error = self
            .command()
            .env(OLD_WORKERS, old.join(","))
            .stdin(Stdio::from(sockets))
            .exec();
        if let Err(error) = signals::release() {
            error!(%error, "signals no longer reach this process");
        }
        notify::tell(notify::READY);
        Err(error).with_context(|| format!("cannot start {}", self.program.display()))
    }
}
