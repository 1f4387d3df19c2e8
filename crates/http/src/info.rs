//! Information about accounts, containers and the cluster: requested by middleware, provided by the
//! proxy (with a cache).

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use cairn_types::{PolicyIndex, Timestamp};
use parking_lot::RwLock;
use serde_json::{Map, Value};

use crate::context::Context;

/// An account's metadata, as its server returns it. Metadata names are lower case, without their
/// prefix.
#[derive(Clone, Debug, Default)]
pub struct AccountInfo {
    /// Status of the server's response: 2xx exists, 404 does not exist, 0 no server responded.
    pub status: u16,
    /// The account does not exist on any server; its first write will create it.
    pub pretended: bool,
    pub container_count: u64,
    pub object_count: u64,
    pub bytes: u64,
    /// Usage of the account's containers by policy.
    pub policies: BTreeMap<PolicyIndex, PolicyUsage>,
    pub meta: BTreeMap<String, String>,
    pub sysmeta: BTreeMap<String, String>,
}

/// Usage of one storage policy in an account.
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

/// A container's metadata, as its server returns it. Metadata names are lower case, without their
/// prefix.
#[derive(Clone, Debug, Default)]
pub struct ContainerInfo {
    /// Status of the server's response: 2xx exists, 404 does not exist, 0 no server responded.
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

/// A container's CORS settings, `X-Container-Meta-Access-Control-*`.
#[derive(Clone, Debug, Default)]
pub struct Cors {
    pub allow_origin: Option<String>,
    pub expose_headers: Option<String>,
    pub max_age: Option<String>,
}

pub type InfoFuture<'a, T> = Pin<Box<dyn Future<Output = Arc<T>> + Send + 'a>>;

/// Provider of account and container information, from the proxy's cache or from a server.
pub trait InfoSource: Send + Sync {
    fn account<'a>(&'a self, context: &'a Context, account: &'a str)
    -> InfoFuture<'a, AccountInfo>;
    fn container<'a>(
        &'a self,
        context: &'a Context,
        account: &'a str,
        container: &'a str,
    ) -> InfoFuture<'a, ContainerInfo>;

    /// Devices that store an account, a container, or an object of this policy; `None` if unknown.
    fn places(
        &self,
        _account: &str,
        _container: Option<&str>,
        _object: Option<(&str, PolicyIndex)>,
    ) -> Option<Vec<DevicePlace>> {
        None
    }
}

/// Location of one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePlace {
    /// Address of its server, `ip:port`.
    pub host: String,
    pub device: String,
    pub partition: u32,
}

/// Capabilities that `/info` lists: every middleware registers itself here when it is built.
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
    /// Adds or extends a public section. `details` that are not an object count as `{}`.
    pub fn register(&self, section: &str, details: Value) {
        let mut sections = self.sections.write();
        extend(&mut sections.public, section, details);
    }

    /// Adds or extends a section that only requests signed by the admin key may see.
    pub fn register_admin(&self, section: &str, details: Value) {
        let mut sections = self.sections.write();
        extend(&mut sections.admin, section, details);
    }

    /// The sections visible to a client, without `disallowed` ones (`section` or `section.key`).
    /// With `admin`, an `admin` section holds the rest.
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
