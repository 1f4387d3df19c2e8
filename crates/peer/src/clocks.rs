//! Detection of storage servers whose clock differs from this process's.
//!
//! The proxy sets the timestamp of a write, and the later of two writes wins. A proxy whose clock
//! is behind gets 202 for writes without effect, one whose clock is ahead makes writes that others
//! cannot overwrite, and no client notices either. Every response has its server's time in `Date`
//! (RFC 9110, 6.6.1), which is compared here.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use cairn_http::Response;
use cairn_http::metrics::count_clock_difference;
use cairn_http::respond::header;
use parking_lot::Mutex;

/// Tolerated difference: `Date` has whole seconds, and a response may be in transit for several.
const DIFFERENCE_MAX: Duration = Duration::from_secs(10);
/// Minimum time between two warnings about one server.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Servers whose clock differed, with the time of the last warning.
#[derive(Default)]
pub(crate) struct Clocks {
    told: Mutex<HashMap<SocketAddr, Instant>>,
}

impl Clocks {
    /// Compares the response's `Date` to the time `now`. Returns true if it differs; this is
    /// counted, and logged once a minute.
    pub(crate) fn compare(
        &self,
        address: SocketAddr,
        response: &Response,
        now: SystemTime,
    ) -> bool {
        let date = header(response.headers(), "date");
        let Some(theirs) = date.and_then(|date| httpdate::parse_http_date(date).ok()) else {
            return false;
        };
        let (by, is_ahead) = match now.duration_since(theirs) {
            Ok(by) => (by, true),
            Err(error) => (error.duration(), false),
        };
        if by <= DIFFERENCE_MAX {
            return false;
        }
        count_clock_difference();
        if self.is_to_be_told(address) {
            tracing::warn!(
                server = %address, seconds = by.as_secs(),
                "this host's clock is {} of this server's: writes may be acknowledged without \
                 effect, or hide later ones; set the clocks (NTP)",
                if is_ahead { "ahead" } else { "behind" }
            );
        }
        true
    }

    fn is_to_be_told(&self, address: SocketAddr) -> bool {
        let mut told = self.told.lock();
        let now = Instant::now();
        let is_new = |last: &Instant| now.duration_since(*last) >= WARNING_INTERVAL;
        let is_due = told.get(&address).is_none_or(is_new);
        if is_due {
            told.retain(|_, last| !is_new(last));
            told.insert(address, now);
        }
        is_due
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::UNIX_EPOCH;

    use cairn_http::respond;
    use http::StatusCode;

    use super::*;

    #[test]
    fn either_way_beyond_what_is_tolerated_and_told_once() {
        let clocks = Clocks::default();
        let address = "127.0.0.1:6200".parse().unwrap();
        let at = |secs| UNIX_EPOCH + Duration::from_secs(secs);
        let mut response = respond::empty(StatusCode::ACCEPTED);
        assert!(!clocks.compare(address, &response, at(2000)), "no Date");
        let date = httpdate::fmt_http_date(at(1000));
        respond::set(response.headers_mut(), "date", date);
        for agreed in [990, 1000, 1010] {
            assert!(!clocks.compare(address, &response, at(agreed)), "{agreed}");
        }
        for differs in [880, 989, 1011, 1120] {
            assert!(clocks.compare(address, &response, at(differs)), "{differs}");
        }
        assert!(!clocks.is_to_be_told(address), "it was, just now");
        assert!(clocks.is_to_be_told("127.0.0.1:6201".parse().unwrap()));
        respond::set(response.headers_mut(), "date", "noon");
        assert!(!clocks.compare(address, &response, at(2000)), "no time");
    }
}
