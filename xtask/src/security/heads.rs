//! Request heads that two parsers could read differently (request smuggling), and heads without an
//! end.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::Result;

use super::{Options, Store, all_held};

/// Sends these bytes and returns the status of the first answer; `None` if the connection ends
/// without one. The flag is true if a second answer follows: then the rest was parsed as a request.
pub(super) fn sent(port: u16, bytes: &[u8]) -> Result<(Option<u16>, bool)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(3)))?;
    // A server may have closed the connection before it has read everything.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut piece) {
        answer.extend(&piece[..count]);
    }
    let text = String::from_utf8_lossy(&answer);
    let status = text
        .strip_prefix("HTTP/1.1 ")
        .or_else(|| text.strip_prefix("HTTP/1.0 "))
        .and_then(|rest| rest.get(..3)?.parse().ok());
    // A refusal may quote the first line of the refused request, which has no status.
    let answers = text.match_indices("HTTP/1.").filter(|(at, word)| {
        let rest = text.get(at + word.len() + 1..).unwrap_or_default();
        rest.starts_with(' ') && rest[1..].starts_with(|c: char| c.is_ascii_digit())
    });
    Ok((status, answers.count() > 1))
}

pub(super) fn ambiguous(store: &Store, _: &Options) -> Result<String> {
    let second = "GET /healthcheck HTTP/1.1\r\nHost: x\r\n\r\n";
    let put = "PUT /v1/AUTH_test/c/o HTTP/1.1\r\nHost: x\r\n";
    let heads: [(&str, String); 11] = [
        (
            "both a length and chunks",
            format!(
                "{put}Content-Length: {}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{second}",
                second.len() + 5
            ),
        ),
        (
            "two lengths",
            format!("{put}Content-Length: 0\r\nContent-Length: 5\r\n\r\n{second}"),
        ),
        (
            "a list of lengths",
            format!("{put}Content-Length: 0, 5\r\n\r\n{second}"),
        ),
        (
            "a signed length",
            format!("{put}Content-Length: +0\r\n\r\n{second}"),
        ),
        (
            "two codings",
            format!(
                "{put}Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n{second}"
            ),
        ),
        (
            "a coding that nobody knows",
            format!("{put}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{second}"),
        ),
        (
            "two hosts",
            "GET /healthcheck HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".to_owned(),
        ),
        (
            "a bare line feed as the end of a line",
            "GET /healthcheck HTTP/1.1\nHost: a\n\n".to_owned(),
        ),
        (
            "a space before the colon",
            format!("{put}Content-Length : 0\r\n\r\n{second}"),
        ),
        (
            "a folded line",
            "GET /healthcheck HTTP/1.1\r\nHost: a\r\n b\r\n\r\n".to_owned(),
        ),
        (
            "a bare carriage return in a value",
            "GET /healthcheck HTTP/1.1\r\nHost: a\rX: y\r\n\r\n".to_owned(),
        ),
    ];
    let mut broken = Vec::new();
    for (words, head) in &heads {
        let (status, more) = sent(store.port, head.as_bytes())?;
        let is_refused = matches!(status, None | Some(400 | 401 | 501));
        if !is_refused || more {
            let second = if more {
                ", and the rest for another request"
            } else {
                ""
            };
            broken.push(format!("{words}: answered {status:?}{second}"));
        }
    }
    all_held(broken, format!("{} refused", heads.len()))
}

pub(super) fn endless(store: &Store, _: &Options) -> Result<String> {
    let before = store.resident();
    let long = "a".repeat(4 << 20);
    let many = "X-Object-Meta-A: b\r\n".repeat(100_000);
    let heads = [
        (
            "a path of 4 MB",
            format!("GET /v1/{long} HTTP/1.1\r\nHost: a\r\n\r\n"),
        ),
        (
            "a value of 4 MB",
            format!("GET /healthcheck HTTP/1.1\r\nHost: a\r\nX-A: {long}\r\n\r\n"),
        ),
        (
            "100,000 headers",
            format!("GET /healthcheck HTTP/1.1\r\nHost: a\r\n{many}\r\n"),
        ),
        (
            "a method of 4 MB",
            format!("{long} / HTTP/1.1\r\nHost: a\r\n\r\n"),
        ),
    ];
    let mut broken = Vec::new();
    for (words, head) in &heads {
        let (status, _) = sent(store.port, head.as_bytes())?;
        if !matches!(status, None | Some(400..=431 | 501)) {
            broken.push(format!("{words}: answered {status:?}"));
        }
    }
    let grown = store.resident().saturating_sub(before) >> 20;
    if grown > 64 {
        broken.push(format!("{grown} MB more memory"));
    }
    all_held(broken, format!("{} refused", heads.len()))
}
