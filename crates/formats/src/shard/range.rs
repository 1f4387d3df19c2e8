//! One shard range with the fields that databases and requests have, and the rule by which of two
//! versions the newer one wins.

use cairn_types::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Bound, Bounded, Namespace, by_upper};

/// Maximum objects, and bytes, of one range that somebody names: an exbibyte, so that a few of them
/// still have a sum. Sums of many are [`total`].
pub const COUNT_MAX: i64 = 1 << 60;
const COUNT_EXPECTED: &str = "0 to 1152921504606846976";

/// The sum of counts; what 64 bits cannot hold is their maximum.
pub fn total(counts: impl IntoIterator<Item = i64>) -> i64 {
    counts.into_iter().fold(0, i64::saturating_add)
}

/// State of a shard's life cycle; the numbers are those of the databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i64)]
pub enum State {
    /// Its bounds are known; it has no container yet.
    Found = 10,
    /// Its container takes updates; older rows are still in the parent.
    Created = 20,
    /// At least one of the parent's replicas has copied its rows.
    Cleaved = 30,
    Active = 40,
    /// It is being merged into another one.
    Shrinking = 50,
    /// It is being split.
    Sharding = 60,
    Sharded = 70,
    Shrunk = 80,
}

impl State {
    pub const ALL: [State; 8] = [
        State::Found,
        State::Created,
        State::Cleaved,
        State::Active,
        State::Shrinking,
        State::Sharding,
        State::Sharded,
        State::Shrunk,
    ];
    /// States whose counts are part of the root's.
    pub const COUNTED: [State; 3] = [State::Active, State::Sharding, State::Shrinking];
    /// States from which listings are read.
    pub const LISTING: [State; 4] = [
        State::Active,
        State::Sharding,
        State::Shrinking,
        State::Cleaved,
    ];
    /// States that take new rows.
    pub const UPDATING: [State; 4] = [
        State::Created,
        State::Cleaved,
        State::Active,
        State::Sharding,
    ];
    /// States that a shard's audit requests from its root.
    pub const AUDITING: [State; 7] = [
        State::Created,
        State::Cleaved,
        State::Active,
        State::Sharding,
        State::Sharded,
        State::Shrinking,
        State::Shrunk,
    ];

    pub fn from_number(number: i64) -> Option<State> {
        State::ALL.into_iter().find(|state| *state as i64 == number)
    }

    pub const fn name(self) -> &'static str {
        match self {
            State::Found => "found",
            State::Created => "created",
            State::Cleaved => "cleaved",
            State::Active => "active",
            State::Shrinking => "shrinking",
            State::Sharding => "sharding",
            State::Sharded => "sharded",
            State::Shrunk => "shrunk",
        }
    }

    /// Parses a name or number.
    pub fn parse(text: &str) -> Option<State> {
        if let Ok(number) = text.trim().parse() {
            return State::from_number(number);
        }
        let text = text.to_ascii_lowercase();
        State::ALL.into_iter().find(|state| state.name() == text)
    }

    pub fn is_shrinking(self) -> bool {
        matches!(self, State::Shrinking | State::Shrunk)
    }

    pub fn is_sharding(self) -> bool {
        matches!(self, State::Sharding | State::Sharded)
    }

    /// Are its rows moved, or already moved, to other shards?
    pub fn is_cleaving(self) -> bool {
        self.is_shrinking() || self.is_sharding()
    }

    /// Does it have all its rows, so that its counts are meaningful?
    pub fn has_counts(self) -> bool {
        self >= State::Cleaved
    }
}

/// A row of the table `shard_range`; the JSON keys are the names of the columns. Times are text in
/// Swift's internal form, and compared as text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRange {
    pub name: String,
    pub timestamp: String,
    pub lower: String,
    pub upper: String,
    pub object_count: i64,
    pub bytes_used: i64,
    /// Time of the counts.
    pub meta_timestamp: String,
    pub deleted: i64,
    pub state: i64,
    pub state_timestamp: String,
    pub epoch: Option<String>,
    #[serde(default)]
    pub reported: i64,
    #[serde(default = "unknown")]
    pub tombstones: i64,
}

fn unknown() -> i64 {
    -1
}

/// Reasons why a value is not a shard range.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{field} is {value:?}: expected {expected}")]
pub struct BadShardRange {
    pub field: &'static str,
    pub value: String,
    pub expected: &'static str,
}

impl Bounded for ShardRange {
    fn name(&self) -> &str {
        &self.name
    }

