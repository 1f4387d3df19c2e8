//! Fixed fields of a header.

use super::UNIT;

/// Reads fields; positions are constants of the callers, within the header.
pub(super) struct Fields<'a>(pub(super) &'a [u8; UNIT]);

impl Fields<'_> {
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.0[at..at + N]);
        bytes
    }

    pub(super) fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.bytes(at))
    }

    pub(super) fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes(at))
    }

    pub(super) fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes(at))
    }
}

pub(super) fn put(header: &mut [u8; UNIT], at: usize, field: &[u8]) {
    header[at..at + field.len()].copy_from_slice(field);
}
