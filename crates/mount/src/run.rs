//! A mount's life cycle: login, container, mounting, signals, and the last uploads.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_client::{Login, LoginError, StoreUrl, Swift, Trust};
use fuser::{Config, MountOption, Session, SessionACL};
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};

use crate::attributes::Defaults;
use crate::cache::{Cache, DiskCache, DiskOptions};
use crate::commit::{Committer, Limits};
use crate::fuse::Fuse;
use crate::journal::Journal;
use crate::store::{Store, SwiftStore, options};
use crate::sweep::{SweepOptions, Swept};
use crate::vfs::{Replayed, Vfs, VfsOptions};

/// Source, mount point and settings of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// URL of the container, `http://host:port/v1/ACCOUNT/CONTAINER`.
    pub url: String,
    pub dir: PathBuf,
    pub is_read_only: bool,
    /// Other users may access it too; permissions are checked in any case.
    pub allows_others: bool,
    /// Owner of files without stored attributes.
    pub uid: u32,
    pub gid: u32,
    /// Time within which a response of the store must begin.
    pub timeout: Duration,
    pub cache_bytes: u64,
    /// Directory of a second level of the cache, on a local disk.
    pub disk_cache: Option<PathBuf>,
    pub disk_cache_bytes: u64,
    /// Maximum bytes written but not yet on the store.
    pub unwritten_bytes: u64,
    /// Directory of a journal on a local disk, for which closes wait instead of the store.
    pub journal: Option<PathBuf>,
    /// PEM file of certificate authorities that are trusted instead of the system's.
    pub authorities: Option<PathBuf>,
}

/// Reasons why mounting failed, or why a mount did not end properly.
#[derive(Debug, Error)]
pub enum MountError {
    #[error("{url:?}: expected http://HOST:PORT/v1/ACCOUNT/CONTAINER")]
    Url { url: String },
    #[error(transparent)]
    Login(#[from] LoginError),
    #[error("container {container:?}: {reason}")]
    Container { container: String, reason: String },
    #[error("what the store can do is not known: {0}")]
    Capabilities(String),
    #[error("{}: {reason}", dir.display())]
    Directory { dir: PathBuf, reason: String },
    #[error("the cache directory {}: {reason}", dir.display())]
    DiskCache { dir: PathBuf, reason: String },
    #[error("the journal {}: {reason}", dir.display())]
    Journal { dir: PathBuf, reason: String },
    #[error("mounting at {}: {reason}", dir.display())]
    Mount { dir: PathBuf, reason: String },
    #[error("the container was not swept: {0}")]
    Sweep(String),
    #[error("{files} files could not be written to the store, as the log says")]
    Unwritten { files: usize },
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

const BLOCK_BYTES: u64 = 256 << 10;
/// Validity of cached attributes and names.
const CACHE_VALIDITY: Duration = Duration::from_secs(1);
/// Time without writes after which a file of many small parts is flattened.
const QUIET_TIME: Duration = Duration::from_secs(2);
/// Time for which a GET of a replaced version can still complete.
const SUPERSEDED_FOR: Duration = Duration::from_secs(600);
/// Minimum and maximum number of threads that read the kernel's requests, and answer those that need not
/// wait: else one for each processor.
const KERNEL_THREADS: [usize; 2] = [2, 16];
/// Wait for the kernel's last requests after an unmount.
const END_TIMEOUT: Duration = Duration::from_secs(3);

/// Splits a URL into account and container.
fn account_and_container(text: &str) -> Result<(StoreUrl, String), MountError> {
    let wrong = || MountError::Url {
        url: text.to_owned(),
    };
    let url = StoreUrl::parse(text)?;
    let (account, container) = url.path.rsplit_once('/').ok_or_else(wrong)?;
    if account.matches('/').count() < 2 || container.is_empty() {
        return Err(wrong());
    }
    let container = percent_decode(container).ok_or_else(wrong)?;
    Ok((url.with_path(account), container))
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'%', [high, low, tail @ ..]) => {
                let digits = [*high, *low];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
                rest = tail;
            }
            (b'%', _) => return None,
            (byte, tail) => {
                bytes.push(*byte);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// Mounts like [`mount`], on threads of its own.
///
/// # Errors
/// [`MountError`], which names the problem.
pub fn run(options: MountOptions, ready: impl FnOnce()) -> Result<(), MountError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let result = runtime.block_on(mount(options, ready));
    // A kernel request that never ends must not keep the process alive.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// Mounts, calls `ready`, and returns when it is unmounted: by `umount`, SIGTERM or SIGINT. All
/// writes are on the store then, or the error states that they are not.
///
/// # Errors
/// [`MountError`], which names the problem.
pub async fn mount(options: MountOptions, ready: impl FnOnce()) -> Result<(), MountError> {
    check_directory(&options.dir)?;
    let store = connect(
        &options.url,
        options.timeout,
        options.authorities.as_deref(),
    )
    .await?;
    let decides = store.decides();
    let disk = open_disk_cache(&options, store.account())?;
    let opened = open_journal(&options)?;
    let vfs = Vfs::new(
        store,
        VfsOptions {
            is_read_only: options.is_read_only,
            defaults: Defaults {
                uid: options.uid,
                gid: options.gid,
            },
            fresh: CACHE_VALIDITY,
            limits: Limits::default(),
            cache_bytes: options.cache_bytes,
            block_bytes: BLOCK_BYTES,
            unwritten_bytes: options.unwritten_bytes,
            flatten_after: Some(QUIET_TIME),
            superseded_for: SUPERSEDED_FOR,
        },
        disk,
    );
    let vfs = match opened {
        Some((journal, numbers)) => replay(vfs.with_journal(journal), &numbers, &options).await?,
        None => vfs,
    };
    let vfs = Arc::new(vfs);
    if !options.is_read_only && !decides {
        tracing::warn!(
            "this store checks no conditions of writes: let one mount at a time write a file"
        );
    }
    serve(vfs, &options, ready).await
}

/// Logs in, opens the container and reads the store's capabilities.
async fn connect(
    url: &str,
    timeout: Duration,
    authorities: Option<&Path>,
) -> Result<SwiftStore, MountError> {
    let (account, container) = account_and_container(url)?;
    let login = Login::from_environment(|name| std::env::var(name).ok())?;
    let client = cairn_client::Options {
        trust: authorities.map_or(Trust::System, |file| Trust::File(file.to_owned())),
        ..self::options(timeout)
    };
    let swift = Swift::connect(login, Some(account), &client).await?;
    let found = swift.head_container(&container).await;
    let found = found.map_err(|error| MountError::Container {
        reason: match error.is_not_found() {
            true => "it is not there; make it first (swift post NAME)".to_owned(),
            false => error.to_string(),
        },
        container: container.clone(),
    })?;
    let policy = found.header("x-storage-policy").unwrap_or_default();
    let capabilities = swift.capabilities().await;
    let capabilities = capabilities.map_err(|error| MountError::Capabilities(error.to_string()))?;
    Ok(SwiftStore::new(swift, &container, &capabilities, policy))
}

/// Sweeps a container: removes segments without references for `grace`. Runs on threads of its own.
///
/// # Errors
/// [`MountError`], which names the problem.
pub fn sweep(
    url: &str,
    grace: Duration,
    timeout: Duration,
    authorities: Option<&Path>,
) -> Result<Swept, MountError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let store = Arc::new(connect(url, timeout, authorities).await?);
        let cache = Arc::new(Cache::new(store.clone(), BLOCK_BYTES, BLOCK_BYTES));
        let committer = Committer::new(store, cache, Limits::default(), Duration::ZERO);
        let options = SweepOptions {
            grace,
            #[cfg(test)]
            ignores_pins: false,
        };
        let swept = committer.sweep(options).await;
        swept.map_err(|error| MountError::Sweep(error.to_string()))
    })
}

