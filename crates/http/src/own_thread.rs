//! Randomness and blocking work that depend on nothing outside a thread, where a simulator has
//! taken it over: dice from a seed, and no other thread's help. Elsewhere they are what they
//! always are.

use std::cell::Cell;

use cairn_types::SplitMix;

thread_local! {
    static DICE: Cell<Option<SplitMix>> = const { Cell::new(None) };
}

/// From now on this thread's dice follow from `seed`, and blocking work is done in place. With
/// `None` it is a thread like others again.
pub fn take_over(seed: Option<u64>) {
    DICE.set(seed.map(SplitMix::new));
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

/// Runs work that blocks, off the event loop; none where it panicked.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    if DICE.get().is_some() {
        return Some(work());
    }
    tokio::task::spawn_blocking(work).await.ok()
}

/// More than this much of a text is not worked on by an event loop: a millisecond at the most.
const LIGHT_BYTES: usize = 128 << 10;

/// Work on `bytes` of something: here where that is little, else off the event loop; none where it
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
