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

/// A connection with a request under way.
fn busy(places: &Arc<Places>, address: &str) -> (Place, impl Sized + use<>) {
    let progress = Progress::new();
    let request = progress.begin_request();
    // As of one that sends its body as fast as its network goes.
    progress.awaits_body();
    (places.enter(from(address), progress), request)
}

/// Those that were told to end with their answers.
fn ending(connections: &[(Place, impl Sized)]) -> usize {
    let is_ending = |(place, _): &&(Place, _)| place.occupant.is_ending();
    connections.iter().filter(is_ending).count()
}

#[tokio::test(start_paused = true)]
async fn an_address_gives_up_what_it_has_more_than_others_that_wait() {
    let places = places(8);
    let mut many: Vec<_> = (0..8).map(|_| busy(&places, "192.0.2.1")).collect();
    let before = places.enter(from("192.0.2.1"), Progress::new());
    let waits = tokio::spawn(async move { before.get().await });
    tokio::time::sleep(PATIENCE / 2).await;
    assert_eq!(ending(&many), 0, "its own requests wait for each other");
    let others: Vec<_> = (0..8)
        .map(|_| {
            let place = places.enter(from("192.0.2.2"), Progress::new());
            tokio::spawn(async move { (place.get().await, place) })
        })
        .collect();
    tokio::time::sleep(PATIENCE / 4).await;
    assert_eq!(ending(&many), 4, "half of eight");
    many.retain(|(place, _)| !place.occupant.is_ending());
    tokio::time::sleep(PATIENCE / 16).await;
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
async fn places_are_counted_for_the_address_that_a_proxy_tells() {
    let places = places(2);
    let (one, _request) = busy(&places, "192.0.2.1");
    one.set_address(from("198.51.100.7"));
    let (two, _request) = busy(&places, "192.0.2.1");
    two.set_address(from("198.51.100.7"));
    let held = |address| places.lock().held_by(from(address));
    assert_eq!((held("192.0.2.1"), held("198.51.100.7")), (0, 2));
    let new = places.enter(from("192.0.2.1"), Progress::new());
    assert!(new.try_get().is_none());
    assert!(one.occupant.is_ending());
    assert_eq!(held("198.51.100.7"), 1);
    drop((one, two));
    assert_eq!(held("198.51.100.7"), 0);
    assert!(places.lock().ending == 0);
}

impl Place {
    fn is_in(&self, places: &Places) -> bool {
        let table = places.lock();
        table.seated.contains_key(&self.id) || table.waiting.contains_key(&self.id)
    }
}
