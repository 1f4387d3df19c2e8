//! A broken or hostile memcached: it may answer anything in any form; the store accepts nothing
//! from it that would let a client in as somebody else, and keeps serving.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use md5::{Digest, Md5};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{Options, Store, all_held, tenants};
use cairn_testkit::wire::Connection;

/// Number of memcached servers. A store avoids a failed server for a while, so there are enough for
/// all cases.
const SERVERS: usize = 12;

/// Function that returns the answer to a request for a key; `None`: no answer.
type Answer = Arc<dyn Fn(&str) -> Option<Vec<u8>> + Send + Sync>;

#[derive(Default)]
struct State {
    /// The key that is answered; other keys are misses.
    key: String,
    answer: Option<Answer>,
    asked: usize,
}

pub(super) struct Memcached {
    ports: Vec<u16>,
    state: Arc<Mutex<State>>,
}

impl Memcached {
    pub(super) fn start() -> Result<Memcached> {
        let state: Arc<Mutex<State>> = Arc::default();
        let mut ports = Vec::new();
        for _ in 0..SERVERS {
            let listener = TcpListener::bind(("127.0.0.1", 0))?;
            ports.push(listener.local_addr()?.port());
            let state = state.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    let state = state.clone();
                    std::thread::spawn(move || serve(stream, &state));
                }
            });
        }
        Ok(Memcached { ports, state })
    }

    pub(super) fn addresses(&self) -> String {
        let all = self.ports.iter().map(|port| format!("127.0.0.1:{port}"));
        all.collect::<Vec<_>>().join(",")
    }

    fn set(&self, key: String, answer: Answer) {
        *self.state.lock() = State {
            key,
            answer: Some(answer),
            asked: 0,
        };
    }
}

/// Serves a connection until the client closes it.
fn serve(stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    let mut writer = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["get", key] => {
                let mut state = state.lock();
                let is_ours = state.key == key;
                state.asked += usize::from(is_ours);
                match &state.answer {
                    Some(answer) if is_ours => answer(key),
                    _ => Some(b"END\r\n".to_vec()),
                }
            }
            ["set", _, _, _, length] => {
                let mut value = vec![0; length.parse::<usize>().ok()? + 2];
                reader.read_exact(&mut value).ok()?;
                Some(b"STORED\r\n".to_vec())
            }
            _ => Some(b"NOT_FOUND\r\n".to_vec()),
        };
        // `None`: no answer at all.
        if let Some(answer) = answer {
            writer.write_all(&answer).ok()?;
        }
    }
}

fn value_of(key: &str, flags: u32, value: &[u8]) -> Vec<u8> {
    let head = format!("VALUE {key} {flags} {}\r\n", value.len());
    [head.as_bytes(), value, b"\r\nEND\r\n"].concat()
}

/// Answers with a JSON value for the requested key.
fn says(value: Value) -> Answer {
    let text = value.to_string();
    Arc::new(move |key| Some(value_of(key, 2, text.as_bytes())))
}

