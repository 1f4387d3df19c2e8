//! Ceph RADOS through librados, which is looked for when a workload needs it.
//!
//! As COSBench does it, a container is a pool; with the setting `pool` all objects go there, named
//! `container/object`. Settings: `accesskey` (the user, without `client.`), `secretkey` (its key),
//! `endpoint` (the monitors), `conf` (a ceph.conf, instead of the usual places), `stripe` (objects
//! larger than this are cut into RADOS objects of so many bytes: an OSD takes none over 128 MiB).

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cairn_rados::{Cluster, ConnectError, Pool, RadosError};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::content::{self, Checker};
use super::{Done, Failure, Request, TargetError, TargetOptions, Verb};
use crate::plan::Settings;
use crate::record::ErrorKind;

/// librados writes and reads whole buffers: larger objects go in pieces of this size.
const PIECE: u64 = 4 << 20;
/// A listing is one answer of as many names as Swift gives in one.
const LISTED_MAX: u64 = 10_000;
/// librados's own wait for a monitor is five minutes, long for one that is not there.
const MOUNT_TIMEOUT_MAX: Duration = Duration::from_secs(30);
const STRIPE_MIN: u64 = 64 << 10;
/// Largest object that an OSD takes unless `osd_max_object_size` says otherwise.
const OBJECT_BYTES_DEFAULT: u64 = 128 << 20;

/// One connection for all workers, which librados allows, and its pools by name.
#[derive(Debug)]
pub struct Rados {
    cluster: Arc<Cluster>,
    pool: Option<String>,
    monitors: String,
    pools: Mutex<HashMap<String, Arc<Pool>>>,
    layout: Layout,
}

/// Layout of an object in RADOS objects.
#[derive(Debug, Clone, Copy)]
struct Layout {
    stripe: Option<u64>,
    /// The largest RADOS object.
    object_bytes: u64,
}

impl Rados {
    /// Connects; blocks for as long as the timeout at most.
    pub(crate) fn open(settings: &Settings, options: &TargetOptions) -> Result<Self, TargetError> {
        let setting = |key: &str| {
            settings
                .config
                .get(key)
                .map(String::as_str)
                .filter(|value| !value.is_empty())
        };
        if setting("secretkey").is_some_and(|key| STANDARD.decode(key.trim()).is_err()) {
            return Err(TargetError::Other(
                "storage type rados: the setting secretkey is no Ceph key; `ceph auth get-key \
                 client.USER` shows it (--key)"
                    .to_owned(),
            ));
        }
        // librados takes whole seconds; zero would be for ever.
        let seconds = |time: Duration| (time.as_secs_f64().ceil().max(1.0) as u64).to_string();
        let request = seconds(options.timeout);
        let mount = seconds(options.timeout.min(MOUNT_TIMEOUT_MAX));
        let given = [("mon_host", "endpoint"), ("key", "secretkey")]
            .into_iter()
            .filter_map(|(option, key)| Some((option, setting(key)?)));
        let timeouts = [
            ("client_mount_timeout", mount.as_str()),
            ("rados_mon_op_timeout", request.as_str()),
            ("rados_osd_op_timeout", request.as_str()),
        ];
        let options: Vec<(&str, &str)> = given.chain(timeouts).collect();
        let cluster = Cluster::connect(setting("accesskey"), setting("conf"), &options)
            .map_err(|error| unusable(&error))?;
        let object_bytes = cluster.option("osd_max_object_size").ok();
        let object_bytes = object_bytes.and_then(|bytes| bytes.parse().ok());
        let object_bytes = object_bytes.unwrap_or(OBJECT_BYTES_DEFAULT);
        let rados = Self {
            layout: Layout {
                stripe: stripe(setting("stripe"), object_bytes)?,
                object_bytes,
            },
            cluster,
            pool: setting("pool").map(str::to_owned),
            monitors: setting("endpoint").unwrap_or("of ceph.conf").to_owned(),
            pools: Mutex::default(),
        };
        if let Some(pool) = &rados.pool {
            rados.pool(pool).map_err(|error| match error.errno() {
                Some(ENOENT) => TargetError::Other(format!(
                    "storage type rados: there is no pool {pool:?}; make it with `ceph osd pool \
                     create {pool}`, or name another (--target rados:POOL)"
                )),
                _ => TargetError::Other(format!("storage type rados, pool {pool:?}: {error}")),
            })?;
        }
        Ok(rados)
    }

