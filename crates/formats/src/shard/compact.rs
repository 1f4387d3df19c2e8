//! Compaction of shard ranges: finding small neighbours that can be merged into one.

use cairn_types::Timestamp;

use super::{Bound, Bounded, ShardRange, State};

/// Limits of compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Ranges with fewer rows than this may be merged into another.
    pub shrink_threshold: i64,
    /// Maximum rows of a range after others have been merged into it.
    pub expansion_limit: i64,
    /// Maximum ranges merged into one; negative: unlimited.
    pub max_shrinking: i64,
    /// Maximum ranges that others are merged into; negative: unlimited.
    pub max_expanding: i64,
}

impl Limits {
    fn may_shrink(&self, range: &ShardRange) -> bool {
        range.is_any(&[State::Active, State::Shrinking])
            && range.row_count() < self.shrink_threshold
            && range.row_count() <= self.expansion_limit
    }

    fn is_complete(&self, sequence: &[ShardRange]) -> bool {
        let Some(last) = sequence.last() else {
            return false;
        };
        let rows: i64 = sequence.iter().map(ShardRange::row_count).sum();
        let enough = self.max_shrinking > 0 && (self.max_shrinking as usize) < sequence.len();
        !self.may_shrink(last) || enough || rows >= self.expansion_limit
    }
}

/// Sequences of neighbours that can all be merged into their last one. `own` is the root's own
/// range, which takes all of them if nothing else is left. Sequences that are already being merged
/// count against the limits, and are returned only with `include_shrinking`.
pub fn compactible_sequences(
    ranges: &[ShardRange],
    own: &ShardRange,
    limits: Limits,
    include_shrinking: bool,
) -> Vec<Vec<ShardRange>> {
    let mut found = Vec::new();
    let (mut at, mut expanding) = (0, 0);
    while at < ranges.len() && (limits.max_expanding < 0 || expanding < limits.max_expanding) {
        if !limits.may_shrink(&ranges[at]) {
            at += 1;
            continue;
        }
        let mut sequence = gather(&ranges[at..], limits);
        at += sequence.len();
        let all = at == ranges.len() && sequence.len() == ranges.len();
        if all && !limits.is_complete(&sequence) && spans(&sequence, own) {
            sequence.push(own.clone());
        }
        let acceptor_fits = sequence
            .last()
            .is_some_and(|last| last.is_any(&[State::Active, State::Sharded]));
        if sequence.len() < 2 || !acceptor_fits {
            continue;
        }
        expanding += 1;
        if include_shrinking || sequence.iter().all(|range| !range.is(State::Shrinking)) {
            found.push(sequence);
        }
    }
    found
}

/// The changed ranges of sequences that are to be merged each into its last one: donors shrink, the
/// last one (the acceptor) covers them all.
pub fn shrink_sequences(sequences: &mut [Vec<ShardRange>], now: Timestamp) -> Vec<ShardRange> {
    let mut changed = Vec::new();
    for sequence in sequences {
        let Some((acceptor, donors)) = sequence.split_last_mut() else {
            continue;
        };
        if acceptor.expand(donors.iter()) {
            acceptor.timestamp = now.normal();
        }
        if acceptor.set_state(State::Active) {
            acceptor.state_timestamp = now.normal();
        }
        changed.push(acceptor.clone());
        for donor in donors {
            shrink(donor, now);
            changed.push(donor.clone());
        }
    }
    changed
}

/// Marks a range as a donor: it is to be merged into another, and its epoch is the time of its new
/// state.
pub fn shrink(donor: &mut ShardRange, now: Timestamp) {
    if donor.set_state(State::Shrinking) {
        donor.state_timestamp = now.normal();
        donor.epoch = Some(now.normal());
    }
}

fn gather(ranges: &[ShardRange], limits: Limits) -> Vec<ShardRange> {
    let mut sequence = vec![ranges[0].clone()];
    for range in &ranges[1..] {
        let upper = sequence.last().map_or(Bound::Min, |last| last.upper());
        if upper < range.lower() || !range.is_any(&[State::Active, State::Shrinking]) {
            break;
        }
        if range.is(State::Shrinking) {
            sequence.push(range.clone());
            continue;
        }
        let rows: i64 = sequence.iter().map(ShardRange::row_count).sum();
        if rows + range.row_count() > limits.expansion_limit {
            break;
        }
        sequence.push(range.clone());
        if limits.is_complete(&sequence) {
            break;
        }
    }
    sequence
}

fn spans(sequence: &[ShardRange], own: &ShardRange) -> bool {
    match (sequence.first(), sequence.last()) {
        (Some(first), Some(last)) => first.lower() <= own.lower() && last.upper() >= own.upper(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(lower: &str, upper: &str, count: i64) -> ShardRange {
        let name = format!("a/{lower}-{upper}");
        let mut range = ShardRange::new(name, Timestamp::from_secs(1), lower, upper);
        range.set_state(State::Active);
        range.object_count = count;
        range
    }

    #[test]
    fn small_neighbours() {
        let limits = Limits {
            shrink_threshold: 10,
            expansion_limit: 50,
            max_shrinking: 1,
            max_expanding: -1,
        };
        let mut own = range("", "", 0);
        own.set_state(State::Sharded);
        let ranges = [range("", "c", 2), range("c", "g", 30), range("g", "", 90)];
        let found = compactible_sequences(&ranges, &own, limits, false);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0], ranges[..2]);

        // The remaining range fits into the root.
        let few = [range("", "", 2)];
        let found = compactible_sequences(&few, &own, limits, false);
        assert_eq!(found[0].last(), Some(&own));

        let large = [range("", "c", 90), range("c", "", 90)];
        assert!(compactible_sequences(&large, &own, limits, false).is_empty());
        let gap = [range("", "c", 2), range("d", "", 30)];
        assert!(compactible_sequences(&gap, &own, limits, false).is_empty());
    }
}
