//! `swift-account-audit`: compares all replicas of an account, a container or an object, and
//! reports differences. Everything inside the given entities is compared too.
//!
//! Unlike Swift's tool, it looks for objects in the ring of their container's policy, and compares
//! the ETags of erasure-coded ones with the listing.

mod account;
mod ask;
mod container;
mod object;

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use cairn_http::client::Client;
use cairn_http::params::split_path;
use cairn_ring::Ring;
use cairn_types::{HashPath, PolicyIndex};
use clap::Parser;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::locations::SwiftDir;
use account::AccountListing;
use container::ContainerListing;

/// Maximum number of lines queued for printing.
const LINES_MAX: usize = 256;

/// Check that all replicas of accounts, containers and objects agree
///
/// swift-account-audit [OPTIONS] ACCOUNT[/CONTAINER[/OBJECT]]...
/// More of them, one a line, are read from the standard input where that is no terminal.
#[derive(Debug, Parser)]
#[command(version, verbatim_doc_comment)]
pub(crate) struct Options {
    /// Maximum number of concurrent requests
    #[arg(short = 'c', value_name = "N", default_value_t = 50)]
    concurrency: usize,
    /// Folder of swift.conf and the rings
    #[arg(short = 'r', value_name = "DIR", default_value = "/etc/swift")]
    swift_dir: PathBuf,
    /// A file for what is not consistent, one a line; it can be read again as input
    #[arg(short = 'e', value_name = "FILE")]
    error_file: Option<PathBuf>,
    /// Read objects whole and check their MD5
    #[arg(short = 'd')]
    deep: bool,
    #[arg(value_name = "PATH")]
    paths: Vec<String>,
}

pub(crate) fn run(options: Options, out: &mut dyn Write) -> Result<u8> {
    let reads = !std::io::stdin().is_terminal();
    if options.paths.is_empty() && !reads {
        writeln!(out, "Give an account, a container or an object: see --help")?;
        return Ok(0);
    }
    let (send, paths) = mpsc::channel(LINES_MAX);
    let named = options.paths.clone();
    // Blocking reads: the writer of the standard input may be slow.
    std::thread::spawn(move || {
        let input = std::io::stdin().lock().lines().take_while(|_| reads);
        let input = input.map(|line| line.context("the standard input"));
        for path in named.into_iter().map(Ok).chain(input) {
            if send.blocking_send(path).is_err() {
                return;
            }
        }
    });
    crate::block_on(audit(&options, paths, out))?;
    Ok(0)
}

/// Audits each path, and prints statistics.
async fn audit(
    options: &Options,
    mut paths: mpsc::Receiver<Result<String>>,
    out: &mut dyn Write,
) -> Result<()> {
    let (told, mut lines) = mpsc::channel(LINES_MAX);
    let auditor = Arc::new(Auditor::new(options, told)?);
    let mut work = JoinSet::new();
    let (mut ended, mut problem) = (false, None);
    while !(ended && work.is_empty()) {
        tokio::select! {
            path = paths.recv(), if !ended && work.len() < auditor.at_once => {
                let target = path.map(|path| path.and_then(|path| Target::parse(&path)));
                match target {
                    None => ended = true,
                    Some(Ok(None)) => {}
                    Some(Ok(Some(target))) => {
                        work.spawn(target.audit(auditor.clone()));
                    }
                    Some(Err(error)) => (ended, problem) = (true, Some(error)),
                }
            }
            Some(_) = work.join_next() => {}
            Some(line) = lines.recv() => writeln!(out, "{line}")?,
        }
    }
    lines.close();
    while let Some(line) = lines.recv().await {
        writeln!(out, "{line}")?;
    }
    auditor.stats.lock().print(out)?;
    problem.map_or(Ok(()), Err)
}

/// An entity to compare, together with everything in it.
struct Target {
    account: String,
    container: Option<String>,
    object: Option<String>,
}

impl Target {
    /// Parses a path; `None` for an empty line.
    fn parse(path: &str) -> Result<Option<Target>> {
        let path = path.trim_end_matches(['\r', '\n']).trim_start_matches('/');
        if path.is_empty() {
            return Ok(None);
        }
        let whole = format!("/{path}");
        let parts = split_path(&whole, 1, 3, true);
        let parts = parts.with_context(|| format!("Invalid path: {whole}"))?;
        let mut parts = parts.iter().map(|part| part.map(str::to_owned));
        let mut part = || parts.next().flatten();
        Ok(Some(Target {
            account: part().unwrap_or_default(),
            container: part(),
            object: part(),
        }))
    }

    async fn audit(self, auditor: Arc<Auditor>) {
        match (self.container, self.object) {
            (Some(container), Some(object)) => {
                auditor
                    .audit_object(&self.account, &container, &object)
                    .await;
            }
            (Some(container), None) => auditor.audit_all_of(self.account, container).await,
            (None, _) => {
                let listing = auditor.account(&self.account).await;
                let mut work = JoinSet::new();
                for container in &listing.containers {
                    if work.len() >= auditor.at_once {
                        work.join_next().await;
                    }
                    let (account, container) = (self.account.clone(), container.clone());
                    let auditor = auditor.clone();
                    work.spawn(async move { auditor.audit_all_of(account, container).await });
                }
                while work.join_next().await.is_some() {}
            }
        }
    }
}

