//! Databases that several processes have open: Python's sqlite3, opened as Swift opens it, reads
//! and writes the file while ours is busy with it.
//!
//! Needs `python3`; without it these tests say so and pass.
#![allow(clippy::unwrap_used)]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::{Index, block_on, index, index_with, new_container, object};

/// Reads commands, one a line, and answers each with a line.
const PYTHON: &str = r#"
import hashlib, sqlite3, sys

def chexor(old, name, timestamp):
    new = hashlib.md5(('%s-%s' % (name, timestamp)).encode('utf8')).hexdigest()
    return '%032x' % (int(old, 16) ^ int(new, 16))

def connect():
    conn = sqlite3.connect(sys.argv[1], timeout=float(sys.argv[2]))
    conn.execute('PRAGMA synchronous = NORMAL')
    conn.execute('PRAGMA journal_mode = DELETE')
    conn.create_function('chexor', 3, chexor)
    return conn

conn = None
for line in sys.stdin:
    what, *rest = line.split()
    try:
        conn = conn or connect()
        if what == 'count':
            answer = conn.execute('SELECT count(*) FROM object').fetchone()[0]
        elif what == 'put':
            for name in rest:
                conn.execute("INSERT INTO object (name, created_at, size, content_type, etag) "
                             "VALUES (?, '0000000001.00000', 7, 't', 'e')", (name,))
                conn.commit()
            answer = len(rest)
        elif what == 'close':
            conn.close()
            conn = None
            answer = 0
        print(answer, flush=True)
    except Exception as e:
        print('failed:', e, flush=True)
"#;

