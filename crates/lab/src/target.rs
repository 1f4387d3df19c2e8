//! Targets, which are the stores to measure: one enum over the kinds of stores, and a session per
//! worker.
//!
//! A [`Target`] is opened (signed in to) once per work; each worker has a [`Session`] of its own,
//! with its own connection. A session performs one [`Request`] at a time and returns [`Done`] or a
//! [`Failure`]; the caller measures time, by the runtime's clock, which tests can control.

pub mod content;
mod dir;
mod http;
mod noop;
mod post;
mod rados;
mod s3;
mod sigv4;
mod swift;
mod swift_auth;
mod tls;
mod url;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::time::Instant;

use crate::plan::{Access, Content, Operation, OperationKind, Work};
use crate::record::ErrorKind;

pub(crate) use self::post::Post;

/// An operation on a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Read,
    Write,
    Head,
    Delete,
    List,
    MakeContainer,
    DropContainer,
    /// Within the store, to [`Request::to`].
    Copy,
    /// Changes metadata.
    Post,
    /// All of [`Request::batch`] at once.
    BulkDelete,
    /// The versions of an object, or of all if its name is empty.
    Versions,
}

/// One request of a worker.
#[derive(Debug)]
pub struct Request<'a> {
    pub verb: Verb,
    pub container: &'a str,
    pub object: &'a str,
    /// The number in the object's name, which is its position in an N-1 file.
    pub number: u64,
    /// Number of bytes to write.
    pub size: u64,
    /// Range to read: offset and length.
    pub range: Option<(u64, u64)>,
    pub content: Content,
    /// Compare the content read with what a write would have written.
    pub check: bool,
    pub part_bytes: Option<u64>,
    pub chunked: bool,
    /// Write this file instead of generated content.
    pub file: Option<&'a std::path::Path>,
    pub headers: &'a BTreeMap<String, String>,
    /// Container and name of a copy.
    pub to: (&'a str, &'a str),
    /// Containers and names of a bulk deletion.
    pub batch: &'a [(String, String)],
    /// A container that keeps versions; a deletion of all versions.
    pub versioned: bool,
}

/// Result of a successful request.
#[derive(Debug, Clone, Copy)]
pub struct Done {
    pub first_byte: Instant,
    pub bytes: u64,
    pub checked: bool,
}

/// A failed request, or an absent entity (which is acceptable for a cleanup).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub kind: ErrorKind,
}

impl From<ErrorKind> for Failure {
    fn from(kind: ErrorKind) -> Self {
        Self { kind }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        let kind = match error.kind() {
            Io::ConnectionReset | Io::BrokenPipe | Io::UnexpectedEof | Io::ConnectionAborted => {
                ErrorKind::Closed
            }
            Io::TimedOut => ErrorKind::Timeout,
            Io::NotFound => ErrorKind::Status(404),
            kind => ErrorKind::Other(kind.to_string()),
        };
        Self { kind }
    }
}

/// Reasons why a target cannot be used at all.
#[derive(Debug, Error)]
pub enum TargetError {
    #[error("storage type {0:?} is not one the lab drives; give another store with --target")]
    UnknownStorage(String),
    #[error("auth type {0:?} is not one the lab knows; use swauth, keystone, basic or none")]
    UnknownAuth(String),
    #[error("the setting {key} of {part} is missing; give it in the workload or with {option}")]
    Missing {
        part: &'static str,
        key: &'static str,
        option: &'static str,
    },
    #[error("{key} is {value:?}: {why}")]
    Setting {
        key: String,
        value: String,
        why: String,
    },
    #[error("cannot reach {url}: {why}; is the store up? --target names another")]
    Unreachable { url: String, why: String },
    #[error("{url} is no place to sign in or to store: {why}; check the address (--target)")]
    NotAStore { url: String, why: String },
    #[error(
        "{url} refused to sign {user:?} in: HTTP {status}; check user and key (--user, --key, \
         --token)"
    )]
    Refused {
        url: String,
        user: String,
        status: u16,
    },
    #[error(
        "the sign-in names the store {url}, and the workload does not name {host}: a run that a \
         console starts goes to the hosts of its workload alone; give its storage \
         storage_url={url}"
    )]
    UnnamedHost { url: String, host: String },
    #[error(
        "work {work}: {store} has no {operation}; take the operation out of the mix, or name \
         another store with --target"
    )]
    Lacks {
        work: String,
        store: String,
        operation: String,
    },
    #[error("{0}")]
    Other(String),
}

