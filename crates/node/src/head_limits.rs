//! Limits of a request's head that swift.conf sets for a proxy's clients: `max_request_line` (414)
//! and `max_header_size`, per line (400). A head that is too large as a whole, or has too many
//! lines, is refused earlier: see `ServeOptions`.

use std::sync::Arc;

use cairn_http::{Handler, Request, Service, ServiceFuture};
use cairn_types::Constraints;

use crate::status::{self, TooLong};

/// Bytes of `: ` and CR LF.
const HEADER_EXTRA_BYTES: usize = 4;
/// Bytes of two spaces, the protocol's version and CR LF.
const REQUEST_LINE_EXTRA_BYTES: usize = " HTTP/1.1\r\n".len() + 1;

struct HeadLimits {
    next: Handler,
    max_header_size: usize,
    max_request_line: usize,
}

pub(crate) fn around(next: Handler, constraints: &Constraints) -> Handler {
    Arc::new(HeadLimits {
        next,
        max_header_size: constraints.max_header_size,
        max_request_line: constraints.max_request_line,
    })
}

impl HeadLimits {
    fn refusal(&self, request: &Request) -> Option<TooLong> {
        let target = request
            .uri()
            .path_and_query()
            .map_or(0, |t| t.as_str().len());
        let line = request.method().as_str().len() + target + REQUEST_LINE_EXTRA_BYTES;
        if line >= self.max_request_line {
            return Some(TooLong::RequestLine);
        }
        let is_long = request.headers().iter().any(|(name, value)| {
            name.as_str().len() + value.len() + HEADER_EXTRA_BYTES >= self.max_header_size
        });
        is_long.then_some(TooLong::Header)
    }
}

impl Service for HeadLimits {
    fn call<'a>(&'a self, request: Request) -> ServiceFuture<'a> {
        match self.refusal(&request) {
            None => self.next.call(request),
            Some(part) => Box::pin(async move { status::head_too_long(part) }),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cairn_http::{Body, handler_fn, respond};
    use http::StatusCode;
    use http::header::CONNECTION;

    use super::*;

    #[test]
    fn long_lines_are_refused() {
        let next = handler_fn(|_| async { respond::empty(StatusCode::OK) });
        let limits = HeadLimits {
            next,
            max_header_size: 100,
            max_request_line: 50,
        };
        let refusal = |path: usize, header: usize| {
            let request = http::Request::builder()
                .uri(format!("/{}", "p".repeat(path - 1)))
                .header("x-a", "v".repeat(header))
                .body(Body::empty())
                .unwrap();
            limits.refusal(&request).map(|part| {
                let refused = status::head_too_long(part);
                assert_eq!(refused.headers()[CONNECTION], "close");
                refused.status().as_u16()
            })
        };
        assert_eq!(refusal(34, 92), None);
        assert_eq!(refusal(35, 92), Some(414));
        assert_eq!(refusal(34, 93), Some(400));
    }
}
