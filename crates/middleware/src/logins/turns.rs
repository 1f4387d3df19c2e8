//! Turns at hashing passwords: a few at one time, and addresses by turns, so that one that asks
//! for many holds nobody else up.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::failures::Address;

/// Passwords that are hashed at one time.
const AT_ONCE: usize = 2;
/// Those that wait: of one address, and of all.
const OF_ADDRESS: usize = 16;
const OF_ALL: usize = 512;
const LONGEST_WAIT: Duration = Duration::from_secs(10);

#[derive(Clone, Default)]
pub(crate) struct Turns(Arc<Mutex<Queue>>);

#[derive(Default)]
struct Queue {
    taken: usize,
    /// Addresses with somebody who waits, each once.
    order: VecDeque<Address>,
    waiting: HashMap<Address, VecDeque<oneshot::Sender<Turn>>>,
}

/// Somebody's; the next one's when it is dropped.
pub(crate) struct Turn(Turns);

/// Too many wait.
#[derive(Debug)]
pub(crate) struct Full;

impl Turns {
    pub(crate) async fn wait(&self, address: Address) -> Result<Turn, Full> {
        let receiver = {
            let mut queue = self.queue();
            if queue.taken < AT_ONCE {
                queue.taken += 1;
                return Ok(Turn(self.clone()));
            }
            queue.enter(address)?
        };
        match tokio::time::timeout(LONGEST_WAIT, receiver).await {
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
        // Clients that went away make room.
        self.waiting.retain(|_, of_address| {
            of_address.retain(|sender| !sender.is_closed());
            !of_address.is_empty()
        });
        let waiting = &self.waiting;
        self.order.retain(|address| waiting.contains_key(address));
        let all: usize = self.waiting.values().map(VecDeque::len).sum();
        let of_address = self.waiting.get(&address).map_or(0, VecDeque::len);
        if all >= OF_ALL || of_address >= OF_ADDRESS {
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
            // To one that went away it comes back, and is dropped again, for the next.
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
        for _ in 0..AT_ONCE {
            taken.push(turns.wait(address(1)).await.unwrap());
        }
        let enter = |of| turns.queue().enter(address(of));
        let mut flood: Vec<_> = (0..OF_ADDRESS).map(|_| enter(1).unwrap()).collect();
        assert!(enter(1).is_err());
        let mut other = enter(2).unwrap();
        let mut given = Vec::new();
        taken.pop();
        given.push(flood[0].try_recv().unwrap());
        assert!(other.try_recv().is_err());
        taken.pop();
        given.push(other.try_recv().unwrap());
        assert!(flood[1].try_recv().is_err());
        // Whoever went away is passed over, and all turns are free in the end.
        drop(flood);
        given.clear();
        assert_eq!(turns.queue().taken, 0);
    }
}
