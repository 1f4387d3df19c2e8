//! The rings of a cluster: loaded from `swift_dir`, reloaded when their files change, with the
//! resolved address of every device.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use cairn_ring::{Device, HandoffNode, Ring, RingError, RingFile};
use cairn_types::{HashPath, PolicyIndex, PolicySet, Quorum};
use thiserror::Error;
use tracing::{info, warn};

use crate::hosts::Hosts;
use crate::node::Node;

/// A ring that cannot be loaded at start.
#[derive(Debug, Error)]
#[error("cannot load the ring {}: {source}", path.display())]
pub struct RingsError {
    pub path: PathBuf,
    pub source: RingError,
}

/// One version of a ring, with resolved addresses.
pub struct LoadedRing {
    ring: Arc<Ring>,
    hosts: Hosts,
    addresses: BTreeMap<u32, Addresses>,
    /// The ring over the replication network, made on first use; `None` if that is the same
    /// network.
    over_replication: OnceLock<Option<Arc<LoadedRing>>>,
}

/// Addresses of a device: for clients, and on the replication network.
#[derive(Clone, Copy)]
struct Addresses {
    own: SocketAddr,
    replication: SocketAddr,
}

impl Addresses {
    fn of(device: &Device, hosts: &Hosts) -> Option<Addresses> {
        let ip = hosts.ip(&device.ip)?;
        let replication = hosts.ip(&device.replication_ip).unwrap_or(ip);
        Some(Addresses {
            own: SocketAddr::new(ip, device.port),
            replication: SocketAddr::new(replication, device.replication_port),
        })
    }
}

impl LoadedRing {
    /// Resolves host names, if the ring has any, and blocks then.
    pub fn new(ring: Arc<Ring>) -> Self {
        let hosts = Hosts::of(&ring, None);
        LoadedRing::with_hosts(ring, hosts)
    }

    fn with_hosts(ring: Arc<Ring>, hosts: Hosts) -> Self {
        let mut addresses = BTreeMap::new();
        for device in ring.devices() {
            match Addresses::of(device, &hosts) {
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
            hosts,
            addresses,
            over_replication: OnceLock::new(),
        }
    }

    /// This ring with nodes addressed over the replication network.
    pub fn over_replication(self: &Arc<Self>) -> Arc<LoadedRing> {
        let made = self.over_replication.get_or_init(|| {
            let ring = self.ring.over_replication()?;
            let hosts = self.hosts.clone();
            Some(Arc::new(LoadedRing::with_hosts(Arc::new(ring), hosts)))
        });
        made.as_ref().unwrap_or(self).clone()
    }

    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The quorum of writes that every replica of a partition gets whole: accounts and containers,
    /// and metadata of objects. With a fraction of a replica, that of the partitions with one more.
    pub fn quorum(&self) -> Quorum {
        Quorum::of_replicas(self.ring.replica_count().ceil() as usize)
    }

    /// All addresses of a host in this ring, which may be a name.
    pub fn ips(&self, host: &str) -> Vec<IpAddr> {
        self.hosts.ips(host)
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

    /// The primaries of a partition, in replica order.
    pub fn primaries(&self, partition: u32) -> Vec<Node> {
        self.ring
            .primaries(partition)
            .into_iter()
            .filter_map(|primary| {
                let addresses = self.addresses.get(&primary.device.id)?;
                Some(Node {
                    device: primary.device,
                    address: addresses.own,
                    replication_address: addresses.replication,
                    index: primary.index,
                    handoff: false,
                })
            })
            .collect()
    }

    /// At most `count` handoffs of a partition, in ring order.
    pub fn handoffs(&self, partition: u32, count: usize) -> Vec<Node> {
        self.ring
            .handoffs(partition)
            .filter_map(
                |HandoffNode {
                     handoff_index,
                     device,
                 }| {
                    let addresses = self.addresses.get(&device.id)?;
                    Some(Node {
                        device,
                        address: addresses.own,
                        replication_address: addresses.replication,
                        index: handoff_index,
                        handoff: true,
                    })
                },
            )
            .take(count)
            .collect()
    }
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
            Ok(false) => self.look_up_again(),
            Ok(true) => {
                info!(ring = %self.file.path().display(), "ring reloaded");
                let ring = self.file.get();
                let hosts = Hosts::of(&ring, Some(&self.loaded.load().hosts));
                self.loaded
                    .store(Arc::new(LoadedRing::with_hosts(ring, hosts)));
            }
            Err(error) => {
                warn!(ring = %self.file.path().display(), %error, "ring not reloaded; the old one stays in use");
            }
        }
    }
}

impl Followed {
    /// A host may have moved, and its name resolves differently now.
    fn look_up_again(&self) {
        let loaded = self.loaded.load_full();
        if !loaded.hosts.are_old() {
            return;
        }
        let hosts = Hosts::of(&loaded.ring, Some(&loaded.hosts));
        if !hosts.mean_the_same(&loaded.hosts) {
            info!(ring = %self.file.path().display(), "hosts of the ring have other addresses");
        }
        let ring = loaded.ring.clone();
        self.loaded
            .store(Arc::new(LoadedRing::with_hosts(ring, hosts)));
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
    ///
    /// # Errors
    /// A file that is missing or no ring, with its path.
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

    /// Checks every ring file, loads those that changed, and resolves host names again if they are
    /// due. Blocks on the disk and on name servers.
    pub fn refresh(&self) {
        self.account.refresh();
        self.container.refresh();
        self.objects.values().for_each(Followed::refresh);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::tests::ring_of;

    #[test]
    fn hosts_by_name() {
        let pairs = [("localhost", "127.0.0.1"), ("127.0.0.2", "localhost")];
        let ring = Arc::new(LoadedRing::new(Arc::new(ring_of(&pairs))));
        let loopback = ring.ips("localhost");
        assert!(loopback.iter().any(IpAddr::is_loopback));
        let all = |ring: &LoadedRing| -> Vec<Node> {
            let mut nodes = ring.primaries(0);
            nodes.extend(ring.handoffs(0, 9));
            nodes.sort_by_key(|node| node.device.id);
            nodes
        };
        let [one, two] = &all(&ring)[..] else {
            panic!("two devices")
        };
        assert_eq!(one.address, SocketAddr::new(loopback[0], 6200));
        assert_eq!(one.replication_address, ([127, 0, 0, 1], 6300).into());
        assert_eq!(two.replication_address, SocketAddr::new(loopback[0], 6300));
        let [one, two] = &all(&ring.over_replication())[..] else {
            panic!("two devices")
        };
        assert_eq!(one.address, ([127, 0, 0, 1], 6300).into());
        assert_eq!(two.address, SocketAddr::new(loopback[0], 6300));
    }
}
