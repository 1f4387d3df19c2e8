//! Answers of every form, cut anywhere, and bytes that are none.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;

/// An answer as it was read: status, body, whether the connection stays, id of the transaction.
type Read = (u16, Vec<u8>, bool, String);

/// Feeds an answer in pieces of `step` bytes until it is whole, or else to the connection's end.
fn read(wire: &[u8], step: usize, bodiless: bool) -> Result<Read, ErrorKind> {
    let mut kept = Kept::default();
    let mut transaction = String::new();
    let mut parser = Parser::default();
    parser.start(bodiless);
    let mut whole = false;
    for piece in wire.chunks(step) {
        let mut sink = Sink::Keep(&mut kept);
        whole = parser.feed(piece, &mut sink, &mut transaction)?;
        assert!(parser.partial.len() < HEAD_BYTES);
        if whole {
            break;
        }
    }
    let reply = if whole {
        parser.reply()
    } else {
        parser.closed()?
    };
    assert_eq!(reply.bytes, kept.body.len() as u64);
    Ok((reply.status, kept.body, reply.keep_alive, transaction))
}

/// An answer's body on the wire.
#[derive(Clone, Debug)]
enum Framing {
    Length,
    /// Sizes of the chunks, an extension of each, and a trailer.
    Chunks(Vec<usize>, &'static str, &'static str),
    ToTheEnd,
}

fn framing() -> impl Strategy<Value = Framing> {
    let extensions = select(vec!["", ";name=value", " ", "\t;a;b=\"c\""]);
    let trailers = select(vec!["", "Etag: 5\r\n", "a: b\r\nc: d\r\n"]);
    let chunks = proptest::collection::vec(1..40usize, 1..5);
    prop_oneof![
        Just(Framing::Length),
        Just(Framing::ToTheEnd),
        (chunks, extensions, trailers).prop_map(|(sizes, e, t)| Framing::Chunks(sizes, e, t)),
    ]
}

fn framed(body: &[u8], framing: &Framing) -> (String, Vec<u8>) {
    let Framing::Chunks(sizes, extension, trailer) = framing else {
        let length = format!("Content-Length: {}\r\n", body.len());
        let is_told = matches!(framing, Framing::Length);
        return (if is_told { length } else { String::new() }, body.to_vec());
    };
    let mut wire = Vec::new();
    let (mut rest, mut sizes) = (body, sizes.iter().cycle());
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
        // Both cases of the digits, and zeros before them.
        let size = if chunk.len() % 2 == 0 {
            format!("{:x}", chunk.len())
        } else {
            format!("00{:X}", chunk.len())
        };
        wire.extend_from_slice(format!("{size}{extension}\r\n").as_bytes());
        wire.extend_from_slice(chunk);
        wire.extend_from_slice(b"\r\n");
        rest = after;
    }
    wire.extend_from_slice(format!("0{extension}\r\n{trailer}\r\n").as_bytes());
    ("TRANSFER-encoding: chunked\r\n".to_owned(), wire)
}

