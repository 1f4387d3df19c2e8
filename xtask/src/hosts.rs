//! A cluster over hosts that are network namespaces: four storage hosts in two regions and three
//! zones, a proxy in either region, real servers and daemons in each. Under a load that tracks
//! acknowledgements a disk is pulled, a host is killed or frozen, the regions are cut off from each
//! other, and all are restored. Measured: the effect on clients, the time until every replica is in
//! place again, and losses.

mod affinity;
mod clients;
mod cluster;
mod disks;
mod figures;
mod layout;
mod network;
mod settled;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use clap::{Args, ValueEnum};

use crate::engine::EngineName;
use cairn_testkit::model::check;
use cairn_testkit::model::keys::Key;
use cairn_testkit::report::Report;
use cairn_testkit::workspace;
use clients::{Clients, Proxies};
use cluster::Cluster;
use figures::{Figures, Moments};
use layout::ProxyOptions;
use network::Cut;
use settled::Settled;

#[derive(Args)]
pub(crate) struct Options {
    /// Faults to run, in this order; all if none is named
    #[arg(value_enum)]
    pub(crate) events: Vec<Event>,
    /// Duration of each fault, in seconds
    #[arg(long, default_value_t = 25)]
    pub(crate) seconds: u64,
    /// Requests of each of the eight clients in a second
    #[arg(long, default_value_t = 5.0)]
    pub(crate) rate: f64,
    /// Objects there are before the first event
    #[arg(long, default_value_t = 400)]
    pub(crate) objects: usize,
    /// Those objects are erasure-coded (4+2); the regions are not cut then, as half the fragments
    /// of an object are not enough
    #[arg(long)]
    pub(crate) coded: bool,
    /// The engine of all policies; with `--coded` files
    #[arg(long, value_enum, conflicts_with = "coded")]
    pub(crate) engine: Option<EngineName>,
    /// The load follows from it
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// A build without optimisation: made sooner, slower after
    #[arg(long)]
    pub(crate) debug: bool,
    /// Keep logs and confs for a look
    #[arg(long)]
    pub(crate) keep: bool,
}

impl Options {
    /// The events that fit in three minutes.
    pub(crate) fn short() -> Self {
        Options {
            events: vec![
                Event::PullDisk,
                Event::KillHost,
                Event::FreezeHost,
                Event::CutSilent,
            ],
            seconds: 8,
            rate: 4.0,
            objects: 96,
            coded: false,
            engine: None,
            seed: 1,
            debug: false,
            keep: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Event {
    /// A disk is pulled, and an empty one put in its place
    PullDisk,
    /// A storage host loses its power
    KillHost,
    /// All of a storage host is stopped (SIGSTOP): it takes connections and answers nothing
    FreezeHost,
    /// The regions are cut off from each other; who connects is told that there is no way
    CutRefused,
    /// The regions are cut off from each other; nothing answers
    CutSilent,
    /// A proxy ends, and its clients go to the other
    StopProxy,
    /// Read and write affinity, of all policies and of one
    Affinity,
}

impl Event {
    fn words(self) -> &'static str {
        match self {
            Event::PullDisk => "a disk is pulled, an empty one put in",
            Event::KillHost => "a host is killed",
            Event::FreezeHost => "a host is frozen",
            Event::CutRefused => "the regions are cut, refused",
            Event::CutSilent => "the regions are cut, silent",
            Event::StopProxy => "a proxy ends",
            Event::Affinity => "affinity",
        }
    }
}

const CALM: Duration = Duration::from_secs(8);
/// Maximum p99 latency of clients in a cluster with a frozen host, after the first second.
const FROZEN_P99_MAX_MS: f64 = 1000.0;
/// Minimum requests for a p99 that is judged: five slower ones. Of a fault of a few seconds it is the
/// second slowest request, which is one of those that find the hanging servers, each its own.
const P99_REQUESTS_MIN: usize = 500;
const DEFAULTS: ProxyOptions<'_> = ProxyOptions {
    app: "",
    sections: "",
};

pub(crate) fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    if let Some(why) = network::missing() {
        report.skip("hosts", &why);
        return Ok(report);
    }
    let binary = match options.debug {
        true => workspace::build_debug("cairn")?,
        false => workspace::build_cairn()?,
    };
    let binary = std::fs::canonicalize(binary)?;
    let mut dir = workspace::scratch("hosts")?;
    dir.disable_cleanup(options.keep);
    if options.keep {
        println!("the cluster's folder is {}", dir.path().display());
    }
    let mut cluster = Cluster::create(dir.path(), &binary, options.coded, options.engine)?;
    let done = events(options, &mut cluster, &mut report);
    let tails = cluster.log_tails();
    cluster.stop();
    drop(cluster);
    match done {
        Ok(()) => Ok(report),
        Err(error) => Err(error.context(tails)),
    }
}