/// Options of the command line besides the workload.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct TargetOptions {
    #[serde(with = "crate::plan::seconds")]
    pub timeout: Duration,
    /// Disable the verification of certificates.
    pub insecure: bool,
    /// PEM file of certificates to trust instead of the system's.
    pub ca: Option<std::path::PathBuf>,
    /// Hosts, without ports, to which the response to a sign-in may direct a confined run: those in
    /// its plan. `None`: any.
    pub hosts: Option<BTreeSet<String>>,
}

impl Default for TargetOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(60),
            insecure: false,
            ca: None,
            hosts: None,
        }
    }
}

impl TargetOptions {
    /// Refuses a host that the plan does not name.
    fn check_host(&self, url: &url::Url) -> Result<(), TargetError> {
        match &self.hosts {
            Some(hosts) if !hosts.contains(&url.host) => Err(TargetError::UnnamedHost {
                url: url.to_string(),
                host: url.host.clone(),
            }),
            _ => Ok(()),
        }
    }
}

/// A store that can be driven.
#[derive(Debug, Clone)]
pub enum Target {
    Noop(noop::Noop),
    Swift(Arc<swift::Swift>),
    S3(Arc<s3::S3>),
    Dir(Arc<dir::Dir>),
    Rados(Arc<rados::Rados>),
}

impl Target {
    /// Parses the settings, connects to the store and signs in.
    ///
    /// # Errors
    /// `UnknownStorage` or `UnknownAuth` for a type; `Missing` or `Setting` for a setting;
    /// `Unreachable`, `NotAStore`, `Refused` or `UnnamedHost` if sign-in fails; `Other` for TLS and
    /// librados.
    pub async fn open(access: &Access, options: &TargetOptions) -> Result<Self, TargetError> {
        let storage = &access.storage;
        match storage.kind.to_ascii_lowercase().as_str() {
            "none" | "mock" | "noop" => Ok(Self::Noop(noop::Noop::new(storage)?)),
            // COSBench's no-op sample configures neither store nor sign-in.
            "" if names_nothing(access) => Ok(Self::noop()),
            "swift" | "" => Ok(Self::Swift(Arc::new(
                swift::Swift::open(access, options).await?,
            ))),
            "s3" => Ok(Self::S3(Arc::new(s3::S3::open(storage, options).await?))),
            "file" | "dir" => Ok(Self::Dir(Arc::new(dir::Dir::open(storage)?))),
            "librados" | "rados" => {
                Ok(Self::Rados(Arc::new(rados::Rados::open(storage, options)?)))
            }
            _ => Err(TargetError::UnknownStorage(storage.kind.clone())),
        }
    }

    /// The no-op target, without settings.
    pub fn noop() -> Self {
        Self::Noop(noop::Noop::empty())
    }

    /// A Swift store in the test's process, reached by `dial`.
    #[cfg(test)]
    pub(crate) fn in_memory(
        dial: Box<dyn Fn() -> tokio::io::DuplexStream + Send + Sync>,
    ) -> Result<Self, TargetError> {
        Ok(Self::Swift(Arc::new(swift::Swift::in_memory(dial)?)))
    }

    /// Description for reports, without secrets.
    pub fn describe(&self) -> String {
        match self {
            Self::Noop(_) => "noop".into(),
            Self::Swift(swift) => swift.describe(),
            Self::S3(s3) => s3.describe(),
            Self::Dir(dir) => dir.describe(),
            Self::Rados(rados) => rados.describe(),
        }
    }

