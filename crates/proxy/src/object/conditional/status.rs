//! Responses to conditional writes that the proxy itself generates: the one place for their status
//! codes.

use cairn_http::{Response, respond};
use http::StatusCode;
use http::header::HeaderName;

use super::judge::Verdict;

/// Reasons why a conditional write is refused.
pub(super) enum Refusal<'a> {
    /// 400: a condition is malformed.
    Unreadable(&'a HeaderName),
    /// 412: the condition does not hold.
    DoesNotHold,
    /// 501, with the reason.
    Unsupported(&'a str),
    /// The write was abandoned; nothing was written.
    GivenUp(Verdict),
    /// 503: some servers have committed the write, or may have, but no majority.
    InDoubt,
    /// 500: the servers have content with different ETags.
    EtagsDiffer,
}

impl Refusal<'_> {
    pub(super) fn into_response(self) -> Response {
        match self {
            Refusal::Unreadable(name) => respond::text(
                StatusCode::BAD_REQUEST,
                format!("{name} has bytes that no ETag has: send ETags or *"),
            ),
            Refusal::DoesNotHold | Refusal::GivenUp(Verdict::Fails) => {
                respond::standard(StatusCode::PRECONDITION_FAILED)
            }
            Refusal::Unsupported(reason) => {
                respond::text(StatusCode::NOT_IMPLEMENTED, reason.to_owned())
            }
            Refusal::GivenUp(verdict) => given_up(verdict),
            Refusal::InDoubt => respond::text(
                StatusCode::SERVICE_UNAVAILABLE,
                "It is not known whether the conditional write took place: read the object with \
                 X-Newest: true",
            ),
            Refusal::EtagsDiffer => respond::standard(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}

/// The response to a committed write for which no server responded 2xx, since something newer was
/// stored at once. As in OpenStack Swift.
pub(super) fn overtaken() -> Response {
    respond::standard(StatusCode::ACCEPTED)
}

fn given_up(verdict: Verdict) -> Response {
    let (status, text) = match verdict {
        Verdict::InDoubt => (
            StatusCode::SERVICE_UNAVAILABLE,
            "Whether an earlier conditional write of this object took place is only known to a server \
             that does not answer: try again in a minute",
        ),
        Verdict::TooFew => (
            StatusCode::SERVICE_UNAVAILABLE,
            "Fewer than a majority of the object's servers are ready for a conditional write: try \
             again",
        ),
        Verdict::Unsupported => (
            StatusCode::NOT_IMPLEMENTED,
            "An object server of this partition does not know conditional writes",
        ),
        Verdict::Conflict | Verdict::Older | Verdict::Go | Verdict::Fails => (
            StatusCode::CONFLICT,
            "Other conditional writes of this object are under way: read it and try again",
        ),
    };
    respond::text(status, text)
}
