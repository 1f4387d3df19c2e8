//! SSYNC: a replicator offers its objects of a partition, receives the list of those wanted, and
//! sends them; all in one request, whose response begins before its body has ended. The lines are
//! described in `cairn_formats::ssync`.
//!
//! As in Swift, errors after the start of the response are reported in it (`:ERROR: …`), and the
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
use cairn_http::respond::set;
use cairn_http::{Body, BodySender, Response};
use cairn_types::PolicyIndex;
use http::request::Parts;
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout_at};

use super::Inner;
use super::fragments::ssync_index;
use super::status::{self, Refusal};
use super::target::parse_partition;
use input::Input;

/// Polling interval of a held lock.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Timeout for the end of the request after a successful session.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Errors that end a session early.
#[derive(Debug, Error)]
enum SessionError {
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

impl SessionError {
    /// The number in the `:ERROR:` line; `None` if the sender has disconnected.
    fn code(&self) -> Option<u16> {
        Some(match self {
            SessionError::Disconnected(_) => return None,
            SessionError::Timeout { .. } => 408,
            SessionError::Busy => 503,
            SessionError::Failures(..) => 500,
            SessionError::Disk(DiskError::Device(_)) => 507,
            _ => 0,
        })
    }
}

/// One session.
struct Receiver {
    inner: Arc<Inner>,
    device: Arc<Device>,
    engine: Arc<dyn Engine>,
    policy: PolicyIndex,
    partition: u32,
    /// Fragment index of this server, for erasure-coded policies.
    frag_index: Option<u32>,
    output: BodySender,
}

/// Locks of a session, held until its end.
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
        // Fails before the response begins if the device is not mounted.
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
        tokio::spawn(receiver.run_session(input));
        let mut response = status::for_daemons(answer);
        set(response.headers_mut(), "x-backend-accept-no-commit", "True");
        if let Some(at_once) = self.ssync_sessions_max() {
            let at_once = at_once.to_string();
            set(response.headers_mut(), "x-backend-ssync-at-once", &at_once);
        }
        Ok(response)
    }
}

impl Inner {
    /// Maximum sessions per device; `None` is unlimited.
    fn ssync_sessions_max(&self) -> Option<usize> {
        let config = &self.config;
        let limits = [
            config.replication_concurrency,
            config.replication_concurrency_per_device,
        ];
        limits.into_iter().filter(|limit| *limit > 0).min()
    }
}

impl Receiver {
    async fn run_session(self, mut input: Input) {
        let result = self.receive(&mut input).await;
        let Err(error) = result else {
            // Drained, so that the connection can be reused.
            let _ = tokio::time::timeout(DRAIN_TIMEOUT, input.drain()).await;
            self.output.finish().await;
            return;
        };
        let (device, partition) = (self.device.name(), self.partition);
        match &error {
            SessionError::Locked { .. } => {
                tracing::debug!(device, partition, %error, "ssync refused")
            }
            _ => tracing::warn!(device, partition, %error, "ssync broke off"),
        }
        if let Some(code) = error.code() {
            let line = format!(":ERROR: {code} '{error}'\n");
            self.output.send(Bytes::from(line)).await;
            self.output.finish().await;
        }
    }

    async fn receive(&self, input: &mut Input) -> Result<(), SessionError> {
        // Starts the response, for which the sender waits.
        self.send_line("").await?;
        let _permit = self.acquire_permit().await?;
        let _locks = self.lock().await?;
        self.missing_check(input).await?;
        self.updates(input).await
    }

    /// Acquires a permit among all sessions of the server. Senders queue: a refused one would
    /// return only with its next pass, and many come at once when a host or a region is back.
    async fn acquire_permit(&self) -> Result<Option<SemaphorePermit<'_>>, SessionError> {
        let Some(permits) = &self.inner.replication_permits else {
            return Ok(None);
        };
        let after = self.inner.config.replication_lock_timeout;
        match tokio::time::timeout(after, permits.acquire()).await {
            Ok(Ok(permit)) => Ok(Some(permit)),
            _ => Err(SessionError::Busy),
        }
    }

    /// Locks the partition against a handover, and acquires a permit for the device: among sessions
    /// of this process, then among processes.
    async fn lock(&self) -> Result<Locks, SessionError> {
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
        let permit = self.device_permits(limit).acquire_owned();
        let Ok(Ok(permit)) = timeout_at(deadline, permit).await else {
            let what = "the device";
            return Err(SessionError::Locked { after, what });
        };
        loop {
            let lock = self.device.read(move |disk| try_lock_device(disk, limit));
            if let Some(device) = lock.await? {
                return Ok(Locks {
                    _partition: partition,
                    _device: Some((device, permit)),
                });
            }
            wait(deadline, after, "the device").await?;
        }
    }

    fn at(&self) -> PartitionKey {
        PartitionKey::new(self.policy, self.partition)
    }

    fn device_permits(&self, limit: usize) -> Arc<Semaphore> {
        let mut permits = self.inner.device_permits.lock();
        let of_device = permits.entry(self.device.name().to_owned());
        of_device
            .or_insert_with(|| Arc::new(Semaphore::new(limit)))
            .clone()
    }

    /// Sends a line.
    async fn send_line(&self, line: &str) -> Result<(), SessionError> {
        self.send(format!("{line}\r\n").into()).await
    }

    async fn send(&self, bytes: Bytes) -> Result<(), SessionError> {
        let timeout = self.inner.config.client_timeout;
        match tokio::time::timeout(timeout, self.output.send(bytes)).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(SessionError::Disconnected("it reads no more".into())),
            Err(_) => Err(SessionError::Timeout {
                after: timeout,
                reading: "sending",
            }),
        }
    }
}

async fn wait(deadline: Instant, after: Duration, what: &'static str) -> Result<(), SessionError> {
    if Instant::now() >= deadline {
        return Err(SessionError::Locked { after, what });
    }
    sleep(LOCK_RETRY_INTERVAL).await;
    Ok(())
}
