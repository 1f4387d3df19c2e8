//! Benchmark of one container with increasing numbers of rows: updates per second of its server,
//! duration of listings, and both concurrently; and PUTs per second through the proxy. Cairn and
//! OpenStack Swift alternate on the same database, which Cairn fills once for both. Cairn is
//! measured with exclusive databases, as with `cairn up`, and with databases that Swift's programs
//! may open at the same time.
//!
//! One device, one copy, 16 connections. Updates are those of an object server: rows of new
//! objects, in ten folders. Listings are JSON pages of 10,000 rows from the container server.
//!
//! With `--sharded` everything is repeated after Cairn's sharder has made ten shards: updates go to
//! one of them, as object servers send them, and the proxy merges the listings.

mod sharded;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::disk::Disk;
use super::load::{Job, Outcome, Verb};
use super::{Only, Options, load_process};
use cairn_testkit::cairn::{Cairn, Spread};
use cairn_testkit::figures::median;
use cairn_testkit::swift::{CORE_PIPELINE, Layout, Swift};
use cairn_testkit::venv::Venv;
use cairn_testkit::wire::{Account, Connection};
use cairn_testkit::workspace;

const ROWS: [u64; 4] = [1000, 100_000, 1_000_000, 10_000_000];
const CONNECTIONS: usize = 16;
/// Number of folders; names are `dir-N/oNNNNNNNNNN`.
const FOLDERS: u64 = 10;
/// Number of times each listing is requested; the median is reported.
const LISTINGS_EACH: usize = 5;
const LISTING_CLIENTS: usize = 2;
/// Size of objects put through the proxy.
const OBJECT_BYTES: u64 = 1000;

/// Results of one store at one number of rows. Latencies are in milliseconds.
#[derive(serde::Serialize)]
struct Measured {
    store: &'static str,
    rows: u64,
    is_sharded: bool,
    first_page_ms: f64,
    deep_page_ms: f64,
    delimiter_ms: f64,
    /// Latency after the page cache was dropped (`--cold`).
    cold_page_ms: Option<f64>,
    updates: Outcome,
    updates_while_listing: Outcome,
    /// Number of pages listed by the two clients meanwhile, and the median latency.
    pages_meanwhile: usize,
    page_meanwhile_ms: f64,
    puts: Outcome,
}

/// Access mode of Cairn's databases.
#[derive(Clone, Copy, PartialEq)]
enum Databases {
    /// Only this process, as with `cairn up`.
    Exclusive,
    /// Swift's programs too, at any time.
    Shared,
}

impl Databases {
    fn label(self) -> &'static str {
        match self {
            Databases::Exclusive => "Cairn",
            Databases::Shared => "Cairn, shared",
        }
    }

    fn say_in(self, conf: &Path) -> Result<()> {
        const EXCLUSIVE: &str = "exclusive_databases = yes\n";
        let mut text = fs::read_to_string(conf)?.replace(EXCLUSIVE, "");
        if self == Databases::Exclusive {
            text = text.replacen("[DEFAULT]\n", &format!("[DEFAULT]\n{EXCLUSIVE}"), 1);
        }
        Ok(fs::write(conf, text)?)
    }
}

/// Destination of rows, and source of pages.
struct Target {
    /// Path of the container or shard on its server.
    path: String,
    /// Number of folders for new rows: all of them, or only the first.
    folders: u64,
    /// Login for a sharded container: its pages come from the proxy.
    sharded: Option<Login>,
}

struct Login {
    path: String,
    token: String,
}

struct Setup {
    swift: Swift,
    dir: PathBuf,
    load: PathBuf,
    binary: PathBuf,
    seconds: u64,
    cold: bool,
    /// Path on the container server, `/d1/PARTITION/ACCOUNT/c`; known once it has been created.
    root: String,
}

pub(super) fn run(options: &Options) -> Result<()> {
    // This program is the generator, so no release build is needed.
    let load = std::env::current_exe()?;
    let binary = workspace::build_cairn()?;
    let dir = workspace::scratch("container")?;
    let disk = Disk::fresh(dir.path(), "store", options.file_system)?;
    let layout = Layout {
        devices: 1,
        replicas: 1,
        pipeline: CORE_PIPELINE,
        ..Layout::default()
    };
    let swift = Swift::create(&Venv::prepare()?, &disk.path().join("swift"), layout)?;
    for kind in ["object", "container", "account"] {
        without_daemons(&swift.server_conf(kind, 1), kind)?;
    }
    let mut setup = Setup {
        swift,
        dir: disk.path().to_owned(),
        load,
        binary,
        seconds: options.seconds.unwrap_or(8),
        cold: options.cold,
        root: String::new(),
    };
    let mut rows = options.rows.clone();
    if rows.is_empty() {
        rows = ROWS.to_vec();
    }
    rows.sort_unstable();
    let (mut all, mut filled) = (Vec::new(), 0);
    for rows in rows {
        setup.fill(filled, rows)?;
        filled = rows;
        all.extend(setup.stores(options.only, rows, &setup.saved())?);
        if options.sharded {
            setup.shard(rows)?;
            all.extend(setup.stores(options.only, rows, &setup.saved_shards())?);
        }
    }
    workspace::keep("bench", "container.json", &all)
}