    pub(crate) fn describe(&self) -> String {
        let pool = self.pool.as_deref().unwrap_or("a pool per container");
        format!("rados {} {pool}", self.monitors)
    }

    pub(crate) fn session(self: &Arc<Self>) -> Session {
        Session {
            rados: self.clone(),
            buffer: Vec::new(),
            last: None,
        }
    }

    /// The pool of a container, opened once.
    fn pool(&self, container: &str) -> Result<Arc<Pool>, RadosError> {
        let name = self.pool.as_deref().unwrap_or(container);
        let mut pools = self.pools.lock();
        if let Some(pool) = pools.get(name) {
            return Ok(pool.clone());
        }
        let pool = Arc::new(self.cluster.pool(name)?);
        pools.insert(name.to_owned(), pool.clone());
        Ok(pool)
    }

    /// Name of an object in its pool: with its container where all are in one pool.
    fn name(&self, container: &str, object: &str) -> String {
        match self.pool {
            Some(_) => format!("{container}/{object}"),
            None => object.to_owned(),
        }
    }

    fn forget(&self, container: &str) {
        let mut pools = self.pools.lock();
        pools.remove(container);
    }
}

fn stripe(text: Option<&str>, object_bytes: u64) -> Result<Option<u64>, TargetError> {
    let Some(text) = text else { return Ok(None) };
    let bytes = crate::workload::bytes(text);
    let bytes = bytes.filter(|bytes| (STRIPE_MIN..=object_bytes).contains(bytes));
    bytes.map(Some).ok_or_else(|| TargetError::Setting {
        key: "stripe".to_owned(),
        value: text.to_owned(),
        why: format!("it is {STRIPE_MIN} to {object_bytes} bytes, as 64MiB"),
    })
}

/// Why there is no connection, and what mends it.
fn unusable(error: &RadosError) -> TargetError {
    let remedy = match error {
        RadosError::Absent(_) | RadosError::Function(_) => {
            return TargetError::Other(format!("storage type rados: {error}"));
        }
        RadosError::Connect(cause) => match cause {
            ConnectError::Conf { .. } => "--storage conf=FILE names another",
            ConnectError::NoMonitor { .. }
            | ConnectError::Address { .. }
            | ConnectError::Silent { .. } => {
                "name the monitors with --target rados://HOST:PORT/POOL, or a ceph.conf with \
                 --storage conf=FILE"
            }
            ConnectError::Keyring { .. } | ConnectError::NotInKeyring { .. } => {
                "give the user's key with --key (`ceph auth get-key client.USER`), or another \
                 user with --user"
            }
            ConnectError::Refused { .. } => {
                "check user and key (--user, --key; `ceph auth get client.USER`)"
            }
        },
        _ => "--storage conf=FILE names a ceph.conf",
    };
    TargetError::Other(format!("storage type rados: {error}; {remedy}"))
}

const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const EFBIG: i32 = 27;
const ETIMEDOUT: i32 = 110;

fn failure(error: &RadosError) -> Failure {
    let kind = match error.errno() {
        Some(ENOENT) => ErrorKind::Status(404),
        Some(ETIMEDOUT) => ErrorKind::Timeout,
        Some(EFBIG) => too_large(),
        _ => ErrorKind::Other(error.to_string()),
    };
    kind.into()
}

fn too_large() -> ErrorKind {
    ErrorKind::Other("larger than osd_max_object_size: --storage stripe=64MiB cuts objects".into())
}

/// State of one worker: its buffer, used again by every request, and the pool it was at last.
#[derive(Debug)]
pub struct Session {
    rados: Arc<Rados>,
    buffer: Vec<u8>,
    last: Option<(String, Arc<Pool>)>,
}

