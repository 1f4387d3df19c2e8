//! A fake store that counts requests and takes a defined time: TempAuth and Swift's objects, as far
//! as needed. One thread per connection.

// Each test uses its own part of the recorded data; helpers of tests may panic.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A request as the store received it.
#[derive(Debug, Clone)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) body_bytes: u64,
    /// `Destination` of a copy, else the metadata of the object that is sent with the request.
    pub(crate) header: String,
    /// Lines of a bulk deletion.
    pub(crate) lines: Vec<String>,
    /// Time from the complete request to the response.
    pub(crate) took: Duration,
}

/// Delay of a response, by the number of the request and its arrival time.
pub(crate) type Delay = dyn Fn(u64, Instant) -> Duration + Send + Sync;

pub(crate) struct Store {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Mutex<Vec<ReceivedRequest>>>,
    /// Number of requests after which it responds to none, and accepts no sign-in.
    lives: Arc<AtomicU64>,
}

impl Store {
    pub(crate) fn start(delay: Box<Delay>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen: Arc<Mutex<Vec<ReceivedRequest>>> = Arc::default();
        let (delay, log): (Arc<Delay>, _) = (Arc::from(delay), seen.clone());
        let objects: Arc<Mutex<HashMap<String, u64>>> = Arc::default();
        let number = Arc::new(AtomicU64::new(0));
        let lives = Arc::new(AtomicU64::new(u64::MAX));
        let of_threads = lives.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (delay, log, objects) = (delay.clone(), log.clone(), objects.clone());
                let (number, lives) = (number.clone(), of_threads.clone());
                std::thread::spawn(move || {
                    serve(stream, address, &delay, &log, &objects, &number, &lives)
                });
            }
        });
        Self {
            address,
            seen,
            lives,
        }
    }

    pub(crate) fn vanish_after(&self, requests: u64) {
        self.lives.store(requests, Ordering::Relaxed);
    }

    pub(crate) fn auth_url(&self) -> String {
        format!("http://{}/auth/v1.0", self.address)
    }

    pub(crate) fn take_seen(&self) -> Vec<ReceivedRequest> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

fn serve(
    stream: TcpStream,
    address: SocketAddr,
    delay: &Arc<Delay>,
    log: &Mutex<Vec<ReceivedRequest>>,
    objects: &Mutex<HashMap<String, u64>>,
    number: &AtomicU64,
    lives: &AtomicU64,
) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut out = stream.try_clone().ok()?;
    let mut input = BufReader::with_capacity(64 * 1024, stream);
    loop {
        let mut line = String::new();
        if input.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let mut words = line.split(' ');
        let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
        let (mut length, mut key, mut told) = (0, String::new(), String::new());
        loop {
            let mut header = String::new();
            input.read_line(&mut header).ok()?;
            if header.trim().is_empty() {
                break;
            }
            let (name, value) = header.split_once(':')?;
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().ok()?;
            } else if name.eq_ignore_ascii_case("x-auth-key") {
                value.trim().clone_into(&mut key);
            } else if name == "Destination" || name.starts_with("X-Object-Meta-") {
                value.trim().clone_into(&mut told);
            }
        }
        let mut lines = Vec::new();
        let mut body = (&mut input).take(length);
        if path.ends_with("?bulk-delete") {
            lines = body.lines().collect::<Result<_, _>>().ok()?;
        } else {
            std::io::copy(&mut body, &mut std::io::sink()).ok()?;
        }
        if path.starts_with("/auth") {
            let url = format!("http://{address}/v1/AUTH_test");
            let has_gone = number.load(Ordering::Relaxed) >= lives.load(Ordering::Relaxed);
            let refusal = match key.as_str() {
                _ if has_gone => Some("503 Gone"),
                "testing" => None,
                _ => Some("401 Unauthorized"),
            };
            if let Some(refusal) = refusal {
                write!(out, "HTTP/1.1 {refusal}\r\nContent-Length: 0\r\n\r\n").ok()?;
                continue;
            }
            write!(
                out,
                "HTTP/1.1 200 OK\r\nX-Auth-Token: t\r\nX-Storage-Url: {url}\r\n\
                 Content-Length: 0\r\n\r\n"
            )
            .ok()?;
            continue;
        }
        let came = Instant::now();
        let at = number.fetch_add(1, Ordering::Relaxed);
        if at >= lives.load(Ordering::Relaxed) {
            return None;
        }
        let due = came + delay(at, came);
        wait_until(due);
        let report = delete_all(&lines, objects);
        let (status, body) = match lines.is_empty() {
            true => answer(&method, &path, length, objects),
            false => (200, report.len() as u64),
        };
        let took = came.elapsed();
        let head =
            format!("HTTP/1.1 {status} X\r\nX-Trans-Id: tx{at}\r\nContent-Length: {body}\r\n\r\n");
        let mut answer = head.into_bytes();
        if !lines.is_empty() {
            answer.extend_from_slice(report.as_bytes());
        } else if method != "HEAD" {
            answer.resize(answer.len() + body as usize, b'x');
        }
        log.lock().unwrap().push(ReceivedRequest {
            method,
            path,
            body_bytes: length,
            header: told,
            lines,
            took,
        });
        out.write_all(&answer).ok()?;
    }
}

