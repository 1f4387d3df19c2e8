//! A fixed-size set of small integers. Look-ups and rebalances test membership millions of times;
//! one bit per item keeps the set in cache.

#[derive(Clone, Debug)]
pub(crate) struct BitSet(Vec<u64>);

impl BitSet {
    pub(crate) fn new(size: usize) -> Self {
        BitSet(vec![0; size.div_ceil(64)])
    }

    pub(crate) fn contains(&self, item: u32) -> bool {
        self.0
            .get(item as usize / 64)
            .is_some_and(|word| word & (1 << (item % 64)) != 0)
    }

    /// Adds `item`; true if it was not in the set. An item beyond the size is ignored.
    pub(crate) fn insert(&mut self, item: u32) -> bool {
        let Some(word) = self.0.get_mut(item as usize / 64) else {
            return false;
        };
        let bit = 1 << (item % 64);
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }
}
