//! Order of measuring two targets: A B, then B A, and so on, so that a drift of the machine (cache
//! state, temperature, neighbours) affects both alike.

/// The target of a run.
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

/// All runs of `repetitions` on each side: the side, and the run's number from 1. The order
/// alternates between pairs, so that neither side always has the cold start.
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
