//! Assembly of servers and daemons: each is made here from its section of options and from the
//! [`Parts`] of a node. `cairn serve`, `cairn up` and daemons' own programs take the parts from conf
//! files, the simulator from its virtual machines; what is made of them is the same.

mod daemons;
mod servers;

use std::sync::Arc;

use anyhow::Result;
use cairn_daemons::Written;
use cairn_disk::{Devices, Engines};
use cairn_formats::ini::Section;
use cairn_http::{Clock, Handler};
use cairn_index::{IndexPool, TakesRows};
use cairn_peer::{Backends, Rings, TakesCalls};
use cairn_servers::container::SyncRealms;
use cairn_servers::rows::LocalRows;
use cairn_types::{Constraints, HashPath, PolicySet};

pub use daemons::{DaemonOptions, daemon};
pub use servers::{
    ProxyOptions, account_server, container_server, fallocate_reserve, object_server, proxy,
};

/// Parts of all servers and daemons: of their cluster, their network and their clock.
#[derive(Clone)]
pub struct Common {
    pub hash_path: HashPath,
    pub policies: Arc<PolicySet>,
    pub constraints: Arc<Constraints>,
    pub backends: Arc<Backends>,
    pub clock: Clock,
    /// Databases of this process that take rows by a call.
    pub local_rows: Arc<LocalRows>,
}

/// Parts of one server or daemon. Only those that it is made of are asked for, so that a program
/// opens no rings, disks or databases in vain.
pub trait Parts {
    fn common(&self) -> &Common;

    /// # Errors
    /// A ring file is missing or damaged.
    fn rings(&mut self) -> Result<Arc<Rings>>;

    /// The disks of objects.
    ///
    /// # Errors
    /// Options are invalid, or not those of another user of these disks.
    fn devices(&mut self) -> Result<Arc<Devices>>;

    /// The engine of each policy over the disks.
    ///
    /// # Errors
    /// As [`Parts::devices`], or a policy's engine is unknown.
    fn engines(&mut self) -> Result<Engines>;

    /// The databases of accounts and containers.
    ///
    /// # Errors
    /// As [`Parts::devices`].
    fn databases(&mut self) -> Result<Arc<IndexPool>>;

    /// The pipeline of daemons that are clients: a proxy without the filters that clients need.
    ///
    /// # Errors
    /// Its conf is missing or invalid.
    fn internal_pipeline(&mut self) -> Result<Handler>;

    /// Another section of the same conf; empty if missing.
    ///
    /// # Errors
    /// The conf is invalid.
    fn other_section(&self, name: &str) -> Result<Section>;

    /// Clusters to which containers may be synced.
    ///
    /// # Errors
    /// The file that lists them is invalid.
    fn sync_realms(&self) -> Result<SyncRealms> {
        Ok(SyncRealms::default())
    }

    /// The databases of a container server that was made take rows by a call, too.
    fn offer_rows(&mut self, _: Arc<dyn TakesRows>) {}

    /// An object server that was made takes requests by a call, too.
    fn offer_calls(&mut self, _: Arc<dyn TakesCalls>) {}

    /// The record of writes by which a container server tells the updater of its process.
    fn written(&self) -> Option<Arc<Written>> {
        None
    }
}
