use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

async fn read_in_pieces(heads: &mut Heads<&[u8]>, size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let mut small = vec![0; size];
    while let Ok(n @ 1..) = heads.read(&mut small).await {
        out.extend_from_slice(&small[..n]);
    }
    out
}

#[tokio::test]
async fn a_request_is_made_parseable_and_its_body_left_alone() {
    let wire = b"\r\nPUT /v1/\xff\xfe|x HTTP/1.1\r\nX: \xc3\xa9^\r\nX-Symlink-Target: \0c/\0o\r\n\
        X-Other: \0\r\nX-Object-Meta-\xc3\xa9^: ^\r\n\r\n\xff^\xc3: \n\n|"
        .as_slice();
    let expected = b"\r\nPUT /v1/%FF%FE%7Cx HTTP/1.1\r\nX: \xc3\xa9^\r\n\
        X-Symlink-Target: %00c/%00o\r\nX-Other: \0\r\nX-Object-Meta-^195^169^094: ^\r\n\r\n\
        \xff^\xc3: \n\n|"
        .as_slice();
    for size in [1, 2, 7, 1000] {
        let (mut heads, due, _) = Heads::of_requests(wire);
        assert_eq!(read_in_pieces(&mut heads, size).await, expected);
        assert_eq!(due.0.load(Ordering::Acquire), 0);
    }
}

#[tokio::test]
async fn an_answer_may_come_after_interim_ones() {
    let wire = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 |\r\nX-\xc3\xa9: 1\r\n\r\nX-\xc3: 2\r\n"
        .as_slice();
    let expected = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 |\r\nX-^195^169: 1\r\n\r\n";
    for size in [1, 5, 1000] {
        let (mut heads, _) = Heads::of_one_response(wire);
        let read = read_in_pieces(&mut heads, size).await;
        assert_eq!(read, [expected.as_bytes(), b"X-\xc3: 2\r\n"].concat());
    }
}

#[tokio::test]
async fn names_are_put_back_once() {
    let (socket, mut wire) = tokio::io::duplex(16);
    let (mut heads, _, names) = Heads::of_requests(socket);
    let mut headers = http::HeaderMap::new();
    for (name, value) in [
        ("x-meta-^195^169t", "1"),
        ("x-b", "2"),
        ("x-meta-^094", "3"),
    ] {
        headers.append(name, http::HeaderValue::from_static(value));
    }
    headers.append("x-meta-^094", http::HeaderValue::from_static("4"));
    names.stand_in(&mut headers);
    assert!(!has_escapes(&headers));
    let lines = headers.iter().map(|(name, value)| {
        let value = value.to_str().unwrap();
        format!("{name}: {value}\r\n")
    });
    let head: String = lines.collect();
    let written = tokio::spawn(async move {
        let parts = [
            io::IoSlice::new(b"before"),
            io::IoSlice::new(head.as_bytes()),
        ];
        assert_eq!(heads.write_vectored(&parts).await.unwrap(), 6);
        heads.write_all(head.as_bytes()).await.unwrap();
        heads.write_all(b"body").await.unwrap();
        heads.shutdown().await.unwrap();
    });
    let mut read = Vec::new();
    wire.read_to_end(&mut read).await.unwrap();
    written.await.unwrap();
    let text = String::from_utf8(read).unwrap();
    let mut lines: Vec<&str> = text.split("\r\n").collect();
    assert_eq!(lines.pop(), Some("body"));
    lines[0] = lines[0].strip_prefix("before").unwrap();
    lines.sort_unstable();
    assert_eq!(
        lines,
        ["X-Meta-^: 3", "X-Meta-^: 4", "X-Meta-\u{e9}T: 1", "x-b: 2"]
    );
}

#[tokio::test]
async fn a_late_end_says_nothing() {
    let (mut client, socket) = tokio::io::duplex(1000);
    let (mut heads, due, _) = Heads::of_requests(socket);
    let mut exchange = async |bytes: &[u8], expected: &[u8]| {
        client.write_all(bytes).await.unwrap();
        let mut read = vec![0; 1000];
        let n = heads.read(&mut read).await.unwrap();
        assert_eq!(&read[..n], expected);
    };
    exchange(
        b"PUT / HTTP/1.1\r\n^: 1\r\n\r\n",
        b"PUT / HTTP/1.1\r\n^094: 1\r\n\r\n",
    )
    .await;
    let first = due.begin();
    exchange(b"^: 1", b"^: 1").await;
    let second = due.begin();
    first.ended();
    exchange(b"^: 2", b"^: 2").await;
    second.ended();
    exchange(
        b"PUT / HTTP/1.1\r\n^: 2\r\n\r\n",
        b"PUT / HTTP/1.1\r\n^094: 2\r\n\r\n",
    )
    .await;
}

/// Found by fuzzing: a NUL became `%00` if another byte of the same piece was escaped, and was
/// otherwise refused by the parser.
#[tokio::test]
async fn a_byte_changes_the_same_wherever_a_head_is_cut() {
    let wire = b"PUT /\0/\xff HTTP/1.1\r\nX-Copy-From: \0c/\xff\r\n\r\n".as_slice();
    let expected = b"PUT /\0/%FF HTTP/1.1\r\nX-Copy-From: %00c/\xff\r\n\r\n".as_slice();
    for size in [1, 2, 7, 1000] {
        let (mut heads, _, _) = Heads::of_requests(wire);
        assert_eq!(read_in_pieces(&mut heads, size).await, expected);
    }
}

/// A head that other programs could parse differently is rejected by the parser.
#[tokio::test]
async fn ambiguous_heads_are_made_unparseable() {
    for wire in [
        "GET / HTTP/1.1\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\n",
        "GET / HTTP/1.1\r\nHost: a\n\n",
        "GET / HTTP/1.1\r\nX\n: b\r\n\r\n",
        "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n",
        "PUT / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        "PUT / HTTP/1.1\r\ntransfer-encoding: chunked\r\nX: y\r\ncontent-length: 5\r\n\r\n",
        "PUT / HTTP/1.1\r\nTransfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n\r\n",
    ] {
        for size in [1, 2, 7, 1000] {
            let (mut heads, _, _) = Heads::of_requests(wire.as_bytes());
            let read = read_in_pieces(&mut heads, size).await;
            assert!(read.contains(&0), "{wire:?} in pieces of {size}");
        }
    }
}

#[tokio::test]
async fn plain_heads_stay_as_they_are() {
    for wire in [
        "\r\nGET / HTTP/1.1\r\nHost: a\r\nX-Host: b\r\nHosts: c\r\n\r\n",
        "PUT / HTTP/1.1\r\nContent-Length: 1\r\nTE: trailers\r\n\r\n\n",
        "PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nX-Content-Length: 1\r\n\r\n",
    ] {
        for size in [1, 3, 1000] {
            let (mut heads, _, _) = Heads::of_requests(wire.as_bytes());
            assert_eq!(read_in_pieces(&mut heads, size).await, wire.as_bytes());
        }
    }
}
