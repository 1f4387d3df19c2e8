//! The order in which two targets are measured: A B, then B A, and so on, so that a drift of the
//! machine (its cache filling, its temperature, its neighbours) falls on both alike.

/// Which target a run is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    A,
    B,
}

impl Side {
    pub fn letter(self) -> char {
        match self {
            Side::A => 'a',
            Side::B => 'b',
        }
    }
}

/// Every run of `repetitions` each: which side, and its number from 1. Pairs turn round, so that
/// neither side always has the cold start.
pub fn alternate(repetitions: u32) -> impl Iterator<Item = (Side, u32)> {
    (1..=repetitions).flat_map(|number| {
        let pair = if number % 2 == 1 {
            [Side::A, Side::B]
        } else {
            [Side::B, Side::A]
        };
        pair.map(|side| (side, number))
    })
}
