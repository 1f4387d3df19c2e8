//! Progress of a pass on a terminal: a line with the share done and the estimated remaining time.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_daemons::Progress;

const DRAW_INTERVAL: Duration = Duration::from_millis(500);
const BAR_CHARS: usize = 30;

/// Standard output if it is a terminal; stays open when the program closes its own.
pub(crate) fn terminal() -> Option<File> {
    let out = std::io::stdout();
    let fd = out.is_terminal().then(|| out.as_fd().try_clone_to_owned());
    Some(File::from(fd?.ok()?))
}

/// Draws until dropped.
pub(crate) async fn show(mut terminal: File, what: &'static str, progress: Arc<Progress>) {
    let started = Instant::now();
    loop {
        let (done, of) = progress.get();
        // The terminal may be gone.
        let _ = write!(
            terminal,
            "\r{}\x1b[K",
            line(what, done, of, started.elapsed())
        );
        tokio::time::sleep(DRAW_INTERVAL).await;
    }
}

/// Prints the final line.
pub(crate) fn end(mut terminal: File, what: &str, progress: &Progress, took: Duration) {
    let (done, of) = progress.get();
    let took = clock(took.as_secs());
    let _ = writeln!(
        terminal,
        "\r{what}: {done} of {of} partitions in {took}\x1b[K"
    );
}

fn line(what: &str, done: u64, of: u64, elapsed: Duration) -> String {
    if of == 0 {
        return format!(
            "{what}: looking for partitions, {}",
            clock(elapsed.as_secs())
        );
    }
    let share = (done as f64 / of as f64).min(1.0);
    let full = (share * BAR_CHARS as f64) as usize;
    let bar = "#".repeat(full) + &".".repeat(BAR_CHARS - full);
    let left = match done {
        0 => "?".to_owned(),
        done => {
            clock((elapsed.as_secs_f64() / done as f64 * of.saturating_sub(done) as f64) as u64)
        }
    };
    let percent = share * 100.0;
    format!("{what} [{bar}] {percent:3.0} %  {done} of {of} partitions, {left} left")
}

/// `0:07`, `1:02:03`.
fn clock(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        hours => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let at = Duration::from_secs(90);
        assert_eq!(line("x", 0, 0, at), "x: looking for partitions, 1:30");
        assert_eq!(
            line("x", 30, 120, at),
            "x [#######.......................]  25 %  30 of 120 partitions, 4:30 left"
        );
        assert!(line("x", 0, 120, at).ends_with("0 of 120 partitions, ? left"));
        assert!(line("x", 130, 120, at).ends_with("130 of 120 partitions, 0:00 left"));
        assert_eq!(clock(3723), "1:02:03");
    }
}
