//! The environment of a filter: what it may know of its process and cluster, and why one cannot be
//! built in it.

use std::sync::Arc;

use cairn_formats::ini::{ConfError, Section};
use cairn_http::context::Context;
use cairn_http::{AccountInfo, Clock, ContainerInfo, Handler, InfoFuture, InfoSource, SwiftInfo};
use cairn_types::{Constraints, HashPath, PolicySet};
use thiserror::Error;

use crate::cross_origin::CrossOrigin;
use crate::logins::Logins;
use crate::random::Random;

/// Environment of a filter: what it may know of its process and cluster.
#[derive(Clone)]
pub struct FilterEnv {
    pub info_source: Arc<dyn InfoSource>,
    pub swift_info: Arc<SwiftInfo>,
    pub constraints: Arc<Constraints>,
    pub policies: Arc<PolicySet>,
    pub hash_path: HashPath,
    pub clock: Clock,
    pub random: Random,
    /// Users with name and key, as the filters of this pipeline share them.
    pub logins: Logins,
    /// Origins whose pages may log in.
    pub cross_origin: CrossOrigin,
}

/// Reasons why a filter cannot be built.
#[derive(Debug, Error)]
pub enum FilterError {
    #[error(
        "the filter {name:?} is not built yet, and a pipeline is not served without one of its \
         filters, which may guard something; take it out where it may be missed. Built are: {}",
        .known.join(", ")
    )]
    NotYet {
        name: String,
        known: Vec<&'static str>,
    },
    #[error("there is no filter {name:?}; known are: {}", .known.join(", "))]
    Unknown {
        name: String,
        known: Vec<&'static str>,
    },
    #[error(
        "{option} needs the filter {needs:?} behind it in the pipeline, and it is not there; add it, or \
         set {option} = false"
    )]
    Needs {
        option: &'static str,
        needs: &'static str,
    },
    /// Describes an invalid setting without its value.
    #[error("{0}")]
    Setting(String),
    #[error(transparent)]
    Conf(#[from] ConfError),
}

/// Constructs a filter around the next handler, by the options of its section.
pub type Make = fn(&Section, Handler, &FilterEnv) -> Result<Handler, FilterError>;

/// An information source without information, for pipelines of backend servers, whose filters need
/// none.
pub struct NoInfo;

impl InfoSource for NoInfo {
    fn account<'a>(&'a self, _: &'a Context, _: &'a str) -> InfoFuture<'a, AccountInfo> {
        Box::pin(async { Arc::default() })
    }
    fn container<'a>(
        &'a self,
        _: &'a Context,
        _: &'a str,
        _: &'a str,
    ) -> InfoFuture<'a, ContainerInfo> {
        Box::pin(async { Arc::default() })
    }
}
