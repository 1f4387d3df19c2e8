//! Responses to conditional writes that the proxy itself generates.

use cairn_http::Response;
use http::header::HeaderName;

use super::judge::Verdict;
use crate::status;

/// Reasons why a conditional write is refused.
pub(super) enum Refusal<'a> {
    /// A condition is malformed.
    Unreadable(&'a HeaderName),
    DoesNotHold,
    Unsupported(&'a str),
    /// The write was abandoned; nothing was written.
    GivenUp(Verdict),
    /// Some servers have committed the write, or may have, but no majority.
    InDoubt,
    /// The servers have content with different ETags.
    EtagsDiffer,
}

impl Refusal<'_> {
    pub(super) fn into_response(self) -> Response {
        match self {
            Refusal::Unreadable(name) => status::malformed(format!(
                "{name} has bytes that no ETag has: send ETags or *"
            )),
            Refusal::DoesNotHold => status::condition_fails(),
            Refusal::Unsupported(reason) => status::unsupported(reason),
            Refusal::GivenUp(verdict) => given_up(verdict),
            Refusal::InDoubt => status::try_again(
                "It is not known whether the conditional write took place: read the object with \
                 X-Newest: true",
            ),
            Refusal::EtagsDiffer => status::servers_differ(),
        }
    }
}

fn given_up(verdict: Verdict) -> Response {
    match verdict {
        Verdict::Fails => status::condition_fails(),
        Verdict::InDoubt => status::try_again(
            "Whether an earlier conditional write of this object took place is only known to a server \
             that does not answer: try again in a minute",
        ),
        Verdict::TooFew => status::try_again(
            "Fewer than a majority of the object's servers are ready for a conditional write: try \
             again",
        ),
        Verdict::Unsupported => status::unsupported(
            "An object server of this partition does not know conditional writes",
        ),
        Verdict::Conflict | Verdict::Older | Verdict::Go => status::contended(),
    }
}