impl Session {
    pub(crate) fn perform(&mut self, request: &Request<'_>) -> Result<Done, Failure> {
        let rados = &self.rados;
        let own_pools = rados.pool.is_none();
        let failed = |error: RadosError| failure(&error);
        match request.verb {
            Verb::MakeContainer if own_pools => {
                match rados.cluster.create_pool(request.container) {
                    Err(error) if error.errno() != Some(EEXIST) => Err(failure(&error)),
                    _ => Ok(done(0)),
                }
            }
            Verb::DropContainer if own_pools => {
                rados.forget(request.container);
                let deleted = rados.cluster.delete_pool(request.container);
                deleted.map(|()| done(0)).map_err(failed)
            }
            Verb::MakeContainer | Verb::DropContainer => Ok(done(0)),
            Verb::BulkDelete => self.remove_all(request),
            // Refused before the work begins.
            Verb::Copy | Verb::Post | Verb::Versions => {
                Err(ErrorKind::Other("not of RADOS".into()).into())
            }
            verb => {
                let pool = self.pool(request.container, request.verb)?;
                let layout = self.rados.layout;
                let object = self.rados.name(request.container, request.object);
                match verb {
                    Verb::Write => write(&pool, layout, &object, request, &mut self.buffer),
                    Verb::Read => read(&pool, layout, &object, request, &mut self.buffer),
                    Verb::List => list(&pool, &object).map_err(failed),
                    Verb::Head => layout.size(&pool, &object).map(|_| done(0)).map_err(failed),
                    _ => layout
                        .remove(&pool, &object)
                        .map(|()| done(0))
                        .map_err(failed),
                }
            }
        }
    }

    /// A bulk deletion: RADOS has none, so one removal after the other.
    fn remove_all(&mut self, request: &Request<'_>) -> Result<Done, Failure> {
        for (container, object) in request.batch {
            let pool = self.pool(container, Verb::Delete)?;
            let object = self.rados.name(container, object);
            let removed = self.rados.layout.remove(&pool, &object);
            removed.map_err(|error| failure(&error))?;
        }
        Ok(done(0))
    }

    fn pool(&mut self, container: &str, verb: Verb) -> Result<Arc<Pool>, Failure> {
        if let Some((name, pool)) = &self.last
            && name == container
        {
            return Ok(pool.clone());
        }
        let pool = self.rados.pool(container).map_err(|error| {
            // To delete in a pool that is gone is to delete what is absent.
            match (error.errno(), verb) {
                (Some(ENOENT), Verb::Delete) => failure(&error),
                (Some(ENOENT), _) => ErrorKind::Other("there is no such pool".into()).into(),
                _ => failure(&error),
            }
        })?;
        self.last = Some((container.to_owned(), pool.clone()));
        Ok(pool)
    }
}

impl Layout {
    /// Maximum size in bytes of a RADOS object in this layout.
    fn piece(self) -> u64 {
        self.stripe.unwrap_or(u64::MAX)
    }

    /// The RADOS object that holds part `number` of an object.
    fn name(object: &str, number: u64) -> String {
        match number {
            0 => object.to_owned(),
            number => format!("{object}.{number:08x}"),
        }
    }

