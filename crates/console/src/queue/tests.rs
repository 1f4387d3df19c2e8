use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Instant;

use super::*;

/// A fake `cairn lab run`: writes a run.json that depends on the workload's text.
fn program(dir: &Path) -> Program {
    let path = dir.join("lab");
    let script = r#"#!/bin/sh
[ "$2" = report ] && { echo '<html>' > "$3/report.html"; exit; }
while [ $# -gt 0 ]; do case "$1" in --out) out=$2;; *.txt) file=$1;; esac; shift; done
mkdir -p "$out"
echo "running $file"
case "$(cat "$file")" in
  good) echo '{"state":"completed"}' > "$out/run.json";;
  bad) echo 'line 3, column 7: expected a workload' >&2; exit 1;;
  long) trap 'echo "{\"state\":\"cancelled\"}" > "$out/run.json"; exit 3' TERM
        echo '{"state":"running"}' > "$out/run.json"; touch "$out/begun"
        while :; do sleep 0.05; done;;
esac
"#;
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    Program {
        store_ca: None,
        path,
        allow_local: Vec::new(),
    }
}

fn submission(text: &str) -> Submission {
    let json = serde_json::json!({"file_name": "w.txt", "text": text});
    serde_json::from_value(json).unwrap()
}

async fn until(what: &str, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !ready() {
        assert!(Instant::now() < deadline, "{what}: not within 30 seconds");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

struct Bench {
    _dir: tempfile::TempDir,
    queue: Arc<Queue>,
    stop: watch::Sender<bool>,
    work: tokio::task::JoinHandle<()>,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let history = Arc::new(History::open(&dir.path().join("runs")).unwrap());
        let queue = Arc::new(Queue::new(history, program(dir.path())));
        let (stop, stopped) = watch::channel(false);
        let work = tokio::spawn(queue.clone().work(stopped));
        Bench {
            _dir: dir,
            queue,
            stop,
            work,
        }
    }

    fn submit(&self, text: &str) -> String {
        self.queue
            .submit(submission(text), Target::default())
            .unwrap()
    }

    fn note(&self, id: &str) -> Note {
        self.queue.history.entry(id).unwrap().note
    }
}

#[tokio::test]
async fn runs_go_one_after_the_other() {
    let bench = Bench::new();
    let ids = ["good", "bad", "good"].map(|text| bench.submit(text));
    until("the last run", || bench.note(&ids[2]).state == State::Done).await;
    assert_eq!(bench.note(&ids[0]).state, State::Done);
    assert!(
        bench
            .queue
            .history
            .folder(&ids[0])
            .join("report.html")
            .exists()
    );
    let bad = bench.note(&ids[1]);
    assert_eq!(bad.state, State::Failed);
    assert!(bad.message.unwrap().contains("line 3, column 7"));
    let times = ids.map(|id| bench.note(&id));
    assert!(times[0].ended <= times[1].started && times[1].ended <= times[2].started);
}

#[tokio::test]
async fn cancelled_waiting_and_under_way() {
    let bench = Bench::new();
    let (first, second) = (bench.submit("long"), bench.submit("good"));
    until("the first run", || {
        bench.queue.history.folder(&first).join("begun").exists()
    })
    .await;
    assert_eq!(bench.queue.ahead(&second), Some(0));
    assert!(bench.queue.cancel(&second));
    assert_eq!(bench.note(&second).state, State::Cancelled);
    assert!(bench.queue.cancel(&first));
    until("its end", || bench.note(&first).state == State::Cancelled).await;
    assert!(!bench.queue.cancel(&first));
}

#[tokio::test]
async fn the_end_of_the_console_ends_its_run() {
    let bench = Bench::new();
    let first = bench.submit("long");
    until("the run", || {
        bench.queue.history.folder(&first).join("begun").exists()
    })
    .await;
    bench.stop.send_replace(true);
    bench.work.await.unwrap();
    assert_eq!(
        bench.queue.history.entry(&first).unwrap().note.state,
        State::Interrupted
    );
}

#[test]
fn the_log_is_bounded() {
    let log = Log::default();
    (0..LOG_LINES_MAX + 10).for_each(|n| log.add(&n.to_string()));
    let (count, all) = log.after(0);
    assert_eq!(
        (count as usize, all.len()),
        (LOG_LINES_MAX + 10, LOG_LINES_MAX)
    );
    assert_eq!(log.after(count - 2).1.len(), 2);
    assert_eq!(log.after(count).1.len(), 0);
}
