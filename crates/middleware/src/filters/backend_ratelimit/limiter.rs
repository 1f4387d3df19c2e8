//! Rate limiter with a virtual clock: each event advances it by the event's share of a second, and
//! it may lag behind the real clock by the accumulated buffer.

use std::collections::HashMap;

use cairn_types::Timestamp;
use cairn_types::timestamp::TICKS_PER_SECOND;

use super::limits::{LimitedMethod, Limits};

/// Maximum number of limiters kept: devices are few, and many paths that name others can only be
/// errors.
const LIMITERS_MAX: usize = 10_000;

/// Time at which the next event of each device and method is due, in milliseconds.
#[derive(Default)]
pub(super) struct Limiters(HashMap<(String, Option<LimitedMethod>), f64>);

impl Limiters {
    pub(super) fn is_allowed(
        &mut self,
        device: &str,
        method: Option<LimitedMethod>,
        limits: &Limits,
        now: Timestamp,
    ) -> bool {
        let rate = limits.rate(method);
        if rate <= 0.0 {
            return true;
        }
        if self.0.len() >= LIMITERS_MAX {
            self.0.clear();
        }
        let now = now.ticks() as f64 * 1000.0 / TICKS_PER_SECOND as f64;
        let earliest = now - limits.buffer_seconds * 1000.0;
        let due = self.0.entry((device.to_owned(), method)).or_insert(0.0);
        *due = due.max(earliest);
        if now < *due {
            return false;
        }
        *due += 1000.0 / rate;
        true
    }
}