    fn lower(&self) -> Bound<'_> {
        Bound::lower(&self.lower)
    }

    fn upper(&self) -> Bound<'_> {
        Bound::upper(&self.upper)
    }
}

impl ShardRange {
    /// A new range between two bounds, in state [`State::Found`], with `now` as all its times.
    pub fn new(name: impl Into<String>, now: Timestamp, lower: &str, upper: &str) -> Self {
        let now = now.normal();
        ShardRange {
            name: name.into(),
            timestamp: now.clone(),
            lower: lower.to_owned(),
            upper: upper.to_owned(),
            meta_timestamp: now.clone(),
            state: State::Found as i64,
            state_timestamp: now,
            tombstones: -1,
            ..ShardRange::default()
        }
    }

    /// Parses JSON; a missing field is an error, and times are converted to the internal form.
    ///
    /// # Errors
    /// The first field that is missing, of the wrong type or out of range; a name that is no
    /// `account/container`, and bounds in the wrong order.
    pub fn from_json(value: &serde_json::Value) -> Result<Self, BadShardRange> {
        let bad = |field, expected| {
            let value = value
                .get(field)
                .map_or("missing".to_owned(), |v| v.to_string());
            BadShardRange {
                field,
                value,
                expected,
            }
        };
        let text = |field: &'static str| match value.get(field) {
            Some(serde_json::Value::String(text)) => Ok(text.clone()),
            _ => Err(bad(field, "text")),
        };
        let optional_time = |field: &'static str| match value.get(field) {
            Some(serde_json::Value::Null) => Ok(None),
            Some(serde_json::Value::String(text)) => Timestamp::parse(text)
                .map(|time| Some(time.normal()))
                .map_err(|_| bad(field, "a timestamp")),
            Some(serde_json::Value::Number(number)) => Timestamp::parse(&number.to_string())
                .map(|time| Some(time.normal()))
                .map_err(|_| bad(field, "a timestamp")),
            _ => Err(bad(field, "a timestamp")),
        };
        let number = |field: &'static str, default: Option<i64>| match value.get(field) {
            Some(serde_json::Value::Bool(yes)) => Ok(i64::from(*yes)),
            Some(serde_json::Value::Number(n)) => n.as_i64().ok_or_else(|| bad(field, "a number")),
            Some(serde_json::Value::String(n)) => {
                n.trim().parse().map_err(|_| bad(field, "a number"))
            }
            None => default.ok_or_else(|| bad(field, "a number")),
            _ => Err(bad(field, "a number")),
        };
        let timestamp = optional_time("timestamp")?.ok_or_else(|| bad("timestamp", "a time"))?;
        let state = match value.get("state") {
            Some(serde_json::Value::Null) => Some(State::Found),
            Some(serde_json::Value::String(name)) => State::parse(name),
            Some(state) => state.as_i64().and_then(State::from_number),
            None => None,
        };
        let range = ShardRange {
            name: text("name")?,
            lower: text("lower")?,
            upper: text("upper")?,
            object_count: number("object_count", None)?,
            bytes_used: number("bytes_used", None)?,
            meta_timestamp: optional_time("meta_timestamp")?.unwrap_or_else(|| timestamp.clone()),
            deleted: i64::from(number("deleted", None)? != 0),
            state: state.ok_or_else(|| bad("state", "a state's name or number"))? as i64,
            state_timestamp: optional_time("state_timestamp")?.unwrap_or_else(|| timestamp.clone()),
            epoch: optional_time("epoch")?,
            reported: i64::from(number("reported", Some(0))? != 0),
            tombstones: number("tombstones", Some(-1))?,
            timestamp,
        };
        let is_path =
            range.name.split('/').count() == 2 && range.name.split('/').all(|p| !p.is_empty());
        if !is_path {
            return Err(bad("name", "account/container"));
        }
        if !(0..=COUNT_MAX).contains(&range.object_count) {
            return Err(bad("object_count", COUNT_EXPECTED));
        }
        if !(0..=COUNT_MAX).contains(&range.bytes_used) {
            return Err(bad("bytes_used", COUNT_EXPECTED));
        }
        if range.lower() > range.upper() {
            return Err(bad("upper", "no less than lower"));
        }
        Ok(range)
    }

    /// The state; `None` for an unknown number.
    pub fn state(&self) -> Option<State> {
        State::from_number(self.state)
    }

    pub fn is(&self, state: State) -> bool {
        self.state == state as i64
    }

    pub fn is_any(&self, states: &[State]) -> bool {
        states.iter().any(|state| self.is(*state))
    }

    pub fn state_text(&self) -> &'static str {
        self.state().map_or("unknown", State::name)
    }

    pub fn is_cleaving(&self) -> bool {
        self.state().is_some_and(State::is_cleaving)
    }

    pub fn is_deleted(&self) -> bool {
        self.deleted != 0
    }

    /// Number of objects and tombstones.
    pub fn row_count(&self) -> i64 {
        self.object_count + self.tombstones.max(0)
    }

    pub fn namespace(&self) -> Namespace {
        Namespace {
            name: self.name.clone(),
            lower: self.lower.clone(),
            upper: self.upper.clone(),
        }
    }

    /// Sets the state without changing its time. Returns true if it changed.
    pub fn set_state(&mut self, state: State) -> bool {
        if self.is(state) {
            return false;
        }
        self.state = state as i64;
        self.reported = 0;
        true
    }

    pub fn set_state_at(&mut self, state: State, time: Timestamp) {
        self.state = state as i64;
        self.state_timestamp = time.normal();
        self.reported = 0;
    }

    pub fn set_counts(&mut self, object_count: i64, bytes_used: i64, now: Timestamp) {
        let (objects, bytes) = (object_count.max(0), bytes_used.max(0));
        if (self.object_count, self.bytes_used) != (objects, bytes) {
            (self.object_count, self.bytes_used) = (objects, bytes);
            self.reported = 0;
        }
        self.meta_timestamp = now.normal();
    }

    pub fn set_tombstones(&mut self, tombstones: i64, now: Timestamp) {
        if tombstones >= 0 && tombstones != self.tombstones {
            self.tombstones = tombstones;
            self.reported = 0;
        }
        self.meta_timestamp = now.normal();
    }

    /// Marks the range as deleted. Returns false if it was already.
    pub fn set_deleted(&mut self, now: Timestamp) -> bool {
        if self.is_deleted() {
            return false;
        }
        self.deleted = 1;
        self.timestamp = now.normal();
        true
    }

    /// A new version of itself with all its times set to `now`.
    pub fn renewed(&self, now: Timestamp) -> ShardRange {
        let now = now.normal();
        ShardRange {
            timestamp: now.clone(),
            meta_timestamp: now.clone(),
            state_timestamp: now,
            ..self.clone()
        }
    }

    /// Extends the bounds to cover all the others. Returns true if they changed.
    pub fn expand<'r>(&mut self, others: impl IntoIterator<Item = &'r ShardRange>) -> bool {
        let before = (self.lower.clone(), self.upper.clone());
        for other in others {
            if other.lower() < self.lower() {
                self.lower.clone_from(&other.lower);
            }
            if other.upper() > self.upper() {
                self.upper.clone_from(&other.upper);
            }
        }
        before != (self.lower.clone(), self.upper.clone())
    }

    /// Takes from `old` what is newer there: of two versions with the same creation time, counts
    /// and state are each decided by their own time. Returns false if this version then adds
    /// nothing to `old`.
    pub fn take_newer(&mut self, old: &ShardRange) -> bool {
        if old.timestamp < self.timestamp {
            self.reported = 0;
            return true;
        }
        if old.timestamp > self.timestamp {
            return false;
        }
        let mut news = false;
        self.lower.clone_from(&old.lower);
        self.upper.clone_from(&old.upper);
        self.deleted = old.deleted;
        if old.meta_timestamp >= self.meta_timestamp {
            self.object_count = old.object_count;
            self.bytes_used = old.bytes_used;
            self.meta_timestamp.clone_from(&old.meta_timestamp);
            self.tombstones = old.tombstones;
        } else {
            news = true;
        }
        let same = old.object_count == self.object_count
            && old.bytes_used == self.bytes_used
            && old.tombstones == self.tombstones
            && old.state == self.state
            && old.epoch == self.epoch;
        if old.reported != 0 && same {
            self.reported = 1;
        } else if self.reported != 0 && old.reported == 0 {
            news = true;
        }
        let advances = old.state_timestamp == self.state_timestamp && self.state > old.state;
        if advances || old.state_timestamp < self.state_timestamp {
            return true;
        }
        self.state = old.state;
        self.state_timestamp.clone_from(&old.state_timestamp);
        self.epoch.clone_from(&old.epoch);
        news
    }
}

