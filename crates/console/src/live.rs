//! Live view of a run by server-sent events, read from the run folder while the lab writes it. A
//! page opened later gets the whole history first, thinned if it is long; a finished run is sent in
//! the same way, to its end.
//!
//! Each event is a JSON object with a `type`: `begin`, `entry` (the history's line), `samples` and
//! `resources` (lines of `timeline.ndjson` and `resources.ndjson`), `log` (output of the lab's
//! process), `stages` (figures of finished stages have changed and should be fetched), `end`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_http::{Body, BodySender, Response};
use cairn_lab::record::RunFolder;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::Console;
use crate::history::{Stamp, stamp_of};
use crate::status::{self, no_store};

const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of keep-alive comments, for proxies that would close a silent connection.
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// Maximum number of lines sent of a long history.
const LINES_MAX: usize = 4000;
/// Maximum bytes read of a file; of a larger one only the end is read.
const TAIL_MAX_BYTES: u64 = 64 << 20;
const LINES_PER_EVENT_MAX: usize = 250;

/// The events of the existing run `id`.
pub(crate) fn events(console: Arc<Console>, id: String) -> Response {
    let (sender, body) = Body::channel(None, 8);
    tokio::spawn(async move {
        tokio::select! {
            _ = tell(&console, id, &sender) => {}
            () = sender.closed() => {}
            () = ended(console.stop.clone()) => {}
        }
        sender.finish().await;
    });
    let mut response = status::content("text/event-stream", body);
    no_store(&mut response);
    response
}

async fn ended(mut stop: watch::Receiver<bool>) {
    // A dropped sender is an end too.
    let _ = stop.wait_for(|s| *s).await;
}

/// Sends events until the run has ended, or the reader is gone.
async fn tell(console: &Arc<Console>, id: String, sender: &BodySender) -> Option<()> {
    let permit = console.views.clone().acquire_owned().await.ok()?;
    let mut look = Look::new(console, id);
    send(sender, &json!({"type": "begin"})).await?;
    let mut pinged = Instant::now();
    loop {
        let console = console.clone();
        let (back, news, over) = tokio::task::spawn_blocking(move || {
            let (news, over) = look.news(&console);
            (look, news, over)
        })
        .await
        .ok()?;
        look = back;
        for event in &news {
            send(sender, event).await?;
        }
        if over {
            send(sender, &json!({"type": "end"})).await?;
            break;
        }
        if !news.is_empty() {
            pinged = Instant::now();
        } else if pinged.elapsed() > PING_INTERVAL {
            pinged = Instant::now();
            sender
                .send(Bytes::from_static(b": here\n\n"))
                .await
                .then_some(())?;
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
    drop(permit);
    Some(())
}

async fn send(sender: &BodySender, event: &Value) -> Option<()> {
    let text = Bytes::from(format!("data: {event}\n\n"));
    sender.send(text).await.then_some(())
}

/// State of a run at the last check.
struct Look {
    id: String,
    timeline: Tail,
    resources: Tail,
    stages: PathBuf,
    seen_stages: Option<Stamp>,
    seen_entry: Value,
    seen_log: u64,
}

impl Look {
    fn new(console: &Console, id: String) -> Look {
        let folder = RunFolder::new(console.history.folder(&id));
        Look {
            id,
            timeline: Tail::new(folder.timeline()),
            resources: Tail::new(folder.resources()),
            stages: folder.stages(),
            seen_stages: None,
            seen_entry: Value::Null,
            seen_log: 0,
        }
    }

    /// Events since the last check, and whether the run has ended. Blocks.
    fn news(&mut self, console: &Console) -> (Vec<Value>, bool) {
        let mut news = Vec::new();
        // The state is read first: if it says that the run has ended, all files are complete.
        let Some(entry) = console.history.entry(&self.id) else {
            return (news, true);
        };
        let over = entry.note.state.is_over();
        let entry = serde_json::to_value(&entry).unwrap_or_default();
        for (kind, tail) in [
            ("samples", &mut self.timeline),
            ("resources", &mut self.resources),
        ] {
            for lines in tail.lines().chunks(LINES_PER_EVENT_MAX) {
                news.push(json!({"type": kind, "lines": lines}));
            }
        }
        if let Some(log) = console.queue.log(&self.id) {
            let (last, lines) = log.after(self.seen_log);
            self.seen_log = last;
            if !lines.is_empty() {
                news.push(json!({"type": "log", "lines": lines}));
            }
        }
        let stages = stamp_of(&self.stages);
        if stages != self.seen_stages {
            self.seen_stages = stages;
            news.push(json!({"type": "stages"}));
        }
        if entry != self.seen_entry {
            news.push(json!({"type": "entry", "entry": entry}));
            self.seen_entry = entry;
        }
        (news, over)
    }
}

/// Reader of JSON lines in a growing file.
struct Tail {
    path: PathBuf,
    offset: u64,
    /// The beginning of an incomplete line.
    partial: Vec<u8>,
}

impl Tail {
    fn new(path: PathBuf) -> Tail {
        Tail {
            path,
            offset: 0,
            partial: Vec::new(),
        }
    }

    /// Complete lines since the last call. Blocks.
    fn lines(&mut self) -> Vec<Value> {
        let mut bytes = std::mem::take(&mut self.partial);
        if self.read(&mut bytes).is_none() {
            self.partial = bytes;
            return Vec::new();
        }
        let end = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |n| n + 1);
        self.partial = bytes.split_off(end);
        if self.partial.len() as u64 > TAIL_MAX_BYTES {
            self.partial.clear();
        }
        let lines: Vec<&[u8]> = bytes
            .split(|b| *b == b'\n')
            .filter(|l| !l.is_empty())
            .collect();
        let step = lines.len().div_ceil(LINES_MAX).max(1);
        lines
            .into_iter()
            .step_by(step)
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect()
    }

    fn read(&mut self, bytes: &mut Vec<u8>) -> Option<()> {
        let mut file = File::open(&self.path).ok()?;
        let length = file.metadata().ok()?.len();
        if length < self.offset {
            // The file was rewritten.
            self.offset = 0;
            bytes.clear();
        }
        self.offset = self.offset.max(length.saturating_sub(TAIL_MAX_BYTES));
        file.seek(SeekFrom::Start(self.offset)).ok()?;
        let read = file.take(length - self.offset).read_to_end(bytes).ok()?;
        self.offset += read as u64;
        Some(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn lines_as_they_come() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.ndjson");
        let mut tail = Tail::new(path.clone());
        assert!(tail.lines().is_empty());
        let mut file = File::create(&path).unwrap();
        file.write_all(b"{\"a\":1}\n{\"a\":").unwrap();
        assert_eq!(tail.lines(), [json!({"a": 1})]);
        assert!(tail.lines().is_empty());
        file.write_all(b"2}\nnonsense\n{\"a\":3}\n").unwrap();
        assert_eq!(tail.lines(), [json!({"a": 2}), json!({"a": 3})]);
    }

    #[test]
    fn a_long_course_is_thinned() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.ndjson");
        let text: String = (0..3 * LINES_MAX).map(|n| format!("{n}\n")).collect();
        std::fs::write(&path, text).unwrap();
        let lines = Tail::new(path).lines();
        assert_eq!(lines.len(), LINES_MAX);
        assert_eq!((&lines[0], &lines[1]), (&json!(0), &json!(3)));
    }
}