fn open_disk_cache(
    options: &MountOptions,
    account: String,
) -> Result<Option<DiskCache>, MountError> {
    let Some(dir) = &options.disk_cache else {
        return Ok(None);
    };
    let wrong = |reason: String| MountError::DiskCache {
        dir: dir.clone(),
        reason,
    };
    let disk = DiskOptions {
        dir: std::path::absolute(dir).map_err(|error| wrong(error.to_string()))?,
        limit: options.disk_cache_bytes,
        account,
    };
    let opened = DiskCache::open(disk, BLOCK_BYTES).map_err(wrong)?;
    // Reads of the mount would wait for the mount itself.
    let canonical = |dir: &Path| std::fs::canonicalize(dir).map_err(|e| wrong(e.to_string()));
    match canonical(dir)?.starts_with(canonical(&options.dir)?) {
        true => Err(wrong(
            "the mount would hide it; name one elsewhere".to_owned(),
        )),
        false => Ok(Some(opened)),
    }
}

fn journal_error(options: &MountOptions, reason: impl std::fmt::Display) -> MountError {
    MountError::Journal {
        dir: options.journal.clone().unwrap_or_default(),
        reason: reason.to_string(),
    }
}

/// Opens the journal; returns the numbers of its entries too.
fn open_journal(options: &MountOptions) -> Result<Option<(Journal, Vec<u64>)>, MountError> {
    let Some(dir) = &options.journal else {
        return Ok(None);
    };
    let wrong = |reason: String| journal_error(options, reason);
    let opened = Journal::open(dir, &options.url).map_err(|error| wrong(error.to_string()))?;
    let canonical = |dir: &Path| std::fs::canonicalize(dir).map_err(|e| wrong(e.to_string()));
    match canonical(dir)?.starts_with(canonical(&options.dir)?) {
        true => Err(wrong(
            "the mount would hide it; name one elsewhere".to_owned(),
        )),
        false => Ok(Some(opened)),
    }
}

