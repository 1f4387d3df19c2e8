use super::parse::{Kept, Parser, Sink};
use crate::record::ErrorKind;

/// Feeds an answer in pieces of `step` bytes; status, body, whether it was whole.
fn parse(answer: &[u8], step: usize, bodiless: bool) -> Result<(u16, Vec<u8>, bool), ErrorKind> {
    let mut kept = Kept::default();
    let mut parser = Parser::default();
    let mut whole = false;
    let mut transaction = String::new();
    parser.start(bodiless);
    let mut status = 0;
    for piece in answer.chunks(step) {
        let mut sink = Sink::Keep(&mut kept);
        whole = parser.feed(piece, &mut sink, &mut transaction)?;
        status = parser.reply().status;
    }
    Ok((status, kept.body, whole))
}

#[test]
fn answers_in_any_pieces() {
    let length = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello".as_slice();
    let chunks =
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
        3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nT: v\r\n\r\n"
            .as_slice();
    for step in 1..80 {
        assert_eq!(
            parse(length, step, false).unwrap(),
            (200, b"hello".to_vec(), true),
            "{step}"
        );
        assert_eq!(
            parse(chunks, step, false).unwrap(),
            (200, b"hello".to_vec(), true),
            "{step}"
        );
    }
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(parse(head, 100, true).unwrap(), (200, vec![], true));
    assert_eq!(
        parse(b"HTTP/1.1 204 No\r\n\r\n", 100, false).unwrap(),
        (204, vec![], true)
    );
}

#[test]
fn nonsense_is_refused() {
    assert_eq!(
        parse(b"SMTP ready\r\n\r\n", 100, false),
        Err(ErrorKind::Protocol)
    );
    let endless = vec![b'a'; 100_000];
    let mut answer = b"HTTP/1.1 200 OK\r\nX: ".to_vec();
    answer.extend(endless);
    assert_eq!(parse(&answer, 1000, false), Err(ErrorKind::Protocol));
    let length = b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n";
    assert_eq!(parse(length, 100, false), Err(ErrorKind::Protocol));
    let huge = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n";
    assert_eq!(parse(huge, 100, false), Err(ErrorKind::Protocol));
}
