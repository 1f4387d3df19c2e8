//! Rules by which failed requests are sent again.

use std::time::Duration;

use rand::RngExt;

use crate::error::ClientError;

/// How often, and how long after each other, a request is sent until it succeeds.
#[derive(Clone, Debug)]
pub struct Retries {
    /// Maximum number of times that a request is sent.
    pub attempts: u32,
    /// Pause before the second attempt; doubled for each further one.
    pub pause_min: Duration,
    pub pause_max: Duration,
    /// Each pause is shortened by up to a half, at random, so that clients that were disconnected
    /// together do not all return together.
    pub has_jitter: bool,
    pub causes: RetryCauses,
}

/// Failures after which a request is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryCauses {
    /// Transient ones: no response, or a status that says so (408, 429, 498, 500, 502, 503, 504).
    Transient,
    /// No response, or any status from 500 on.
    ServerErrors,
}

/// Limit of retries for one request, by what a second one could do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repeat {
    /// Sent again after all failures of [`RetryCauses`]. It may then be carried out twice.
    #[default]
    Always,
    /// Sent again only after failures before which the store has done nothing: a conditional write
    /// that succeeded would fail when repeated.
    Unsent,
}

impl Default for Retries {
    fn default() -> Retries {
        Retries {
            attempts: 4,
            pause_min: Duration::from_millis(100),
            pause_max: Duration::from_secs(2),
            has_jitter: true,
            causes: RetryCauses::Transient,
        }
    }
}

impl Retries {
    /// Each request is sent once.
    pub fn none() -> Retries {
        Retries {
            attempts: 1,
            ..Retries::default()
        }
    }

    pub(crate) fn covers(&self, error: &ClientError, repeat: Repeat) -> bool {
        let is_covered = match (self.causes, error.status()) {
            (RetryCauses::ServerErrors, Some(status)) => status.is_server_error(),
            _ => error.is_passing(),
        };
        is_covered && (repeat == Repeat::Always || !error.is_in_doubt())
    }

    /// The pause after an attempt; the first one is 1.
    pub(crate) fn pause(&self, attempt: u32) -> Duration {
        let doubled = 1u32.checked_shl(attempt.saturating_sub(1));
        let pause = self.pause_min.saturating_mul(doubled.unwrap_or(u32::MAX));
        let pause = pause.min(self.pause_max);
        match self.has_jitter {
            true => pause.mul_f64(rand::rng().random_range(0.5..1.0)),
            false => pause,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{Method, StatusCode};

    use super::*;

    #[test]
    fn pauses_double_up_to_a_maximum() {
        let retries = Retries {
            pause_min: Duration::from_secs(2),
            pause_max: Duration::from_secs(64),
            has_jitter: false,
            ..Retries::default()
        };
        let pauses = [1, 2, 5, 6, 7, 99].map(|attempt| retries.pause(attempt).as_secs());
        assert_eq!(pauses, [2, 4, 32, 64, 64, 64]);
        let pause = Retries::default().pause(1).as_millis();
        assert!((50..=100).contains(&pause), "{pause}");
    }

    #[test]
    fn causes_differ_in_statuses() {
        let answered = |status: u16| ClientError::Status {
            method: Method::GET,
            path: String::new(),
            status: StatusCode::from_u16(status).unwrap_or_default(),
            reason: String::new(),
        };
        let of = |causes| Retries {
            causes,
            ..Retries::default()
        };
        for (status, transient, server) in [
            (404, false, false),
            (429, true, false),
            (501, false, true),
            (503, true, true),
            (507, false, true),
        ] {
            let covers = |causes| of(causes).covers(&answered(status), Repeat::Always);
            assert_eq!(covers(RetryCauses::Transient), transient, "{status}");
            assert_eq!(covers(RetryCauses::ServerErrors), server, "{status}");
        }
        let transient = of(RetryCauses::Transient);
        assert!(!transient.covers(&answered(503), Repeat::Unsent));
        assert!(transient.covers(&answered(429), Repeat::Unsent));
    }
}