/// Disables daemons: their work would be included for one store and not for the other.
fn without_daemons(conf: &Path, kind: &str) -> Result<()> {
    let text = fs::read_to_string(conf)?;
    let cut = text.find(&format!("[{kind}-replicator]"));
    fs::write(conf, &text[..cut.context("no daemons")?])?;
    Ok(())
}

impl Setup {
    /// Measures the stores alternately, each on a copy of the saved database.
    fn stores(&mut self, only: Option<Only>, rows: u64, saved: &Path) -> Result<Vec<Measured>> {
        let mut all = Vec::new();
        if only != Some(Only::Cairn) {
            copy(saved, &self.containers())?;
            self.swift.start()?;
            all.push(self.measured("OpenStack Swift", rows)?);
            self.swift.stop();
        }
        if only != Some(Only::Swift) {
            for databases in [Databases::Exclusive, Databases::Shared] {
                copy(saved, &self.containers())?;
                let mut store = self.start_cairn(databases)?;
                all.push(self.measured(databases.label(), rows)?);
                store.stop()?;
                self.swift.stop();
            }
        }
        Ok(all)
    }

    fn start_cairn(&mut self, databases: Databases) -> Result<Cairn> {
        for kind in ["container", "account"] {
            databases.say_in(&self.swift.server_conf(kind, 1))?;
        }
        self.swift.start_memcached()?;
        let (dir, port) = (self.dir.join("cairn"), self.swift.port);
        let mut store = Cairn::of_confs(&self.binary, &dir, port, self.swift.confs());
        store.start(Spread::OneProcess)?;
        Ok(store)
    }

    fn containers(&self) -> PathBuf {
        self.swift.node(1).join("d1/containers")
    }

    fn saved(&self) -> PathBuf {
        self.dir.join("saved")
    }

    /// Extends the saved database from `from` to `to` rows.
    fn fill(&mut self, from: u64, to: u64) -> Result<()> {
        if from > 0 {
            copy(&self.saved(), &self.containers())?;
        }
        let mut store = self.start_cairn(Databases::Exclusive)?;
        let mut account = Account::login(self.swift.port)?;
        account.must("PUT", "/c", "", &[], b"")?;
        let account = account.path.trim_start_matches("/v1/").to_owned();
        self.root = format!("/d1/{}/{account}/c", only_entry(&self.containers())?);
        let start = Instant::now();
        let done = self.updates(&self.target()?, from, to - from, 7200)?;
        println!("{to} rows after {:.0} s", start.elapsed().as_secs_f64());
        ensure!(done.done == to - from, "{} rows were made", done.done);
        store.stop()?;
        self.swift.stop();
        copy(&self.containers(), &self.saved())
    }

    fn updates(&self, to: &Target, first: u64, count: u64, seconds: u64) -> Result<Outcome> {
        let job = Job {
            port: self.swift.port_of("container", 1),
            token: "none".into(),
            prefix: format!("{}/dir-", to.path),
            containers: to.folders,
            verb: Verb::Put,
            size: 0,
            connections: CONNECTIONS,
            warm_up_seconds: 0,
            seconds,
            first,
            count,
            headers: "X-Timestamp: 1700000000.00000\r\nX-Size: 1000\r\n\
                      X-Content-Type: application/octet-stream\r\n\
                      X-Etag: d41d8cd98f00b204e9800998ecf8427e\r\n"
                .into(),
            ca: None,
        };
        let outcome = load_process(&self.load, &job)?;
        ensure!(outcome.errors == 0, "updates: {:?}", outcome.error);
        Ok(outcome)
    }

    fn measured(&self, store: &'static str, rows: u64) -> Result<Measured> {
        let target = self.target()?;
        let middle = format!("&marker=dir-5/o{:010}", rows / 2);
        let cold_page_ms = match self.cold {
            true => {
                fs::write("/proc/sys/vm/drop_caches", "3").context("--cold needs root")?;
                Some(self.listing(&target, &middle, None)?)
            }
            false => None,
        };
        let median = |query: &str, least: usize| -> Result<f64> {
            let times = (0..LISTINGS_EACH).map(|_| self.listing(&target, query, Some(least)));
            Ok(middle_of(times.collect::<Result<_>>()?))
        };
        let page = rows.min(10_000) as usize;
        let first_page_ms = median("", page)?;
        let deep_page_ms = median(&middle, 1)?;
        let delimiter_ms = median("&delimiter=/", FOLDERS as usize)?;
        let new = 1_000_000_000;
        let updates = self.updates(&target, new, u64::MAX / 4, self.seconds)?;
        let (updates_while_listing, mut pages) = self.while_listing(&target, 2 * new)?;
        let puts = self.puts()?;
        let measured = Measured {
            store,
            rows,
            is_sharded: target.sharded.is_some(),
            first_page_ms,
            deep_page_ms,
            delimiter_ms,
            cold_page_ms,
            updates,
            updates_while_listing,
            pages_meanwhile: pages.len(),
            page_meanwhile_ms: middle_of(std::mem::take(&mut pages)),
            puts,
        };
        println!("{}", measured.line());
        Ok(measured)
    }

