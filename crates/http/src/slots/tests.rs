#![allow(clippy::unwrap_used)]

use super::*;

fn slots(slots_max: usize) -> Arc<Slots> {
    Slots::new("test", slots_max, Counter::default())
}

fn from(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Progress of a connection that has been idle long enough to be closed.
fn idle() -> Arc<Progress> {
    Progress::begun_before(IDLE_MIN * 2)
}

#[tokio::test]
async fn a_connection_without_a_request_gives_up_its_slot() {
    let slots = slots(2);
    let busy = Progress::new();
    let _request = busy.begin_request();
    let busy = slots.enter(from("192.0.2.1"), busy);
    let silent = slots.enter(from("192.0.2.1"), idle());
    let new = slots.enter(from("192.0.2.2"), Progress::new());
    assert!(!new.is_waiting());
    silent.closes().await;
    drop(silent);
    // No connection is left that could be closed.
    let next = slots.enter(from("192.0.2.2"), Progress::new());
    assert!(next.is_waiting() && !busy.is_waiting());
    drop(new);
    assert!(next.get().await);
    assert!(!next.is_waiting());
}

#[tokio::test]
async fn the_address_with_most_of_them_is_first() {
    let slots = slots(4);
    let oldest = slots.enter(from("2001:db8::1"), Progress::begun_before(IDLE_MIN * 9));
    // Addresses of one customer's network.
    let many: Vec<Slot> = ["2001:db8:1::1", "2001:db8:1::2", "2001:db8:1::3"]
        .into_iter()
        .map(|address| slots.enter(from(address), idle()))
        .collect();
    let _new = slots.enter(from("192.0.2.2"), Progress::new());
    let told = many.iter().filter(|slot| !slot.is_in(&slots)).count();
    assert_eq!(told, 1);
    assert!(oldest.is_in(&slots));
}

#[tokio::test]
async fn those_that_wait_are_bounded() {
    let slots = slots(1);
    let working = Progress::new();
    let _request = working.begin_request();
    let _busy = slots.enter(from("192.0.2.1"), working);
    let asking = slots.enter(from("192.0.2.1"), Progress::new());
    let refused = tokio::spawn(async move { asking.get().await });
    while !slots.lock().waiting.values().any(|one| one.is_asking()) {
        tokio::task::yield_now().await;
    }
    let silent = slots.enter(from("192.0.2.1"), Progress::new());
    let more: Vec<Slot> = (2..slots.waiting_max)
        .map(|_| slots.enter(from("192.0.2.1"), Progress::new()))
        .collect();
    assert!(!refused.is_finished() && silent.is_in(&slots));
    // The connection without a request is dismissed before the one with a request.
    let _one = slots.enter(from("192.0.2.1"), Progress::new());
    silent.closes().await;
    for one in &more {
        one.occupant.is_asking.store(true, Ordering::Relaxed);
    }
    let _two = slots.enter(from("192.0.2.1"), Progress::new());
    let _three = slots.enter(from("192.0.2.1"), Progress::new());
    let _four = slots.enter(from("192.0.2.1"), Progress::new());
    assert!(slots.lock().waiting.len() <= slots.waiting_max);
    for one in slots.lock().waiting.values() {
        one.is_asking.store(true, Ordering::Relaxed);
    }
    let _five = slots.enter(from("192.0.2.1"), Progress::new());
    assert!(!refused.await.unwrap());
}

/// A connection with a request in progress.
fn busy(slots: &Arc<Slots>, address: &str) -> (Slot, impl Sized + use<>) {
    let progress = Progress::new();
    let request = progress.begin_request();
    // Progress of a client that sends its body as fast as its network allows.
    progress.awaits_body();
    (slots.enter(from(address), progress), request)
}

/// Number of connections told to end after their current response.
fn ending(connections: &[(Slot, impl Sized)]) -> usize {
    let is_ending = |(slot, _): &&(Slot, _)| slot.occupant.is_ending();
    connections.iter().filter(is_ending).count()
}

#[tokio::test(start_paused = true)]
async fn an_address_gives_up_what_it_has_more_than_others_that_wait() {
    let slots = slots(8);
    let mut many: Vec<_> = (0..8).map(|_| busy(&slots, "192.0.2.1")).collect();
    let before = slots.enter(from("192.0.2.1"), Progress::new());
    let waits = tokio::spawn(async move { before.get().await });
    tokio::time::sleep(SLOT_TIMEOUT / 2).await;
    assert_eq!(ending(&many), 0, "its own requests wait for each other");
    let others: Vec<_> = (0..8)
        .map(|_| {
            let slot = slots.enter(from("192.0.2.2"), Progress::new());
            tokio::spawn(async move { (slot.get().await, slot) })
        })
        .collect();
    tokio::time::sleep(SLOT_TIMEOUT / 4).await;
    assert_eq!(ending(&many), 4, "half of eight");
    many.retain(|(slot, _)| !slot.occupant.is_ending());
    tokio::time::sleep(SLOT_TIMEOUT / 16).await;
    assert!(
        !waits.is_finished(),
        "the address that has fewer comes first"
    );
    assert_eq!(others.iter().filter(|one| one.is_finished()).count(), 4);
    assert_eq!(ending(&many), 0, "each has half of them");
    drop(many);
    assert!(waits.await.unwrap());
    for one in others {
        assert!(one.await.unwrap().0);
    }
}

#[tokio::test]
async fn slots_are_counted_for_the_address_that_a_proxy_reports() {
    let slots = slots(2);
    let (one, _request) = busy(&slots, "192.0.2.1");
    one.set_address(from("198.51.100.7"));
    let (two, _request) = busy(&slots, "192.0.2.1");
    two.set_address(from("198.51.100.7"));
    let held = |address| slots.lock().held_by(from(address));
    assert_eq!((held("192.0.2.1"), held("198.51.100.7")), (0, 2));
    let new = slots.enter(from("192.0.2.1"), Progress::new());
    assert!(new.try_get().is_none());
    assert!(one.occupant.is_ending());
    assert_eq!(held("198.51.100.7"), 1);
    drop((one, two));
    assert_eq!(held("198.51.100.7"), 0);
    assert!(slots.lock().ending == 0);
}

impl Slot {
    fn is_in(&self, slots: &Slots) -> bool {
        let table = slots.lock();
        table.with_slot.contains_key(&self.id) || table.waiting.contains_key(&self.id)
    }
}
