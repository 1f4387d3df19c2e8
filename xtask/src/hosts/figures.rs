//! Effects of an event on the clients, as a line of a table and as JSON.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::clients::{FinishedRequest, kinds_of_errors};

const SECOND: Duration = Duration::from_secs(1);

/// One event's figures.
#[derive(serde::Serialize)]
pub(super) struct Figures {
    pub(super) event: &'static str,
    /// Duration of the fault.
    pub(super) fault_seconds: f64,
    /// Number of the clients' requests.
    pub(super) requests: usize,
    pub(super) errors: usize,
    /// Refusals without a quorum, which are not errors: see [`FinishedRequest::without_quorum`].
    pub(super) without_quorum: usize,
    /// Errors by message.
    pub(super) error_kinds: BTreeMap<String, usize>,
    pub(super) before: Latency,
    pub(super) during: Latency,
    /// Latency during the fault, without its first second.
    pub(super) after_a_second: Latency,
    pub(super) after: Latency,
    /// Seconds from the end of the fault until every replica was on its primaries and nowhere else.
    pub(super) whole_again_seconds: f64,
    /// Descriptions of objects in impossible states.
    pub(super) lost: Vec<String>,
}

/// Latencies of the requests in one phase, from sending to the last byte of the response.
#[derive(serde::Serialize)]
pub(super) struct Latency {
    pub(super) requests: usize,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
    /// Verb of the slowest request.
    pub(super) slowest: &'static str,
}

impl Latency {
    fn of<'a>(seen: impl Iterator<Item = &'a FinishedRequest>) -> Latency {
        let mut all: Vec<(Duration, &'static str)> = seen.map(|s| (s.took, s.verb)).collect();
        all.sort_unstable();
        let at = |share: f64| {
            let index = (all.len() as f64 * share) as usize;
            let took = all.get(index.min(all.len().saturating_sub(1)));
            took.map_or(0.0, |(took, _)| took.as_secs_f64() * 1000.0)
        };
        Latency {
            requests: all.len(),
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            max_ms: at(1.0),
            slowest: all.last().map_or("", |(_, verb)| verb),
        }
    }
}

/// Times of the fault's beginning and end.
pub(super) struct Moments {
    pub(super) fault: Instant,
    pub(super) end: Instant,
}

impl Figures {
    pub(super) fn of(
        event: &'static str,
        seen: &[FinishedRequest],
        moments: &Moments,
        whole_again: Duration,
        lost: Vec<String>,
    ) -> Figures {
        let (fault, end) = (moments.fault, moments.end);
        let of = |within: &dyn Fn(&FinishedRequest) -> bool| {
            Latency::of(seen.iter().filter(|s| within(s)))
        };
        Figures {
            event,
            fault_seconds: (end - fault).as_secs_f64(),
            requests: seen.len(),
            errors: seen.iter().filter(|s| s.is_error()).count(),
            without_quorum: seen.iter().filter(|s| s.without_quorum).count(),
            error_kinds: kinds_of_errors(seen.iter()),
            before: of(&|s| s.began < fault),
            during: of(&|s| s.began >= fault && s.began < end),
            after_a_second: of(&|s| s.began >= fault + SECOND && s.began < end),
            after: of(&|s| s.began >= end),
            whole_again_seconds: whole_again.as_secs_f64(),
            lost,
        }
    }

    pub(super) fn is_good(&self) -> bool {
        self.errors == 0 && self.lost.is_empty()
    }

    /// Describes failures, if any.
    pub(super) fn wrong(&self) -> String {
        let kinds = self.error_kinds.iter();
        let errors = kinds.map(|(kind, count)| format!("{count} × {kind}"));
        let lost = self.lost.iter().map(|words| format!("lost: {words}"));
        errors.chain(lost).collect::<Vec<_>>().join("\n")
    }
}

/// A Markdown table.
pub(super) fn table(all: &[Figures]) -> String {
    let mut text = String::from(
        "| event | requests | errors | no quorum there | p50 ms before / during / after | p99 ms before / during / \
         after | slowest ms | whole again s | lost |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for of in all {
        let (before, during, after) = (&of.before, &of.during, &of.after);
        let slowest = during.max_ms.max(after.max_ms);
        text.push_str(&format!(
            "| {} | {} | {} | {} | {:.0} / {:.0} / {:.0} | {:.0} / {:.0} / {:.0} | {slowest:.0} | {:.1} | {} |\n",
            of.event,
            of.requests,
            of.errors,
            of.without_quorum,
            before.p50_ms,
            during.p50_ms,
            after.p50_ms,
            before.p99_ms,
            during.p99_ms,
            after.p99_ms,
            of.whole_again_seconds,
            of.lost.len(),
        ));
    }
    text
}