/// Takes up the files that a mount before has left in the journal.
async fn replay(
    vfs: Vfs<SwiftStore>,
    numbers: &[u64],
    options: &MountOptions,
) -> Result<Vfs<SwiftStore>, MountError> {
    let replayed = vfs.replay(numbers).await;
    let replayed = replayed.map_err(|error| journal_error(options, error))?;
    let Replayed {
        files,
        stored,
        incomplete,
        left,
    } = replayed;
    if !numbers.is_empty() {
        tracing::warn!(
            files,
            stored,
            incomplete,
            left,
            "the journal had closed files of a mount before"
        );
    }
    Ok(vfs)
}

fn check_directory(dir: &Path) -> Result<(), MountError> {
    let wrong = |reason: String| MountError::Directory {
        dir: dir.to_owned(),
        reason,
    };
    let metadata = std::fs::metadata(dir).map_err(|error| wrong(error.to_string()))?;
    match metadata.is_dir() {
        true => Ok(()),
        false => Err(wrong("not a directory".to_owned())),
    }
}

fn config(options: &MountOptions) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(options.url.clone()),
        MountOption::Subtype("cairn".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoAtime,
        match options.is_read_only {
            true => MountOption::RO,
            false => MountOption::RW,
        },
    ];
    config.acl = match options.allows_others {
        true => SessionACL::All,
        false => SessionACL::Owner,
    };
    let [least, most] = KERNEL_THREADS;
    let processors = std::thread::available_parallelism();
    config.n_threads = Some(processors.map_or(least, |n| n.get().clamp(least, most)));
    config.clone_fd = true;
    config
}

async fn serve(
    vfs: Arc<Vfs<SwiftStore>>,
    options: &MountOptions,
    ready: impl FnOnce(),
) -> Result<(), MountError> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let failed = |error: std::io::Error| MountError::Mount {
        dir: options.dir.clone(),
        reason: error.to_string(),
    };
    let fuse = Fuse::new(vfs.clone(), tokio::runtime::Handle::current());
    let notifier = fuse.notifier();
    let at = std::fs::canonicalize(&options.dir).map_err(failed)?;
    let (dir, config) = (options.dir.clone(), config(options));
    let session = tokio::task::spawn_blocking(move || Session::new(fuse, dir, &config));
    let session = session
        .await
        .map_err(std::io::Error::other)?
        .map_err(failed);
    let mut session = session?;
    let mut unmounter = session.unmount_callable();
    let _ = notifier.set(session.notifier());
    let kernel = notifier;
    let (ended, mut end) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("fuse".to_owned())
        .spawn(move || {
            let _ = ended.send(session.run());
        })?;
    crate::fuse::widen(&at);
    ready();
    let upkeep = vfs.clone();
    let upkeep = tokio::spawn(async move { upkeep.upkeep().await });
    let following = tokio::spawn(crate::feed::follow(vfs.clone(), kernel));
    let sending = vfs.clone();
    let sending = tokio::spawn(async move { sending.send_closed().await });
    let is_unmounted = tokio::select! {
        result = &mut end => {
            if let Ok(Err(error)) = result {
                tracing::error!(%error, "the kernel ended the mount");
            }
            true
        }
        _ = terminate.recv() => false,
        _ = interrupt.recv() => false,
    };
    following.abort();
    if !is_unmounted {
        vfs.commit_all(progress).await;
        let dir = options.dir.clone();
        let unmounting = tokio::task::spawn_blocking(move || {
            // Busy: it disappears from the name space now, and from the kernel with its last open
            // file.
            unmounter.unmount().or_else(|_| {
                rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::DETACH)
                    .map_err(std::io::Error::from)
            })
        });
        if let Ok(Err(error)) = unmounting.await {
            tracing::warn!(%error, "not unmounted");
        }
        let _ = tokio::time::timeout(END_TIMEOUT, end).await;
    }
    let failed = vfs.commit_all(progress).await;
    upkeep.abort();
    sending.abort();
    vfs.settle_closes().await;
    if let Err(error) = vfs.unpin().await {
        tracing::debug!(%error, "pins stay until they expire");
    }
    match failed {
        0 => Ok(()),
        files => {
            if options.journal.is_some() {
                tracing::warn!(
                    "closed files stay in the journal: the next mount with it writes them"
                );
            }
            Err(MountError::Unwritten { files })
        }
    }
}

/// Reports the number of remaining files as it decreases.
fn progress(left: usize) {
    tracing::info!(left, "files are written to the store");
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_an_account_and_a_container() {
        let (account, container) = account_and_container("http://h:1/v1/AUTH_a/my%20data").unwrap();
        assert_eq!(account.to_string(), "http://h:1/v1/AUTH_a");
        assert_eq!(container, "my data");
        for bad in [
            "http://h/v1/AUTH_a",
            "http://h/",
            "http://h/v1/a/%zz",
            "h/v1/a/c",
        ] {
            assert!(account_and_container(bad).is_err(), "{bad}");
        }
    }
}
