//! Fair queue for hashing passwords: a few at a time, alternating between addresses, so that one
//! with many attempts does not delay others.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::failures::Address;

/// Passwords hashed at a time.
const CONCURRENT_MAX: usize = 2;
/// Maximum number of waiting attempts: of one address, and of all.
const ADDRESS_WAITING_MAX: usize = 16;
const WAITING_MAX: usize = 512;
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Default)]
pub(crate) struct Turns(Arc<Mutex<Queue>>);

#[derive(Default)]
struct Queue {
    taken: usize,
    /// Addresses with waiting attempts, each once.
    order: VecDeque<Address>,
    waiting: HashMap<Address, VecDeque<oneshot::Sender<Turn>>>,
}

/// Permission to hash; passed to the next waiting attempt when dropped.
pub(crate) struct Turn(Turns);

/// Too many attempts are waiting.
#[derive(Debug)]
pub(crate) struct Full;

impl Turns {
    pub(crate) async fn wait(&self, address: Address) -> Result<Turn, Full> {
        let receiver = {
            let mut queue = self.queue();
            if queue.taken < CONCURRENT_MAX {
                queue.taken += 1;
                return Ok(Turn(self.clone()));
            }
            queue.enter(address)?
        };
        match tokio::time::timeout(WAIT_TIMEOUT, receiver).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(Full),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock()
    }
}

impl Queue {
    fn enter(&mut self, address: Address) -> Result<oneshot::Receiver<Turn>, Full> {
        // Attempts of disconnected clients make room.
        self.waiting.retain(|_, of_address| {
            of_address.retain(|sender| !sender.is_closed());
            !of_address.is_empty()
        });
        let waiting = &self.waiting;
        self.order.retain(|address| waiting.contains_key(address));
        let all: usize = self.waiting.values().map(VecDeque::len).sum();
        let of_address = self.waiting.get(&address).map_or(0, VecDeque::len);
        if all >= WAITING_MAX || of_address >= ADDRESS_WAITING_MAX {
            return Err(Full);
        }
        if of_address == 0 {
            self.order.push_back(address);
        }
        let (sender, receiver) = oneshot::channel();
        self.waiting.entry(address).or_default().push_back(sender);
        Ok(receiver)
    }

    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        let address = self.order.pop_front()?;
        let of_address = self.waiting.get_mut(&address)?;
        let sender = of_address.pop_front();
        if of_address.is_empty() {
            self.waiting.remove(&address);
        } else {
            self.order.push_back(address);
        }
        sender
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let next = {
            let mut queue = self.0.queue();
            let next = queue.next();
            if next.is_none() {
                queue.taken -= 1;
            }
            next
        };
        if let Some(sender) = next {
            // If the receiver is gone, the turn comes back, is dropped, and goes to the next.
            let _ = sender.send(Turn(self.0.clone()));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn address(last: u8) -> Address {
        Address::of([10, 0, 0, last].into())
    }

    #[tokio::test]
    async fn addresses_take_turns_and_the_queue_is_bounded() {
        let turns = Turns::default();
        let mut taken = Vec::new();
        for _ in 0..CONCURRENT_MAX {
            taken.push(turns.wait(address(1)).await.unwrap());
        }
        let enter = |of| turns.queue().enter(address(of));
        let mut flood: Vec<_> = (0..ADDRESS_WAITING_MAX)
            .map(|_| enter(1).unwrap())
            .collect();
        assert!(enter(1).is_err());
        let mut other = enter(2).unwrap();
        let mut given = Vec::new();
        taken.pop();
        given.push(flood[0].try_recv().unwrap());
        assert!(other.try_recv().is_err());
        taken.pop();
        given.push(other.try_recv().unwrap());
        assert!(flood[1].try_recv().is_err());
        // Disconnected attempts are skipped, and all turns are free in the end.
        drop(flood);
        given.clear();
        assert_eq!(turns.queue().taken, 0);
    }
}