fn raw(make: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Answer {
    Arc::new(move |key| Some(make(key)))
}

/// Answers that must let nobody in: false values first, then malformed ones.
fn lies(good: &Value, now: u64) -> Vec<(&'static str, Answer)> {
    let later = now + 3600;
    let text = good.to_string();
    let with = |make: fn(&str, &str) -> Vec<u8>| {
        let text = text.clone();
        raw(move |key| make(key, &text))
    };
    vec![
        (
            "more groups than the user has",
            says(json!([
                later,
                "test,test:tester3,.admin,AUTH_test,.reseller_admin"
            ])),
        ),
        (
            "groups of nobody",
            says(json!([later, "ghost,ghost:ghost,.reseller_admin"])),
        ),
        (
            "a powerful group alone",
            says(json!([later, ".reseller_admin"])),
        ),
        (
            "an expired token",
            says(json!([now - 10, "test,test:tester,.admin,AUTH_test"])),
        ),
        (
            "a time that is none",
            says(json!(["later", "test,test:tester,.admin,AUTH_test"])),
        ),
        (
            "groups that are none",
            says(json!([later, ["test", "test:tester", ".admin"]])),
        ),
        (
            "another kind of value",
            says(json!({"groups": ".reseller_admin"})),
        ),
        (
            "a value without an end to its depth",
            raw(|key| value_of(key, 2, "[".repeat(200_000).as_bytes())),
        ),
        (
            "a pickle",
            with(|key, text| value_of(key, 1, text.as_bytes())),
        ),
        (
            "another key's value",
            with(|_, text| value_of(&"0".repeat(32), 2, text.as_bytes())),
        ),
        (
            "another key's value before none",
            with(|_, text| {
                let mut all = value_of(&"0".repeat(32), 2, text.as_bytes());
                all.extend(b"END\r\n");
                all
            }),
        ),
        (
            "a length that is none",
            raw(|key| format!("VALUE {key} 2 -5\r\n").into_bytes()),
        ),
        (
            "a length without an end",
            raw(|key| format!("VALUE {key} 2 99999999999\r\n").into_bytes()),
        ),
        (
            "a value that breaks off",
            raw(|key| format!("VALUE {key} 2 100\r\n[1").into_bytes()),
        ),
        ("a line without an end", raw(|_| vec![b'V'; 4 << 20])),
        ("no words of it", raw(|_| b"\0\xff\xfe<html>\r\n".to_vec())),
        ("silence", Arc::new(|_| None)),
    ]
}

/// Uses one token after another until the memcached is asked for one; returns the status of that
/// request.
fn asked(store: &Store, answer: &Answer, number: &mut u32) -> Result<u16> {
    let doors = &store.doors;
    for _ in 0..100 {
        *number += 1;
        let token = format!("AUTH_tk{:032x}", *number);
        let key = Md5::digest(format!("AUTH_/token/{token}").as_bytes());
        let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        doors.memcached.set(key, answer.clone());
        let headers = [("X-Auth-Token", token.as_str())];
        let status = Connection::new(doors.cache).call("GET", "/v1/AUTH_test", &headers, b"")?;
        if doors.memcached.state.lock().asked > 0 {
            return Ok(status.status);
        }
    }
    anyhow::bail!("the memcached is not asked for tokens")
}

pub(super) fn answers(store: &Store, _: &Options) -> Result<String> {
    // Logs in as the owner, so that the account exists.
    tenants::owner(store)?;
    let now = tenants::now()?;
    let good = json!([now + 3600, "test,test:tester,.admin,AUTH_test"]);
    let mut number = 0;
    let status = asked(store, &says(good.clone()), &mut number)?;
    ensure!(
        status / 100 == 2,
        "a token that it knows opens nothing: {status}"
    );
    let before = store.resident();
    let mut broken = Vec::new();
    let lies = lies(&good, now);
    for (words, answer) in &lies {
        let start = Instant::now();
        // A malformed answer may end the connection, but lets nobody in.
        let status = asked(store, answer, &mut number)?;
        if status / 100 == 2 {
            broken.push(format!("{words}: believed ({status})"));
        } else if status >= 500 {
            broken.push(format!("{words}: {status}"));
        }
        if start.elapsed() > Duration::from_secs(6) {
            broken.push(format!(
                "{words}: answered after {:.1} s",
                start.elapsed().as_secs_f64()
            ));
        }
    }
    let grown = store.resident().saturating_sub(before) >> 20;
    if grown > 64 {
        broken.push(format!("{grown} MB more memory"));
    }
    let status = asked(store, &says(good), &mut number)?;
    if status / 100 != 2 {
        broken.push(format!("it is not believed any more afterwards: {status}"));
    }
    all_held(broken, format!("{} answers tried", lies.len()))
}