    /// The store's `Server` header at sign-in, if any.
    pub fn server(&self) -> String {
        match self {
            Self::Swift(swift) => swift.server().to_owned(),
            Self::S3(s3) => s3.server().to_owned(),
            _ => String::new(),
        }
    }

    /// Refuses a work with operations that this kind of store does not have.
    ///
    /// # Errors
    /// `Lacks` names the operation.
    pub fn check(&self, work: &Work) -> Result<(), TargetError> {
        let has = |operation: &Operation| match (self, operation.kind) {
            (Self::Dir(dir), OperationKind::Copy) => dir.copies(),
            (Self::Rados(_), OperationKind::Copy) => false,
            (Self::Dir(_) | Self::Rados(_), OperationKind::Post | OperationKind::Versions) => false,
            (Self::Dir(_) | Self::Rados(_), _) => !operation.versioned,
            (Self::S3(_), OperationKind::BulkDelete) => operation.batch <= s3::BATCH_MAX,
            _ => true,
        };
        match work.operations.iter().find(|operation| !has(operation)) {
            None => Ok(()),
            Some(operation) => Err(TargetError::Lacks {
                work: work.name.clone(),
                store: self.describe(),
                operation: match (operation.versioned, operation.batch) {
                    (true, _) => format!("{} of versions", operation.kind.as_str()),
                    (false, 0) => operation.kind.as_str().to_owned(),
                    (false, batch) => format!("{} of {batch}", operation.kind.as_str()),
                },
            }),
        }
    }

    /// Does a request block its thread? Workers then have threads of their own.
    pub fn blocks(&self) -> bool {
        matches!(self, Self::Dir(_) | Self::Rados(_))
    }

    pub fn session(&self, worker: u32) -> Session {
        match self {
            Self::Noop(noop) => Session::Noop(noop.clone()),
            Self::Swift(swift) => Session::Swift(Box::new(swift.session(worker))),
            Self::S3(s3) => Session::S3(Box::new(s3.session())),
            Self::Dir(dir) => Session::Dir(Box::new(dir.session())),
            Self::Rados(rados) => Session::Rados(Box::new(rados.session())),
        }
    }
}

/// One worker's connection to a target.
#[derive(Debug)]
pub enum Session {
    Noop(noop::Noop),
    Swift(Box<swift::Session>),
    S3(Box<s3::Session>),
    Dir(Box<dir::Session>),
    Rados(Box<rados::Session>),
}

impl Session {
    /// Performs one request.
    ///
    /// # Errors
    /// The reason as an [`ErrorKind`]: an error status, no connection or one that broke, a timeout,
    /// or content that differs from what was written.
    #[inline]
    pub async fn perform(&mut self, request: &Request<'_>) -> Result<Done, Failure> {
        match self {
            Self::Noop(noop) => noop.perform(request).await,
            Self::Swift(session) => session.perform(request).await,
            Self::S3(session) => session.perform(request).await,
            Self::Dir(session) => session.perform(request),
            Self::Rados(session) => session.perform(request),
        }
    }

    /// The store's id of the last request, if any.
    pub fn transaction(&self) -> &str {
        match self {
            Self::Swift(session) => session.transaction(),
            Self::S3(session) => session.transaction(),
            _ => "",
        }
    }
}

fn names_nothing(access: &Access) -> bool {
    matches!(access.auth.kind.as_str(), "" | "none" | "mock")
        && access.auth.config.is_empty()
        && access.storage.config.is_empty()
}

/// A setting as a number.
fn number(config: &BTreeMap<String, String>, key: &str) -> Result<Option<u64>, TargetError> {
    let Some(text) = config.get(key).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    text.parse().map(Some).map_err(|_| TargetError::Setting {
        key: key.to_owned(),
        value: text.clone(),
        why: "a whole number was expected".into(),
    })
}