/// The listing of an account or a container, read at most once.
type Known<T> = Arc<OnceCell<Arc<T>>>;

struct Auditor {
    client: Client,
    hash_path: HashPath,
    account_ring: Ring,
    container_ring: Ring,
    object_rings: HashMap<PolicyIndex, Ring>,
    at_once: usize,
    requests: Semaphore,
    deep: bool,
    error_file: Option<Mutex<File>>,
    told: mpsc::Sender<String>,
    stats: Mutex<Stats>,
    accounts: Mutex<HashMap<String, Known<AccountListing>>>,
    containers: Mutex<HashMap<(String, String), Known<ContainerListing>>>,
}

impl Auditor {
    fn new(options: &Options, told: mpsc::Sender<String>) -> Result<Auditor> {
        let swift = SwiftDir::open(&options.swift_dir)?;
        let at_once = options.concurrency.clamp(1, 4096);
        let mut object_rings = HashMap::new();
        for policy in swift.conf.policies.iter() {
            object_rings.insert(policy.index, swift.ring(&policy.index.ring_name())?);
        }
        let open = |path: &PathBuf| {
            let file = File::options().append(true).create(true).open(path);
            file.map(Mutex::new)
                .with_context(|| format!("cannot write {}", path.display()))
        };
        Ok(Auditor {
            client: Client::new(Duration::from_secs(5), at_once, Duration::from_secs(30)),
            hash_path: swift.conf.hash_path.clone(),
            account_ring: swift.ring("account")?,
            container_ring: swift.ring("container")?,
            object_rings,
            at_once,
            requests: Semaphore::new(at_once),
            deep: options.deep,
            error_file: options.error_file.as_ref().map(open).transpose()?,
            told,
            stats: Mutex::default(),
            accounts: Mutex::default(),
            containers: Mutex::default(),
        })
    }

    async fn tell(&self, line: String) {
        // If this fails, nothing prints any more.
        let _ = self.told.send(line).await;
    }

    fn count(&self, count: impl FnOnce(&mut Stats)) {
        count(&mut self.stats.lock());
    }

    /// Records a path that should be checked again.
    async fn note(&self, path: &str) {
        let Some(file) = &self.error_file else {
            return;
        };
        let written = writeln!(file.lock(), "{path}");
        if let Err(error) = written {
            self.tell(format!("  {path} not noted in the error file: {error}"))
                .await;
        }
    }

    /// The listing of an account, read by the first caller through `listed`.
    async fn account(&self, account: &str) -> Arc<AccountListing> {
        let known = self
            .accounts
            .lock()
            .entry(account.to_owned())
            .or_default()
            .clone();
        let listing = known.get_or_init(|| async { Arc::new(self.audit_account(account).await) });
        listing.await.clone()
    }

    async fn container(&self, account: &str, container: &str) -> Arc<ContainerListing> {
        let known = self
            .containers
            .lock()
            .entry((account.to_owned(), container.to_owned()))
            .or_default()
            .clone();
        let listing = known
            .get_or_init(|| async { Arc::new(self.audit_container(account, container).await) });
        listing.await.clone()
    }

    /// Audits a container and its objects.
    async fn audit_all_of(self: &Arc<Self>, account: String, container: String) {
        let listing = self.container(&account, &container).await;
        let mut work = JoinSet::new();
        for object in listing.objects.keys() {
            if work.len() >= self.at_once {
                work.join_next().await;
            }
            let (account, container) = (account.clone(), container.clone());
            let (auditor, object) = (self.clone(), object.clone());
            work.spawn(async move { auditor.audit_object(&account, &container, &object).await });
        }
        while work.join_next().await.is_some() {}
    }
}

/// Numbers of checks and differences.
#[derive(Default)]
struct Stats {
    accounts: Counts,
    containers: Counts,
    objects: Counts,
}

#[derive(Default)]
struct Counts {
    checked: u64,
    missing: u64,
    exceptions: u64,
    /// Number of accounts whose container counts differ, and of containers whose object counts
    /// differ.
    counts_differ: u64,
    /// Number of accounts whose object counts differ, of containers whose object versions differ,
    /// and of objects whose content differs.
    objects_differ: u64,
}

impl Stats {
    fn print(&self, out: &mut dyn Write) -> Result<()> {
        let groups = [
            (
                "Accounts",
                &self.accounts,
                "Container mismatch",
                "Object mismatch",
            ),
            (
                "Containers",
                &self.containers,
                "Count mismatch",
                "Object mismatch",
            ),
            ("Objects", &self.objects, "", "MD5 Mismatch"),
        ];
        for (what, counts, of_counts, of_objects) in groups {
            writeln!(out)?;
            writeln!(out, "{:>18}: {}", format!("{what} checked"), counts.checked)?;
            for (name, count) in [
                ("Missing Replicas", counts.missing),
                ("Exceptions", counts.exceptions),
                (of_counts, counts.counts_differ),
                (of_objects, counts.objects_differ),
            ] {
                if count > 0 {
                    writeln!(out, "{name:>18}: {count}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