/// Sorts into the order of databases and responses: by upper bound, state, lower bound, name.
pub fn sort_ranges(ranges: &mut [ShardRange]) {
    ranges.sort_by(|a, b| {
        by_upper(a, b)
            .then(a.state.cmp(&b.state))
            .then_with(|| a.lower().cmp(&b.lower()))
            .then_with(|| a.name.cmp(&b.name))
    });
}

/// The result of merging `new` into `existing`, without deleted ranges.
pub fn combine(new: &[ShardRange], existing: &[ShardRange]) -> Vec<ShardRange> {
    let mut combined: Vec<ShardRange> = existing.to_vec();
    for range in new {
        let mut range = range.clone();
        match combined.iter_mut().find(|old| old.name == range.name) {
            None => combined.push(range),
            Some(old) => {
                if range.take_newer(old) {
                    *old = range;
                }
            }
        }
    }
    combined.retain(|range| !range.is_deleted());
    sort_ranges(&mut combined);
    combined
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn range(timestamp: &str, meta: &str, state: (i64, &str)) -> ShardRange {
        ShardRange {
            name: "a/c".into(),
            timestamp: timestamp.into(),
            meta_timestamp: meta.into(),
            object_count: meta.len() as i64,
            state: state.0,
            state_timestamp: state.1.into(),
            ..ShardRange::default()
        }
    }

    #[test]
    fn each_part_by_its_own_time() {
        let old = range("2", "5", (40, "5"));
        assert!(!range("1", "9", (60, "9")).take_newer(&old));
        assert!(range("3", "1", (10, "1")).take_newer(&old));
        assert!(!old.clone().take_newer(&old));
        let mut newer_state = range("2", "44", (60, "6"));
        assert!(newer_state.take_newer(&old));
        assert_eq!((newer_state.object_count, newer_state.state), (1, 60));
        let mut newer_counts = range("2", "66", (60, "4"));
        assert!(newer_counts.take_newer(&old));
        assert_eq!((newer_counts.object_count, newer_counts.state), (2, 40));
        // If two states have the same time, the later one in the life cycle wins.
        assert!(range("2", "5", (50, "5")).take_newer(&old));
    }

    #[test]
    fn a_total_does_not_wrap_around() {
        assert_eq!(total([1, 2, 3]), 6);
        assert_eq!(total([COUNT_MAX; 9]), i64::MAX);
        let ranges: Vec<ShardRange> = (0..9)
            .map(|n| {
                let mut range = ShardRange::new("a/c", Timestamp::from_secs(n), "", "");
                range.object_count = COUNT_MAX;
                range
            })
            .collect();
        assert_eq!(
            total(ranges.iter().map(|range| range.object_count)),
            i64::MAX
        );
    }

    #[test]
    fn json_is_checked() {
        let good = serde_json::json!({
            "name": "a/c", "timestamp": 1.5, "lower": "", "upper": "m", "object_count": 1,
            "bytes_used": 2, "meta_timestamp": null, "deleted": 0, "state": "active",
            "state_timestamp": "0000000002.00000", "epoch": null,
        });
        let range = ShardRange::from_json(&good).unwrap();
        assert_eq!(range.timestamp, "0000000001.50000");
        assert_eq!(range.meta_timestamp, range.timestamp);
        assert!(range.is(State::Active));
        assert_eq!((range.reported, range.tombstones), (0, -1));
        for (field, value) in [
            ("name", serde_json::json!("a")),
            ("state", serde_json::json!(11)),
            ("object_count", serde_json::json!(-1)),
            // Sums of many would not fit into 64 bits.
            ("object_count", serde_json::json!(i64::MAX)),
            ("bytes_used", serde_json::json!("9223372036854775807")),
            ("lower", serde_json::json!("n")),
            ("timestamp", serde_json::json!(null)),
        ] {
            let mut bad = good.clone();
            bad[field] = value;
            assert!(ShardRange::from_json(&bad).is_err(), "{field}");
        }
    }

    #[test]
    fn bounds_expand() {
        let now = Timestamp::from_secs(1);
        let mut acceptor = ShardRange::new("a/c", now, "m", "q");
        let donor = ShardRange::new("a/d", now, "", "m");
        assert!(acceptor.expand([&donor]));
        assert_eq!(
            (acceptor.lower.as_str(), acceptor.upper.as_str()),
            ("", "q")
        );
        assert!(!acceptor.expand([&donor]));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod properties;
