//! Slow clients: thousands of sockets that read nothing, send nothing or send a byte now and then.
//! Other clients are answered all the while, memory stays bounded, and clients that make no
//! progress are cut off.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{CLIENT_TIMEOUT, Options, Store, all_held};
use cairn_testkit::wire::{Account, Connection};

/// Maximum duration of anybody else's health check, in seconds.
const HEALTH_WAIT_MAX_SECONDS: f64 = 5.0;
/// Maximum growth of memory during the attack, in MB.
const MEMORY_GROWTH_MAX_MB: u64 = 256;

/// Raises the open-file limit: our own sockets need descriptors, and the store inherits the limit
/// from us.
pub(super) fn raise_open_files(sockets: usize) -> Result<()> {
    let now = getrlimit(Resource::Nofile);
    let wanted = sockets as u64 * 2 + 4096;
    let limit = Rlimit {
        current: now.current.map(|current| current.max(wanted)),
        maximum: now.maximum.map(|maximum| maximum.max(wanted)),
    };
    setrlimit(Resource::Nofile, limit).context("raising the limit of open files")
}

pub(super) fn readers(store: &Store, options: &Options) -> Result<String> {
    let mut owner = Account::login(store.port)?;
    owner.must("PUT", "/large", "", &[("X-Container-Read", ".r:*")], b"")?;
    owner.must("PUT", "/large/o", "", &[], &vec![7; 20 << 20])?;
    let path = format!("{}/large/o", owner.path);
    let ask = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    attack(store, options, ask.as_bytes(), b"")
}

pub(super) fn senders(store: &Store, options: &Options) -> Result<String> {
    let mut owner = Account::login(store.port)?;
    owner.must("PUT", "/slow", "", &[], b"")?;
    let head = format!(
        "PUT {}/slow/o HTTP/1.1\r\nHost: a\r\nX-Auth-Token: {}\r\nContent-Length: 1000000\r\n\r\n",
        owner.path, owner.token
    );
    attack(store, options, head.as_bytes(), b"")
}

pub(super) fn idle(store: &Store, options: &Options) -> Result<String> {
    attack(store, options, b"", b"")
}

/// Sends one byte of a head each second (Slowloris).
pub(super) fn heads(store: &Store, options: &Options) -> Result<String> {
    attack(
        store,
        options,
        b"GET /v1/AUTH_test/c HTTP/1.1\r\nX-A: ",
        b"a",
    )
}

/// Opens all sockets, sends `first` on each and then `drip` each second, and measures health checks
/// meanwhile.
fn attack(store: &Store, options: &Options, first: &[u8], drip: &[u8]) -> Result<String> {
    let before = store.resident();
    let mut sockets = Vec::new();
    let (mut worst, mut silent, mut most) = (0f64, 0, 0);
    let mut look = |wait: &mut f64| -> Result<()> {
        let start = Instant::now();
        if !is_healthy(store.port) {
            silent += 1;
        }
        *wait = wait.max(start.elapsed().as_secs_f64());
        most = most.max(store.resident().saturating_sub(before) >> 20);
        Ok(())
    };
    while sockets.len() < options.sockets {
        for _ in 0..100.min(options.sockets - sockets.len()) {
            let address = SocketAddr::from(([127, 0, 0, 1], store.port));
            // A full store may leave the connection in the kernel's accept queue: the attack relies
            // on it.
            let Ok(mut socket) = TcpStream::connect_timeout(&address, Duration::from_secs(1))
            else {
                continue;
            };
            socket.set_nonblocking(true)?;
            let _ = socket.write_all(first);
            sockets.push(socket);
        }
        look(&mut worst)?;
        if worst > 60.0 {
            break;
        }
    }
    let opened = sockets.len();
    let end = Instant::now() + Duration::from_secs(2 * CLIENT_TIMEOUT + 5);
    while Instant::now() < end {
        if !drip.is_empty() {
            sockets.iter_mut().for_each(|s| drop(s.write(drip)));
        }
        look(&mut worst)?;
        std::thread::sleep(Duration::from_secs(1));
    }
    let open = sockets.iter_mut().filter_map(is_open).count();
    drop(sockets);
    let mut broken = Vec::new();
    if worst > HEALTH_WAIT_MAX_SECONDS || silent > 0 {
        broken.push(format!(
            "health checks: {silent} without an answer, the slowest {worst:.1} s"
        ));
    }
    if most > MEMORY_GROWTH_MAX_MB {
        broken.push(format!("{most} MB more memory"));
    }
    if open > opened / 20 && !first.is_empty() {
        broken.push(format!("{open} of {opened} are still open"));
    }
    all_held(
        broken,
        format!(
            "{opened} sockets: health within {:.0} ms, {most} MB more, {open} left after {} s",
            worst * 1000.0,
            2 * CLIENT_TIMEOUT + 5
        ),
    )
}

fn is_healthy(port: u16) -> bool {
    let answer = Connection::new(port).call("GET", "/healthcheck", &[], b"");
    answer.is_ok_and(|answer| answer.status == 200)
}

/// Drains the socket; `None` if it was closed or reset by the store.
fn is_open(socket: &mut TcpStream) -> Option<()> {
    let mut piece = [0; 65_536];
    loop {
        match socket.read(&mut piece) {
            Ok(0) => return None,
            Ok(_) => (),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Some(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            Err(_) => return None,
        }
    }
}
