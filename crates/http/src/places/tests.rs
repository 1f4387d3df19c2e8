#![allow(clippy::unwrap_used)]

use super::*;

fn places(seats: usize) -> Arc<Places> {
    Places::new("test", seats, Counter::default())
}

fn from(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Long enough without a request to be closed.
fn idle() -> Arc<Progress> {
    Progress::begun_before(IDLE_MIN * 2)
}

#[tokio::test]
async fn one_that_asks_for_nothing_gives_up_its_place() {
    let places = places(2);
    let busy = Progress::new();
    let _request = busy.begin_request();
    let busy = places.enter(from("192.0.2.1"), busy);
    let silent = places.enter(from("192.0.2.1"), idle());
    let new = places.enter(from("192.0.2.2"), Progress::new());
    assert!(!new.is_waiting());
    silent.closes().await;
    drop(silent);
    // Nobody is left who could be closed.
    let next = places.enter(from("192.0.2.2"), Progress::new());
    assert!(next.is_waiting() && !busy.is_waiting());
    drop(new);
    assert!(next.get().await);
    assert!(!next.is_waiting());
}

#[tokio::test]
async fn the_address_with_most_of_them_is_first() {
    let places = places(4);
    let oldest = places.enter(from("2001:db8::1"), Progress::begun_before(IDLE_MIN * 9));
    // One customer's.
    let many: Vec<Place> = ["2001:db8:1::1", "2001:db8:1::2", "2001:db8:1::3"]
        .into_iter()
        .map(|address| places.enter(from(address), idle()))
        .collect();
    let _new = places.enter(from("192.0.2.2"), Progress::new());
    let told = many.iter().filter(|place| !place.is_in(&places)).count();
    assert_eq!(told, 1);
    assert!(oldest.is_in(&places));
}

#[tokio::test]
async fn those_that_wait_are_bounded() {
    let places = places(1);
    let working = Progress::new();
    let _request = working.begin_request();
    let _busy = places.enter(from("192.0.2.1"), working);
    let asking = places.enter(from("192.0.2.1"), Progress::new());
    let refused = tokio::spawn(async move { asking.get().await });
    while !places.lock().waiting.values().any(|one| one.is_asking()) {
        tokio::task::yield_now().await;
    }
    let silent = places.enter(from("192.0.2.1"), Progress::new());
    let more: Vec<Place> = (2..places.waiting_max)
        .map(|_| places.enter(from("192.0.2.1"), Progress::new()))
        .collect();
    assert!(!refused.is_finished() && silent.is_in(&places));
    // The silent one before the one that asks.
    let _one = places.enter(from("192.0.2.1"), Progress::new());
    silent.closes().await;
    for one in &more {
        one.occupant.is_asking.store(true, Ordering::Relaxed);
    }
    let _two = places.enter(from("192.0.2.1"), Progress::new());
    let _three = places.enter(from("192.0.2.1"), Progress::new());
    let _four = places.enter(from("192.0.2.1"), Progress::new());
    assert!(places.lock().waiting.len() <= places.waiting_max);
    for one in places.lock().waiting.values() {
        one.is_asking.store(true, Ordering::Relaxed);
    }
    let _five = places.enter(from("192.0.2.1"), Progress::new());
    assert!(!refused.await.unwrap());
}

impl Place {
    fn is_in(&self, places: &Places) -> bool {
        let table = places.lock();
        table.seated.contains_key(&self.id) || table.waiting.contains_key(&self.id)
    }
}
