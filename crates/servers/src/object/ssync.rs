//! SSYNC: another server's replicator tells what it has of a partition, hears what we lack, and
//! sends that; all in one request, whose answer begins before its body has ended. The lines are
//! described in `cairn_formats::ssync`.
//!
//! As in Swift, what goes wrong after the answer has begun is told in it (`:ERROR: …`), and the
//! rest of the request is not read.

mod input;
mod missing;
mod updates;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_disk::engine::ReplicationLock;
use cairn_disk::replication::try_lock_device;
use cairn_disk::{Device, DiskError, Engine, PartitionKey};
use cairn_formats::ssync::SsyncError;
use cairn_http::params::{split_path, unquote};
use cairn_http::respond::{HTML, set, typed};
use cairn_http::{Body, BodySender, Response};
use cairn_types::PolicyIndex;
use http::StatusCode;
use http::request::Parts;
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout_at};

use super::Inner;
use super::fragments::ssync_index;
use super::status::Refusal;
use super::target::parse_partition;
use input::Input;

/// Between two looks at a lock that somebody has.
const LOCK_RETRY: Duration = Duration::from_millis(20);
/// How long a sender may take to end its request once it has been told that all is well.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Why a conversation ended before its end.
#[derive(Debug, Error)]
enum Broken {
    #[error("the sender went away: {0}")]
    Disconnected(String),
    #[error("{after:?}: {reading}")]
    Timeout {
        after: Duration,
        reading: &'static str,
    },
    #[error(transparent)]
    Line(#[from] SsyncError),
    #[error("{0}")]
    Protocol(String),
    #[error("{0} failures to {1} successes")]
    TooManyFailures(usize, usize),
    #[error("ERROR: With :UPDATES: {0} failures to {1} successes")]
    Failures(usize, usize),
    #[error("too many replications at once")]
    Busy,
    #[error("{after:?}: {what} is locked")]
    Locked { after: Duration, what: &'static str },
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl Broken {
    /// The number in the `:ERROR:` line; `None`: nobody is there to be told.
    fn code(&self) -> Option<u16> {
        Some(match self {
            Broken::Disconnected(_) => return None,
            Broken::Timeout { .. } => 408,
            Broken::Busy => 503,
            Broken::Failures(..) => 500,
            Broken::Disk(DiskError::Device(_)) => 507,
            _ => 0,
        })
    }
}

/// One conversation.
struct Receiver {
    inner: Arc<Inner>,
    device: Arc<Device>,
    engine: Arc<dyn Engine>,
    policy: PolicyIndex,
    partition: u32,
    /// For erasure-coded policies: which fragment this server is to have.
    frag_index: Option<u32>,
    output: BodySender,
}

/// What a conversation holds until its end.
struct Locks {
    _partition: ReplicationLock,
    _device: Option<(ReplicationLock, OwnedSemaphorePermit)>,
}

impl Inner {
    pub(super) async fn ssync(
        self: &Arc<Self>,
        parts: &Parts,
        body: Body,
    ) -> Result<Response, Refusal> {
        let policy = self.policy(parts)?;
        let invalid = || Refusal::BadRequest(format!("Invalid path: {}", parts.uri.path()));
        let path = unquote(parts.uri.path()).map_err(|_| invalid())?;
        let segments = split_path(&path, 2, 2, false).ok_or_else(invalid)?;
        let [Some(device), Some(partition)] = segments[..] else {
            return Err(invalid());
        };
        let partition = parse_partition(partition)?;
        let frag_index = ssync_index(&parts.headers)?;
        let device = self.background_device(device)?;
        // Told at once where the device is not mounted.
        device.read(|_| Ok(())).await?;
        let (output, answer) = Body::channel(None, 16);
        let receiver = Receiver {
            inner: self.clone(),
            device,
            engine: self.engine(policy)?,
            policy,
            partition,
            frag_index,
            output,
        };
        let input = Input::new(
            body,
            self.config.network_chunk_size,
            self.config.client_timeout,
        );
        tokio::spawn(receiver.converse(input));
        let mut response = typed(StatusCode::OK, HTML, answer);
        set(response.headers_mut(), "x-backend-accept-no-commit", "True");
        if let Some(at_once) = self.ssync_at_once() {
            let at_once = at_once.to_string();
            set(response.headers_mut(), "x-backend-ssync-at-once", &at_once);
        }
        Ok(response)
    }
}

impl Inner {
    /// How many conversations there may be on one device; `None`: without limit.
    fn ssync_at_once(&self) -> Option<usize> {
        let config = &self.config;
        let limits = [
            config.replication_concurrency,
            config.replication_concurrency_per_device,
        ];
        limits.into_iter().filter(|limit| *limit > 0).min()
    }
}

impl Receiver {
    async fn converse(self, mut input: Input) {
        let result = self.receive(&mut input).await;
        let Err(error) = result else {
            // Read to its end, so that the connection can be used again.
            let _ = tokio::time::timeout(LAST_WORDS, input.drain()).await;
            self.output.finish().await;
            return;
        };
        let (device, partition) = (self.device.name(), self.partition);
        match &error {
            Broken::Locked { .. } => tracing::debug!(device, partition, %error, "ssync refused"),
            _ => tracing::warn!(device, partition, %error, "ssync broke off"),
        }
        if let Some(code) = error.code() {
            let line = format!(":ERROR: {code} '{error}'\n");
            self.output.send(Bytes::from(line)).await;
            self.output.finish().await;
        }
    }

    async fn receive(&self, input: &mut Input) -> Result<(), Broken> {
        // The answer begins now: the sender waits for it.
        self.say("").await?;
        let _turn = self.turn().await?;
        let _locks = self.lock().await?;
        self.missing_check(input).await?;
        self.updates(input).await
    }

    /// A turn among all conversations of the server. Senders wait for theirs: who was sent away would
    /// come back with its next pass only, and many come at once when a host or a region is back.
    async fn turn(&self) -> Result<Option<SemaphorePermit<'_>>, Broken> {
        let Some(turns) = &self.inner.replication_turns else {
            return Ok(None);
        };
        let after = self.inner.config.replication_lock_timeout;
        match tokio::time::timeout(after, turns.acquire()).await {
            Ok(Ok(turn)) => Ok(Some(turn)),
            _ => Err(Broken::Busy),
        }
    }

    /// The partition, so that it is not handed over meanwhile, and a turn on the device: among
    /// the conversations of this process, then among processes.
    async fn lock(&self) -> Result<Locks, Broken> {
        let after = self.inner.config.replication_lock_timeout;
        let deadline = Instant::now() + after;
        let at = self.at();
        let partition = loop {
            let engine = self.engine.clone();
            let lock = self
                .device
                .read(move |disk| engine.try_lock_partition(disk, at));
            if let Some(lock) = lock.await? {
                break lock;
            }
            wait(deadline, after, "the partition").await?;
        };
        let limit = self.inner.config.replication_concurrency_per_device;
        if limit == 0 {
            return Ok(Locks {
                _partition: partition,
                _device: None,
            });
        }
        let turns = self.device_turns(limit).acquire_owned();
        let Ok(Ok(turn)) = timeout_at(deadline, turns).await else {
            let what = "the device";
            return Err(Broken::Locked { after, what });
        };
        loop {
            let lock = self.device.read(move |disk| try_lock_device(disk, limit));
            if let Some(device) = lock.await? {
                return Ok(Locks {
                    _partition: partition,
                    _device: Some((device, turn)),
                });
            }
            wait(deadline, after, "the device").await?;
        }
    }

    fn at(&self) -> PartitionKey {
        PartitionKey::new(self.policy, self.partition)
    }

    fn device_turns(&self, limit: usize) -> Arc<Semaphore> {
        let mut turns = self.inner.device_turns.lock();
        let of_device = turns.entry(self.device.name().to_owned());
        of_device
            .or_insert_with(|| Arc::new(Semaphore::new(limit)))
            .clone()
    }

    /// Sends a line.
    async fn say(&self, line: &str) -> Result<(), Broken> {
        self.send(format!("{line}\r\n").into()).await
    }

    async fn send(&self, bytes: Bytes) -> Result<(), Broken> {
        let timeout = self.inner.config.client_timeout;
        match tokio::time::timeout(timeout, self.output.send(bytes)).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Broken::Disconnected("it reads no more".into())),
            Err(_) => Err(Broken::Timeout {
                after: timeout,
                reading: "sending",
            }),
        }
    }
}

async fn wait(deadline: Instant, after: Duration, what: &'static str) -> Result<(), Broken> {
    if Instant::now() >= deadline {
        return Err(Broken::Locked { after, what });
    }
    sleep(LOCK_RETRY).await;
    Ok(())
}
