//! Connections: how many round trips a body takes beyond the first.
//!
//! The workers of a closed loop, and servers, keep their connections. Such a connection's window is as
//! large as it has become, unless nothing was sent for as long as a retransmission would wait: then it
//! begins anew, as that of a new connection does. Requests of an open loop come by new connections.

use std::cell::RefCell;
use std::collections::HashMap;

/// Bytes that a connection sends before it hears from its other end: ten segments of 9 kB.
const FIRST_WINDOW_BYTES: f64 = 90e3;
/// Seconds beside a round trip after which a sender retransmits, of the host also where time is dilated.
const RETRANSMISSION_SECONDS: f64 = 0.2;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum End {
    Worker(u64),
    Host(usize),
}

/// When something was last sent from one end to another.
#[derive(Debug)]
pub(super) struct Connections {
    is_open: bool,
    retransmission: f64,
    sent: RefCell<HashMap<(End, End), f64>>,
}

impl Connections {
    /// `is_open`: of an open loop; `dilation`: of an emulated cluster.
    pub(super) fn new(is_open: bool, dilation: Option<f64>) -> Connections {
        Connections {
            is_open,
            retransmission: RETRANSMISSION_SECONDS / dilation.unwrap_or(1.0),
            sent: RefCell::default(),
        }
    }

    /// Round trips between a worker and its proxy, until a body has arrived.
    pub(super) fn of_client(&self, now: f64, ends: (End, End), trip: f64, bytes: f64) -> f64 {
        match self.is_open {
            true => 2.0 + more_windows(bytes),
            false => 1.0 + self.more(now, ends, trip, bytes),
        }
    }

    /// The next body comes by a new connection.
    pub(super) fn renew(&self, ends: (End, End)) {
        self.sent.borrow_mut().remove(&ends);
    }

    /// Round trips beyond the first, of `trip` seconds each, for a body sent on a kept connection.
    pub(super) fn more(&self, now: f64, ends: (End, End), trip: f64, bytes: f64) -> f64 {
        if bytes <= 0.0 {
            return 0.0;
        }
        let before = self.sent.borrow_mut().insert(ends, now);
        let is_kept = before.is_some_and(|before| now - before <= self.retransmission + trip);
        match is_kept {
            true => 0.0,
            false => more_windows(bytes),
        }
    }
}

/// Round trips that a body takes beyond the first, while a new connection's window doubles.
pub(super) fn more_windows(bytes: f64) -> f64 {
    ((bytes / FIRST_WINDOW_BYTES + 1.0).log2().ceil() - 1.0).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_begin_anew_after_a_pause() {
        let ends = (End::Worker(1), End::Host(0));
        let closed = Connections::new(false, Some(10.0));
        let trips = |now| closed.of_client(now, ends, 0.005, 256e3);
        assert_eq!([trips(0.0), trips(0.024), trips(0.05)], [2.0, 1.0, 2.0]);
        assert_eq!(closed.of_client(0.1, ends, 0.005, 64e3), 1.0);
        let open = Connections::new(true, Some(10.0));
        let trips = |now| open.of_client(now, ends, 0.005, 256e3);
        assert_eq!([trips(0.0), trips(0.01)], [3.0, 3.0]);
    }
}