    /// Size of all parts: each but the last is full.
    fn size(self, pool: &Pool, object: &str) -> Result<u64, RadosError> {
        let mut size = pool.size(object)?;
        for number in 1.. {
            if self.stripe.is_none() || size < number * self.piece() {
                break;
            }
            match pool.size(&Self::name(object, number)) {
                Ok(more) => size += more,
                Err(error) if error.errno() == Some(ENOENT) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(size)
    }

    fn remove(self, pool: &Pool, object: &str) -> Result<(), RadosError> {
        pool.remove(object)?;
        self.remove_from(pool, object, 1)
    }

    /// Removes the parts from `number` on, up to one that is absent.
    fn remove_from(self, pool: &Pool, object: &str, number: u64) -> Result<(), RadosError> {
        if self.stripe.is_none() {
            return Ok(());
        }
        for number in number.. {
            match pool.remove(&Self::name(object, number)) {
                Ok(()) => {}
                Err(error) if error.errno() == Some(ENOENT) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Room for `bytes`; what the buffer holds is not cleared, since all that is used of it is
/// written first.
fn room(buffer: &mut Vec<u8>, bytes: u64) -> &mut [u8] {
    let bytes = bytes.min(PIECE) as usize;
    if buffer.len() < bytes {
        // Zero pages of the kernel's, which cost nothing until they are touched.
        *buffer = vec![0; bytes];
    }
    &mut buffer[..bytes]
}

fn write(
    pool: &Pool,
    layout: Layout,
    object: &str,
    request: &Request<'_>,
    buffer: &mut Vec<u8>,
) -> Result<Done, Failure> {
    if layout.stripe.is_none() && request.size > layout.object_bytes {
        return Err(too_large().into());
    }
    let key = content::key(request.container, request.object);
    let mut file = request.file.map(File::open).transpose()?;
    let mut written = 0;
    loop {
        let (number, within) = (written / layout.piece(), written % layout.piece());
        let left = (request.size - written).min(layout.piece() - within);
        let part = room(buffer, left);
        match &mut file {
            Some(file) => file.read_exact(part)?,
            None => content::fill(request.content, key, written, part),
        }
        let name = Layout::name(object, number);
        let result = match within {
            0 => pool.write_full(&name, part),
            within => pool.write_at(&name, part, within),
        };
        result.map_err(|error| failure(&error))?;
        written += part.len() as u64;
        if written >= request.size {
            break;
        }
    }
    // A reader goes on behind a full part: what an earlier, longer object left there must go.
    if layout.stripe.is_some() && written > 0 && written % layout.piece() == 0 {
        let next = written / layout.piece();
        let removed = layout.remove_from(pool, object, next);
        removed.map_err(|error| failure(&error))?;
    }
    Ok(done(written))
}

fn read(
    pool: &Pool,
    layout: Layout,
    object: &str,
    request: &Request<'_>,
    buffer: &mut Vec<u8>,
) -> Result<Done, Failure> {
    let (offset, length) = request.range.unwrap_or((0, u64::MAX));
    let key = content::key(request.container, request.object);
    let mut checker = request
        .check
        .then(|| Checker::new(request.content, key, offset));
    let mut first_byte = None;
    let mut read = 0;
    while read < length {
        let at = offset + read;
        let (number, within) = (at / layout.piece(), at % layout.piece());
        let part = room(buffer, (length - read).min(layout.piece() - within));
        let got = match pool.read_at(&Layout::name(object, number), part, within) {
            Ok(got) => got,
            // The part before was full, and the last.
            Err(error) if number > 0 && error.errno() == Some(ENOENT) && read > 0 => break,
            Err(error) => return Err(failure(&error)),
        };
        first_byte.get_or_insert_with(Instant::now);
        if let Some(checker) = &mut checker {
            checker.take(&part[..got]);
        }
        read += got as u64;
        if got < part.len() {
            break;
        }
    }
    match &checker {
        Some(checker) if !checker.is_right() => Err(ErrorKind::Integrity.into()),
        _ => Ok(Done {
            first_byte: first_byte.unwrap_or_else(Instant::now),
            bytes: read,
            checked: checker.is_some(),
        }),
    }
}

/// One listing of the names that begin with `prefix`: a whole pool is looked through, since RADOS
/// keeps no order. Bytes are those of the names.
fn list(pool: &Pool, prefix: &str) -> Result<Done, RadosError> {
    let (mut names, mut bytes) = (0, 0);
    let mut first_byte = None;
    pool.list(|name| {
        if name.starts_with(prefix.as_bytes()) {
            first_byte.get_or_insert_with(Instant::now);
            names += 1;
            bytes += name.len() as u64;
        }
        names < LISTED_MAX
    })?;
    Ok(Done {
        first_byte: first_byte.unwrap_or_else(Instant::now),
        bytes,
        checked: false,
    })
}

fn done(bytes: u64) -> Done {
    Done {
        first_byte: Instant::now(),
        bytes,
        checked: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A buffer that was touched by one request is the next one's.
    #[test]
    fn one_buffer_for_all_requests_of_a_worker() {
        let mut buffer = Vec::new();
        room(&mut buffer, u64::MAX)[0] = 7;
        let first = buffer.as_ptr();
        assert_eq!(buffer.len() as u64, PIECE);
        assert_eq!(room(&mut buffer, 4096)[0], 7, "nothing is cleared");
        assert_eq!(room(&mut buffer, u64::MAX).len() as u64, PIECE);
        assert_eq!(buffer.as_ptr(), first);
    }

    #[test]
    fn a_stripe_fits_into_an_object() {
        assert_eq!(stripe(None, 1 << 27).unwrap(), None);
        assert_eq!(stripe(Some("64MiB"), 1 << 27).unwrap(), Some(64 << 20));
        for wrong in ["1GiB", "1KB", "much", "0"] {
            let error = stripe(Some(wrong), 1 << 27).unwrap_err().to_string();
            assert!(
                error.contains("stripe") && error.contains("64MiB"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_key_that_is_none_is_told_without_showing_it() {
        let settings = Settings {
            kind: "rados".into(),
            config: [("secretkey".to_owned(), "hello, key".to_owned())].into(),
        };
        let error = Rados::open(&settings, &TargetOptions::default());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("secretkey is no Ceph key"), "{error}");
        assert!(!error.contains("hello"), "{error}");
    }
}
