//! The PROXY protocol, version 1: a line by which a proxy in front of us, which ends TLS and does
//! not parse HTTP, reports the address of its client (haproxy's `proxy-protocol.txt`, section 2.1).
//! It is sent once, first on each connection.
//!
//!
//! ```text
//! PROXY TCP4 192.0.2.7 192.0.2.1 51234 443\r\n     client, server; client's port, server's
//! PROXY UNKNOWN …\r\n                              nothing is known
//! ```

use std::net::{IpAddr, SocketAddr};

use thiserror::Error;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// Maximum length of a line, its end included.
const LINE_MAX_BYTES: usize = 107;
const START: &[u8] = b"PROXY ";
/// Server port that means TLS, as in Swift.
const TLS_PORT: u16 = 443;

/// Reasons why a connection is refused.
#[derive(Debug, Error)]
pub(crate) enum ProxyLineError {
    #[error("Invalid PROXY line {0:?}")]
    Invalid(String),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// The content of the line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProxyLine {
    /// The client's address; `None`: unknown.
    pub(crate) client: Option<SocketAddr>,
    /// The client's connection to the proxy uses TLS.
    pub(crate) is_tls: bool,
}

/// Reads the line from the connection, and nothing behind it.
pub(crate) async fn read(stream: &mut TcpStream) -> Result<ProxyLine, ProxyLineError> {
    let mut seen = [0; LINE_MAX_BYTES];
    let count = stream.peek(&mut seen).await?;
    // The line usually arrives in one piece.
    let mut line = match end_of_line(&seen[..count]) {
        Some(end) => {
            let mut line = vec![0; end];
            stream.read_exact(&mut line).await?;
            line
        }
        None => Vec::with_capacity(LINE_MAX_BYTES),
    };
    while end_of_line(&line).is_none() {
        let is_start = line.iter().zip(START).all(|(is, should)| is == should);
        if !is_start || line.len() >= LINE_MAX_BYTES {
            return Err(invalid(&line));
        }
        line.push(stream.read_u8().await?);
    }
    parse(&line)
}

/// Offset behind the line, where the following data begins.
fn end_of_line(bytes: &[u8]) -> Option<usize> {
    Some(bytes.iter().position(|b| *b == b'\n')? + 1)
}

fn invalid(line: &[u8]) -> ProxyLineError {
    ProxyLineError::Invalid(String::from_utf8_lossy(line).into_owned())
}

pub(crate) fn parse(line: &[u8]) -> Result<ProxyLine, ProxyLineError> {
    let text = std::str::from_utf8(line).map_err(|_| invalid(line))?;
    let words: Vec<&str> = text.trim_end_matches(['\r', '\n']).split(' ').collect();
    match words[..] {
        ["PROXY", "UNKNOWN", ..] => Ok(ProxyLine::default()),
        [
            "PROXY",
            family @ ("TCP4" | "TCP6"),
            client,
            server,
            client_port,
            server_port,
        ] => {
            let client = address(family, client, client_port).ok_or_else(|| invalid(line))?;
            let server = address(family, server, server_port).ok_or_else(|| invalid(line))?;
            Ok(ProxyLine {
                client: Some(client),
                is_tls: server.port() == TLS_PORT,
            })
        }
        _ => Err(invalid(line)),
    }
}

fn address(family: &str, ip: &str, port: &str) -> Option<SocketAddr> {
    let ip: IpAddr = ip.parse().ok()?;
    let is_of_family = ip.is_ipv4() == (family == "TCP4");
    is_of_family.then_some(SocketAddr::new(ip, port.parse().ok()?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    /// Result of a server that receives these pieces, and the data left after the line.
    async fn sent(pieces: &[&'static [u8]]) -> (Result<ProxyLine, ProxyLineError>, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let pieces: Vec<&[u8]> = pieces.to_vec();
        let sending = tokio::spawn(async move {
            for piece in pieces {
                // A client that was refused may have hung up.
                let _ = client.write_all(piece).await;
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        });
        let line = read(&mut server).await;
        sending.await.unwrap();
        let mut rest = Vec::new();
        server.read_to_end(&mut rest).await.unwrap();
        (line, rest)
    }

    #[tokio::test]
    async fn the_line_is_taken_and_nothing_else() {
        let known = ProxyLine {
            client: Some("192.0.2.7:51234".parse().unwrap()),
            is_tls: true,
        };
        let whole: &[&[u8]] = &[b"PROXY TCP4 192.0.2.7 192.0.2.1 51234 443\r\nGET / HTTP/1.1\r\n"];
        let torn: &[&[u8]] = &[
            b"PR",
            b"OXY TCP4 192.0.2.7 192",
            b".0.2.1 51234 443\r\nGET / HTTP/1.1\r\n",
        ];
        for pieces in [whole, torn] {
            let (line, rest) = sent(pieces).await;
            assert_eq!(line.unwrap(), known);
            assert_eq!(rest, b"GET / HTTP/1.1\r\n");
        }
        let (line, rest) = sent(&[b"PROXY UNKNOWN ffff:f 1 2\r\nx"]).await;
        assert_eq!(line.unwrap(), ProxyLine::default());
        assert_eq!(rest, b"x");
    }

    #[tokio::test]
    async fn what_is_no_line_is_refused() {
        let long: &'static [u8] =
            Box::leak([b"PROXY TCP4 ".as_slice(), &[b'1'; 200]].concat().into());
        for pieces in [
            &[b"GET / HTTP/1.1\r\n".as_slice()],
            &[b"PRO".as_slice()],
            &[long],
        ] {
            let (line, _) = sent(pieces).await;
            assert!(line.is_err(), "{pieces:?}");
        }
    }

    #[test]
    fn lines() {
        let six = parse(b"PROXY TCP6 2001:db8::1 2001:db8::2 1 80\r\n").unwrap();
        assert_eq!(six.client, Some("[2001:db8::1]:1".parse().unwrap()));
        assert!(!six.is_tls);
        for wrong in [
            &b"PROXY\r\n"[..],
            b"PROXY TCP4 192.0.2.7 192.0.2.1 51234\r\n",
            b"PROXY TCP4 192.0.2.7 192.0.2.1 51234 443 x\r\n",
            b"PROXY TCP4 ::1 ::1 1 2\r\n",
            b"PROXY TCP4 192.0.2.7 192.0.2.1 65536 443\r\n",
            b"PROXY UDP4 192.0.2.7 192.0.2.1 1 2\r\n",
            b"proxy TCP4 192.0.2.7 192.0.2.1 1 2\r\n",
        ] {
            assert!(parse(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }
}
