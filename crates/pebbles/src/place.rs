//! The location of a record, packed into 58 bits.

use crate::format::UNIT;

/// Volumes of a device: their numbers are 16 bits.
pub const SLOTS_MAX: usize = 1 << 16;
const OFFSET_BITS: u32 = 24;
const LEN_BITS: u32 = 18;
/// Bits that a packed place leaves to others.
pub(crate) const PLACE_BITS: u32 = 16 + OFFSET_BITS + LEN_BITS;

/// A record's location: the volume's file, and in it the record's first byte and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub slot: u16,
    pub offset: u64,
    pub len: u32,
}

impl Place {
    /// `offset` and `len`: multiples of [`UNIT`].
    pub(crate) fn pack(self) -> u64 {
        let offset = self.offset / UNIT as u64;
        let len = u64::from(self.len) / UNIT as u64;
        assert!(
            offset < 1 << OFFSET_BITS && len < 1 << LEN_BITS,
            "a place beyond what volumes hold: {self:?}"
        );
        (u64::from(self.slot) << (OFFSET_BITS + LEN_BITS)) | (offset << LEN_BITS) | len
    }

    /// The place in the lower [`PLACE_BITS`] bits.
    pub(crate) fn unpack(bits: u64) -> Self {
        let field = |at: u32, bits_of: u32| (bits >> at) & ((1 << bits_of) - 1);
        Place {
            slot: field(OFFSET_BITS + LEN_BITS, 16) as u16,
            offset: field(LEN_BITS, OFFSET_BITS) * UNIT as u64,
            len: (field(0, LEN_BITS) * UNIT as u64) as u32,
        }
    }

    pub fn end(self) -> u64 {
        self.offset + u64::from(self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_packed() {
        for (slot, offset, len) in [(0, 4096, 64), (65_535, (1 << 30) - 64, (1 << 24) - 64)] {
            let place = Place { slot, offset, len };
            assert_eq!(Place::unpack(place.pack()), place);
            assert!(place.pack() < 1 << PLACE_BITS);
        }
    }
}
