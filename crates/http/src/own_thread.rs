//! Randomness and blocking work that depend on nothing outside a thread, where a simulator has
//! taken it over: dice from a seed, and no other thread's help. Elsewhere they are what they
//! always are.

use std::cell::Cell;

thread_local! {
    static DICE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From now on this thread's dice follow from `seed`, and blocking work is done in place. With
/// `None` it is a thread like others again.
pub fn take_over(seed: Option<u64>) {
    DICE.set(seed);
}

/// A random number. Not for secrets.
pub fn random() -> u64 {
    let Some(state) = DICE.get() else {
        return rand::random();
    };
    // SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators".
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    DICE.set(Some(state));
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
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
