//! The header line of the PROXY protocol: where it is not enabled it is no valid request, and where
//! it is, only exactly one valid line lets a connection in.

use anyhow::{Result, ensure};

use super::heads::sent;
use super::{Options, Store, all_held};

const GOOD: &str = "PROXY TCP4 192.0.2.7 192.0.2.1 51234 443\r\n";
const HERE: &str = "PROXY TCP4 127.0.0.1 127.0.0.1 51234 80\r\n";

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
}

pub(super) fn lines(store: &Store, _: &Options) -> Result<String> {
    let port = store.doors.line;
    let health = request("/healthcheck");
    let with = |line: &str| sent(port, format!("{line}{health}").as_bytes());
    let (status, _) = with(GOOD)?;
    ensure!(status == Some(200), "a good line opens nothing: {status:?}");
    let mut broken = Vec::new();
    // With the protocol off, neither the line nor the bytes after it are parsed as a request.
    for line in [GOOD, HERE, "PROXY UNKNOWN\r\n"] {
        let (status, more) = sent(store.port, format!("{line}{health}").as_bytes())?;
        if status == Some(200) || more {
            broken.push(format!(
                "it is off, and {line:?}: {status:?}, then more: {more}"
            ));
        }
    }
    let endless = format!("PROXY TCP4 {}", "1".repeat(200_000));
    let padded = format!("PROXY UNKNOWN {}\r\n", "a".repeat(200));
    let malformed = [
        "",
        "PROXY\r\n",
        "PROXY \r\n",
        "proxy TCP4 192.0.2.7 192.0.2.1 1 2\r\n",
        "PROXY TCP4 192.0.2.7 192.0.2.1 51234\r\n",
        "PROXY TCP4 192.0.2.7 192.0.2.1 1 2 3\r\n",
        "PROXY TCP4  192.0.2.7 192.0.2.1 1 2\r\n",
        "PROXY TCP4 ::1 ::1 1 2\r\n",
        "PROXY TCP6 192.0.2.7 192.0.2.1 1 2\r\n",
        "PROXY TCP4 localhost 192.0.2.1 1 2\r\n",
        "PROXY TCP4 192.0.2.7 192.0.2.1 65536 443\r\n",
        "PROXY TCP4 192.0.2.7 192.0.2.1 -1 443\r\n",
        "PROXY UDP4 192.0.2.7 192.0.2.1 1 2\r\n",
        "PROXY UNIX /a /b\r\n",
        "\r\nPROXY TCP4 192.0.2.7 192.0.2.1 1 2\r\n",
        // Version 2 of the protocol, which is binary.
        "\r\n\r\n\0\r\nQUIT\n\u{21}\u{11}\0\u{c}",
        &endless,
        &padded,
    ];
    for line in malformed {
        let (status, more) = with(line)?;
        if status == Some(200) || more {
            let shown: String = line.chars().take(50).collect();
            broken.push(format!("{shown:?}: {status:?}, then more: {more}"));
        }
    }
    // A second line is an invalid request.
    for second in [GOOD, HERE] {
        let (status, more) = with(&format!("{GOOD}{second}"))?;
        if status == Some(200) || more {
            broken.push(format!("a second line: {status:?}, then more: {more}"));
        }
    }
    if store.is_cairn {
        let metrics = |line: &str| sent(port, format!("{line}{}", request("/metrics")).as_bytes());
        let (here, _) = metrics(HERE)?;
        ensure!(here == Some(200), "/metrics is not for this host: {here:?}");
        for line in [GOOD, "PROXY TCP6 2001:db8::1 ::1 1 2\r\n"] {
            let (status, _) = metrics(line)?;
            if status == Some(200) {
                broken.push(format!("/metrics for {line:?}"));
            }
        }
    }
    all_held(broken, format!("{} lines refused", malformed.len() + 5))
}