struct Python {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Python {
    fn start(file: &Path, timeout: &str) -> Option<Self> {
        let started = Command::new("python3")
            .args(["-c", PYTHON])
            .args([file.as_os_str(), timeout.as_ref()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = started else {
            println!("skipped: there is no python3");
            return None;
        };
        Some(Python {
            stdin: child.stdin.take().unwrap(),
            stdout: BufReader::new(child.stdout.take().unwrap()),
            child,
        })
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.stdin, "{line}").unwrap();
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn with_container(index: &Index) -> std::path::PathBuf {
    let db = index.container("c");
    block_on(db.merge_items(new_container("c"), vec![object("first", 1, 1)])).unwrap();
    // Open for writing and for reading, and kept so.
    block_on(db.merge_items(None, vec![object("second", 1, 1)])).unwrap();
    block_on(db.read(|broker| broker.info())).unwrap();
    db.key().file(index.dir.path())
}

#[test]
fn another_process_reads_and_writes_while_ours_is_busy() {
    let index = index();
    let file = with_container(&index);
    let Some(mut python) = Python::start(&file, "25") else {
        return;
    };
    assert_eq!(python.ask("count"), "2");
    assert_eq!(index.pool.open_count(), 1);

    // Ours writes and reads without a pause.
    let stop = Arc::new(AtomicBool::new(false));
    let db = index.container("c");
    let busy = {
        let (db, stop) = (db.clone(), stop.clone());
        std::thread::spawn(move || {
            let mut written = 0;
            while !stop.load(Ordering::SeqCst) {
                let row = object(&format!("ours-{written}"), 2, 1);
                block_on(db.merge_items(None, vec![row])).unwrap();
                block_on(db.read(|broker| broker.info())).unwrap();
                written += 1;
            }
            written
        })
    };
    let mut theirs = 0;
    for round in 0..20 {
        let names: Vec<String> = (0..5).map(|i| format!("theirs-{round}-{i}")).collect();
        assert_eq!(python.ask(&format!("put {}", names.join(" "))), "5");
        theirs += 5;
        let seen: i64 = python.ask("count").parse().unwrap();
        assert!(seen >= 2 + theirs);
    }
    stop.store(true, Ordering::SeqCst);
    let ours = busy.join().unwrap();
    assert!(ours > 0);
    let info = block_on(db.read(|broker| broker.info())).unwrap();
    assert_eq!(info.object_count, 2 + theirs + ours);
    assert_eq!(python.ask("count"), info.object_count.to_string());
    // No log of SQLite's beside the file, and no journal of anyone; what is pending is in its place.
    let mut names: Vec<_> = std::fs::read_dir(file.parent().unwrap())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.retain(|name| !name.ends_with(".pending"));
    names.sort();
    assert_eq!(
        names,
        [".lock", file.file_name().unwrap().to_str().unwrap()]
    );
}

#[test]
fn an_exclusive_database_is_for_one_process() {
    let index = index_with(|config| {
        config.exclusive = true;
        config.idle_close = Duration::from_secs(600);
    });
    let file = with_container(&index);
    let Some(mut python) = Python::start(&file, "0.2") else {
        return;
    };
    assert!(python.ask("count").starts_with("failed"));
    // Closed, it is a file for anyone again; and one in their mode is taken back.
    index.close(index.container("c").key());
    assert_eq!(python.ask("count"), "2");
    assert_eq!(python.ask("put theirs"), "1");
    assert_eq!(python.ask("close"), "0");
    let info = block_on(index.container("c").read(|broker| broker.info())).unwrap();
    assert_eq!(info.object_count, 3);
}

#[test]
fn what_an_exclusive_process_left_is_opened_shared() {
    let killed = index_with(|config| config.exclusive = true);
    let file = with_container(&killed);
    let shared = index();
    let key = shared.container("c").key().clone();
    let dir = key.dir(shared.dir.path());
    std::fs::create_dir_all(&dir).unwrap();
    // As a kill leaves it: rows in the log, and nobody who merged it.
    for name in std::fs::read_dir(file.parent().unwrap()).unwrap() {
        let from = name.unwrap().path();
        std::fs::copy(&from, dir.join(from.file_name().unwrap())).unwrap();
    }
    assert!(dir.join(format!("{}.db-wal", key.hash.hex())).exists());
    let info = block_on(shared.container("c").read(|broker| broker.info())).unwrap();
    assert_eq!(info.object_count, 2);
    assert!(!dir.join(format!("{}.db-wal", key.hash.hex())).exists());
    if let Some(mut python) = Python::start(&key.file(shared.dir.path()), "25") {
        assert_eq!(python.ask("count"), "2");
    }
}

/// Each keeps a thread waiting for its lock, and others their device.
#[test]
fn locked_databases_hold_up_no_other() {
    let index = index();
    let write = |name: &str| {
        let db = index.container(name);
        block_on(db.write(new_container(name), |broker| {
            broker.set_reconciler_sync_point(1)
        }))
    };
    let names = ["one", "two", "three"];
    let locks: Vec<_> = names
        .map(|name| {
            write(name).unwrap();
            let file = index.container(name).key().file(index.dir.path());
            let stranger = rusqlite::Connection::open(file).unwrap();
            stranger.execute_batch("BEGIN EXCLUSIVE").unwrap();
            stranger
        })
        .into();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for name in names {
            scope.spawn(|| {
                write(name).unwrap();
                ended.store(true, Ordering::SeqCst);
            });
        }
        std::thread::sleep(Duration::from_millis(100));
        write("other").unwrap();
        assert!(!ended.load(Ordering::SeqCst));
        drop(locks);
    });
}

/// Its turn keeps commits waiting, and these may be what the pool's table waits for.
#[test]
#[cfg(debug_assertions)]
fn a_reader_that_uses_the_pool_is_refused() {
    for exclusive in [false, true] {
        let index = index_with(|config| config.exclusive = exclusive);
        with_container(&index);
        let pool = index.pool.clone();
        let counted = block_on(index.container("c").read(move |_| Ok(pool.open_count())));
        match exclusive {
            false => assert!(counted.is_err(), "out of order, and not refused"),
            true => assert_eq!(counted.unwrap(), 1, "there are no turns to wait for"),
        }
        let info = block_on(index.container("c").read(|broker| broker.info())).unwrap();
        assert_eq!(info.object_count, 2);
    }
}