fn events(options: &Options, cluster: &mut Cluster, report: &mut Report) -> Result<()> {
    let events: Vec<Event> = match options.events[..] {
        [] => Event::value_variants().to_vec(),
        _ => options.events.clone(),
    };
    cluster.start(&[DEFAULTS, DEFAULTS])?;
    let addresses = [cluster.proxy_address(0), cluster.proxy_address(1)];
    let mut proxies = Proxies::login(&addresses)?;
    let policy: &[_] = match options.coded {
        true => &[("X-Storage-Policy", "coded")],
        false => &[],
    };
    let mut keys = clients::prepare(&mut proxies, options.objects, policy)?;
    let settled = Settled::of(cluster)?;
    settled.wait(cluster, Duration::from_secs(300))?;
    let mut sides = clients::Sides::new();
    for path in clients::changing(&keys) {
        let of_path = cluster.layout.sides(&cluster.storage, &path)?;
        sides.insert(path, of_path);
    }
    let sides = Arc::new(sides);
    let mut all = Vec::new();
    for event in events {
        if event == Event::Affinity {
            affinity::run(cluster, &settled, report)?;
            continue;
        }
        if options.coded && matches!(event, Event::CutRefused | Event::CutSilent) {
            println!(
                "not for fragments, half of which are not enough: {}",
                event.words()
            );
            continue;
        }
        let seed = options.seed.wrapping_add(all.len() as u64);
        let apart = matches!(event, Event::CutRefused | Event::CutSilent).then_some(&sides);
        let keys_now = std::mem::take(&mut keys);
        let clients = Clients::start(&proxies, keys_now, options.rate, seed, apart);
        let happened = happen(event, options, cluster, &settled);
        let (after, mut seen) = clients.stop()?;
        keys = after;
        let (moments, whole_again) = happened?;
        let fragments = options.coded && event == Event::KillHost;
        clients::excuse_uploads(&mut seen, moments.fault, fragments);
        let lost = lost(&mut proxies, &keys)?;
        let figures = Figures::of(event.words(), &seen, &moments, whole_again, lost);
        println!("{}", figures::table(std::slice::from_ref(&figures)));
        for error in seen.iter().filter(|seen| seen.is_error()).take(10) {
            println!("{}", cluster.said_of(error));
        }
        report.tell(event.words(), || {
            ensure!(figures.is_good(), "{}", figures.wrong());
            let later = figures.after_a_second.p99_ms;
            let is_judged = figures.after_a_second.requests >= P99_REQUESTS_MIN;
            if event == Event::FreezeHost && is_judged {
                let is_quick = later <= FROZEN_P99_MAX_MS;
                ensure!(is_quick, "p99 {later:.0} ms after the first second");
            }
            Ok(format!(
                " {} requests, no error, nothing lost; p99 {later:.0} ms after the first second",
                figures.requests
            ))
        });
        all.push(figures);
    }
    println!("{}", figures::table(&all));
    let results = workspace::results("hosts")?;
    std::fs::write(results.join("hosts.md"), figures::table(&all))?;
    workspace::keep("hosts", "hosts.json", &all)
}

/// Runs one event, with quiet periods before and after; returns the time of the fault, and the
/// duration until everything was in place.
fn happen(
    event: Event,
    options: &Options,
    cluster: &mut Cluster,
    settled: &Settled,
) -> Result<(Moments, Duration)> {
    let lasting = Duration::from_secs(options.seconds);
    std::thread::sleep(CALM);
    println!("{}", event.words());
    let fault = Instant::now();
    // A disk of region 1, a host of region 2.
    let (host, last) = (1, cluster.storage.len() - 1);
    match event {
        Event::PullDisk => cluster.storage[host].disks[0].pull()?,
        Event::KillHost => cluster.kill_storage(last)?,
        Event::FreezeHost => cluster.freeze_storage(last),
        Event::CutRefused => cluster.network.cut(Cut::Refused)?,
        Event::CutSilent => cluster.network.cut(Cut::Silent)?,
        Event::StopProxy => cluster.stop_proxy(1),
        Event::Affinity => bail!("affinity is no fault"),
    }
    std::thread::sleep(lasting);
    let end = Instant::now();
    match event {
        Event::PullDisk => cluster.storage[host].disks[0].plug_in()?,
        Event::KillHost => cluster.revive_storage(last)?,
        Event::FreezeHost => cluster.thaw_storage(last),
        Event::CutRefused => cluster.network.mend(Cut::Refused)?,
        Event::CutSilent => cluster.network.mend(Cut::Silent)?,
        Event::StopProxy => cluster.restart_proxy(1, &DEFAULTS)?,
        Event::Affinity => {}
    }
    settled.wait(cluster, Duration::from_secs(300))?;
    let whole_again = end.elapsed();
    std::thread::sleep(CALM);
    Ok((Moments { fault, end }, whole_again))
}

/// Describes data that differs from what was acknowledged, through either proxy.
fn lost(proxies: &mut Proxies, keys: &[Vec<Key>]) -> Result<Vec<String>> {
    let mut lost = Vec::new();
    for proxy in 0..2 {
        lost.extend(check::all(proxies.through(proxy), keys)?);
    }
    Ok(lost)
}
