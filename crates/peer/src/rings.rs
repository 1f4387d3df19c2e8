//! The rings of a cluster, loaded from `swift_dir`, reloaded when their files change, with every
//! device's address at hand.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use cairn_ring::{Device, HandoffNode, Ring, RingError, RingFile};
use cairn_types::{HashPath, PolicyIndex, PolicySet};
use thiserror::Error;
use tracing::{info, warn};

use crate::nodes::Node;

/// A ring that cannot be loaded at start.
#[derive(Debug, Error)]
#[error("cannot load the ring {}: {source}", path.display())]
pub struct RingsError {
    pub path: PathBuf,
    pub source: RingError,
}

/// One state of one ring, with addresses resolved.
pub struct LoadedRing {
    ring: Arc<Ring>,
    addresses: BTreeMap<u32, SocketAddr>,
    /// Made when first asked for; `None` where it is no other network.
    over_replication: OnceLock<Option<Arc<LoadedRing>>>,
}

impl LoadedRing {
    pub fn new(ring: Arc<Ring>) -> Self {
        let mut addresses = BTreeMap::new();
        for device in ring.devices() {
            match resolve(device) {
                Some(address) => {
                    addresses.insert(device.id, address);
                }
                None => warn!(
                    device = device.id, host = %device.ip,
                    "no address for this device's host; it is taken to be down"
                ),
            }
        }
        LoadedRing {
            ring,
            addresses,
            over_replication: OnceLock::new(),
        }
    }

    /// This ring with nodes as the replication network reaches them.
    pub fn over_replication(self: &Arc<Self>) -> Arc<LoadedRing> {
        let made = self.over_replication.get_or_init(|| {
            let ring = self.ring.over_replication()?;
            Some(Arc::new(LoadedRing::new(Arc::new(ring))))
        });
        made.as_ref().unwrap_or(self).clone()
    }

    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The partition of an account, container or object.
    pub fn partition(
        &self,
        hash_path: &HashPath,
        account: &str,
        container: Option<&str>,
        object: Option<&str>,
    ) -> u32 {
        self.ring
            .partition(hash_path.hash(account, container, object))
    }

    /// The partition's primaries, in replica order.
    pub fn primaries(&self, partition: u32) -> Vec<Node> {
        self.ring
            .primaries(partition)
            .into_iter()
            .filter_map(|primary| {
                let address = *self.addresses.get(&primary.device.id)?;
                Some(Node {
                    device: primary.device,
                    address,
                    index: primary.index,
                    handoff: false,
                })
            })
            .collect()
    }

    /// At most `count` handoffs, in order.
    pub fn handoffs(&self, partition: u32, count: usize) -> Vec<Node> {
        self.ring
            .handoffs(partition)
            .filter_map(
                |HandoffNode {
                     handoff_index,
                     device,
                 }| {
                    let address = *self.addresses.get(&device.id)?;
                    Some(Node {
                        device,
                        address,
                        index: handoff_index,
                        handoff: true,
                    })
                },
            )
            .take(count)
            .collect()
    }
}

/// A device's address: names are looked up once per ring load.
fn resolve(device: &Device) -> Option<SocketAddr> {
    if let Ok(ip) = device.ip.parse::<IpAddr>() {
        return Some(SocketAddr::new(ip, device.port));
    }
    (device.ip.as_str(), device.port)
        .to_socket_addrs()
        .ok()?
        .next()
}

struct Followed {
    file: RingFile,
    loaded: ArcSwap<LoadedRing>,
}

impl Followed {
    fn open(path: PathBuf) -> Result<Self, RingsError> {
        let file = RingFile::open(&path, Duration::ZERO, Instant::now())
            .map_err(|source| RingsError { path, source })?;
        let loaded = ArcSwap::from_pointee(LoadedRing::new(file.get()));
        Ok(Followed { file, loaded })
    }

    fn refresh(&self) {
        match self.file.refresh(Instant::now()) {
            Ok(false) => {}
            Ok(true) => {
                info!(ring = %self.file.path().display(), "ring reloaded");
                self.loaded
                    .store(Arc::new(LoadedRing::new(self.file.get())));
            }
            Err(error) => {
                warn!(ring = %self.file.path().display(), %error, "ring not reloaded; the old one stays in use");
            }
        }
    }
}

/// All rings of a cluster.
pub struct Rings {
    account: Followed,
    container: Followed,
    objects: BTreeMap<PolicyIndex, Followed>,
}

impl Rings {
    /// Loads `account.ring.gz`, `container.ring.gz` and each policy's object ring.
    pub fn open(swift_dir: &Path, policies: &PolicySet) -> Result<Arc<Self>, RingsError> {
        let open = |name: &str| Followed::open(swift_dir.join(format!("{name}.ring.gz")));
        let mut objects = BTreeMap::new();
        for policy in policies.iter() {
            objects.insert(policy.index, open(&policy.index.ring_name())?);
        }
        Ok(Arc::new(Rings {
            account: open("account")?,
            container: open("container")?,
            objects,
        }))
    }

    pub fn account(&self) -> Arc<LoadedRing> {
        self.account.loaded.load_full()
    }

    pub fn container(&self) -> Arc<LoadedRing> {
        self.container.loaded.load_full()
    }

    pub fn object(&self, policy: PolicyIndex) -> Option<Arc<LoadedRing>> {
        Some(self.objects.get(&policy)?.loaded.load_full())
    }

    /// Looks at every ring file and loads those that changed. Blocks on the disk.
    pub fn refresh(&self) {
        self.account.refresh();
        self.container.refresh();
        self.objects.values().for_each(Followed::refresh);
    }
}