/// A bulk deletion, and its report.
fn delete_all(lines: &[String], objects: &Mutex<HashMap<String, u64>>) -> String {
    let mut objects = objects.lock().unwrap();
    let there = |line: &&String| objects.remove(&format!("/v1/AUTH_test/{line}")).is_some();
    let deleted = lines.iter().filter(there).count();
    format!(
        r#"{{"Response Status": "200 OK", "Number Deleted": {deleted},
        "Number Not Found": {}, "Errors": []}}"#,
        lines.len() - deleted
    )
}

fn answer(
    method: &str,
    path: &str,
    length: u64,
    objects: &Mutex<HashMap<String, u64>>,
) -> (u16, u64) {
    let mut objects = objects.lock().unwrap();
    let is_object = path.matches('/').count() > 3;
    match (method, is_object) {
        ("PUT", true) => {
            objects.insert(path.to_owned(), length);
            (201, 0)
        }
        ("GET" | "HEAD", true) => match objects.get(path) {
            Some(length) => (200, *length),
            None => (404, 0),
        },
        ("DELETE", true) => (
            if objects.remove(path).is_some() {
                204
            } else {
                404
            },
            0,
        ),
        ("PUT", false) => (201, 0),
        ("DELETE", false) => (204, 0),
        _ => (200, 0),
    }
}

/// A sleeping thread wakes up late, so the last part is spent spinning.
fn wait_until(due: Instant) {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        if left > Duration::from_micros(200) {
            std::thread::sleep(left - Duration::from_micros(150));
        } else {
            std::thread::yield_now();
        }
    }
}

/// Runs a plan against it, like `cairn lab run` without the command line.
pub(crate) fn run(
    plan: &cairn_lab::plan::Plan,
    folder: &std::path::Path,
) -> (
    cairn_lab::record::RunMeta,
    Vec<cairn_lab::record::StageResult>,
) {
    use cairn_lab::drive::Share;
    run_with(plan, folder, |report| {
        vec![Box::new(local_link(plan, Share::WHOLE, report))]
    })
}

/// A driver in this process.
pub(crate) fn local_link(
    plan: &cairn_lab::plan::Plan,
    share: cairn_lab::drive::Share,
    report: std::sync::mpsc::Sender<cairn_lab::controller::Report>,
) -> cairn_lab::controller::LocalLink {
    use cairn_lab::drive::{Driver, Pools};
    let driver = Driver {
        name: "driver1".into(),
        share,
        seed: plan.seed,
        access: plan.access.clone(),
        // Tests do not wait a minute for an unreachable store.
        options: cairn_lab::target::TargetOptions {
            timeout: Duration::from_secs(5),
            ..Default::default()
        },
        threads: 1,
        pools: Arc::new(Pools::default()),
    };
    cairn_lab::controller::LocalLink::new(driver, 0, report, None, Vec::new())
}

/// Runs a plan with the drivers that `links` makes.
pub(crate) fn run_with(
    plan: &cairn_lab::plan::Plan,
    folder: &std::path::Path,
    links: impl FnOnce(
        std::sync::mpsc::Sender<cairn_lab::controller::Report>,
    ) -> Vec<Box<dyn cairn_lab::controller::Link>>,
) -> (
    cairn_lab::record::RunMeta,
    Vec<cairn_lab::record::StageResult>,
) {
    use cairn_lab::controller::Conductor;
    use cairn_lab::record::{RunFolder, RunMeta};
    let (report, reports) = std::sync::mpsc::channel();
    let meta = RunMeta {
        version: 1,
        id: "test".into(),
        ..RunMeta::default()
    };
    let folder = RunFolder::new(folder);
    let writer = cairn_lab::results::RunWriter::create(folder.clone(), &meta, plan, None).unwrap();
    let conductor = Conductor {
        plan: plan.clone(),
        meta,
        writer,
        links: links(report),
        reports,
        cancel: Arc::default(),
        allow_programs: false,
        observer: &mut |_| {},
        finished: 0,
        reached: false,
        unusable: None,
    };
    let meta = conductor.run().unwrap();
    let stages = std::fs::read(folder.stages()).unwrap();
    (meta, serde_json::from_slice(&stages).unwrap())
}
