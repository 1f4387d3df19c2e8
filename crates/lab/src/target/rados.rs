//! Ceph RADOS through librados, which is looked for when a workload needs it.
//!
//! As COSBench does it, a container is a pool; with the setting `pool` all objects go there, named
//! `container/object`. Settings: `accesskey` (the user, without `client.`), `secretkey` (its key),
//! `endpoint` (the monitors), `conf` (a ceph.conf, instead of the usual places).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::Instant;

use cairn_rados::{Cluster, Pool, RadosError};

use super::content::{self, Checker};
use super::{Done, Failure, Request, TargetError, Verb};
use crate::plan::Settings;
use crate::record::ErrorKind;

/// librados writes and reads whole buffers: larger objects go in pieces of this size.
const PIECE: u64 = 4 << 20;

/// One connection for all workers, which librados allows, and its pools by name.
#[derive(Debug)]
pub struct Rados {
    cluster: Arc<Cluster>,
    pool: Option<String>,
    monitors: String,
    pools: Mutex<HashMap<String, Arc<Pool>>>,
}

impl Rados {
    pub(crate) fn open(settings: &Settings) -> Result<Self, TargetError> {
        let setting = |key: &str| {
            settings
                .config
                .get(key)
                .map(String::as_str)
                .filter(|value| !value.is_empty())
        };
        let given = [("mon_host", "endpoint"), ("key", "secretkey")]
            .into_iter()
            .filter_map(|(option, key)| Some((option, setting(key)?)));
        // Its own default of five minutes is long to wait for a monitor that is not there.
        let options: Vec<(&str, &str)> = given.chain([("client_mount_timeout", "30")]).collect();
        let cluster =
            Cluster::connect(setting("accesskey"), setting("conf"), &options).map_err(|error| {
                TargetError::Other(format!(
                    "storage type rados: {error}; give the monitor with --target \
                     rados://HOST/POOL, or a ceph.conf with --storage conf=FILE"
                ))
            })?;
        Ok(Self {
            cluster,
            pool: setting("pool").map(str::to_owned),
            monitors: setting("endpoint").unwrap_or("of ceph.conf").to_owned(),
            pools: Mutex::default(),
        })
    }

    pub(crate) fn describe(&self) -> String {
        let pool = self.pool.as_deref().unwrap_or("a pool per container");
        format!("rados {} {pool}", self.monitors)
    }

    /// The pool of a container, opened once.
    fn pool(&self, container: &str) -> Result<Arc<Pool>, RadosError> {
        let name = self.pool.as_deref().unwrap_or(container);
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pools.get(name) {
            return Ok(pool.clone());
        }
        let pool = Arc::new(self.cluster.pool(name)?);
        pools.insert(name.to_owned(), pool.clone());
        Ok(pool)
    }

    pub(crate) fn perform(&self, request: &Request<'_>) -> Result<Done, Failure> {
        match request.verb {
            Verb::MakeContainer if self.pool.is_none() => {
                match self.cluster.create_pool(request.container) {
                    Err(error) if error.errno() != Some(EEXIST) => Err(failure(&error)),
                    _ => Ok(done(0)),
                }
            }
            Verb::DropContainer if self.pool.is_none() => {
                let name = request.container;
                self.pools
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .remove(name);
                self.cluster
                    .delete_pool(name)
                    .map(|()| done(0))
                    .map_err(|error| failure(&error))
            }
            Verb::MakeContainer | Verb::DropContainer => Ok(done(0)),
            Verb::List => Err(ErrorKind::Other("rados has no listing".into()).into()),
            _ => self.of_object(request),
        }
    }

    fn of_object(&self, request: &Request<'_>) -> Result<Done, Failure> {
        let object = match self.pool {
            Some(_) => format!("{}/{}", request.container, request.object),
            None => request.object.to_owned(),
        };
        let pool = self
            .pool(request.container)
            .map_err(|error| failure(&error))?;
        match request.verb {
            Verb::Write => write(&pool, &object, request).map_err(|error| failure(&error)),
            Verb::Read => read(&pool, &object, request),
            Verb::Head => pool
                .size(&object)
                .map(|_| done(0))
                .map_err(|error| failure(&error)),
            _ => pool
                .remove(&object)
                .map(|()| done(0))
                .map_err(|error| failure(&error)),
        }
    }
}

const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const ETIMEDOUT: i32 = 110;

fn failure(error: &RadosError) -> Failure {
    let kind = match error.errno() {
        Some(ENOENT) => ErrorKind::Status(404),
        Some(ETIMEDOUT) => ErrorKind::Timeout,
        _ => ErrorKind::Other(error.to_string()),
    };
    kind.into()
}

fn write(pool: &Pool, object: &str, request: &Request<'_>) -> Result<Done, RadosError> {
    let key = content::key(request.container, request.object);
    let mut buffer = vec![0; request.size.min(PIECE) as usize];
    content::fill(request.content, key, 0, &mut buffer);
    pool.write_full(object, &buffer)?;
    let mut written = buffer.len() as u64;
    while written < request.size {
        buffer.truncate((request.size - written).min(PIECE) as usize);
        content::fill(request.content, key, written, &mut buffer);
        pool.write_at(object, &buffer, written)?;
        written += buffer.len() as u64;
    }
    Ok(done(written))
}

fn read(pool: &Pool, object: &str, request: &Request<'_>) -> Result<Done, Failure> {
    let (offset, length) = request.range.unwrap_or((0, u64::MAX));
    let key = content::key(request.container, request.object);
    let mut checker = request
        .check
        .then(|| Checker::new(request.content, key, offset));
    let mut buffer = vec![0; length.min(PIECE) as usize];
    let mut first_byte = None;
    let mut read = 0;
    while read < length {
        let take = (length - read).min(PIECE) as usize;
        let got = pool
            .read_at(object, &mut buffer[..take], offset + read)
            .map_err(|error| failure(&error))?;
        first_byte.get_or_insert_with(Instant::now);
        if let Some(checker) = &mut checker {
            checker.take(&buffer[..got]);
        }
        read += got as u64;
        if got < take {
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

fn done(bytes: u64) -> Done {
    Done {
        first_byte: Instant::now(),
        bytes,
        checked: false,
    }
}
