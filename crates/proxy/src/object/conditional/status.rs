//! Answers to conditional writes that are not the servers' own, one place for their status codes.

use cairn_http::{Response, respond};
use http::StatusCode;
use http::header::HeaderName;

use super::judge::Verdict;

/// A refusal of a conditional write.
pub(super) enum Refusal<'a> {
    /// 400: a condition that cannot be read.
    Unreadable(&'a HeaderName),
    /// 412
    DoesNotHold,
    /// 501, with the reason.
    Unsupported(&'a str),
    /// The write was given up, and nothing was written.
    GivenUp(Verdict),
    /// 503: some servers have carried it out, or may have, and no majority has.
    InDoubt,
    /// 500: servers have content of different ETags.
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

/// A success of which no server answered 2xx: something newer was there at once. So OpenStack Swift
/// answers.
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