/// Pieces of answers in any order.
fn nearly_an_answer() -> impl Strategy<Value = Vec<u8>> {
    let known = select(vec![
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.0 204 No\r\n",
        "Content-Length: 3\r\n",
        "Content-Length: 18446744073709551615\r\n",
        "Content-Length: +3\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Connection: close\r\n",
        "\r\n",
        "3\r\nabc\r\n",
        "0\r\n\r\n",
        "ffffffffffffffff",
        ";x",
        "abc",
    ]);
    let any = proptest::collection::vec(any::<u8>(), 0..6);
    let piece = prop_oneof![6 => known.prop_map(|text| text.as_bytes().to_vec()), 1 => any];
    proptest::collection::vec(piece, 0..10).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn an_answer_is_read_as_it_was_written(
        interim in 0..3usize,
        minor in 0..2u8,
        status in prop_oneof![200..600u16, Just(204), Just(304)],
        close in select(vec!["", "Connection: close\r\n", "connection: Keep-Alive\r\n"]),
        id in "[a-z0-9-]{0,120}",
        framing in framing(),
        body in proptest::collection::vec(any::<u8>(), 0..120),
        behind in select(vec!["", "HTTP/1.1 200 OK\r\n\r\n"]),
        head_only: bool,
        step in 1..200usize,
    ) {
        let is_bodiless = head_only || status == 204 || status == 304;
        let to_the_end = matches!(framing, Framing::ToTheEnd) && !is_bodiless;
        let (header, content) = framed(&body, &framing);
        let head = format!("HTTP/1.{minor} {status} Any\r\n{header}{close}X-Trans-Id: {id}\r\n\r\n");
        let mut wire = "HTTP/1.1 100 Continue\r\n\r\n".repeat(interim).into_bytes();
        wire.extend_from_slice(head.as_bytes());
        if !is_bodiless {
            wire.extend_from_slice(&content);
        }
        let end = wire.len();
        if !to_the_end {
            wire.extend_from_slice(behind.as_bytes());
        }
        let stays = match close {
            "" => minor == 1,
            told => told.contains("Keep"),
        };
        // Bytes behind the answer are seen in the piece that has its end.
        let is_clean = wire.len() == end || end.is_multiple_of(step);
        let body = if is_bodiless { Vec::new() } else { body };
        let id = id[..id.len().min(100)].to_owned();
        let expected = (status, body, stays && is_clean && !to_the_end, id);
        prop_assert_eq!(read(&wire, step, head_only), Ok(expected));
        // An answer without its last byte is none, unless the connection's end is its end.
        let cut = read(&wire[..end - 1], step, head_only);
        prop_assert!(to_the_end || cut == Err(ErrorKind::Closed), "{:?}", cut);
    }

    #[test]
    fn any_bytes_are_read_alike_however_cut(
        wire in prop_oneof![
            nearly_an_answer(),
            nearly_an_answer().prop_map(|rest| [b"HTTP/1.1 200 OK\r\n".to_vec(), rest].concat()),
        ],
        step in 1..20usize,
        bodiless: bool,
    ) {
        let content = |read: Read| (read.0, read.1, read.3);
        let whole = read(&wire, wire.len().max(1), bodiless).map(content);
        prop_assert_eq!(&read(&wire, step, bodiless).map(content), &whole);
        prop_assert!(whole.is_err() || whole.is_ok_and(|(_, body, _)| body.len() <= wire.len()));
    }

    /// A length in a form that the standard does not have could be read as another by a proxy.
    #[test]
    fn a_length_is_only_digits_and_one(length in "[+-]?[0-9]{0,4}[ x,;]?[0-9]{0,2}", other in 0..3u8) {
        let is_number = !length.trim().is_empty() && length.trim().bytes().all(|b| b.is_ascii_digit());
        let value = length.trim().parse::<usize>().unwrap_or(0);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nContent-Length: {other}\r\n\r\n");
        let wire = [head.into_bytes(), vec![b'a'; 2000]].concat();
        let body = read(&wire, 4000, false).map(|read| read.1.len());
        match is_number && value == usize::from(other) {
            true => prop_assert_eq!(body, Ok(value)),
            false => prop_assert_eq!(body, Err(ErrorKind::Protocol)),
        }
    }

    #[test]
    fn a_chunks_size_is_hex_digits(size in "[0-9a-fA-F]{0,17}", after in "[ ;x-]?[a-f]{0,3}") {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let wire = format!("{head}{size}{after}\r\n\r\n");
        let digits = after.find([' ', ';', 'x', '-']).unwrap_or(after.len());
        let (size, rest) = (format!("{size}{}", &after[..digits]), &after[digits..]);
        let is_size = !rest.starts_with(['x', '-']);
        let expected = match u128::from_str_radix(&size, 16) {
            Ok(0) if is_size => Ok(Vec::new()),
            // The chunk is cut short.
            Ok(1..=0xffff_ffff_ffff_ffff) if is_size => Err(ErrorKind::Closed),
            _ => Err(ErrorKind::Protocol),
        };
        // One byte, or two, are the whole of a short chunk, which something has to follow.
        prop_assume!(!matches!(u128::from_str_radix(&size, 16), Ok(1..=2)));
        prop_assert_eq!(read(wire.as_bytes(), 100, false).map(|read| read.1), expected);
    }
}
