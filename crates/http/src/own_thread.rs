//! Randomness and blocking work that a simulator can take over for its thread: random numbers then
//! follow from a seed, and blocking work runs in place. On other threads they are the usual ones.

use std::cell::Cell;

use cairn_types::SplitMix;

thread_local! {
    static DICE: Cell<Option<SplitMix>> = const { Cell::new(None) };
}

/// From now on this thread's random numbers follow from `seed`, and blocking work runs in place.
/// `None` returns the thread to normal.
pub fn take_over(seed: Option<u64>) {
    DICE.set(seed.map(SplitMix::new));
}

/// Whether blocking work of this thread runs in place.
pub fn is_taken_over() -> bool {
    DICE.get().is_some()
}

/// A random number. Not for secrets.
pub fn random() -> u64 {
    let Some(mut dice) = DICE.get() else {
        return rand::random();
    };
    let number = dice.number();
    DICE.set(Some(dice));
    number
}

/// Puts a list into a random order.
pub fn shuffle<T>(list: &mut [T]) {
    for last in (1..list.len()).rev() {
        list.swap(last, (random() % (last as u64 + 1)) as usize);
    }
}

/// Runs blocking work off the event loop; `None` if it panicked.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    if DICE.get().is_some() {
        return Some(work());
    }
    tokio::task::spawn_blocking(work).await.ok()
}

/// Maximum bytes of text that are processed on the event loop: about a millisecond.
const LIGHT_BYTES: usize = 128 << 10;

/// Runs work on `bytes` bytes: in place if they are few, otherwise off the event loop. `None` if it
/// panicked.
pub async fn heavy<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    match bytes {
        0..=LIGHT_BYTES => Some(work()),
        _ => blocking(work).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_taken_over_repeats_itself() {
        let throw = |seed| {
            take_over(Some(seed));
            let mut list: Vec<u64> = (0..20).chain([random(), random()]).collect();
            shuffle(&mut list);
            take_over(None);
            list
        };
        assert_eq!(throw(7), throw(7));
        assert_ne!(throw(7), throw(8));
        assert_ne!(random(), random());
    }
}
