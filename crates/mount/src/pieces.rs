//! Bytes in pieces, as received from a socket: slicing does not copy.

use bytes::Bytes;

/// Bytes of a range, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces {
    /// Pieces with the offset of their first byte.
    pieces: Vec<(u64, Bytes)>,
    bytes: u64,
}

impl Pieces {
    pub(crate) fn len(&self) -> u64 {
        self.bytes
    }

    /// Appends `length` bytes from `offset` to `to`; false if there are fewer.
    #[must_use]
    pub(crate) fn take(&self, offset: u64, length: u64, to: &mut Vec<Bytes>) -> bool {
        let end = offset.saturating_add(length);
        if end > self.bytes {
            return false;
        }
        let after = self.pieces.partition_point(|(start, _)| *start <= offset);
        for (start, piece) in &self.pieces[after.saturating_sub(1)..] {
            let (from, until) = (offset.max(*start), end.min(start + piece.len() as u64));
            if *start >= end {
                break;
            }
            if from < until {
                to.push(piece.slice((from - start) as usize..(until - start) as usize));
            }
        }
        true
    }
}

impl From<Vec<Bytes>> for Pieces {
    fn from(all: Vec<Bytes>) -> Pieces {
        let mut pieces = Pieces::default();
        for piece in all.into_iter().filter(|piece| !piece.is_empty()) {
            let start = pieces.bytes;
            pieces.bytes += piece.len() as u64;
            pieces.pieces.push((start, piece));
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn any_part_is_that_of_the_whole(
            lengths in proptest::collection::vec(0usize..9, 0..8),
            offset in 0u64..70,
            length in 0u64..70,
        ) {
            let total: usize = lengths.iter().sum();
            let whole: Vec<u8> = (0..total as u8).collect();
            let mut rest = Bytes::from(whole.clone());
            let cut: Vec<Bytes> = lengths.iter().map(|n| rest.split_to(*n)).collect();
            let pieces = Pieces::from(cut);
            let mut part = Vec::new();
            let is_there = pieces.take(offset, length, &mut part);
            proptest::prop_assert_eq!(is_there, offset + length <= total as u64);
            if is_there {
                let expected = &whole[offset as usize..(offset + length) as usize];
                proptest::prop_assert_eq!(&part.concat()[..], expected);
            }
        }
    }
}
