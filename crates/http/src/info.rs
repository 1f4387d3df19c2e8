//! What is known of accounts, containers and the cluster: asked by middleware, answered by the
//! proxy (which caches).

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use cairn_types::{PolicyIndex, Timestamp};
use parking_lot::RwLock;
use serde_json::{Map, Value};

use crate::context::Context;

/// An account as its server describes it. Metadata names are lower case, without their prefix.
#[derive(Clone, Debug, Default)]
pub struct AccountInfo {
    /// The server's status: 2xx exists, 404 not, 0 no server answered.
    pub status: u16,
    /// No server has it: it will be made when it is first written to.
    pub pretended: bool,
    pub container_count: u64,
    pub object_count: u64,
    pub bytes: u64,
    /// What containers of each policy hold.
    pub policies: BTreeMap<PolicyIndex, PolicyUsage>,
    pub meta: BTreeMap<String, String>,
    pub sysmeta: BTreeMap<String, String>,
}

/// An account's objects of one storage policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyUsage {
    pub container_count: u64,
    pub object_count: u64,
    pub bytes: u64,
}

impl AccountInfo {
    pub fn exists(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// A container as its server describes it. Metadata names are lower case, without their prefix.
#[derive(Clone, Debug, Default)]
pub struct ContainerInfo {
    /// The server's status: 2xx exists, 404 not, 0 no server answered.
    pub status: u16,
    pub object_count: u64,
    pub bytes: u64,
    pub policy: PolicyIndex,
    pub read_acl: Option<String>,
    pub write_acl: Option<String>,
    pub sync_key: Option<String>,
    pub sync_to: Option<String>,
    pub versions: Option<String>,
    pub cors: Cors,
    pub put_timestamp: Timestamp,
    pub sharding_state: Option<String>,
    pub meta: BTreeMap<String, String>,
    pub sysmeta: BTreeMap<String, String>,
}

impl ContainerInfo {
    pub fn exists(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// A container's `X-Container-Meta-Access-Control-*`.
#[derive(Clone, Debug, Default)]
pub struct Cors {
    pub allow_origin: Option<String>,
    pub expose_headers: Option<String>,
    pub max_age: Option<String>,
}

pub type InfoFuture<'a, T> = Pin<Box<dyn Future<Output = Arc<T>> + Send + 'a>>;

/// Answers from the proxy's cache, or from a server.
pub trait InfoSource: Send + Sync {
    fn account<'a>(&'a self, context: &'a Context, account: &'a str)
    -> InfoFuture<'a, AccountInfo>;
    fn container<'a>(
        &'a self,
        context: &'a Context,
        account: &'a str,
        container: &'a str,
    ) -> InfoFuture<'a, ContainerInfo>;

    /// The devices that hold an account, a container, or an object of this policy; `None` where
    /// that is not known.
    fn places(
        &self,
        _account: &str,
        _container: Option<&str>,
        _object: Option<(&str, PolicyIndex)>,
    ) -> Option<Vec<DevicePlace>> {
        None
    }
}

/// Where one replica is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePlace {
    /// `ip:port` of its server.
    pub host: String,
    pub device: String,
    pub partition: u32,
}

/// What `/info` tells: every middleware registers itself here when it is built.
#[derive(Default)]
pub struct SwiftInfo {
    sections: RwLock<Sections>,
}

#[derive(Default, Clone)]
struct Sections {
    public: Map<String, Value>,
    admin: Map<String, Value>,
}

impl SwiftInfo {
    /// Adds or extends a section everybody may read. `details` that is no object is taken as
    /// `{}`.
    pub fn register(&self, section: &str, details: Value) {
        let mut sections = self.sections.write();
        extend(&mut sections.public, section, details);
    }

    /// Adds or extends a section shown to the holder of the admin key alone.
    pub fn register_admin(&self, section: &str, details: Value) {
        let mut sections = self.sections.write();
        extend(&mut sections.admin, section, details);
    }

    /// What a client sees, less `disallowed` sections (`section` or `section.key`). With `admin`,
    /// an `admin` section holds the rest.
    pub fn view(&self, disallowed: &[String], admin: bool) -> Value {
        let sections = self.sections.read().clone();
        let mut view = sections.public;
        for name in disallowed {
            match name.split_once('.') {
                None => {
                    view.remove(name);
                }
                Some((section, key)) => {
                    if let Some(Value::Object(section)) = view.get_mut(section) {
                        section.remove(key);
                    }
                }
            }
        }
        if admin {
            let mut hidden = sections.admin;
            hidden.insert("disallowed_sections".into(), disallowed.to_vec().into());
            view.insert("admin".into(), Value::Object(hidden));
        }
        Value::Object(view)
    }
}

fn extend(sections: &mut Map<String, Value>, section: &str, details: Value) {
    let entry = sections
        .entry(section)
        .or_insert_with(|| Value::Object(Map::new()));
    if let (Value::Object(entry), Value::Object(details)) = (entry, details) {
        entry.extend(details);
    }
}
