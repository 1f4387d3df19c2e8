//! Answers of a memcached server: as it writes them, and bytes that only resemble them.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

use super::*;

const KEY: &str = "0cc175b9c0f1b6a831c399e269772661";
const OTHER: &str = "92eb5ffee6ae2fec3ad71c777531578f";

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// The client's end of a connection whose server says these bytes and closes it.
async fn said(answer: &[u8]) -> BufStream<Stream> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (client, server) = tokio::join!(TcpStream::connect(address), listener.accept());
    // The sockets' buffers take all of it.
    server.unwrap().0.write_all(answer).await.unwrap();
    BufStream::new(Stream::Plain(client.unwrap()))
}

fn value_of(answer: &[u8]) -> io::Result<Option<Vec<u8>>> {
    runtime().block_on(async { read_value(&mut said(answer).await, KEY).await })
}

fn has(answer: &[u8], part: &[u8]) -> bool {
    answer.windows(part.len()).any(|window| window == part)
}

/// Pieces of answers in any order.
fn nearly_an_answer() -> impl Strategy<Value = Vec<u8>> {
    let head = |key: &str, rest: &str| format!("VALUE {key} {rest}\r\n").into_bytes();
    let value = |key: &str, rest: &str| [head(key, rest), b"abc\r\n".to_vec()].concat();
    let known = select(vec![
        value(KEY, "2 3"),
        value(KEY, "0 3"),
        value(KEY, "2 3 77"),
        value(OTHER, "2 3"),
        head(KEY, "2 3"),
        head(KEY, "2 0"),
        head(KEY, "2 -1"),
        head(KEY, "2 1048577"),
        head(KEY, "2 18446744073709551615"),
        format!("VALUE {KEY} 2").into_bytes(),
        b"abc\r\n".to_vec(),
        b"\r\n".to_vec(),
        b"END\r\n".to_vec(),
        b"END\n".to_vec(),
        b"SERVER_ERROR out of memory\r\n".to_vec(),
        vec![b'x'; 1100],
    ]);
    let piece = prop_oneof![5 => known, 1 => vec(any::<u8>(), 0..6)];
    let end = select(vec![&b"END\r\n"[..], b""]);
    (vec(piece, 0..5), end).prop_map(|(pieces, end)| [&pieces.concat(), end].concat())
}

proptest! {
    #[test]
    fn a_value_is_read_as_it_was_written(
        value in vec(prop_oneof![select(b"\r\nEND VALUE".to_vec()), any::<u8>()], 0..3000),
        flags in select(vec!["2", "0", "1", "22"]),
        cas in select(vec!["", " 18446744073709551615"]),
        behind in select(vec!["", "END\r\n", "x"]),
    ) {
        let mut answer = format!("VALUE {KEY} {flags} {}{cas}\r\n", value.len()).into_bytes();
        answer.extend_from_slice(&value);
        let content = answer.len();
        answer.extend_from_slice(b"\r\nEND\r\n");
        let end = answer.len();
        answer.extend_from_slice(behind.as_bytes());
        // Values in other formats than JSON are none.
        let expected = (flags == "2").then_some(value);
        prop_assert_eq!(value_of(&answer).unwrap(), expected);
        // Neither is there one before the server says that it was all.
        for cut in [content, end - 1] {
            prop_assert!(value_of(&answer[..cut]).is_err());
        }
    }

    #[test]
    fn only_what_was_asked_for_is_believed(answer in nearly_an_answer()) {
        let Ok(found) = value_of(&answer) else {
            return Ok(());
        };
        prop_assert!(has(&answer, b"END\r\n"));
        if let Some(value) = found {
            let length = value.len().to_string();
            let mut whole = vec![];
            for cas in ["", " 77"] {
                whole.push([format!("VALUE {KEY} 2 {length}{cas}\r\n").as_bytes(), &value].concat());
            }
            prop_assert!(whole.iter().any(|whole| has(&answer, whole)));
        }
    }

    #[test]
    fn a_command_is_done_when_the_server_says_so(
        answer in prop_oneof![
            select(vec!["STORED", "DELETED", "NOT_FOUND", "NOT_STORED", "ERROR", "", " STORED"]).prop_map(str::to_owned),
            "[A-Z_ ]{0,12}|.{0,20}",
        ],
        end in select(vec!["\r\n", "\n", "", "\r\nSTORED\r\n"]),
    ) {
        let wire = format!("{answer}{end}");
        for expected in [&["STORED"] as &[&str], &["DELETED", "NOT_FOUND"]] {
            let done = runtime().block_on(async {
                expect(&mut said(wire.as_bytes()).await, expected).await
            });
            let says_so = expected.iter().any(|word| wire.starts_with(&format!("{word}\r\n")));
            prop_assert_eq!(done.is_ok(), says_so);
        }
    }
}
