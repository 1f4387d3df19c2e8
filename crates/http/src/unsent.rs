//! Memory for response content that clients have not taken yet: counted for the whole process and
//! for each address, bounded, and shared fairly between addresses.
//!
//! From [`CROWD_BYTES`] on, the responses of an address with more than its share of them continue
//! only when their sockets have taken all previous content (`progress.rs`), so each holds one
//! piece. Content that is produced in large parts, from fragments, reserves its memory first
//! (`unsent/reserved.rs`).
//!
//! An address is that of `slots.rs`: for IPv6 the /64 network.

mod reserved;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::addresses::customer;

pub(crate) use reserved::is_needed;
pub use reserved::{NoRoom, Reserved};

/// Unsent bytes of all responses above which an address has only its share of these.
const CROWD_BYTES: usize = 24 << 20;

static UNSENT_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Number of addresses with unsent content.
static HOLDERS: AtomicUsize = AtomicUsize::new(0);
/// The addresses that are connected.
static ADDRESSES: Mutex<BTreeMap<IpAddr, Connected>> = Mutex::new(BTreeMap::new());

struct Connected {
    connections: usize,
    unsent: Arc<AtomicUsize>,
}

/// A connection's access to the count of its address. The count is looked up once for each
/// connection, so that responses take no lock.
pub(crate) struct Account {
    address: IpAddr,
    /// Unsent bytes of all connections of the address.
    unsent: Arc<AtomicUsize>,
}

impl Account {
    pub(crate) fn open(address: IpAddr) -> Account {
        let address = customer(address);
        let mut all = ADDRESSES.lock();
        let connected = all.entry(address).or_insert_with(|| Connected {
            connections: 0,
            unsent: Arc::default(),
        });
        connected.connections += 1;
        Account {
            address,
            unsent: connected.unsent.clone(),
        }
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    fn has_its_share(&self) -> bool {
        let holders = HOLDERS.load(Ordering::Relaxed);
        self.unsent.load(Ordering::Relaxed) >= CROWD_BYTES / holders.saturating_add(1)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let mut all = ADDRESSES.lock();
        if let Some(connected) = all.get_mut(&self.address) {
            connected.connections -= 1;
            if connected.connections == 0 {
                all.remove(&self.address);
            }
        }
    }
}

/// Counts content that was handed to a connection.
pub(crate) fn add(account: Option<&Account>, bytes: usize) {
    if bytes == 0 {
        return;
    }
    UNSENT_BYTES.fetch_add(bytes, Ordering::Relaxed);
    if let Some(account) = account
        && account.unsent.fetch_add(bytes, Ordering::Relaxed) == 0
    {
        HOLDERS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Subtracts content that a socket took, or whose connection has ended.
pub(crate) fn remove(account: Option<&Account>, bytes: usize) {
    if bytes == 0 {
        return;
    }
    UNSENT_BYTES.fetch_sub(bytes, Ordering::Relaxed);
    if let Some(account) = account
        && account.unsent.fetch_sub(bytes, Ordering::Relaxed) == bytes
    {
        HOLDERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Is so much unsent, and so much of it this address's, that each of its responses may have only
/// one piece?
pub(crate) fn is_crowded(account: Option<&Account>) -> bool {
    UNSENT_BYTES.load(Ordering::Relaxed) >= CROWD_BYTES
        && account.is_none_or(Account::has_its_share)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) use super::reserved::tests::reserve_all;

    /// Lock for tests that fill the memory shared by the process.
    pub(crate) static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

    pub(crate) fn unsent_bytes() -> usize {
        UNSENT_BYTES.load(Ordering::Relaxed)
    }

    /// Unsent content of other connections of an address, until it is dropped.
    pub(crate) struct Crowd(Account);

    impl Crowd {
        pub(crate) fn gather(address: [u8; 4]) -> Crowd {
            let account = Account::open(address.into());
            add(Some(&account), CROWD_BYTES);
            Crowd(account)
        }
    }

    impl Drop for Crowd {
        fn drop(&mut self) {
            remove(Some(&self.0), CROWD_BYTES);
        }
    }

    #[tokio::test]
    async fn an_address_that_reads_nothing_crowds_only_itself() {
        let _alone = ALONE.lock().await;
        let crowd = Crowd::gather([192, 0, 2, 1]);
        let [same, other] = [1, 2].map(|last| Account::open([192, 0, 2, last].into()));
        assert!(is_crowded(Some(&same)));
        assert!(!is_crowded(Some(&other)));
        // Its share among three: other tests of this process may hold some, too.
        add(Some(&other), CROWD_BYTES / 3);
        assert!(is_crowded(Some(&other)));
        remove(Some(&other), CROWD_BYTES / 3);
        drop(crowd);
        assert!(!is_crowded(Some(&same)) && !is_crowded(Some(&other)));
    }

    #[tokio::test]
    async fn addresses_that_have_left_are_forgotten() {
        let address: IpAddr = [192, 0, 2, 3].into();
        let is_known = || ADDRESSES.lock().contains_key(&address);
        let [one, another] = [Account::open(address), Account::open(address)];
        add(Some(&one), 5);
        assert_eq!(another.unsent.load(Ordering::Relaxed), 5);
        remove(Some(&one), 5);
        drop(one);
        assert!(is_known());
        drop(another);
        assert!(!is_known());
    }
}