    /// Requests a page as JSON; returns milliseconds. Checks the number of entries.
    fn listing(&self, of: &Target, query: &str, entries: Option<usize>) -> Result<f64> {
        let query = format!("?format=json&limit=10000{query}");
        let (port, path) = match &of.sharded {
            Some(login) => (self.swift.port, &login.path),
            None => (self.swift.port_of("container", 1), &of.path),
        };
        let token = of.sharded.iter();
        let token: Vec<_> = token.map(|login| ("X-Auth-Token", &*login.token)).collect();
        let mut connection = Connection::new(port);
        let start = Instant::now();
        let answer = connection.call("GET", &format!("{path}{query}"), &token, b"")?;
        let ms = start.elapsed().as_secs_f64() * 1000.0;
        ensure!(answer.status == 200, "{query}: {}", answer.status);
        if let Some(entries) = entries {
            let page: Vec<serde_json::Value> = serde_json::from_slice(&answer.body)?;
            ensure!(page.len() >= entries, "{query}: {} entries", page.len());
        }
        Ok(ms)
    }

    /// Updates while two clients list without a pause.
    fn while_listing(&self, target: &Target, first: u64) -> Result<(Outcome, Vec<f64>)> {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let list = || -> Result<Vec<f64>> {
                let mut times = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    times.push(self.listing(target, "", None)?);
                }
                Ok(times)
            };
            let clients: Vec<_> = (0..LISTING_CLIENTS).map(|_| scope.spawn(list)).collect();
            let outcome = self.updates(target, first, u64::MAX / 4, self.seconds);
            over.store(true, Ordering::Relaxed);
            let mut pages = Vec::new();
            for client in clients {
                let times = client.join();
                pages.extend(times.map_err(|_| anyhow::anyhow!("a client panicked"))??);
            }
            Ok((outcome?, pages))
        })
    }

    fn puts(&self) -> Result<Outcome> {
        let account = Account::login(self.swift.port)?;
        let job = Job {
            port: self.swift.port,
            token: account.token.clone(),
            prefix: format!("{}/c/dir-", account.path),
            containers: FOLDERS,
            verb: Verb::Put,
            size: OBJECT_BYTES,
            connections: CONNECTIONS,
            warm_up_seconds: 1,
            seconds: self.seconds,
            first: 3_000_000_000,
            count: u64::MAX / 4,
            headers: String::new(),
            ca: None,
        };
        load_process(&self.load, &job)
    }
}

impl Measured {
    fn line(&self) -> String {
        let cold = self.cold_page_ms;
        let cold = cold.map_or(String::new(), |ms| format!(", {ms:.1} with cold caches"));
        let (updates, busy) = (&self.updates, &self.updates_while_listing);
        format!(
            "{:>9} rows{}  {:<15} {:>6.0} updates/s, p99 {:.1} ms; while listing {:.0}/s, p99 {:.1} ms \
             ({} pages of {:.1} ms); page {:.1} ms, deep {:.1}{cold}, delimiter {:.1}; \
             {:.0} PUT/s, {} errors",
            self.rows,
            if self.is_sharded { " in shards" } else { "" },
            self.store,
            updates.per_second(),
            updates.p99_ms,
            busy.per_second(),
            busy.p99_ms,
            self.pages_meanwhile,
            self.page_meanwhile_ms,
            self.first_page_ms,
            self.deep_page_ms,
            self.delimiter_ms,
            self.puts.per_second(),
            self.puts.errors,
        )
    }
}

fn middle_of(times: Vec<f64>) -> f64 {
    median(times).unwrap_or(f64::NAN)
}

/// The name of the only folder in a folder.
fn only_entry(folder: &Path) -> Result<String> {
    let mut entries = fs::read_dir(folder)?;
    let entry = entries.next().context("no container was made")??;
    ensure!(entries.next().is_none(), "more than one container");
    Ok(entry.file_name().to_string_lossy().into_owned())
}

/// Replaces `to` by a copy of `from`; neither is open.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    workspace::run(Command::new("cp").arg("-a").arg(from).arg(to))?;
    // Pending writes must not be measured.
    rustix::fs::sync();
    std::thread::sleep(Duration::from_millis(200));
    Ok(())
}
